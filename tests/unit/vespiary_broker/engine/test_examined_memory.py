"""Examined queues when there is little memory: what they hold gets less, and nothing is lost."""

from __future__ import annotations

from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.queues import Consumer
from vespiary_testkit.engine_rig import Rig, sequence_of

COUNT = 3000
LIMIT = 256
INDEXED_MAX = 4 * LIMIT
"""As many in lanes and as many for owners, and one look more of each."""


def _index_of(consumer: Consumer) -> ExaminedQueue:
    examined = consumer.queue.examined
    assert examined is not None
    return examined


def test_an_index_that_holds_more_than_there_is_memory_for_begins_anew() -> None:
    rig = Rig()
    first, second = rig.output(), rig.output()
    consumers = [rig.subscribe(output, "/queue/q", credit=5) for output in (first, second)]
    for number in range(COUNT):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:g%d\n" % (number % 4))
    rig.turns()
    examined = _index_of(consumers[0])
    assert len(examined.indexed()) > COUNT // 2
    assert examined.limit(LIMIT)
    assert not examined.limit(LIMIT)
    rig.dispatcher.poke(consumers[0].queue.id)
    rig.turns()
    assert 0 < len(examined.indexed()) <= INDEXED_MAX
    got: dict[bytes, list[bytes]] = {}
    outputs = dict(zip(consumers, (first, second), strict=True))
    owners: dict[bytes, Consumer] = {}
    total = 0
    while total < COUNT:
        before = total
        for consumer, output in outputs.items():
            output.room = 1 << 20
            for frame in output.frames():
                group = (frame.get("JMSXGroupID") or "").encode()
                assert owners.setdefault(group, consumer) is consumer
                got.setdefault(group, []).append(frame.body)
                rig.core.acknowledge(consumer.handle, sequence_of(frame))
                total += 1
        rig.turns()
        assert len(examined.indexed()) <= INDEXED_MAX
        assert total > before
    assert got == {
        b"g%d" % group: [b"%d" % number for number in range(group, COUNT, 4)] for group in range(4)
    }

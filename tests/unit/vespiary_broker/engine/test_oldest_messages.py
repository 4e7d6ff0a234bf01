"""When the oldest message of a queue came. What is in pages, `test_operator_figures` has."""

from __future__ import annotations

from vespiary_broker.engine.oldest_messages import Oldest
from vespiary_testkit.engine_rig import Rig, sequence_of


def sent_at(rig: Rig, *times_ms: int) -> None:
    for time_ms in times_ms:
        rig.core.set_time(time_ms)
        rig.send("/queue/q", b"x")
    rig.turns()


def test_the_oldest_message_counts_whoever_holds_it() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1)
    sent_at(rig, 5000, 6000, 7000)
    queue, oldest = consumer.queue, rig.engine.oldest
    assert oldest.find(queue) == Oldest(5000)
    rig.core.acknowledge(consumer.handle, sequence_of(output.frames()[0]))
    rig.turns()
    assert oldest.find(queue) == Oldest(6000)
    rig.core.set_aside(queue.id, sequence_of(output.frames()[0]) + 1)
    assert oldest.find(queue) == Oldest(6000)


def test_an_empty_queue_has_none() -> None:
    rig = Rig()
    sent_at(rig, 5000)
    queue = rig.registry.queues["q"]
    rig.core.purge_queue(queue.id)
    rig.turns()
    assert rig.engine.oldest.find(queue) == Oldest()

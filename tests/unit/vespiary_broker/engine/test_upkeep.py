"""Ring queues and last-value queues: what they give up, what they leave, and when."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.dispatch import LOOKS_PER_TURN
from vespiary_broker.engine.queue_kinds import ORDINARY
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.upkeep import LastValues
from vespiary_spec.settings import Address as ConfiguredAddress
from vespiary_spec.settings import AddressSettings
from vespiary_spec.settings import Queue as ConfiguredQueue
from vespiary_testkit.engine_rig import Rig, do, sequence_of
from vespiary_testkit.memory_journal import MemoryJournal


def _rig(**values: Any) -> Rig:
    return Rig({"#": AddressSettings(auto_delete_queues=False, **values)})


def _send(rig: Rig, first: int, end: int, **headers: str) -> None:
    for number in range(first, end):
        rig.send("/queue/q", b"%d" % number, **headers)


def _fill(rig: Rig, size: int) -> None:
    while True:
        rig.core.append_record(5, bytes(size))
        rig.journal.flush()


def _drain(rig: Rig) -> list[bytes]:
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    close_subscription(rig.core, rig.registry, consumer)
    return output.bodies()


def _queue(rig: Rig) -> Queue:
    return rig.registry.queues["q"]


def test_a_ring_keeps_the_newest_also_without_consumers() -> None:
    rig = _rig(default_ring_size=5)
    _send(rig, 0, 20)
    rig.turns()
    assert rig.core.queue_statistics(_queue(rig).id).ready == 5
    assert _queue(rig).upkeeps[0].replaced == 15
    assert _drain(rig) == [b"%d" % n for n in range(15, 20)]


def test_what_consumers_hold_does_not_count_and_goes_when_it_comes_back() -> None:
    rig = _rig(default_ring_size=2)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=3)
    _send(rig, 0, 2)
    rig.turns()
    _send(rig, 2, 4)
    rig.turns()
    assert len(output.bodies()) == 3
    _send(rig, 4, 6)
    rig.turns()
    assert rig.core.queue_statistics(_queue(rig).id).ready == 2
    close_subscription(rig.core, rig.registry, consumer)
    rig.turns()
    assert _drain(rig) == [b"4", b"5"]


def test_a_ring_of_none_keeps_nothing() -> None:
    rig = _rig(default_ring_size=0)
    _send(rig, 0, 3)
    rig.turns()
    assert _drain(rig) == []


def test_a_long_backlog_is_given_up_in_short_turns() -> None:
    rig = _rig(default_ring_size=1)
    count = 4 * LOOKS_PER_TURN
    _send(rig, 0, count)
    assert rig.turns() >= 4
    assert _drain(rig) == [b"%d" % (count - 1)]


def test_the_latest_of_each_value_stays_and_all_without_one() -> None:
    rig = _rig(default_last_value_queue=True)
    for number, value in enumerate("abcab"):
        _send(rig, number, number + 1, _AMQ_LVQ_NAME=value)
    _send(rig, 5, 7)
    rig.turns()
    assert _drain(rig) == [b"2", b"3", b"4", b"5", b"6"]


def test_another_header() -> None:
    rig = _rig(default_last_value_queue=True, default_last_value_key="stock")
    _send(rig, 0, 3, stock="ACME")
    _send(rig, 3, 5, _AMQ_LVQ_NAME="ACME")
    rig.turns()
    assert _drain(rig) == [b"2", b"3", b"4"]


def test_an_older_one_that_is_held_goes_when_it_comes_back() -> None:
    rig = _rig(default_last_value_queue=True)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1)
    _send(rig, 0, 1, _AMQ_LVQ_NAME="a")
    rig.turns()
    (frame,) = output.frames()
    _send(rig, 1, 3, _AMQ_LVQ_NAME="a")
    rig.turns()
    assert rig.core.queue_statistics(_queue(rig).id).ready == 1
    rig.core.give_back(consumer.handle, sequence_of(frame))
    close_subscription(rig.core, rig.registry, consumer)
    rig.turns()
    assert _drain(rig) == [b"2"]


def test_the_only_one_comes_back() -> None:
    rig = _rig(default_last_value_queue=True)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    _send(rig, 0, 1, _AMQ_LVQ_NAME="a")
    rig.turns()
    close_subscription(rig.core, rig.registry, consumer)
    rig.turns()
    assert _drain(rig) == [b"0"]


def test_with_selectors_and_priorities() -> None:
    rig = _rig(default_last_value_queue=True)
    output = rig.output()
    rig.subscribe(output, "/queue/q", selector="colour = 'red'")
    for number, value in enumerate("abab"):
        rig.send("/queue/q", b"%d" % number, priority=4 + number, colour="red", _AMQ_LVQ_NAME=value)
    rig.turns()
    assert output.bodies() == [b"3", b"2"]


def test_values_of_messages_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vespiary_broker.engine.upkeep._FORGET_ABOVE", 10)
    rig = _rig(default_last_value_queue=True)
    for number in range(100):
        _send(rig, number, number + 1, _AMQ_LVQ_NAME=str(number))
        rig.turns()
        assert _drain(rig) == [b"%d" % number]
    (upkeep,) = _queue(rig).upkeeps
    assert isinstance(upkeep, LastValues)
    assert len(upkeep._latest) <= 11


def test_without_room_for_the_ends_the_queue_waits() -> None:
    journal = MemoryJournal(files=1, file_bytes=64 * 1024)
    rig = Rig({"#": AddressSettings(default_ring_size=1)}, journal=journal)
    _send(rig, 0, 2)
    for size in (4000, 8):  # fill the only file to its last block
        with pytest.raises(NoRoom):
            _fill(rig, size)
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.turns()
    assert output.data == b""
    journal.add_file()
    rig.dispatcher.room_made()
    rig.turns()
    assert output.bodies() == [b"1"]


def test_a_configured_queue_has_a_kind_of_its_own_also_after_a_restart() -> None:
    rig = _rig(default_ring_size=7)
    ring = ConfiguredQueue(name="q", ring_size=2)
    others = (
        ConfiguredQueue(name="latest", last_value=True, last_value_key="stock"),
        ConfiguredQueue(name="usual"),
    )
    addresses = [
        ConfiguredAddress(name="q", queues=(ring,)),
        ConfiguredAddress(name="others", queues=others),
    ]
    do(rig.registry.configure(addresses))
    _send(rig, 0, 5)
    rig.turns()
    assert rig.core.queue_statistics(_queue(rig).id).ready == 2
    assert rig.bindings.snapshot()[_queue(rig).key]["ring-size"] == 2
    again = Rig({}, bindings=rig.bindings, journal=rig.journal)
    again.registry.restore()
    kinds = {name: queue.kind for name, queue in again.registry.queues.items()}
    assert kinds["q"].ring_size == 2
    assert kinds["latest"].last_value_key == "stock"
    assert kinds["usual"] is ORDINARY


def _schedule(rig: Rig, body: bytes, at_ms: int, value: str) -> None:
    queue = rig.registry.queues["q"]
    properties = f"destination:x\n_AMQ_LVQ_NAME:{value}\nAMQ_SCHEDULED_TIME:{at_ms}\n".encode()
    handle = rig.registry.queue_route(queue).next_handle()
    rig.core.publish(handle, properties, body, persistent=True, special=True)
    rig.engine.fates.special_sent()


def test_a_scheduled_value_counts_from_its_time_on() -> None:
    rig = _rig(default_last_value_queue=True)
    rig.send("/queue/q", b"now", _AMQ_LVQ_NAME="a")
    _schedule(rig, b"later", rig.now_ms + 5000, "a")
    rig.turns()
    statistics = rig.core.queue_statistics(rig.registry.queues["q"].id)
    assert (statistics.ready, statistics.aside) == (1, 1)
    rig.now_ms += 6000
    rig.turns()
    rig.turns()
    statistics = rig.core.queue_statistics(rig.registry.queues["q"].id)
    assert (statistics.ready, statistics.aside) == (1, 0)
    assert _drain(rig) == [b"later"]


def test_what_came_before_the_time_of_a_scheduled_value_is_older() -> None:
    rig = _rig(default_last_value_queue=True)
    rig.send("/queue/q", b"first", _AMQ_LVQ_NAME="a")
    _schedule(rig, b"scheduled", rig.now_ms + 5000, "a")
    rig.send("/queue/q", b"meanwhile", _AMQ_LVQ_NAME="a")
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", AckMode.INDIVIDUAL, credit=1)
    rig.turns()
    [held] = output.frames()
    assert held.body == b"meanwhile"
    rig.now_ms += 6000
    rig.turns()
    rig.turns()
    rig.registry.returns.give_back(consumer, sequence_of(held))
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    assert output.bodies() == [b"scheduled"]
    assert rig.core.queue_statistics(consumer.queue.id).ready == 0

"""Deliveries that are counted ahead: what leaves when."""

from __future__ import annotations

from typing import Any

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.delivery_counts import CountRules
from vespiary_testkit.engine_rig import FakeOutput, Rig

AHEAD = CountRules(is_ahead=True)


def take_released(rig: Rig, output: FakeOutput) -> list[bytes]:
    """Return the bodies of what leaves now, as the server's cycle has it leave."""
    for handle, data in rig.core.take_receipts():
        assert handle == output.handle
        output.write(data)
        rig.dispatcher.output_ready(output)  # type: ignore[arg-type]
    return output.bodies()


def filled(count: int, **named: Any) -> tuple[Rig, FakeOutput]:
    rig = Rig(count_rules=AHEAD)
    for number in range(1, count + 1):
        rig.send("/queue/q", b"%d" % number, **named)
    rig.journal.flush()
    return rig, rig.output()


def test_messages_leave_once_their_counts_are_durable() -> None:
    rig, output = filled(3)
    rig.subscribe(output, "/queue/q")
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert take_released(rig, output) == []
    assert rig.core.is_urgent()
    rig.journal.flush()
    assert take_released(rig, output) == [b"1", b"2", b"3"]


def test_with_a_selector_as_well() -> None:
    rig, output = filled(3)
    rig.subscribe(output, "/queue/q", selector="colour IS NULL")
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert take_released(rig, output) == []
    rig.journal.flush()
    assert take_released(rig, output) == [b"1", b"2", b"3"]


def test_what_need_not_survive_waits_for_nothing() -> None:
    rig, output = filled(2, persistent=False)
    rig.subscribe(output, "/queue/q")
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert take_released(rig, output) == [b"1", b"2"]


def test_what_waits_takes_room_in_its_connection() -> None:
    rig, output = filled(40, properties=b"x:%b\n" % (b"y" * 1000))
    output.room = 10_000
    rig.subscribe(output, "/queue/q")
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert 9_000 < rig.core.output_waiting(output.handle) <= 12_000
    for _ in range(3):
        rig.dispatcher.poke(1)
        rig.dispatcher.dispatch([])
    assert rig.core.output_waiting(output.handle) <= 12_000
    found = []
    for _ in range(20):
        rig.journal.flush()
        found += take_released(rig, output)
        output.room = 10_000
        rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert found == [b"%d" % number for number in range(1, 41)]


def test_automatic_consumers_wait_for_their_acknowledgements_alone() -> None:
    rig, output = filled(1)
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.turn()
    assert rig.core.queue_statistics(1).acknowledged == 1

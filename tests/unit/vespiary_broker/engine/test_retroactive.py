"""Retroactive addresses: a queue that is made later begins with the latest messages."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.core import AckMode, Look
from vespiary_broker.engine.queue_kinds import QueueKind
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryBindings

KEPT = "$.vespiary.internal.t.queue.multicast.retro"


def rig_with(count: int = 3, bindings: MemoryBindings | None = None, **more: object) -> Rig:
    settings = AddressSettings(retroactive_message_count=count, **more)  # type: ignore[arg-type]
    return Rig({"t": settings}, bindings=bindings)


def send(rig: Rig, *bodies: bytes, **headers: str) -> None:
    for body in bodies:
        rig.send("/topic/t", body, **headers)


def test_a_new_subscription_begins_with_the_latest_messages() -> None:
    rig = rig_with()
    send(rig, b"1", b"2", b"3", b"4", b"5")
    rig.turns()
    output = rig.output()
    rig.subscribe(output, "/topic/t", AckMode.AUTO)
    rig.turns()
    assert output.bodies() == [b"3", b"4", b"5"]
    send(rig, b"6")
    rig.turns()
    assert output.bodies() == [b"6"]
    late = rig.output()
    rig.subscribe(late, "/topic/t", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"4", b"5", b"6"]


def test_what_is_not_durable_yet_comes_too_and_nothing_twice() -> None:
    rig = rig_with()
    send(rig, b"1")
    rig.turns()
    send(rig, b"2")  # on its way to the disk, and nothing ends that before the queue is made
    output = rig.output()

    async def wait() -> None:
        rig.journal.flush()

    rig.registry.retroactive.waits_with(wait, lambda _file, _slab: None)
    rig.subscribe(output, "/topic/t", AckMode.AUTO)
    send(rig, b"3")
    rig.turns()
    assert output.bodies() == [b"1", b"2", b"3"]


def test_no_more_than_the_count_comes_when_the_last_is_on_its_way_to_the_disk() -> None:
    rig = rig_with()
    send(rig, b"1", b"2", b"3")
    rig.turns()
    send(rig, b"4")

    async def wait() -> None:
        rig.journal.flush()

    rig.registry.retroactive.waits_with(wait, lambda _file, _slab: None)
    output = rig.output()
    rig.subscribe(output, "/topic/t", AckMode.AUTO)
    rig.turns()
    assert output.bodies() == [b"2", b"3", b"4"]


@pytest.mark.parametrize("gives_up_meanwhile", [False, True])
def test_no_more_than_the_count_comes_when_the_oldest_is_not_in_memory(
    monkeypatch: pytest.MonkeyPatch, gives_up_meanwhile: bool
) -> None:
    # After a kill the oldest is there again: that it was given up had not reached the disk.
    rig = rig_with(4)
    send(rig, b"1", b"2", b"3", b"4")
    rig.turns()
    kept = rig.registry.queues[KEPT]
    kept.kind = QueueKind(ring_size=3, non_destructive=True)
    look, loads = rig.core.look, list[tuple[int, int]]()

    def look_without_slab(queue_id: int, *arguments: int, **options: bool) -> Look:
        if queue_id == kept.id and not loads:
            return Look([], 0, (7, 1))
        return look(queue_id, *arguments, **options)

    async def wait() -> None:
        if gives_up_meanwhile:
            rig.core.finish(kept.id, [look(kept.id, 0, 1).messages[0].sequence])
            rig.journal.flush()

    monkeypatch.setattr(rig.core, "look", look_without_slab)
    rig.registry.retroactive.waits_with(wait, lambda file, slab: loads.append((file, slab)))
    output = rig.output()
    rig.subscribe(output, "/topic/t", AckMode.AUTO)
    assert loads == [(7, 1)]
    rig.turns()
    assert output.bodies() == [b"2", b"3", b"4"]


def test_what_never_rests_comes_late_rather_than_not() -> None:
    rig = rig_with(count=100)
    send(rig, b"0")
    numbers = iter(range(1, 50))

    async def wait() -> None:
        rig.journal.flush()
        number = next(numbers, None)
        if number is not None:
            send(rig, b"%d" % number)

    rig.registry.retroactive.waits_with(wait, lambda _file, _slab: None)
    output = rig.output()
    rig.subscribe(output, "/topic/t", AckMode.AUTO)
    rig.turns()
    sent = next(numbers)
    assert sorted(output.bodies(), key=int) == [b"%d" % number for number in range(sent)]


def test_filters_and_ordinary_queues() -> None:
    rig = rig_with()
    send(rig, b"1", n="1")
    send(rig, b"2", n="2")
    rig.turns()
    output = rig.output()
    rig.subscribe(output, "/topic/t", AckMode.AUTO, selector="n = 2")
    rig.turns()
    assert output.bodies() == [b"2"]
    queue = do(
        rig.registry.create_queue(
            "f", "t", RoutingType.MULTICAST, traits=QueueTraits(selector=compile_filter("n = 1"))
        )
    )
    anycast = do(rig.registry.create_queue("a", "t", RoutingType.ANYCAST))
    rig.turns()
    assert rig.core.queue_statistics(queue.id).ready == 1
    assert rig.core.queue_statistics(anycast.id).ready == 0


def test_priorities_and_persistence_are_copied() -> None:
    rig = rig_with()
    rig.send("/topic/t", b"low", priority=1, persistent=False)
    rig.send("/topic/t", b"high", priority=9)
    rig.turns()
    queue = do(rig.registry.create_queue("d", "t", RoutingType.MULTICAST))
    rig.turns()
    views = rig.core.look(queue.id, 0, 10).messages
    assert [(view.priority, view.is_journalled, view.is_special) for view in views] == [
        (1, False, True),
        (9, True, True),
    ]


def restarted(rig: Rig, bindings: MemoryBindings, count: int) -> Rig:
    """Return an engine on the same bindings; its journal is a new one, and empty."""
    again = rig_with(count, bindings)
    for key in bindings.snapshot():
        if key.startswith("queue/"):
            again.core.open_queue(int(key.partition("/")[2]))
    again.registry.restore()
    do(again.registry.retroactive.begin())
    return again


@pytest.mark.parametrize("count", [0, 5])
def test_other_settings_hold_from_the_next_start_on(count: int) -> None:
    bindings = MemoryBindings()
    rig = rig_with(3, bindings)
    send(rig, b"1")
    do(rig.registry.create_queue("d", "t", RoutingType.MULTICAST))
    assert rig.registry.queues[KEPT].kind.ring_size == 3
    again = restarted(rig, bindings, count)
    assert (KEPT in again.registry.queues) is bool(count)
    if count:
        assert again.registry.queues[KEPT].kind.ring_size == count


def test_a_setting_that_comes_later_keeps_what_is_sent_from_then_on() -> None:
    bindings = MemoryBindings()
    rig = rig_with(0, bindings)
    do(rig.registry.create_queue("d", "t", RoutingType.MULTICAST))
    again = restarted(rig, bindings, 2)
    send(again, b"1")
    again.turns()
    output = again.output()
    again.subscribe(output, "/topic/t", AckMode.AUTO)
    again.turns()
    assert output.bodies() == [b"1"]


def test_nothing_deletes_what_is_kept_by_itself() -> None:
    rig = rig_with(auto_delete_created_queues=True, default_purge_on_no_consumers=True)
    send(rig, b"1")
    rig.turns()
    output = rig.output()
    rig.subscribe(output, f"t::{KEPT}", AckMode.AUTO)  # looks, and takes nothing
    rig.turns()
    assert output.bodies() == [b"1"]
    rig.now_s += 10_000
    for _ in rig.engine.reaper.scan():
        pass
    late = rig.output()
    rig.subscribe(late, "/topic/t", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"1"]


def test_addresses_without_the_setting_have_nothing_of_it() -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/topic/t")
    assert all(not queue.traits.is_internal for queue in rig.registry.queues.values())

"""Message groups as an administrator sees them: who has which, and how they are released."""

from __future__ import annotations

import pytest

from vespiary_broker.app.queue_groups import QueueGroups
from vespiary_broker.app.states import consumer_statistics
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import Rig, sequence_of


class Turns:
    """A cycle that counts what was asked of it."""

    def __init__(self) -> None:
        self.touched = 0

    def touch(self) -> None:
        self.touched += 1


def groups_of(rig: Rig) -> QueueGroups:
    return QueueGroups(rig.engine, Turns())  # type: ignore[arg-type]


def send(rig: Rig, *groups: bytes) -> None:
    for group in groups:
        rig.send("/queue/q", group, properties=b"JMSXGroupID:%b\n" % group)
    rig.turns()


def test_groups_are_shown_with_their_consumers_and_escapes_undone() -> None:
    rig = Rig()
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    send(rig, b"a", b"b\\cb", b"a", b"d")
    groups = groups_of(rig)
    found = groups.owners("q", start=0, limit=10)
    assert [owner.group for owner in found] == ["a", "b:b", "d"]
    assert {(o.connection, o.subscription, o.bucket) for o in found} == {(output.handle, "s", None)}
    assert [owner.group for owner in groups.owners("q", start=1, limit=1)] == ["b:b"]


def test_a_bucket_is_shown_by_its_number() -> None:
    rig = Rig({"q": AddressSettings(default_group_buckets=1)})
    rig.subscribe(rig.output(), "/queue/q")
    send(rig, b"a", b"b")
    assert [(o.group, o.bucket) for o in groups_of(rig).owners("q", start=0, limit=9)] == [("", 0)]


def test_released_groups_find_other_consumers_with_what_waits_for_them() -> None:
    rig = Rig()
    first, second = rig.output(), rig.output()
    rig.subscribe(first, "/queue/q", credit=1)
    send(rig, b"a", b"a", b"a")
    rig.subscribe(second, "/queue/q")
    send(rig, b"a")
    assert (first.bodies(), second.bodies()) == ([b"a"], [])
    groups = groups_of(rig)
    assert groups.release("q") == 1
    rig.turns()
    assert second.bodies() == [b"a"] * 3
    owner = groups.owners("q", start=0, limit=9)[0]
    assert owner.connection == second.handle


def test_a_queue_without_groups_has_none() -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/queue/q")
    groups = groups_of(rig)
    assert (groups.owners("q", start=0, limit=9), groups.release("q")) == ([], 0)
    with pytest.raises(RemoteProtocolError, match="there is no queue x"):
        groups.release("x")


@pytest.mark.parametrize("is_shown_only", [False, True])
def test_a_consumer_says_what_it_wants_and_has(*, is_shown_only: bool) -> None:
    rig = Rig({"q": AddressSettings(default_non_destructive=is_shown_only)})
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="a = 1", priority=3, is_exclusive=True)
    for _ in range(5):
        rig.send("/queue/q", b"x", properties=b"a:1\n")
    rig.turns()
    sequences = [sequence_of(frame) for frame in output.frames()]
    for sequence in sequences[:2]:
        if consumer.view is not None:
            consumer.view.acknowledge(sequence)
        else:
            rig.core.acknowledge(consumer.handle, sequence)
    rig.registry.returns.give_back(consumer, sequences[2])
    state = consumer_statistics(rig.core, consumer)
    assert (state.selector, state.priority, state.is_exclusive) == ("a = 1", 3, True)
    assert (state.delivered, state.delivering, state.acknowledged) == (5, 2, 2)

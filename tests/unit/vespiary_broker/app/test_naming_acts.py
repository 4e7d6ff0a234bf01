"""What administrators make queues to be, and what they may change while consumers are there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vespiary_broker.app.naming_acts import NamingActs
from vespiary_broker.app.states import QueueState
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.queue_changes import QueueWishes, wished_traits
from vespiary_broker.engine.queue_kinds import ORDINARY, kind_properties_in
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.stalls import Stalls
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.errors import ConfigError, InvalidSelector, RemoteProtocolError
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do


class Turns:
    """A cycle that counts what was asked of it."""

    def __init__(self, engine: Engine) -> None:
        self.touched = 0
        self.stalls = Stalls(engine, lambda _: 0, lambda: None, lambda _: False)

    def touch(self) -> None:
        self.touched += 1


class NamingRig(Rig):
    """An engine, and the acts on it."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.cycle = Turns(self.engine)
        self.acts = NamingActs(self.engine, self.cycle)  # type: ignore[arg-type]

    def make(self, name: str = "q", kind: RoutingType = RoutingType.ANYCAST, **said: Any) -> Queue:
        traits = wished_traits(name, wishes(**said))
        made: Queue = do(self.registry.create_queue(name, name, kind, traits=traits))
        return made

    def change(self, name: str = "q", **said: Any) -> QueueState:
        state: QueueState = do(self.acts.change_queue(name, wishes(**said)))
        return state

    def fill(self, count: int, **headers: str) -> None:
        for number in range(count):
            self.send("/queue/q", b"%d" % number, **headers)
        self.turns()

    def restarted(self) -> NamingRig:
        again = NamingRig(bindings=self.bindings)
        for queue_id in durable_queue_ids(self.bindings.snapshot()):
            again.core.open_queue(queue_id)
        again.registry.restore()
        return again


def wishes(**said: Any) -> QueueWishes:
    own = set(QueueWishes.__dataclass_fields__) - {"kind"}
    values = {name: said.pop(name) for name in own if name in said}
    kind = kind_properties_in({name.replace("_", "-"): value for name, value in said.items()})
    return QueueWishes(kind=kind, **values)


KIND = {
    "exclusive": True,
    "consumers_before_dispatch": 2,
    "delay_before_dispatch": 100,
    "group_rebalance": True,
    "group_rebalance_pause_dispatch": True,
    "group_buckets": 8,
    "group_first_key": "first",
    "last_value": True,
    "last_value_key": "share",
    "ring_size": 5,
    "non_destructive": True,
}


def test_every_property_is_made_changed_shown_and_kept() -> None:
    assert set(KIND) == set(type(ORDINARY).__dataclass_fields__)
    rig = NamingRig()
    rig.make("made", max_consumers=3, filter_string="a = 1", **KIND)
    rig.make("changed")
    rig.change("changed", max_consumers=3, filter_string="a = 1", **KIND)
    for one in (rig, rig.restarted()):
        for name in ("made", "changed"):
            state = do(one.acts.resume_queue(name))
            assert {key: getattr(state, key) for key in KIND} == KIND
            assert (state.max_consumers, state.filter_string) == (3, "a = 1")


def test_what_is_not_said_stays() -> None:
    rig = NamingRig({"q": AddressSettings(default_ring_size=9)})
    queue = rig.make(exclusive=True, filter_string="a = 1")
    state = rig.change(group_buckets=4)
    assert (state.exclusive, state.group_buckets, state.ring_size) == (True, 4, 9)
    assert state.filter_string == "a = 1"
    assert dict(queue.traits.kind) == {"exclusive": True, "group-buckets": 4}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"group_buckets": 0, "group_first_key": "f"},
            "queues[q].groupFirstKey: there are no groups: queues[q].groupBuckets = 0",
        ),
        (
            {"last_value": False, "last_value_key": "k"},
            "queues[q].lastValueKey: nobody looks at it: queues[q].lastValue = false",
        ),
        (
            {"max_consumers": 1, "consumers_before_dispatch": 2},
            "queues[q].consumersBeforeDispatch: so many consumers never come",
        ),
    ],
)
def test_contradictions_are_refused_when_made_and_when_changed(
    said: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        wished_traits("q", wishes(**said))
    rig = NamingRig()
    (first, second) = said.items()
    queue = rig.make(**dict([first]))
    before = queue.traits
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        rig.change(**dict([second]))
    assert queue.traits is before


def test_what_does_not_change_under_consumers() -> None:
    rig = NamingRig()
    queue = rig.make()
    consumer = rig.subscribe(rig.output(), "/queue/q")
    for name, value in (("last_value", True), ("last_value_key", "k"), ("non_destructive", True)):
        with pytest.raises(RemoteProtocolError, match=r"has consumers, under whom .* 1 consumers"):
            rig.change(**{name: value})
        assert queue.kind == ORDINARY
    close_subscription(rig.core, rig.registry, consumer)
    assert rig.change(non_destructive=True).non_destructive
    assert queue.views is not None
    assert not rig.change(non_destructive=False).non_destructive
    assert queue.views is None


def test_a_ring_shrinks_and_grows_under_its_consumer() -> None:
    rig = NamingRig()
    rig.make()
    output = rig.output()
    rig.subscribe(output, "/queue/q", credit=2)
    rig.fill(10)
    assert output.bodies() == [b"0", b"1"]
    touched = rig.cycle.touched
    rig.change(ring_size=3)
    assert rig.cycle.touched > touched
    rig.turns()
    state = rig.change(ring_size=4)
    assert (state.ready, state.delivering, state.ring_size) == (3, 2, 4)
    rig.fill(5)
    assert rig.change(ring_size=-1).ready == 4
    rig.fill(5)
    assert rig.change().ready == 9


def test_last_values_are_found_among_what_waits() -> None:
    rig = NamingRig()
    rig.make()
    rig.fill(6, share="A")
    rig.fill(6, share="B")
    rig.change(last_value=True, last_value_key="share")
    rig.turns()
    assert rig.change().ready == 2


def test_without_last_values_their_header_goes_too() -> None:
    rig = NamingRig()
    queue = rig.make(last_value=True, last_value_key="share", ring_size=4)
    rig.change(last_value=False)
    assert dict(queue.traits.kind) == {"last-value": False, "ring-size": 4}


def test_the_rules_of_a_queue_stay_while_something_else_changes() -> None:
    rig = NamingRig()
    queue = rig.make(ring_size=3, last_value=True)
    before = queue.upkeeps
    rig.change(exclusive=True, max_consumers=7)
    assert queue.upkeeps is before
    rig.change(ring_size=2)
    assert queue.upkeeps is not before


def test_pages_stay_pages() -> None:
    rig = NamingRig()
    rig.make()
    rig.fill(3)
    whole = rig.core.queue_statistics

    def with_pages(queue_id: int) -> Any:
        return whole(queue_id)._replace(paged=7)

    rig.core.queue_statistics = with_pages  # type: ignore[method-assign]
    for said in ({"ring_size": 2}, {"last_value": True}):
        with pytest.raises(RemoteProtocolError, match=r"all have to be in memory .*7 messages"):
            rig.change(**said)
    assert rig.change(exclusive=True).exclusive


def test_one_consumer_alone_and_all_again() -> None:
    rig = NamingRig()
    rig.make()
    outputs = [rig.output(), rig.output()]
    for output in outputs:
        rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.change(exclusive=True)
    rig.fill(8)
    assert [len(output.bodies()) for output in outputs] == [8, 0]
    rig.change(exclusive=False)
    rig.fill(8)
    assert [len(output.bodies()) for output in outputs] == [4, 4]


def test_groups_follow_when_one_consumer_is_served_alone() -> None:
    rig = NamingRig()
    rig.make()
    outputs = [rig.output(), rig.output()]
    for output in outputs:
        rig.subscribe(output, "/queue/q", AckMode.AUTO)
    _of_groups(rig, 8)
    assert all(len(output.bodies()) > 1 for output in outputs)
    rig.change(exclusive=True)
    _of_groups(rig, 8)
    assert sorted(len(output.bodies()) for output in outputs) == [0, 8]


def _of_groups(rig: NamingRig, count: int) -> None:
    for number in range(count):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:%d\n" % number)
    rig.turns()


def test_other_buckets_find_their_consumers_anew_and_lose_nothing() -> None:
    rig = NamingRig()
    queue = rig.make()
    outputs = [rig.output(), rig.output()]
    for output in outputs:
        rig.subscribe(output, "/queue/q", credit=10)
    _of_groups(rig, 64)  # 20 are held, the rest is indexed under its own groups
    assert queue.examined is not None
    given = [body for output in outputs for body in output.bodies()]
    assert len(given) == 20
    rig.change(group_buckets=1)
    late = [rig.output(), rig.output()]
    for output in late:
        rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.turns()
    bodies = [output.bodies() for output in late]
    assert sorted(map(len, bodies)) == [0, 44]  # the one bucket is with one of them
    for consumer in queue.consumers[:2]:
        close_subscription(rig.core, rig.registry, consumer)
    rig.turns()
    again = [body for output in late for body in output.bodies()]
    assert sorted(again) == sorted(given)
    assert sorted(map(int, again + bodies[0] + bodies[1])) == list(range(64))


def test_a_shared_fate_is_with_one_consumer() -> None:
    rig = NamingRig()
    rig.make(group_buckets=1)
    outputs = [rig.output(), rig.output()]
    for output in outputs:
        rig.subscribe(output, "/queue/q", AckMode.AUTO)
    _of_groups(rig, 20)
    assert sorted(len(output.bodies()) for output in outputs) == [0, 20]
    rig.change(group_buckets=-1)
    _of_groups(rig, 20)
    assert all(len(output.bodies()) > 4 for output in outputs)


def test_fewer_consumers_to_wait_for_let_a_queue_begin() -> None:
    rig = NamingRig()
    queue = rig.make(consumers_before_dispatch=3, delay_before_dispatch=60_000)
    timers: list[tuple[float, Any]] = []
    rig.dispatcher.later = lambda delay_s, action: timers.append((delay_s, action))
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.fill(2)
    assert output.bodies() == []
    rig.change(delay_before_dispatch=50)
    rig.turns()
    assert [delay_s for delay_s, _ in timers] == [60.0, 0.05]
    timers[0][1]()  # the one of before means nothing any more
    rig.turns()
    assert queue.rota.is_waiting
    timers[1][1]()
    rig.turns()
    assert len(output.bodies()) == 2
    rig.change(consumers_before_dispatch=5)  # it has begun
    rig.fill(1)
    assert len(output.bodies()) == 1
    other = rig.make("other", consumers_before_dispatch=2)
    late = rig.output()
    rig.subscribe(late, "/queue/other", AckMode.AUTO)
    rig.send("/queue/other", b"x")
    rig.turns()
    assert other.rota.is_waiting
    rig.change("other", consumers_before_dispatch=1)
    rig.turns()
    assert late.bodies() == [b"x"]


def test_another_filter_holds_from_now_on() -> None:
    rig = NamingRig()
    queue = rig.make(filter_string="a = '1'")
    rig.fill(1, a="1")
    rig.fill(1, a="2")
    rig.change(filter_string="a = '2'")
    rig.fill(1, a="1")
    rig.fill(1, a="2")
    assert rig.core.queue_statistics(queue.id).ready == 2
    rig.change(filter_string="")
    rig.fill(1, a="3")
    assert rig.core.queue_statistics(queue.id).ready == 3
    with pytest.raises(InvalidSelector):
        rig.change(filter_string="a = ")
    assert rig.restarted().registry.queues["q"].traits.filter_string == ""


def test_the_filter_of_a_subscription_and_what_is_the_brokers_own_stay() -> None:
    settings = AddressSettings(retroactive_message_count=3)
    rig = NamingRig({"kept": settings})
    rig.subscribe(rig.output(), "/topic/t", client_id="me", durable_name="d", selector="a = 1")
    with pytest.raises(RemoteProtocolError, match="is the selector of its subscription"):
        rig.change("me.d", filter_string="")
    assert rig.change("me.d", exclusive=True).filter_string == "a = 1"
    do(rig.registry.create_address("kept", {RoutingType.MULTICAST}))
    (own,) = rig.registry.addresses["kept"].queues
    with pytest.raises(RemoteProtocolError, match="is the broker's own"):
        rig.change(own, ring_size=1)


def _use(rig: NamingRig) -> None:
    """Have a consumer come, take all, and go."""
    close_subscription(
        rig.core, rig.registry, rig.subscribe(rig.output(), "/queue/q", AckMode.AUTO)
    )


def test_a_queue_goes_by_itself_when_it_is_told_to() -> None:
    rig = NamingRig()
    queue = rig.make(auto_delete=True, auto_delete_delay_ms=500, auto_delete_message_count=1)
    shown = rig.change()
    assert (shown.auto_delete, shown.auto_delete_delay) == (True, 500)
    assert shown.auto_delete_message_count == 1
    again = rig.restarted()
    kept = again.change()
    assert (kept.auto_delete, kept.auto_delete_delay, kept.auto_delete_message_count) == (
        True,
        500,
        1,
    )
    _use(rig)
    rig.fill(2)
    rig.now_s += 1
    assert sum(rig.engine.reaper.scan()) == 0  # it holds two messages
    rig.change(auto_delete_message_count=2, auto_delete_delay_ms=5000)
    assert sum(rig.engine.reaper.scan()) == 0  # not yet
    rig.change(auto_delete=False, auto_delete_delay_ms=0)
    assert sum(rig.engine.reaper.scan()) == 0
    rig.change(auto_delete=True)
    assert sum(rig.engine.reaper.scan()) == 1
    assert queue.is_deleted


def test_a_queue_that_use_created_stays_when_it_is_told_to() -> None:
    rig = NamingRig()
    rig.fill(1)
    assert rig.change().auto_delete
    assert not rig.change(auto_delete=False).auto_delete
    rig.core.purge_queue(rig.registry.queues["q"].id)
    _use(rig)
    assert sum(rig.engine.reaper.scan()) == 0
    assert "q" in rig.registry.queues


def test_what_somebody_counts_on_cannot_go_by_itself() -> None:
    rig = NamingRig()
    rig.subscribe(rig.output(), "/topic/t", client_id="me", durable_name="d")
    with pytest.raises(RemoteProtocolError, match="never goes by itself"):
        rig.change("me.d", auto_delete=True)
    assert not rig.change("me.d").auto_delete

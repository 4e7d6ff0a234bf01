"""Non-destructive queues: every consumer gets every message, and takes none."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queue_kinds import QueueKind, kind_of
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.transactions import Acknowledgement, Transaction, stage, stage_branch
from vespiary_broker.engine.views import HELD_MAX, View
from vespiary_codec.journal.branch import BranchName, Xid
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import Rig, sequence_of

SETTINGS = {"state": AddressSettings(default_non_destructive=True)}


def rig_with(**more: object) -> Rig:
    return Rig({"state": AddressSettings(default_non_destructive=True, **more)})  # type: ignore[arg-type]


def send_all(rig: Rig, *bodies: bytes) -> None:
    for body in bodies:
        rig.send("/queue/state", body)


def test_every_consumer_gets_every_message() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a", b"b", b"c")
    first, second = rig.output(), rig.output()
    rig.subscribe(first, "/queue/state")
    rig.subscribe(second, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert first.bodies() == second.bodies() == [b"a", b"b", b"c"]
    send_all(rig, b"d")
    rig.turns()
    assert first.bodies() == second.bodies() == [b"d"]


def test_whoever_comes_later_begins_with_the_first_message() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a", b"b")
    early = rig.output()
    consumer = rig.subscribe(early, "/queue/state", AckMode.AUTO)
    rig.turns()
    queue = consumer.queue
    late = rig.output()
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"a", b"b"]
    statistics = rig.core.queue_statistics(queue.id)
    assert (statistics.ready, statistics.delivering, statistics.acknowledged) == (2, 0, 0)


def test_an_ordinary_queue_beside_it_is_emptied() -> None:
    rig = Rig(SETTINGS)
    rig.send("/queue/plain", b"a")
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/plain", AckMode.AUTO)
    rig.turns()
    assert rig.core.queue_statistics(consumer.queue.id).ready == 0
    assert consumer.view is None


def test_credit_bounds_what_is_held_and_acknowledging_frees_it() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, *(b"%d" % n for n in range(10)))
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/state", AckMode.INDIVIDUAL, credit=3)
    view = consumer.view
    assert view is not None
    rig.turns()
    frames = out.frames()
    assert [frame.body for frame in frames] == [b"0", b"1", b"2"]
    assert view.acknowledge(sequence_of(frames[1])) == 1
    assert view.acknowledge(sequence_of(frames[1])) == 0
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    assert out.bodies() == [b"3"]
    assert (view.held, view.acknowledged) == (3, 1)


def test_a_cumulative_acknowledgement_covers_what_was_given_before() -> None:
    view = View(b"s", 12, AckMode.CLIENT, 10)
    for sequence in (1, 2, 5, 3):
        view.given(sequence)
    assert view.acknowledge(5) == 3
    assert view.holds(3)
    assert view.acknowledge(3) == 1


def test_what_one_may_hold_is_bounded_whatever_its_credit() -> None:
    assert View(b"s", 12, AckMode.CLIENT, 1_000_000).room == HELD_MAX


def test_a_message_given_back_comes_again_to_its_consumer_alone() -> None:
    rig = rig_with(max_delivery_attempts=3)
    send_all(rig, b"a", b"b")
    out, other = rig.output(), rig.output()
    consumer = rig.subscribe(out, "/queue/state")
    rig.subscribe(other, "/queue/state")
    rig.turns()
    frame = out.frames()[0]
    assert other.bodies() == [b"a", b"b"]
    seen = []
    for _ in range(2):
        assert rig.engine.registry.returns.give_back(consumer, sequence_of(frame)) == 1
        rig.dispatcher.poke(consumer.queue.id)
        rig.turns()
        [again] = out.frames()
        seen.append((again.body, again.get("redelivered"), again.get("delivery-count")))
    assert seen == [(b"a", "true", "1"), (b"a", "true", "2")]
    assert rig.engine.registry.returns.give_back(consumer, sequence_of(frame)) == 1
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    assert out.bodies() == []  # three attempts were enough for it
    assert other.bodies() == []
    assert consumer.view is not None
    assert consumer.view.skipped == 1
    assert rig.core.queue_statistics(consumer.queue.id).ready == 2  # and it stays for others


def test_selectors_choose_from_all_of_it() -> None:
    rig = Rig(SETTINGS)
    for n in range(50):
        rig.send("/queue/state", b"%d" % n, n=str(n))
    out = rig.output()
    rig.subscribe(out, "/queue/state", selector="n >= 48")
    rig.turns()
    assert out.bodies() == [b"48", b"49"]


def test_a_full_connection_goes_on_where_it_stood() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, *(b"%03d" % n * 100 for n in range(40)))
    out = rig.output(room=1000)
    rig.subscribe(out, "/queue/state", AckMode.AUTO)
    got: list[bytes] = []
    for _ in range(100):
        rig.turns()
        got += out.bodies()
        if len(got) == 40:
            break
        out.room = 1000
        rig.dispatcher.output_ready(out)
    assert got == [b"%03d" % n * 100 for n in range(40)]


def test_many_messages_take_several_turns_and_leave_others_their_share() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, *(b"%d" % n for n in range(3000)))
    out, plain = rig.output(room=1 << 24), rig.output()
    rig.subscribe(out, "/queue/state", AckMode.AUTO)
    rig.subscribe(plain, "/queue/plain", AckMode.AUTO)
    rig.send("/queue/plain", b"x")
    rig.turn()
    assert plain.bodies() == [b"x"]
    assert rig.dispatcher.has_more
    rig.turns()
    assert out.bodies() == [b"%d" % n for n in range(3000)]


def test_an_exclusive_consumer_is_the_only_one_that_sees_it() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    first, second = rig.output(), rig.output()
    rig.subscribe(first, "/queue/state")
    rig.subscribe(second, "/queue/state", is_exclusive=True)
    rig.turns()
    assert (first.bodies(), second.bodies()) == ([], [b"a"])


def test_what_is_removed_is_not_given_to_those_who_come_later() -> None:
    rig = rig_with(default_ring_size=2)
    send_all(rig, b"a", b"b", b"c")
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert out.bodies() == [b"b", b"c"]
    rig.core.purge_queue(consumer.queue.id)
    late = rig.output()
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == []
    send_all(rig, b"d")
    rig.turns()
    assert out.bodies() == late.bodies() == [b"d"]


def test_the_latest_state_of_each_value() -> None:
    rig = rig_with(default_last_value_queue=True, default_last_value_key="share")
    out = rig.output()
    rig.subscribe(out, "/queue/state", AckMode.AUTO)
    for share, price in (("A", b"1"), ("B", b"2"), ("A", b"3")):
        rig.send("/queue/state", price, share=share)
        rig.turns()
    assert out.bodies() == [b"1", b"2", b"3"]
    late = rig.output()
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"2", b"3"]


def special(rig: Rig, body: bytes, line: bytes) -> None:
    """Send a message that Python looks at."""
    target = rig.registry.queue_route(rig.registry.queues["state"]).next_handle()
    rig.core.publish(target, b"destination:x\n" + line, body, persistent=True, special=True)
    rig.engine.fates.special_sent()


def test_expired_messages_are_not_shown() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    special(rig, b"b", b"expires:%d\n" % (rig.now_ms + 1000))
    out, late = rig.output(), rig.output()
    consumer = rig.subscribe(out, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert out.bodies() == [b"a", b"b"]
    rig.now_ms += 2000
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"a"]
    rig.turns()
    assert rig.core.queue_statistics(consumer.queue.id).ready == 1


def test_a_scheduled_message_is_given_once_when_its_time_has_come() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    special(rig, b"b", b"AMQ_SCHEDULED_TIME:%d\n" % (rig.now_ms + 5000))
    send_all(rig, b"c")
    out = rig.output()
    rig.subscribe(out, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert out.bodies() == [b"a", b"c"]
    rig.now_ms += 6000
    rig.turns()
    rig.turns()
    assert out.bodies() == [b"b"]
    late = rig.output()
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"a", b"b", b"c"]
    assert out.bodies() == []


def test_what_a_branch_adds_is_given_when_it_is_committed() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    route = rig.registry.queue_route(rig.registry.queues["state"]).next_handle()
    rig.core.begin(7, 100, 1, branch=True)
    rig.core.publish(route, b"destination:x\n", b"b", persistent=True, transaction=7)
    rig.core.prepare(7, b"")
    send_all(rig, b"c")
    out = rig.output()
    rig.subscribe(out, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert out.bodies() == [b"a", b"c"]
    rig.core.resolve(7, commit=True)
    rig.turns()
    rig.turns()
    assert out.bodies() == [b"b"]
    late = rig.output()
    rig.subscribe(late, "/queue/state", AckMode.AUTO)
    rig.turns()
    assert late.bodies() == [b"a", b"b", b"c"]


def test_transactions_acknowledge_at_their_commit_and_remove_nothing() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a", b"b", b"c")
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/state", credit=2)
    rig.turns()
    sequences = [sequence_of(frame) for frame in out.frames()]
    view = consumer.view
    assert view is not None
    work = Transaction(acknowledgements=[Acknowledgement(consumer, one) for one in sequences])
    stage(rig.core, rig.registry, rig.duplicates, work)
    assert view.acknowledged == 2
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    assert out.bodies() == [b"c"]
    assert rig.core.queue_statistics(consumer.queue.id).ready == 3
    with pytest.raises(RemoteProtocolError, match="not held"):
        stage(rig.core, rig.registry, rig.duplicates, work)


def test_a_branch_acknowledges_when_it_is_prepared() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/state")
    rig.turns()
    work = Transaction(acknowledgements=[Acknowledgement(consumer, sequence_of(out.frames()[0]))])
    stage_branch(rig.core, rig.registry, work, 9, BranchName(Xid(1, b"g", b"b"), 0, ""))
    assert consumer.view is not None
    assert consumer.view.held == 0
    assert rig.core.queue_statistics(consumer.queue.id).prepared == 0


def test_who_comes_again_begins_anew() -> None:
    rig = Rig(SETTINGS)
    send_all(rig, b"a")
    out = rig.output()
    consumer = rig.subscribe(out, "/queue/state")
    rig.turns()
    assert out.bodies() == [b"a"]
    close_subscription(rig.core, rig.registry, consumer)
    rig.subscribe(out, "/queue/state")
    rig.turns()
    assert out.bodies() == [b"a"]


@pytest.mark.parametrize("version", [10, 11, 12])
@pytest.mark.parametrize("mode", list(AckMode))
def test_frames_are_those_that_the_core_makes(version: int, mode: AckMode) -> None:
    frames = []
    for name in ("state", "plain"):
        rig = Rig(SETTINGS)
        where = f"/queue/{name}"
        rig.send(where, b"body \0 x", a="b")
        route = rig.registry.queue_route(rig.registry.queues[name]).next_handle()
        rig.core.publish(route, b"k:x\\ny\\cz\n", b"", persistent=True, escaped=True)
        out = rig.output()
        rig.subscribe(out, where, mode, version=version)
        rig.turns()
        frames.append(out.data)
    assert frames[0] == frames[1]
    assert frames[0].count(b"MESSAGE\n") == 2


def test_the_setting_is_the_default_of_the_property() -> None:
    rig = Rig()
    settings = rig.registry.settings_for("x")
    assert kind_of(settings, (("non-destructive", True),)) == QueueKind(non_destructive=True)
    assert not kind_of(settings, ()).non_destructive

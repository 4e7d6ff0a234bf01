"""Examined queues: selectors, priorities, what comes back, what is found deep, what is kept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from vespiary_broker.engine import examined as module
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.dispatch import LOOKS_PER_TURN
from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.engine.page_walk import PageWalk
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_testkit.engine_rig import Rig, sequence_of

RED = b"colour:red\n"
BLUE = b"colour:blue\n"


def _send(rig: Rig, *bodies: bytes, properties: bytes = b"a:b\n", priority: int = 4) -> None:
    for body in bodies:
        rig.send("/queue/q", body, properties=properties, priority=priority)


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_each_selector_gets_its_own_and_the_rest_stays() -> None:
    rig = Rig()
    reds, blues = rig.output(), rig.output()
    rig.subscribe(reds, "/queue/q", selector="colour = 'red'")
    rig.subscribe(blues, "/queue/q", selector="colour = 'blue'")
    _send(rig, b"1", properties=RED)
    _send(rig, b"2", properties=BLUE)
    _send(rig, b"3")
    _send(rig, b"4", properties=RED)
    rig.turns()
    assert reds.bodies() == [b"1", b"4"]
    assert blues.bodies() == [b"2"]
    queue = rig.registry.queues["q"]
    assert rig.core.queue_statistics(queue.id).ready == 1
    rest = rig.output()
    rig.subscribe(rest, "/queue/q")
    rig.dispatcher.poke(queue.id)
    rig.turns()
    assert rest.bodies() == [b"3"]


def test_messages_that_come_later_are_looked_at_once_for_each_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/queue/q", selector="colour = 'red'")
    rig.subscribe(rig.output(), "/queue/q", selector="colour = 'blue'")
    asked: list[str] = []
    monkeypatch.setattr(
        "vespiary_broker.engine.matching.SelectorMatch.wants",
        lambda self, message: asked.append(self.text) or False,
    )
    for _ in range(5):
        _send(rig, b"x", b"y")
        rig.turns()
    assert sorted(asked) == ["colour = 'blue'"] * 10 + ["colour = 'red'"] * 10


def test_a_returned_message_is_looked_at_again_and_keeps_its_place() -> None:
    rig = Rig()
    first, second = rig.output(), rig.output()
    consumer = rig.subscribe(first, "/queue/q", selector="colour = 'red'")
    _send(rig, *_numbers(0, 5), properties=RED)
    rig.turns()
    assert first.bodies() == _numbers(0, 5)
    rig.subscribe(second, "/queue/q", selector="colour LIKE 'r%'", credit=2)
    rig.core.give_back(consumer.handle, 2)
    close_subscription(rig.core, rig.registry, consumer)
    rig.turns()
    frames = second.frames()
    assert [frame.body for frame in frames] == _numbers(0, 2)
    assert [frame.get("delivery-count") for frame in frames] == ["1", "1"]


def test_given_back_to_the_same_consumer() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="colour = 'red'")
    for _ in range(3):
        _send(rig, b"1", properties=RED)
        rig.turns()
        (frame,) = output.frames()
        rig.core.give_back(consumer.handle, sequence_of(frame))
        rig.turns()
        (again,) = output.frames()
        assert again.get("redelivered") == "true"
        rig.core.acknowledge(consumer.handle, sequence_of(again))


def test_a_match_behind_many_others_is_found_in_short_turns_and_without_memory() -> None:
    rig = Rig()
    count = 20 * LOOKS_PER_TURN
    _send(rig, *[b""] * count)
    _send(rig, b"here", properties=RED)
    rig.turn()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="colour = 'red'")
    rig.dispatcher.poke(consumer.queue.id)
    turns = rig.turns()
    assert output.bodies() == [b"here"]
    assert turns >= count // LOOKS_PER_TURN
    examined = consumer.queue.examined
    assert examined is not None
    assert examined.waiting(consumer) == 0
    assert not examined._returned


def test_a_full_lane_looks_on_when_half_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 100)
    rig = Rig()
    _send(rig, *_numbers(0, 1000), properties=RED)
    rig.turn()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="colour = 'red'", credit=10)
    rig.dispatcher.poke(consumer.queue.id)
    bodies = []
    examined = consumer.queue.examined
    assert examined is not None
    for _ in range(200):
        rig.turns()
        assert examined.waiting(consumer) < 100 + 256
        frames = output.frames()
        output.room = 1 << 20
        bodies += [frame.body for frame in frames]
        for frame in frames:
            rig.core.acknowledge(consumer.handle, sequence_of(frame))
        if len(bodies) == 1000:
            break
    assert bodies == _numbers(0, 1000)


def test_a_lane_that_grew_too_long_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 100)
    rig = Rig()
    _send(rig, *_numbers(0, 600), properties=RED)
    rig.turn()
    holder_output, other_output = rig.output(), rig.output()
    rig.subscribe(other_output, "/queue/q", selector="colour = 'blue'")
    holder = rig.subscribe(holder_output, "/queue/q", selector="colour = 'red'")
    rig.turns()
    assert len(holder_output.bodies()) == 600
    slow_output = rig.output()
    slow = rig.subscribe(slow_output, "/queue/q", selector="colour = 'red'", credit=1)
    rig.turns()
    close_subscription(rig.core, rig.registry, holder)
    bodies = []
    examined = slow.queue.examined
    assert examined is not None
    while len(bodies) < 600:
        rig.turns()
        assert examined.waiting(slow) <= 600
        (frame,) = slow_output.frames()
        slow_output.room = 1 << 20
        bodies.append(frame.body)
        rig.core.acknowledge(slow.handle, sequence_of(frame))
    assert bodies == _numbers(0, 600)


def test_priorities_are_in_order_within_and_across_what_came_back() -> None:
    rig = Rig()
    output = rig.output()
    _send(rig, b"4a")
    _send(rig, b"0a", priority=0)
    _send(rig, b"9a", priority=9)
    _send(rig, b"4b")
    _send(rig, b"9b", priority=9)
    rig.turn()
    consumer = rig.subscribe(output, "/queue/q")
    rig.turns()
    assert output.bodies() == [b"9a", b"9b", b"4a", b"4b", b"0a"]
    close_subscription(rig.core, rig.registry, consumer)
    _send(rig, b"9c", priority=9)
    rig.subscribe(output, "/queue/q")
    rig.turns()
    assert output.bodies() == [b"9a", b"9b", b"9c", b"4a", b"4b", b"0a"]


def test_nothing_is_given_before_all_that_came_back_was_looked_at() -> None:
    rig = Rig()
    first = rig.subscribe(rig.output(), "/queue/q", credit=10_000, selector="a = 'b'")
    rest = rig.output()
    rig.subscribe(rest, "/queue/q", credit=1, selector="a = 'b'")
    rest.room = 0
    _send(rig, *[b"4"] * 3 * LOOKS_PER_TURN)
    _send(rig, b"9", priority=9)
    rig.turns()
    assert rig.core.queue_statistics(first.queue.id).ready == 0
    close_subscription(rig.core, rig.registry, first)
    rest.room = 1 << 20
    rig.dispatcher.output_ready(rest)
    rig.turns()
    assert rest.bodies() == [b"9"]


def test_a_queue_is_plain_until_a_special_message_is_next_and_again_afterwards() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", AckMode.AUTO)
    queue = consumer.queue
    _send(rig, *_numbers(0, 3))
    rig.turns()
    assert queue.examined is None
    _send(rig, b"3", priority=5)
    rig.turns()
    assert queue.examined is not None
    _send(rig, *_numbers(4, 2000))
    while rig.turns() > 1:
        output.room = 1 << 20
    assert output.bodies() == _numbers(0, 2000)
    assert queue.examined is None
    _send(rig, b"last")
    rig.turns()
    assert output.bodies() == [b"last"]


def test_a_selector_that_is_always_true_leaves_the_queue_plain() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="1 = 1")
    _send(rig, b"1")
    rig.turns()
    assert consumer.queue.examined is None
    assert output.bodies() == [b"1"]


def test_the_queue_is_plain_again_when_the_last_consumer_has_gone() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/queue/q", selector="colour = 'red'")
    _send(rig, b"1")
    rig.turns()
    close_subscription(rig.core, rig.registry, consumer)
    assert consumer.queue.examined is None
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.turns()
    assert output.bodies() == [b"1"]


def test_full_connection_is_passed_over_and_served_later() -> None:
    rig = Rig()
    full, free = rig.output(room=0), rig.output()
    rig.subscribe(full, "/queue/q", credit=10, selector="colour = 'red'")
    rig.subscribe(free, "/queue/q", credit=10, selector="colour = 'red'")
    _send(rig, *_numbers(0, 15), properties=RED)
    rig.turns()
    assert full.data == b""
    assert free.bodies() == _numbers(0, 10)
    full.room = 1 << 20
    rig.dispatcher.output_ready(full)
    rig.turns()
    assert full.bodies() == _numbers(10, 15)


def test_consumers_with_one_selector_share() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(4)]
    for output in outputs:
        rig.subscribe(output, "/queue/q", selector="colour = 'red'")
    _send(rig, *_numbers(0, 8), properties=RED)
    rig.turns()
    shares = [output.bodies() for output in outputs]
    assert [len(share) for share in shares] == [2, 2, 2, 2]
    assert sorted(body for share in shares for body in share) == _numbers(0, 8)


def test_purged_messages_are_not_given() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=2, selector="colour = 'red'")
    _send(rig, *_numbers(0, 6), properties=RED)
    rig.turns()
    rig.core.purge_queue(consumer.queue.id)
    for frame in output.frames():
        rig.core.acknowledge(consumer.handle, sequence_of(frame))
    _send(rig, b"new", properties=RED)
    rig.turns()
    assert output.bodies() == [b"new"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_a_branch_held_is_looked_at_when_it_ends(*, is_commit: bool) -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=10, selector="colour = 'red'")
    _send(rig, b"other")
    _send(rig, b"1", properties=RED)
    rig.turns()
    (frame,) = output.frames()
    rig.core.begin(7, 1000, 4, branch=True)
    route = rig.core.open_route([consumer.queue.id])
    rig.core.publish(
        route, b"destination:x\n" + RED, b"2", persistent=True, transaction=7, special=True
    )
    rig.core.acknowledge(consumer.handle, sequence_of(frame), transaction=7)
    rig.core.prepare(7, b"")
    _send(rig, b"3", properties=RED)
    rig.turns()
    assert output.bodies() == [b"3"]
    rig.core.resolve(7, commit=is_commit)
    rig.turns()
    assert output.bodies() == ([b"2"] if is_commit else [b"1"])


class CountingWalk:
    """A walk over a queue that counts what it shows."""

    def __init__(self, walk: PageWalk) -> None:
        self._walk = walk
        self.shown = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._walk, name)

    def look(self, at: int, count: int, **wanted: Any) -> Any:
        seen = self._walk.look(at, count, **wanted)
        self.shown += len(seen.messages)
        return seen


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_seen_prepared", [True, False])
def test_a_branch_that_ends_has_its_messages_alone_looked_at(
    *, is_commit: bool, is_seen_prepared: bool
) -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1000, selector="colour = 'red'")
    route = rig.core.open_route([consumer.queue.id])
    _send(rig, *[b""] * 3000)
    _send(rig, b"held", b"low", properties=RED)
    rig.turns()
    held, low = output.frames()
    examined = consumer.queue.examined
    assert examined is not None
    examined._walk = walk = CountingWalk(examined._walk)  # type: ignore[assignment]
    rig.core.begin(7, 1000, 4, branch=True)
    for number in range(3):
        rig.core.publish(
            route, b"destination:x\n" + RED, b"%d" % number, persistent=True, transaction=7,
            priority=9 if number == 2 else 4,
        )  # fmt: skip
    rig.core.acknowledge(consumer.handle, sequence_of(held), transaction=7)
    rig.core.prepare(7, b"")
    _send(rig, b"behind", properties=RED)
    if is_seen_prepared:
        rig.turns()
        assert output.bodies() == [b"behind"]
    rig.journal.flush()
    rig.core.resolve(7, commit=is_commit)
    rig.turns()
    expected = [b"2", b"0", b"1"] if is_commit else [b"held"]
    if is_seen_prepared:
        assert output.bodies() == expected
        assert walk.shown < 20
    else:
        assert output.bodies() == [*expected, b"behind"]
    assert rig.core.acknowledge(consumer.handle, sequence_of(low)) == 1
    assert consumer.queue.examined is examined


def test_a_branch_that_ends_is_noticed_when_another_is_prepared_in_the_same_turn() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", selector="colour = 'red'")
    route = rig.core.open_route([consumer.queue.id])
    _send(rig, b"other")
    rig.turns()

    def prepare(number: int) -> None:
        rig.core.begin(number, 1000, 4, branch=True)
        rig.core.publish(
            route, b"destination:x\n" + RED, b"%d" % number, persistent=True, transaction=number
        )
        rig.core.prepare(number, b"")

    prepare(7)
    rig.turns()
    _send(rig, b"plain", properties=RED)
    rig.turns()
    assert output.bodies() == [b"plain"]
    rig.core.resolve(7, commit=True)
    prepare(8)
    rig.turns()
    assert output.bodies() == [b"7"]


def test_a_long_search_in_one_queue_does_not_hold_up_the_others() -> None:
    rig = Rig()
    others = [rig.output() for _ in range(3)]
    deep = rig.subscribe(rig.output(), "/queue/q", selector="colour = 'red'")
    for number, output in enumerate(others):
        rig.subscribe(output, f"/queue/{number}", selector="colour = 'red'")
    _send(rig, *[b""] * 20 * LOOKS_PER_TURN)
    rig.journal.flush()
    rig.dispatcher.dispatch([deep.queue.id])
    for number in range(len(others)):
        rig.send(f"/queue/{number}", b"here", properties=RED)
    for _ in range(2):
        rig.turn()
    assert [output.bodies() for output in others] == [[b"here"]] * 3
    assert rig.dispatcher.has_more  # the search goes on


def test_what_a_selector_left_comes_before_what_came_back_from_behind_it() -> None:
    rig = Rig()
    _send(rig, b"1")
    _send(rig, b"2", properties=RED)
    consumer = rig.subscribe(rig.output(), "/queue/q", selector="colour = 'red'")
    rig.turns()
    close_subscription(rig.core, rig.registry, consumer)
    rest = rig.output()
    plain = rig.subscribe(rest, "/queue/q")
    rig.turns()
    assert rest.bodies() == [b"1", b"2"]
    assert plain.queue.examined is None


@pytest.mark.parametrize("count", range(944, 1040, 8))
def test_a_look_that_ends_with_its_budget_is_followed_by_giving(count: int) -> None:
    rig = Rig()
    for number in range(count):
        rig.send("/queue/q", b"%d" % number, priority=5)
    output = rig.output()
    rig.subscribe(output, "/queue/q", credit=3)
    rig.turns()
    assert output.bodies() == [b"0", b"1", b"2"]


def _slowly(rig: Rig, step_s: float = 0.002) -> list[Any]:
    """Let the clock of selectors go on with each look at it; return what waits for turns."""
    turns: list[Any] = []
    rig.engine.turn_time.clock_s = itertools.count(0.0, step_s).__next__
    rig.engine.turn_time.next_turn = turns.append
    return turns


def _turn(rig: Rig, turns: list[Any]) -> None:
    waiting, turns[:] = list(turns), []
    for each in waiting:
        each()
    rig.turn()


@pytest.mark.parametrize("is_returned", [False, True])
def test_selectors_take_a_part_of_a_turn(
    monkeypatch: pytest.MonkeyPatch, is_returned: bool
) -> None:
    rig = Rig()
    asked: list[int] = []
    wants = SelectorMatch.wants
    monkeypatch.setattr(
        SelectorMatch, "wants", lambda self, view: asked.append(view.sequence) or wants(self, view)
    )
    monkeypatch.setattr(SelectorMatch, "cost_us", lambda _self, _view: 200.0)
    outputs = [rig.output() for _ in range(7)]
    consumers = [
        rig.subscribe(output, "/queue/q", selector=f"n = {number}")
        for number, output in enumerate(outputs)
    ]
    if is_returned:
        _send(rig, *_numbers(0, 7), properties=b"n:3\n")
        rig.turns()
        close_subscription(rig.core, rig.registry, consumers.pop(3))
        outputs[3].frames()
        rig.subscribe(outputs[3], "/queue/q", selector="n = 3 OR n = 99")
    else:
        _send(rig, *_numbers(0, 7), properties=b"n:3\n")
    turns = _slowly(rig)
    most, given = 0, []
    for _ in range(100):
        asked.clear()
        _turn(rig, turns)
        most = max(most, len(asked))
        given.append(len(outputs[3].frames()))
    assert 0 < most <= 4
    assert given[0] < 7
    assert sum(given) == 7
    assert rig.engine.turn_time.waits > 5

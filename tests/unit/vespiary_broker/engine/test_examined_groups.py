"""Message groups in an engine: one consumer for each, shared out, closed, left, taken over."""

from __future__ import annotations

import pytest

from vespiary_broker.engine import examined as module
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import FakeOutput, Rig, sequence_of


def _send(rig: Rig, group: bytes, *bodies: bytes, more: bytes = b"") -> None:
    for body in bodies:
        rig.send("/queue/q", body, properties=b"JMSXGroupID:%b\n%b" % (group, more))


def _consumer(rig: Rig, *, credit: int = 1000, selector: str = "") -> tuple[Consumer, FakeOutput]:
    output = rig.output()
    return rig.subscribe(output, "/queue/q", credit=credit, selector=selector), output


def _acknowledge(rig: Rig, consumer: Consumer, output: FakeOutput) -> list[bytes]:
    frames = output.frames()
    for frame in frames:
        rig.core.acknowledge(consumer.handle, sequence_of(frame))
    return [frame.body for frame in frames]


def test_a_group_stays_with_one_consumer_and_groups_are_shared_out() -> None:
    rig = Rig()
    consumers = [_consumer(rig) for _ in range(3)]
    groups = [b"a", b"b", b"c"]
    for turn in range(4):
        for group in groups:
            _send(rig, group, group + b"%d" % turn)
        rig.turns()
        groups.append(groups.pop(0))  # or whose turn it is would keep them together
    shares = sorted(output.bodies() for _, output in consumers)
    assert shares == [[group + b"%d" % n for n in range(4)] for group in (b"a", b"b", b"c")]


def test_a_backlog_of_many_groups_is_shared_out_too() -> None:
    rig = Rig()
    for turn in range(3):
        for group in range(30):
            _send(rig, b"%d" % group, b"%d-%d" % (group, turn))
    rig.turn()
    consumers = [_consumer(rig) for _ in range(3)]
    rig.turns()
    shares = [output.bodies() for _, output in consumers]
    groups = [{body.split(b"-")[0] for body in share} for share in shares]
    assert sorted(len(found) for found in groups) == [10, 10, 10]
    assert len(set.union(*groups)) == 30


def test_a_consumer_without_credit_keeps_its_group_waiting() -> None:
    rig = Rig()
    first, first_output = _consumer(rig, credit=1)
    _send(rig, b"g", b"1")
    rig.turns()
    _second, second_output = _consumer(rig)
    _send(rig, b"g", b"2")
    _send(rig, b"h", b"3")
    rig.turns()
    assert second_output.bodies() == [b"3"]
    assert _acknowledge(rig, first, first_output) == [b"1"]
    rig.turns()
    assert _acknowledge(rig, first, first_output) == [b"2"]
    assert second_output.bodies() == []


def test_who_has_no_credit_gets_no_new_group() -> None:
    rig = Rig()
    _, full_output = _consumer(rig, credit=1)
    _send(rig, b"g", b"1")
    rig.turns()
    _free, free_output = _consumer(rig)
    for number in range(10):
        _send(rig, b"h%d" % number, b"%d" % number)
        rig.turns()
    assert len(full_output.bodies()) == 1
    assert free_output.bodies() == [b"%d" % number for number in range(10)]


def test_groups_of_a_consumer_that_goes_find_others_with_what_it_held_first() -> None:
    rig = Rig()
    first, _ = _consumer(rig, credit=2)
    _send(rig, b"g", b"1", b"2", b"3")
    rig.turns()
    _second, output = _consumer(rig)
    rig.turns()
    assert output.bodies() == []
    close_subscription(rig.core, rig.registry, first)
    rig.turns()
    assert output.bodies() == [b"1", b"2", b"3"]
    _send(rig, b"g", b"4")
    rig.turns()
    assert output.bodies() == [b"4"]


def test_the_last_message_of_a_group_closes_it() -> None:
    rig = Rig()
    _first, first_output = _consumer(rig, credit=2)
    _send(rig, b"g", b"1")
    rig.turns()
    _second, second_output = _consumer(rig)
    _send(rig, b"g", b"2", more=b"JMSXGroupSeq:-1\n")
    rig.turns()
    _send(rig, b"g", b"3")
    rig.turns()
    assert first_output.bodies() == [b"1", b"2"]
    assert second_output.bodies() == [b"3"]


def test_messages_that_the_owner_does_not_want_wait_until_it_goes() -> None:
    rig = Rig()
    red, red_output = _consumer(rig, selector="colour = 'red'")
    _send(rig, b"g", b"1", more=b"colour:red\n")
    rig.turns()
    _, output = _consumer(rig)
    _send(rig, b"g", b"2")
    _send(rig, b"g", b"3", more=b"colour:red\n")
    _send(rig, b"", b"4")
    rig.turns()
    assert red_output.bodies() == [b"1", b"3"]
    assert output.bodies() == [b"4"]
    close_subscription(rig.core, rig.registry, red)
    rig.turns()
    assert output.bodies() == [b"1", b"2", b"3"]


def test_groups_survive_a_quiet_time() -> None:
    rig = Rig()
    consumers = [_consumer(rig) for _ in range(2)]
    for turn in range(5):
        for group in (b"a", b"b"):
            _send(rig, group, group)
        for _ in range(300):
            rig.send("/queue/q", b"", properties=b"x:y\n")
        rig.turns()
        for consumer, output in consumers:
            bodies = {body for body in _acknowledge(rig, consumer, output) if body}
            assert len(bodies) == 1, turn


def test_a_new_consumer_makes_groups_find_their_consumers_anew() -> None:
    rig = Rig({"#": AddressSettings(default_group_rebalance=True)})
    _, first_output = _consumer(rig)
    for group in (b"a", b"b"):
        _send(rig, group, group)
    rig.turns()
    assert first_output.bodies() == [b"a", b"b"]
    _, second_output = _consumer(rig)
    for group in (b"a", b"b"):
        _send(rig, group, group + b"2")
    rig.turns()
    assert sorted(first_output.bodies() + second_output.bodies()) == [b"a2", b"b2"]
    assert second_output.data == b""
    for group in (b"a", b"b"):
        _send(rig, group, group + b"3")
    rig.turns()
    assert len(first_output.bodies()) == len(second_output.bodies()) == 1


def test_groups_that_are_to_move_wait_for_all_acknowledgements() -> None:
    rig = Rig(
        {
            "#": AddressSettings(
                default_group_rebalance=True, default_group_rebalance_pause_dispatch=True
            )
        }
    )
    first, first_output = _consumer(rig)
    _send(rig, b"a", b"1")
    rig.turns()
    _, second_output = _consumer(rig)
    _send(rig, b"a", b"2")
    _send(rig, b"b", b"3")
    rig.turns()
    assert second_output.data == b""
    assert _acknowledge(rig, first, first_output) == [b"1"]
    rig.turns()
    assert sorted(first_output.bodies() + second_output.bodies()) == [b"2", b"3"]


def test_buckets_share_a_consumer_and_none_switches_groups_off() -> None:
    rig = Rig({"#": AddressSettings(default_group_buckets=1)})
    outputs = [_consumer(rig)[1] for _ in range(2)]
    for number in range(10):
        _send(rig, b"%d" % number, b"%d" % number)
        rig.turns()
    assert sorted(len(output.bodies()) for output in outputs) == [0, 10]
    rig = Rig({"#": AddressSettings(default_group_buckets=0)})
    outputs = [_consumer(rig)[1] for _ in range(2)]
    for number in range(10):
        _send(rig, b"one", b"%d" % number)
        rig.turns()
    assert [len(output.bodies()) for output in outputs] == [5, 5]


def test_the_first_message_of_a_group_for_its_consumer_says_so() -> None:
    rig = Rig({"#": AddressSettings(default_group_first_key="group-first")})
    first, output = _consumer(rig)
    for group in (b"a", b"b"):
        _send(rig, group, group + b"1", group + b"2")
    _send(rig, b"", b"none")
    rig.turns()
    marks = [(frame.body, frame.get("group-first")) for frame in output.frames()]
    assert marks == [
        (b"a1", "true"),
        (b"a2", None),
        (b"b1", "true"),
        (b"b2", None),
        (b"none", None),
    ]
    close_subscription(rig.core, rig.registry, first)
    _, output = _consumer(rig)
    rig.turns()
    marks = [(frame.body, frame.get("group-first")) for frame in output.frames()]
    assert marks[:2] == [(b"a1", "true"), (b"a2", None)]


def test_groups_of_others_go_to_an_exclusive_consumer_that_comes() -> None:
    rig = Rig()
    first, second, alone = rig.output(), rig.output(), rig.output()
    rig.subscribe(first, "/queue/q")
    rig.subscribe(second, "/queue/q")
    for number in range(8):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:%d\n" % (number % 4))
    rig.turns()
    assert len(first.bodies()) + len(second.bodies()) == 8
    consumer = rig.subscribe(alone, "/queue/q", is_exclusive=True)
    for number in range(8, 16):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:%d\n" % (number % 4))
    rig.turns()
    assert alone.bodies() == [b"%d" % number for number in range(8, 16)]
    close_subscription(rig.core, rig.registry, consumer)
    rig.dispatcher.poke(consumer.queue.id)
    rig.turns()
    assert sorted(first.bodies() + second.bodies(), key=int) == [
        b"%d" % number for number in range(8, 16)
    ]


def test_a_group_whose_owner_takes_nothing_is_passed_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 100)
    rig = Rig()
    slow, slow_output = _consumer(rig, credit=1)
    _send(rig, b"hot", b"first")
    rig.turns()
    _, other_output = _consumer(rig)
    _send(rig, b"hot", *[b"hot"] * 900)
    _send(rig, b"cold", b"here")
    rig.turns()
    assert other_output.bodies() == [b"here"]
    _send(rig, b"hot", *[b"hot"] * 3000)
    _send(rig, b"cold", b"behind")
    rig.turns()
    examined = slow.queue.examined
    assert examined is not None
    assert examined.waiting(slow) < 1500
    assert other_output.bodies() == []
    came = []
    for _ in range(3901):  # with one at a time, as its credit allows
        came += _acknowledge(rig, slow, slow_output)
        rig.turns()
    assert came == [b"first", *[b"hot"] * 3900]
    assert other_output.bodies() == [b"behind"]


def test_nothing_is_kept_of_messages_whose_lane_has_gone() -> None:
    rig = Rig({"#": AddressSettings(auto_delete_queues=False)})
    keeper, going = rig.output(), rig.output()
    kept = rig.subscribe(keeper, "/queue/q", selector="n = 1", credit=1)
    leaving = rig.subscribe(going, "/queue/q", selector="n = 2", credit=1)
    for number in range(10):
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:g\nn:2\n")
        rig.send("/queue/q", b"%d" % number, properties=b"JMSXGroupID:h\nn:1\n")
    rig.turns()
    examined = kept.queue.examined
    assert examined is not None
    assert len(examined._group_of) == 18
    close_subscription(rig.core, rig.registry, leaving)
    assert len(examined._group_of) == 9

"""Messages that no queue accepts: each way of them is counted, by address, and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.transactions import (
    Outgoing,
    Transaction,
    prepare,
    stage,
    stage_once,
)
from vespiary_broker.engine.unrouted_messages import (
    ADDRESSES_MAX,
    LOG_LINES_MAX,
    LOG_PERIOD_S,
    OTHERS,
)
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.engine_rig import Rig, destination, do

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def counts(rig: Rig) -> dict[str, int]:
    found = rig.registry.unrouted_messages.by_address()
    assert rig.registry.unrouted_messages.total == sum(found.values())
    return found


def filtered(rig: Rig, name: str, address: str, kind: RoutingType) -> None:
    traits = QueueTraits(selector=compile_filter("colour = 'red'"))
    do(rig.registry.create_queue(name, address, kind, traits=traits))


def divert(rig: Rig, *, exclusive: bool, filter_string: str = "") -> None:
    wanted = Divert(
        name="d",
        address="news",
        forwarding_address="desert",
        exclusive=exclusive,
        filter_string=filter_string,
    )
    do(rig.registry.diverts.create(wanted))


def test_a_topic_without_subscribers() -> None:
    rig = Rig()
    for _ in range(3):
        rig.send("/topic/news", b"x")
    rig.send("/queue/orders", b"x")
    assert counts(rig) == {"news": 3}
    do(rig.registry.create_queue("q", "news", MULTICAST))
    rig.send("/topic/news", b"x")
    assert counts(rig) == {"news": 3}


@pytest.mark.parametrize("kind", [ANYCAST, MULTICAST])
def test_what_no_filter_lets_in(kind: RoutingType) -> None:
    rig = Rig()
    filtered(rig, "red", "news", kind)
    for colour in ("blue", "red", "green"):
        rig.send("news", b"x", colour=colour)
    rig.send("news::red", b"x", colour="blue")
    assert counts(rig) == {"news": 3}


@pytest.mark.parametrize("filter_string", ["", "colour = 'red'"])
def test_a_divert_to_an_address_without_queues(filter_string: str) -> None:
    rig = Rig()
    do(rig.registry.create_queue("all", "news", MULTICAST))
    do(rig.registry.create_address("desert", {MULTICAST}))
    divert(rig, exclusive=True, filter_string=filter_string)
    rig.send("/topic/news", b"x", colour="red")
    rig.send("/topic/news", b"x", colour="blue")
    assert counts(rig) == {"news": 1 if filter_string else 2}


def test_what_another_queue_accepts_is_not_counted() -> None:
    rig = Rig()
    do(rig.registry.create_queue("all", "news", MULTICAST))
    do(rig.registry.create_address("desert", {MULTICAST}))
    divert(rig, exclusive=False)
    rig.send("/topic/news", b"x")
    assert counts(rig) == {}


def test_a_message_of_a_transaction_counts_with_its_commit() -> None:
    rig = Rig()
    do(rig.registry.create_address("news", {MULTICAST}))
    transaction = Transaction()
    for address in ("/topic/news", "/queue/orders"):
        transaction.sends.append(
            Outgoing(
                destination=destination(address),
                properties=b"destination:x\n",
                body=b"x",
                is_persistent=True,
            )
        )
    do(prepare(rig.registry, transaction))
    assert counts(rig) == {}
    stage(rig.core, rig.registry, rig.duplicates, transaction)
    assert counts(rig) == {"news": 1}


@pytest.mark.parametrize("is_transacted", [False, True])
def test_the_id_of_what_no_queue_accepted_is_not_remembered(is_transacted: bool) -> None:
    rig = Rig()
    do(rig.registry.create_address("news", {MULTICAST}))
    message = Outgoing(
        destination=destination("/topic/news"),
        properties=b"destination:x\n",
        body=b"x",
        is_persistent=True,
        duplicate_id=b"1",
    )

    def send() -> int | None:
        target = find_target(rig.registry, message.destination)
        assert target is not None
        if not is_transacted:
            return stage_once(rig.core, rig.registry, rig.duplicates, message, target)
        if rig.duplicates.is_seen("news", b"1"):
            return None
        stage(rig.core, rig.registry, rig.duplicates, Transaction(sends=[message]))
        return rig.core.queue_statistics(queue.id).added if queue is not None else 0

    queue = None
    assert send() == 0
    queue = do(rig.registry.create_queue("q", "news", MULTICAST))
    assert send() == 1
    assert send() is None
    assert counts(rig) == {"news": 1}


def test_dead_letters_that_another_address_accepts_are_not_counted() -> None:
    rig = Rig({"news": AddressSettings(dead_letter_address="DLQ", send_to_dla_on_no_route=True)})
    do(rig.registry.create_queue("DLQ", "DLQ", ANYCAST))
    filtered(rig, "red", "news", MULTICAST)
    rig.send("/topic/news", b"x", colour="blue")
    assert counts(rig) == {}


def test_a_route_that_goes_keeps_its_count() -> None:
    rig = Rig()
    rig.send("/topic/news", b"x")
    filtered(rig, "red", "news", MULTICAST)  # a switch takes the place of the route
    rig.send("/topic/news", b"x", colour="blue")
    rig.registry.ask_again()
    assert counts(rig) == {"news": 2}


def test_what_the_broker_sends_itself_is_not_counted() -> None:
    rig = Rig()
    unrouted = rig.registry.unrouted_messages
    for name in ("$SYS.broker.uptime", "$mqtt.notes"):
        route = unrouted.open_route(name, [])
        rig.core.publish(route, b"destination:x\n", b"x", persistent=False)
    assert counts(rig) == {}


def test_more_addresses_than_are_counted_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    unrouted = rig.registry.unrouted_messages

    def send(address: str) -> None:
        route = unrouted.open_route(address, [])
        rig.core.publish(route, b"destination:x\n", b"x", persistent=False)
        unrouted.close_route(route)

    for number in range(ADDRESSES_MAX - 1):
        send(f"a{number}")
    send("orders")
    for number in range(ADDRESSES_MAX - 1):
        send(f"b{number}")
    send("orders")  # it is among the last
    send("c")
    found = counts(rig)
    assert len(found) == ADDRESSES_MAX + 1
    assert next(iter(found)) == "orders"
    assert found["orders"] == unrouted.count_of("orders") == 2
    assert (list(found)[-1], found[OTHERS]) == (OTHERS, ADDRESSES_MAX)
    assert unrouted.count_of("a0") == unrouted.count_of("b0") == 0
    logged = 0
    for _ in range(ADDRESSES_MAX // LOG_LINES_MAX + 1):
        unrouted.report()
        logged += len(caplog.records)
        assert len(caplog.records) <= LOG_LINES_MAX
        caplog.clear()
        rig.now_s += LOG_PERIOD_S
    assert logged == ADDRESSES_MAX + 1


def test_an_address_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    filtered(rig, "red", "orders", ANYCAST)
    report = rig.registry.unrouted_messages.report

    def logged() -> list[tuple[str, str]]:
        report()
        found = [(each.levelname, each.getMessage()) for each in caplog.records]
        caplog.clear()
        return [
            (level, text.partition(" address=")[2].partition(" cause=")[0])
            for level, text in found
            if "no queue" in text
        ]

    assert logged() == []
    rig.send("/queue/orders", b"x")
    rig.send("/topic/news", b"x")
    assert sorted(logged()) == [("INFO", "news messages=1"), ("WARNING", "orders messages=1")]
    for _ in range(2):
        rig.send("/queue/orders", b"x")
    assert logged() == []
    rig.now_s += LOG_PERIOD_S - 0.5
    assert logged() == []
    rig.now_s += 0.5
    assert logged() == [("WARNING", "orders messages=2")]
    rig.now_s += LOG_PERIOD_S
    assert logged() == []


@pytest.fixture
def explained(caplog: pytest.LogCaptureFixture) -> Callable[[Rig], str]:
    """Return the line of the only address that lost messages, from the level on."""
    caplog.set_level(logging.INFO)

    def explained(rig: Rig) -> str:
        caplog.clear()
        rig.registry.unrouted_messages.report()
        found = [each for each in caplog.records if "no queue" in each.getMessage()]
        (line,) = [f"{each.levelname} {each.getMessage()}" for each in found]
        return line

    return explained


def test_a_topic_says_how_to_subscribe(explained: Callable[[Rig], str]) -> None:
    rig = Rig()
    rig.send("/topic/news", b"x")
    line = explained(rig)
    assert line.startswith("INFO ")
    assert "cause='nobody has subscribed to the topic'" in line
    assert "subscribe to the topic, or `vespiary queue create news --routing-type multi" in line


@pytest.mark.parametrize(("prefix", "kind"), [("/queue/", ANYCAST), ("/topic/", MULTICAST)])
def test_a_filter_that_rejects_is_named(
    explained: Callable[[Rig], str], prefix: str, kind: RoutingType
) -> None:
    rig = Rig()
    filtered(rig, "red", "news", kind)
    rig.send(f"{prefix}news", b"x", colour="blue")
    line = explained(rig)
    assert line.startswith("WARNING ")
    assert "cause='the filter of the queue red rejected them'" in line
    assert "queue create" not in line


def test_queues_of_the_other_routing_type_are_said(explained: Callable[[Rig], str]) -> None:
    rig = Rig()
    do(rig.registry.create_queue("x", "x", ANYCAST))
    do(rig.registry.create_address("x", {MULTICAST}))
    rig.send("/topic/x", b"x")
    line = explained(rig)
    assert "cause='x has only ANYCAST queues, and they were sent as MULTICAST'" in line
    assert "`vespiary queue create QUEUE --address x --routing-type multicast`" in line


def test_an_exclusive_divert_is_named(explained: Callable[[Rig], str]) -> None:
    rig = Rig()
    do(rig.registry.create_queue("q", "news", MULTICAST))
    divert(rig, exclusive=True)
    rig.send("/topic/news", b"x")
    assert "an exclusive divert sends them to an address without" in explained(rig)


def test_many_addresses_take_turns_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    for number in range(LOG_LINES_MAX + 3):
        rig.send(f"/topic/a{number}", b"x")
    report = rig.registry.unrouted_messages.report
    report()
    report()
    assert len(caplog.records) == LOG_LINES_MAX
    rig.now_s += LOG_PERIOD_S
    report()
    assert len(caplog.records) == LOG_LINES_MAX + 3

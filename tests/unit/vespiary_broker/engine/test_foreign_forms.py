"""Destinations as clients of other brokers write them: mapped, or rejected with the right form."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.foreign_names import warn_of_foreign_names
from vespiary_broker.engine.names import (
    PREFIXES,
    Destination,
    InvalidName,
    check_new_name,
    meant_queue,
    own_form,
    parse_destination,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import AddressSettings, Configuration, RoutingType

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST

MAPPED = [
    ("/queues/orders", ANYCAST, "orders"),
    ("/queues/a%2Fb%20c", ANYCAST, "a/b c"),
    ("/amq/queue/orders", ANYCAST, "orders"),
    ("queue://orders", ANYCAST, "orders"),
    ("queue://a.b/c", ANYCAST, "a.b/c"),
    ("jms.queue.orders", ANYCAST, "orders"),
    ("topic://prices", MULTICAST, "prices"),
    ("topic://prices.#", MULTICAST, "prices.#"),
    ("jms.topic.prices", MULTICAST, "prices"),
    ("/topics/prices", MULTICAST, "prices"),
]
REJECTED = [
    ("/exchange/x/y", "names an exchange.*Write /queue/NAME"),
    ("/exchanges/x/y", "names an exchange.*Write /queue/NAME"),
    ("/temp-queue/x", "temporary destination.*Write /queue/NAME"),
    ("/temp-topic/x", "temporary destination"),
    ("/reply-queue/x", "temporary destination"),
    ("temp-queue://x", "temporary destination"),
    ("jms.tempqueue.x", "temporary destination"),
    ("queue://x?consumer.prefetch=1", "options of another broker.*write queue://x"),
    ("/queues/%ff", "percent-encoded wrongly"),
    ("queue://", "wrong length"),
]


def parse(text: str, kind: RoutingType | None = None) -> Destination:
    anycast, multicast = PREFIXES
    return parse_destination(
        text, anycast_prefix=anycast, multicast_prefix=multicast, routing_type=kind
    )


@pytest.mark.parametrize(("text", "kind", "name"), MAPPED)
def test_forms_that_are_mapped(text: str, kind: RoutingType, name: str) -> None:
    own = own_form(text, *PREFIXES)
    assert own == PREFIXES[kind is MULTICAST] + name
    for each in (text, own):
        found = parse(each)
        assert (found.address, found.queue, found.routing_type) == (name, None, kind)
    assert own_form(own, *PREFIXES) == own
    assert own_form(text, "", "") == name
    with pytest.raises(InvalidName, match="another broker"):
        check_new_name(text, "queue")


@pytest.mark.parametrize(("text", "sentence"), REJECTED)
def test_forms_that_are_rejected(text: str, sentence: str) -> None:
    with pytest.raises(InvalidName, match=sentence):
        parse(text)


def test_a_queue_by_its_full_name() -> None:
    found = parse("queue://prices::audit")
    assert (found.address, found.queue, found.routing_type) == ("prices", "audit", ANYCAST)


def test_a_header_that_says_otherwise() -> None:
    assert parse("topic://prices", MULTICAST).address == "prices"
    with pytest.raises(RemoteProtocolError, match="means MULTICAST, but a header asks for ANYCAST"):
        parse("topic://prices", ANYCAST)


@pytest.mark.parametrize(
    "text", ["orders", "jms", "jms.queue", "jms.queues.x", "queue:x", "/other/x", "/queue/x", "q/x"]
)
def test_names_that_are_names(text: str) -> None:
    assert own_form(text, *PREFIXES) == text
    check_new_name(text, "queue")


def test_the_own_prefix_comes_first() -> None:
    found = parse("/queue/jms.queue.x")
    assert found.address == "jms.queue.x"
    assert own_form("/queue/jms.queue.x", *PREFIXES) == "/queue/jms.queue.x"
    assert own_form("/exchange/x", "/exchange/", "/topic/") == "/exchange/x"


def test_an_address_in_such_a_form_says_how_to_reach_it(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_foreign_names(["orders", "jms.queue.old", "topic://t"], Configuration())
    (record,) = caplog.records
    assert record.getMessage() == (
        "STOMP and AMQP clients that use jms.queue.old now reach the queue old; use "
        "/queue/jms.queue.old for this one, or move its messages with `vespiary queue move` "
        "kind=addresses names=2 first='jms.queue.old', 'topic://t'"
    )


def test_an_address_in_a_rejected_form_says_so(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_foreign_names(["/exchange/a"], Configuration())
    assert "clients that use /exchange/a are now rejected; use /queue//exchange/a " in caplog.text


def test_a_match_in_such_a_form_says_its_name(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"queue://q": AddressSettings()}
    warn_of_foreign_names([], Configuration(address_settings=settings))
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "this match no longer applies to what clients call queue://q; name it q "
        "kind=address-settings names=1"
    )


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("queue://x", "x"),
        ("jms.queue.a::x", "x"),
        ("/queues/x", "x"),
        ("x", ""),
        ("/exchange/x", ""),
    ],
)
def test_the_queue_that_a_name_means(name: str, queue: str) -> None:
    assert meant_queue(name) == queue

import pytest

from vespiary_broker.engine.names import (
    Destination,
    is_reserved,
    parse_destination,
    parse_routing_type,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import destination

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/queue/orders", Destination("orders", None, ANYCAST)),
        ("/topic/prices.eu", Destination("prices.eu", None, MULTICAST)),
        ("orders", Destination("orders")),
        ("/other/orders", Destination("/other/orders")),
        ("prices::audit", Destination("prices", "audit")),
        ("/topic/prices::audit", Destination("prices", "audit", MULTICAST)),
        ("a:b", Destination("a:b")),
        ("ünï", Destination("ünï")),
        ("a b  c", Destination("a b  c")),
        ("/topic/two words::my queue", Destination("two words", "my queue", MULTICAST)),
    ],
)
def test_destination(text: str, expected: Destination) -> None:
    assert destination(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "wrong length"),
        ("/queue/", "wrong length"),
        ("a::", "queue has a wrong length"),
        ("::b", "address has a wrong length"),
        ("a::b::c", "more than one ::"),
        ("a\tb", "a control character at 1"),
        ("a\nb", "a control character at 1"),
        (" /queue/a", "begins or ends with a space"),
        ("/queue/ a", "begins or ends with a space"),
        ("/queue/a ", "begins or ends with a space"),
        ("a:: b", "the queue begins or ends with a space"),
        ("a ::b", "the address begins or ends with a space"),
        (" ", "begins or ends with a space"),
        ("a" * 1025, "1025 bytes"),
    ],
)
def test_refused_destination(text: str, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        destination(text)


@pytest.mark.parametrize("delimiter", [".", "/"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("$SYS", True),
        ("$SYS.broker.version", True),
        ("$SYS.#", True),
        ("$SYS.broker.connection.state", True),
        ("$SYS.broker.connection.edge.state", False),
        ("$SYS.broker.connection.site.edge.state", False),
        ("$SYS.broker.connection.edge.status", True),
        ("$SYS.broker.other.edge.state", True),
        ("$SYSTEM.x", False),
        ("$x.y", False),
        ("SYS.x", False),
    ],
)
def test_what_only_the_broker_sends_to(name: str, expected: bool, delimiter: str) -> None:
    assert is_reserved(name.replace(".", delimiter), delimiter) is expected
    assert is_reserved("$mqtt.retained", delimiter)


def test_header_and_prefix() -> None:
    assert destination("a", MULTICAST).routing_type is MULTICAST
    assert destination("/queue/a", ANYCAST).routing_type is ANYCAST
    with pytest.raises(RemoteProtocolError, match="means ANYCAST, but a header asks for MULTICAST"):
        destination("/queue/a", MULTICAST)


def test_without_prefixes() -> None:
    plain = parse_destination("/queue/a", anycast_prefix="", multicast_prefix="")
    assert plain == Destination("/queue/a")


def test_routing_type() -> None:
    assert parse_routing_type(" anycast ", "x") is ANYCAST
    with pytest.raises(RemoteProtocolError, match=r"header x .*BOTH.*ANYCAST or MULTICAST"):
        parse_routing_type("BOTH", "x")

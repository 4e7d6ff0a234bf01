"""Topics and addresses: one to one, and wildcards mean the same on both sides."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.wildcards import Pattern, WildcardSyntax
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.wire.mqtt.topics import matches

SYNTAX = WildcardSyntax()
MAPPING = TopicMapping(SYNTAX, ("/queue/", "/topic/"))
NAMES = st.text(alphabet="ab/.*% :205A2B3\x01\x7fé", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        ("sensors/kitchen", "sensors.kitchen"),
        ("v1.2/a", "v1/2.a"),
        ("/a//b/", ".a..b."),
        ("my topic", "my topic"),
        ("a /b / c", "a .b . c"),
        (" a/b ", "%20a.b%20"),
        (" ", "%20"),
        ("  ", "%20%20"),
        ("a/ ", "a.%20"),
        ("a/*/b*", "a.%2A.b*"),
        ("a%20b", "a%2520b"),
        ("50%", "50%"),
        ("a%2Bb%23", "a+b#"),
        ("%23", "%2523"),
        ("x::y", "x%3A:y"),
        ("größe/é", "größe.é"),
    ],
)
def test_names(topic: str, address: str) -> None:
    assert MAPPING.address_of(topic) == address
    assert MAPPING.topic_of(address) == topic


def test_the_space_of_an_earlier_address_is_decoded() -> None:
    assert MAPPING.topic_of("my%20topic") == "my topic"


@given(NAMES)
def test_every_topic_has_an_address_of_its_own(topic: str) -> None:
    address = MAPPING.address_of(topic)
    assert MAPPING.topic_of(address) == topic
    assert not re.search(r"[\x00-\x1f\x7f]|::|\A | \Z", address)
    assert not SYNTAX.is_wildcard(address)


@given(st.text(alphabet="ab/.#+é ", min_size=1, max_size=20))
def test_every_address_has_a_topic_of_its_own(address: str) -> None:
    if not SYNTAX.is_wildcard(address) and address == address.strip(" "):
        topic = MAPPING.topic_of(address)
        assert not set(topic) & set("+#")
        assert MAPPING.address_of(topic) == address


@given(
    st.lists(st.sampled_from(["a", "b", "", "+", "x.y"]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "", "x.y", "*"]), min_size=1, max_size=4),
)
def test_a_filter_takes_the_same_as_its_address(
    parts: list[str], is_open: bool, levels: list[str]
) -> None:
    topic_filter = "/".join([*parts, "#"] if is_open else parts)
    topic = "/".join(levels)
    if topic_filter and topic:
        pattern = Pattern(MAPPING.address_of_filter(topic_filter), SYNTAX)
        assert pattern.is_match(MAPPING.address_of(topic)) is matches(topic_filter, topic)


def test_other_syntax_and_what_other_protocols_write() -> None:
    mapping = TopicMapping(WildcardSyntax("/", "**", "?"))
    assert mapping.address_of_filter("a/+/#") == "a/?/**"
    assert mapping.address_of("a/?/b.c") == "a/%3F/b.c"
    assert MAPPING.topic_of_destination("/topic/a.b") == "a/b"
    assert MAPPING.topic_of_destination("a.b::queue") == "a/b"
    assert MAPPING.address_of_filter("$share/group/a/+") == "a.*"

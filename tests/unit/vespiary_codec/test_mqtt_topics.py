"""Topic names and filters: the examples of the specification, and what is refused."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.wire.mqtt import (
    LimitExceeded,
    MqttLimits,
    ReasonCode,
    RemoteProtocolError,
    Share,
    Violation,
    check_filter,
    check_topic,
    matches,
    split_share,
)
from vespiary_codec.wire.mqtt.topics import can_both_match

LIMITS = MqttLimits(topic_bytes=20, topic_levels=4)


@pytest.mark.parametrize(
    ("topic_filter", "taken", "passed_over"),
    [
        # MQTT 5.0 §4.7.1.2 and §4.7.1.3
        ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking",
                                    "sport/tennis/player1/score/wimbledon"], ["sport/tennis"]),
        ("sport/#", ["sport", "sport/a", "sport/"], ["sports", "/sport"]),
        ("#", ["a", "/", "a/b/c"], ["$SYS", "$SYS/a"]),
        ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/"],
         ["sport/tennis/player1/ranking", "sport/tennis"]),
        ("sport/+", ["sport/", "sport/a"], ["sport", "sport/a/b"]),
        ("+/+", ["/finance", "a/b"], ["finance", "$SYS/a"]),
        ("/+", ["/finance"], ["finance", "/a/b"]),
        ("+", ["finance", ""], ["/finance"]),
        # §4.7.2
        ("+/monitor/Clients", ["a/monitor/Clients"], ["$SYS/monitor/Clients"]),
        ("$SYS/#", ["$SYS", "$SYS/a/b"], ["SYS"]),
        ("$SYS/monitor/+", ["$SYS/monitor/Clients"], []),
        # §4.7.3: each character counts
        ("ACCOUNTS", ["ACCOUNTS"], ["Accounts", "ACCOUNTS ", "/ACCOUNTS"]),
        ("a//b", ["a//b"], ["a/b"]),
        ("+/tennis/#", ["sport/tennis", "/tennis/a"], ["tennis"]),
    ],
)  # fmt: skip
def test_what_a_filter_takes(topic_filter: str, taken: list[str], passed_over: list[str]) -> None:
    check_filter(topic_filter, MqttLimits())
    assert [topic for topic in taken + passed_over if matches(topic_filter, topic)] == taken


@pytest.mark.parametrize(
    "topic_filter",
    ["", "sport/tennis#", "sport/tennis/#/ranking", "sport+", "a/b+/c", "##", "#/", "++",
     "$share/", "$share/g", "$share/g/", "$share//a", "$share/g+/a", "$share/#/a",
     "$share/g/a#"],
)  # fmt: skip
def test_filters_that_are_none(topic_filter: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_filter(topic_filter, MqttLimits())
    assert caught.value.violation is Violation.TOPIC_FILTER
    assert caught.value.reason_code is ReasonCode.TOPIC_FILTER_INVALID


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a#b"])
def test_names_that_are_none(topic: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_topic(topic, MqttLimits())
    assert caught.value.violation is Violation.TOPIC_NAME
    assert caught.value.reason_code is ReasonCode.TOPIC_NAME_INVALID


@pytest.mark.parametrize("check", [check_topic, check_filter])
def test_sizes(check) -> None:
    check("a" * 20, LIMITS)
    check("a/b/c/d", LIMITS)
    with pytest.raises(LimitExceeded, match="21 bytes; at most 20"):
        check("a" * 21, LIMITS)
    with pytest.raises(LimitExceeded, match="22 bytes"):
        check("ä" * 11, LIMITS)
    with pytest.raises(LimitExceeded, match="5 levels; at most 4"):
        check("a/b/c/d/", LIMITS)


def test_what_is_said_of_a_long_topic_is_short() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check_topic("a" * 1000 + "#", MqttLimits(topic_bytes=2000))
    assert len(caught.value.reason) < 120


@pytest.mark.parametrize(
    ("topic_filter", "share"),
    [
        ("a/b", Share("", "a/b")),
        ("$share/g/a/b", Share("g", "a/b")),
        ("$share/g//b", Share("g", "/b")),
        ("$shared/g/a", Share("", "$shared/g/a")),
        ("$share", Share("", "$share")),
    ],
)
def test_shares(topic_filter: str, share: Share) -> None:
    assert split_share(topic_filter) == share


LEVELS = st.lists(st.sampled_from(["", "a", "b", "$a"]), min_size=1, max_size=4)


@given(LEVELS, st.data())
def test_a_filter_made_from_a_name_takes_it(levels: list[str], data) -> None:
    """Whatever levels become `+`, and whatever tail becomes `#`."""
    topic = "/".join(levels)
    own = [level if data.draw(st.booleans()) else "+" for level in levels]
    if data.draw(st.booleans()):
        own = [*own[: data.draw(st.integers(0, len(own)))], "#"]
    hidden = topic.startswith("$") and own[0] in "+#" and own[0] != ""
    assert matches("/".join(own), topic) is not hidden


def test_two_filters_overlap_where_a_topic_matches_both() -> None:
    filters = [
        "/".join(levels)
        for count in (1, 2, 3)
        for levels in product(["a", "b", "", "+", "#"], repeat=count)
        if "#" not in levels[:-1]
    ]
    topics = ["/".join(t) for count in (1, 2, 3, 4) for t in product(["a", "b", ""], repeat=count)]
    takes = {one: {topic for topic in topics if matches(one, topic)} for one in filters}
    for one, other in product([each for each in filters if each], repeat=2):
        assert can_both_match(one, other) is bool(takes[one] & takes[other]), (one, other)

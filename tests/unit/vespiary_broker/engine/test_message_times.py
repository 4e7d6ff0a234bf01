"""Times to live and scheduled times: what headers and settings ask for, and how they are stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vespiary_broker.engine.message_times import (
    NO_TIMES,
    REPETITIONS,
    MessageTimes,
    expiry,
    has_expiry_rules,
    read_times,
    stamp,
    times_of_send,
)
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings

NOW = 1_000_000


def settings(**values: Any) -> AddressSettings:
    return msgspec.structs.replace(ADDRESS_DEFAULTS, **values)


def times(headers: dict[str, str], **values: Any) -> MessageTimes:
    return times_of_send(headers.get, settings(**values), NOW)


def test_without_headers_and_settings_a_message_has_no_times() -> None:
    assert times({}) == NO_TIMES
    assert times({"expires": "0", "AMQ_SCHEDULED_DELAY": "0"}) == NO_TIMES


def test_headers_of_senders() -> None:
    assert times({"expires": "1000005"}) == (1_000_005, 0)
    assert times({"JMSExpiration": "1000006"}) == (1_000_006, 0)
    assert times({"expires": "1000005", "JMSExpiration": "7"}) == (1_000_005, 0)
    assert times({"AMQ_SCHEDULED_TIME": "2000000"}) == (0, 2_000_000)
    assert times({"_AMQ_SCHED_DELIVERY": "2000001"}) == (0, 2_000_001)
    assert times({"AMQ_SCHEDULED_DELAY": "500"}) == (0, NOW + 500)
    assert times({"AMQ_SCHEDULED_DELAY": "500", "AMQ_SCHEDULED_TIME": "9"}) == (0, 9)


@pytest.mark.parametrize("name", REPETITIONS)
def test_a_message_that_asks_for_repeated_delivery_is_refused_by_name(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{name} is not supported"):
        times({name: "0"})


@pytest.mark.parametrize("text", ["", "-1", "soon", "1.5", "9" * 17, "٣"])
@pytest.mark.parametrize("name", ["expires", "AMQ_SCHEDULED_TIME", "AMQ_SCHEDULED_DELAY"])
def test_what_is_no_time_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"wrong {name}"):
        times({name: text})


@pytest.mark.parametrize(
    ("rules", "asked_ms", "expected_ms"),
    [
        ({}, 0, 0),
        ({"expiry_delay": 10}, 0, NOW + 10),
        ({"expiry_delay": 10}, NOW + 99, NOW + 99),
        ({"expiry_delay": 0}, 0, NOW),
        ({"expiry_delay": 10, "max_expiry_delay": 5}, NOW + 99, NOW + 99),
        ({"max_expiry_delay": 50}, 0, NOW + 50),
        ({"max_expiry_delay": 50}, NOW + 51, NOW + 50),
        ({"max_expiry_delay": 50}, NOW + 49, NOW + 49),
        ({"min_expiry_delay": 20}, 0, NOW + 20),
        ({"min_expiry_delay": 20}, NOW + 19, NOW + 20),
        ({"min_expiry_delay": 20}, NOW + 21, NOW + 21),
        ({"min_expiry_delay": 20, "max_expiry_delay": 50}, 0, NOW + 50),
        ({"min_expiry_delay": 20, "max_expiry_delay": 50}, NOW + 5, NOW + 20),
        ({"min_expiry_delay": 20, "max_expiry_delay": 50}, NOW + 60, NOW + 50),
        ({"no_expiry": True, "expiry_delay": 10}, NOW + 5, 0),
    ],
)
def test_expiry_by_the_settings(rules: dict[str, Any], asked_ms: int, expected_ms: int) -> None:
    assert expiry(settings(**rules), asked_ms, NOW) == expected_ms
    assert times({"expires": str(asked_ms)}, **rules).expires_ms == expected_ms


def test_which_settings_make_messages_expire_that_ask_for_nothing() -> None:
    assert not has_expiry_rules(settings())
    assert not has_expiry_rules(settings(no_expiry=True, expiry_delay=5))
    for name in ("expiry_delay", "min_expiry_delay", "max_expiry_delay"):
        assert has_expiry_rules(settings(**{name: 0}))


def test_the_stored_form_has_each_time_once_and_reads_back() -> None:
    sent = b"a:1\nexpires:5\nAMQ_SCHEDULED_DELAY:7\nJMSExpiration:8\nexpires:6\nb:x\\cy\n"
    stored = stamp(sent, MessageTimes(50, 70))
    assert stored == b"a:1\nb:x\\cy\nexpires:50\nAMQ_SCHEDULED_TIME:70\n"
    assert read_times(stored) == (50, 70)
    assert stamp(sent, NO_TIMES) == b"a:1\nb:x\\cy\n"
    assert stamp(b"a:1\n", NO_TIMES) == b"a:1\n"


def test_only_a_whole_header_counts_and_odd_ones_hold_nothing_up() -> None:
    assert read_times(b"xexpires:5\nnote:expires\\c6\n") == NO_TIMES
    assert read_times(b"expires:never\nAMQ_SCHEDULED_TIME:-4\n") == NO_TIMES
    assert read_times(b"expires:5\n") == (5, 0)
    assert read_times(b"") == NO_TIMES

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.selection.message_values import Extractor, values_of
from vespiary_codec.wire.stomp import Frame
from vespiary_codec.wire.stomp.properties import canonical_properties


class Message(NamedTuple):
    properties: bytes = b""
    is_escaped: bool = False
    sequence: int = 12
    deliveries: int = 2
    priority: int = 7
    time_ms: int = 1_700_000_000_000
    is_journalled: bool = False
    body_length: int = 100


def test_headers():
    message = Message(b"destination:/queue/a\ncolour:red\nprice:5\nempty:\ncolour:blue\n")
    assert values_of(message, {"colour", "price", "empty", "destination"}) == {
        "colour": "red",
        "price": "5",
        "empty": "",
        "destination": "/queue/a",
    }


@pytest.mark.parametrize("is_escaped", [False, True])
def test_a_name_is_found_whole(is_escaped: bool):
    message = Message(b"xcolour:1\ncolourx:2\nnote:colour\nc:colour\n", is_escaped=is_escaped)
    assert values_of(message, {"colour"}).get("colour") is None


@pytest.mark.parametrize("is_escaped", [False, True])
def test_no_headers_at_all(is_escaped: bool):
    assert values_of(Message(is_escaped=is_escaped), {"a"}).get("a") is None


def test_escapes():
    message = Message(b"a\\cb:x\\ny\\\\z\nplain:1\nbad:\\q\n", is_escaped=True)
    assert values_of(message, {"a:b", "plain", "bad"}) == {
        "a:b": "x\ny\\z",
        "plain": "1",
        "bad": "\\q",
    }


def test_a_backslash_is_itself_where_nothing_is_escaped():
    assert values_of(Message(b"path:c\\new\n"), {"path"}) == {"path": "c\\new"}


def test_not_utf_8():
    assert values_of(Message(b"a:\xff\n"), {"a"}) == {"a": "�"}


KNOWN = {
    "JMSPriority": 7,
    "AMQPriority": 7,
    "JMSTimestamp": 1_700_000_000_000,
    "AMQTimestamp": 1_700_000_000_000,
    "JMSXDeliveryCount": 3,
    "JMSDeliveryMode": "NON_PERSISTENT",
    "AMQDurable": "NON_DURABLE",
    "AMQSize": 100,
    "JMSCorrelationID": None,
    "JMSType": None,
    "JMSExpiration": None,
    "JMSXGroupID": None,
    "AMQAddress": None,
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_the_broker_knows(name: str):
    assert values_of(Message(), {name}).get(name) == KNOWN[name]


def test_names_of_jms_stand_for_headers_of_stomp():
    lines = {
        "correlation-id": "JMSCorrelationID",
        "type": "JMSType",
        "expires": "JMSExpiration",
        "reply-to": "JMSReplyTo",
        "JMSXGroupID": "AMQGroupID",
        "JMSMessageID": "AMQUserID",
    }
    message = Message("".join(f"{header}:v-{header}\n" for header in lines).encode())
    values = values_of(message, lines.values())
    assert values == {name: f"v-{header}" for header, name in lines.items()}
    assert values_of(message, {"JMSMessageID"}) == {"JMSMessageID": "v-JMSMessageID"}


def test_a_header_of_the_same_name_counts_where_nothing_is_known():
    message = Message(b"JMSType:order\n")
    assert values_of(message, {"JMSType"}) == {"JMSType": "order"}
    both = Message(b"JMSType:order\ntype:invoice\n")
    assert values_of(both, {"JMSType"}) == {"JMSType": "invoice"}


@pytest.mark.parametrize(
    "message", [Message(is_journalled=True), Message(b"a:b\npersistent:true\n")]
)
def test_persistent(message: Message):
    assert values_of(message, {"JMSDeliveryMode", "AMQDurable"}) == {
        "JMSDeliveryMode": "PERSISTENT",
        "AMQDurable": "DURABLE",
    }


def test_address():
    extractor = Extractor({"AMQAddress"}, address="orders")
    assert extractor.values_of(Message()) == {"AMQAddress": "orders"}


headers = st.lists(
    st.tuples(st.text("ab:\\\n\ré", min_size=1, max_size=3), st.text("xy:\\\n\r1", max_size=4)),
    max_size=6,
)


@given(headers)
def test_what_was_sent_is_found(sent: list[tuple[str, str]]):
    properties = canonical_properties(Frame("SEND", sent))
    message = Message(properties, is_escaped=b"\\" in properties)
    first = dict(reversed(sent))
    assert values_of(message, first) == first


@pytest.mark.parametrize("is_escaped", [False, True])
def test_many_names_are_found_in_one_pass(is_escaped: bool):
    lines = b"".join(b"n%d:%d\n" % (number, number) for number in range(300))
    message = Message(lines + b"n7:again\nempty:\nno\n", is_escaped=is_escaped)
    names = {f"n{number}" for number in range(200)} | {"empty", "missing", "no"}
    found = values_of(message, names)
    assert found == {f"n{number}": f"{number}" for number in range(200)} | {"empty": ""}
    few = {"n7", "empty", "missing"}
    assert {name: found.get(name) for name in few} == {
        name: values_of(message, few).get(name) for name in few
    }

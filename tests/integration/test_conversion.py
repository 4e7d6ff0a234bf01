"""docs/howto/conversion.md does not lie: each cell of its table, from each protocol to each other.

Stock clients send and receive. `ROWS` has what a sender of a protocol says, and what a receiver of
each is told then; the page's table is compared with it, so that a row without tests fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest

from vespiary_testkit.broker_process import BrokerProcess

pytest.importorskip("proton", reason="python-qpid-proton is not there: pip builds it")

from proton import Message

from vespiary_testkit.conversion_clients import (
    AMQP,
    MQTT_5,
    MQTT_31,
    MQTT_311,
    SPEAKERS,
    STOMP,
    Said,
    Speakers,
    differences,
    mqtt_told,
    near,
    now_ms,
)

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/conversion.md"
MQTT_3: Final = "MQTT 3"
COLUMNS: Final = (STOMP, MQTT_5, MQTT_3, AMQP)
COLUMN_OF: Final = {name: MQTT_3 if name in (MQTT_311, MQTT_31) else name for name in SPEAKERS}
MQTT: Final = (MQTT_5, MQTT_311, MQTT_31)
NOT_SAID: Final[Said] = {}
"""A message comes, and says nothing of it: there is no place for it."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        said: What a sender of a column says; a column that is missing cannot say it.
        told: What a receiver of a column is told, whoever has sent it.
        by: What is told otherwise, by columns of sender and receiver.
        body: What is sent as the body.
    """

    said: dict[str, Said]
    told: dict[str, Said]
    by: Mapping[tuple[str, str], Said] = MappingProxyType({})
    body: Any = b"\0body\xff"


UUID_1: Final = UUID("01234567-89ab-cdef-0123-456789abcdef")
DAY_S: Final = 86_400
HOURS_S: Final = 7_200
"""How long after this line the last test may run."""
LATER_MS: Final = now_ms() + DAY_S * 1000
SOON_MS: Final = now_ms() + 1_000
ROWS: Final[dict[str, Row]] = {
    "where to": Row(
        {column: {} for column in COLUMNS},
        {
            STOMP: {"destination": "ADDRESS"},
            MQTT_5: {"topic": "TOPIC"},
            MQTT_3: {"topic": "TOPIC"},
            AMQP: {"address": "ADDRESS"},
        },
        {
            (STOMP, STOMP): {"destination": "/topic/ADDRESS"},
            (AMQP, STOMP): {"destination": "/topic/ADDRESS"},
            (STOMP, AMQP): {"address": "/topic/ADDRESS"},
            (AMQP, AMQP): {"address": None},  # its sender has not said it
        },
    ),
    "survives a crash": Row(
        {
            STOMP: {"persistent": "true"},
            MQTT_5: {"qos": 1},
            MQTT_3: {"qos": 1},
            AMQP: {"durable": True},
        },
        {
            STOMP: {"persistent": "true"},
            MQTT_5: {"qos": 2},
            MQTT_3: {"qos": 2},
            AMQP: {"durable": True},
        },
        {
            (sender, receiver): {"qos": 1}
            for sender in (MQTT_5, MQTT_3)
            for receiver in (MQTT_5, MQTT_3)
        },
    ),
    "does not survive a crash": Row(
        {
            STOMP: {"persistent": "false"},
            MQTT_5: {"qos": 0},
            MQTT_3: {"qos": 0},
            AMQP: {"durable": False},
        },
        {
            STOMP: {"persistent": lambda said: said in (None, "false")},
            MQTT_5: {"qos": 0},
            MQTT_3: {"qos": 0},
            AMQP: {"durable": False},
        },
    ),
    "body": Row(
        {column: {} for column in COLUMNS},
        {
            STOMP: {"body": bytes(range(256)), "content-length": "256"},
            MQTT_5: {"body": bytes(range(256))},
            MQTT_3: {"body": bytes(range(256))},
            AMQP: {"body": bytes(range(256)), "inferred": True},
        },
        {(AMQP, AMQP): {"body": bytes(range(256))}},
        bytes(range(256)),
    ),
    "expiry": Row(
        {
            STOMP: {"expires": str(LATER_MS)},
            MQTT_5: {"MessageExpiryInterval": DAY_S},
            AMQP: {"ttl": float(DAY_S)},
        },
        {
            STOMP: {"expires": near(LATER_MS, HOURS_S * 1000)},
            MQTT_5: {"MessageExpiryInterval": near(DAY_S, HOURS_S)},
            MQTT_3: NOT_SAID,
            AMQP: {"ttl": near(DAY_S, HOURS_S), "expiry_time": near(LATER_MS / 1000, HOURS_S)},
        },
        {(AMQP, AMQP): {"ttl": near(DAY_S, HOURS_S)}},
    ),
    "answer to": Row(
        {
            STOMP: {"reply-to": "answers.one"},
            MQTT_5: {"ResponseTopic": "answers/one"},
            AMQP: {"reply_to": "answers.one"},
        },
        {
            STOMP: {"reply-to": "answers.one"},
            MQTT_5: {"ResponseTopic": "answers/one"},
            MQTT_3: NOT_SAID,
            AMQP: {"reply_to": "answers.one"},
        },
    ),
    "correlation id": Row(
        {
            STOMP: {"correlation-id": "ü 1"},
            MQTT_5: {"CorrelationData": "ü 1".encode()},
            AMQP: {"correlation_id": "ü 1"},
        },
        {
            STOMP: {"correlation-id": "ü 1"},
            MQTT_5: {"CorrelationData": "ü 1".encode()},
            MQTT_3: NOT_SAID,
            AMQP: {"correlation_id": "ü 1"},
        },
    ),
    "correlation id that is no text": Row(
        {
            STOMP: {"mqtt-correlation-data": "AP8="},
            MQTT_5: {"CorrelationData": b"\0\xff"},
            AMQP: {"correlation_id": b"\0\xff"},
        },
        {
            STOMP: {"mqtt-correlation-data": "AP8="},
            MQTT_5: {"CorrelationData": b"\0\xff"},
            MQTT_3: NOT_SAID,
            AMQP: {"correlation_id": b"\0\xff"},
        },
        {(AMQP, STOMP): {"mqtt-correlation-data": "AP8=", "correlation-id": "AMQP_BINARY:00FF"}},
    ),
    "content type": Row(
        {
            STOMP: {"content-type": "application/json"},
            MQTT_5: {"ContentType": "application/json"},
            AMQP: {"content_type": "application/json"},
        },
        {
            STOMP: {"content-type": "application/json"},
            MQTT_5: {"ContentType": "application/json"},
            MQTT_3: NOT_SAID,
            AMQP: {"content_type": "application/json"},
        },
    ),
    "payload is text": Row(
        {
            STOMP: {"mqtt-payload-format": "1"},
            MQTT_5: {"PayloadFormatIndicator": 1},
            AMQP: {},
        },
        {
            STOMP: {"mqtt-payload-format": "1", "body": "ü".encode()},
            MQTT_5: {"PayloadFormatIndicator": 1, "body": "ü".encode()},
            MQTT_3: NOT_SAID,
            AMQP: {"body": "ü"},
        },
        body="ü",
    ),
    "published with retain": Row(
        {
            STOMP: {"mqtt-retain": "true"},
            MQTT_5: {"retain": True},
            MQTT_3: {"retain": True},
        },
        {
            STOMP: {"mqtt-retain": "true"},
            MQTT_5: {"retain": True},
            MQTT_3: NOT_SAID,
            AMQP: {"annotations.x-opt-mqtt-retain": "true"},
        },
    ),
    "QoS 2": Row(
        {STOMP: {"mqtt-qos": "2"}, MQTT_5: {"qos": 2}, MQTT_3: {"qos": 2}},
        {
            STOMP: {"mqtt-qos": "2"},
            MQTT_5: {"qos": 2},
            MQTT_3: {"qos": 2},
            AMQP: {"annotations.x-opt-mqtt-qos": 2},
        },
    ),
    "priority": Row(
        {STOMP: {"priority": "7"}, MQTT_5: {"user.priority": "7"}, AMQP: {"priority": 7}},
        {
            STOMP: {"priority": "7"},
            MQTT_5: {"user.priority": ["7"]},
            MQTT_3: NOT_SAID,
            AMQP: {"priority": 7},
        },
        {
            (MQTT_5, STOMP): {"user-property.priority": "7", "priority": None},
            (MQTT_5, AMQP): {"properties.priority": "7", "priority": 4},
        },
    ),
    "what else": Row(
        {
            STOMP: {"colour": "rö: d\n"},
            MQTT_5: {"user.colour": "rö: d\n"},
            AMQP: {"properties.colour": "rö: d\n"},
        },
        {
            STOMP: {"colour": "rö: d\n"},
            MQTT_5: {"user.colour": ["rö: d\n"]},
            MQTT_3: NOT_SAID,
            AMQP: {"properties.colour": "rö: d\n"},
        },
    ),
    "a name that is taken": Row(
        {
            STOMP: {"user-property.destination": "d"},
            MQTT_5: {"user.destination": "d"},
            AMQP: {"properties.destination": "d"},
        },
        {
            STOMP: {"user-property.destination": "d"},
            MQTT_5: {"user.destination": ["d"]},
            MQTT_3: NOT_SAID,
            AMQP: {"properties.destination": "d"},
        },
    ),
    "group": Row(
        {
            STOMP: {"JMSXGroupID": "g", "JMSXGroupSeq": "3"},
            MQTT_5: {"user.JMSXGroupID": "g", "user.JMSXGroupSeq": "3"},
            AMQP: {"group_id": "g", "group_sequence": 3},
        },
        {
            STOMP: {"JMSXGroupID": "g", "JMSXGroupSeq": "3"},
            MQTT_5: {"user.JMSXGroupID": ["g"], "user.JMSXGroupSeq": ["3"]},
            MQTT_3: NOT_SAID,
            AMQP: {"group_id": "g", "group_sequence": 3},
        },
    ),
    **{
        row: Row(
            {STOMP: {line: text}, MQTT_5: {f"user.{line}": text}, AMQP: {field: value}},
            {
                STOMP: {line: text},
                MQTT_5: {f"user.{line}": [text]},
                MQTT_3: NOT_SAID,
                AMQP: {field: value},
            },
        )
        for row, line, text, field, value in (
            ("message id", "JMSMessageID", "m1", "id", "m1"),
            ("id that is no string", "JMSMessageID", f"AMQP_UUID:{UUID_1}", "id", UUID_1),
            ("user", "JMSXUserID", "ann", "user_id", b"ann"),
            ("kind", "type", "order", "subject", "order"),
            ("made at", "timestamp", "1700000000000", "creation_time", 1_700_000_000),
            ("content encoding", "content-encoding", "gzip", "content_encoding", "gzip"),
        )
    },
    "scheduled": Row(
        {
            STOMP: {"AMQ_SCHEDULED_TIME": str(SOON_MS)},
            MQTT_5: {"user.AMQ_SCHEDULED_TIME": str(SOON_MS)},
            AMQP: {"annotations.x-opt-delivery-time": SOON_MS},
        },
        {
            STOMP: {"AMQ_SCHEDULED_TIME": str(SOON_MS)},
            MQTT_5: {"user.AMQ_SCHEDULED_TIME": [str(SOON_MS)]},
            MQTT_3: NOT_SAID,
            AMQP: {"annotations.x-opt-delivery-time": SOON_MS},
        },
    ),
}
CELLS: Final = [
    (row, sender, receiver)
    for row, values in ROWS.items()
    for sender in SPEAKERS
    if COLUMN_OF[sender] in values.said
    for receiver in SPEAKERS
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("conversion") / "data"
    with BrokerProcess(data, "acceptors.all.protocols=STOMP,MQTT,AMQP") as process:
        yield process


@pytest.fixture(scope="module")
def speakers(broker: BrokerProcess) -> Iterator[Speakers]:
    with Speakers(broker.port()) as made:
        yield made


@pytest.mark.ci
@pytest.mark.parametrize(("row", "sender", "receiver"), CELLS)
def test_a_cell(speakers: Speakers, row: str, sender: str, receiver: str) -> None:
    address = f"part.n{uuid4().hex[:8]}"
    said, told, by, body = ROWS[row]
    columns = COLUMN_OF[sender], COLUMN_OF[receiver]
    with speakers[receiver].receive(address) as take:
        speakers[sender].send(address, body, said[columns[0]])
        got = take()
    expected = by.get(columns, told[columns[1]])
    assert not differences(got, expected, address), got
    came = got["body"].encode() if isinstance(got["body"], str) else got["body"]
    assert came == (body.encode() if isinstance(body, str) else body)
    if columns[1] == MQTT_3:
        assert set(got) == {"topic", "qos", "retain", "dup", "body"}


# --- given before ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sender", [STOMP, MQTT_5, MQTT_311, AMQP])
@pytest.mark.parametrize(
    ("receiver", "wanted"),
    [
        (STOMP, {"redelivered": "true", "delivery-count": "1"}),
        (AMQP, {"delivery_count": 1, "first_acquirer": False}),
    ],
)
def test_that_it_was_given_before(
    speakers: Speakers, sender: str, receiver: str, wanted: Said
) -> None:
    address = f"before.n{uuid4().hex[:8]}"
    with speakers.stomp.refuse(f"/queue/{address}"):
        speakers[sender].send(address, b"x", {}, "/queue/")
    with speakers[receiver].receive(address, "/queue/") as take:
        got = take()
    assert not differences(got, wanted, address), got


@pytest.mark.parametrize("sender", SPEAKERS)
@pytest.mark.parametrize("receiver", MQTT)
def test_that_mqtt_was_given_it_before(speakers: Speakers, sender: str, receiver: str) -> None:
    address = f"before.n{uuid4().hex[:8]}"
    session = speakers.mqtt[receiver].lasting(address, is_manual=True)
    session.subscribe(address.replace(".", "/"), 1)
    speakers[sender].send(address, b"x", {})
    assert not mqtt_told(session.take()[0])["dup"]
    session.cut()
    session.connect()
    assert mqtt_told(session.take()[0])["dup"]
    session.disconnect()


# --- what there is no place for -------------------------------------------------------------------


def test_properties_of_amqp_without_text_are_named(speakers: Speakers) -> None:
    said = {
        "properties.plain": "p",
        "properties.nothing": None,
        "properties.list": [1],
        "reply_to_group_id": "g",
        "annotations.x-opt-mine": 1,
        "annotations.x-opt-delivery-delay": 1,
        "annotations.x-opt-jms-dest": 1,
    }
    for receiver, name in ((STOMP, "amqp-omitted"), (MQTT_5, "user.amqp-omitted")):
        address = f"omitted.n{uuid4().hex[:8]}"
        with speakers[receiver].receive(address) as take:
            speakers.amqp.send(address, b"x", said)
            speakers.amqp.send(address, b"x", {"properties.amqp-omitted": "own"})
            got, own = take(), take()
        text = got[name] if receiver == STOMP else got[name][0]
        assert set(text.split(" ")) == {
            "message-annotations:x-opt-mine",
            "properties:reply-to-group-id",
            "application-properties:nothing",
            "application-properties:list",
        }
        taken = "user-property.amqp-omitted" if receiver == STOMP else name
        assert own[taken] == ("own" if receiver == STOMP else ["own"])


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
def test_repeats_are_told_to_amqp(speakers: Speakers, sender: str) -> None:
    address = f"repeats.n{uuid4().hex[:8]}"
    with speakers.amqp.receive(address) as take:
        if sender == STOMP:
            said = {"user-property.twice": "2", "twice": "1", "once": "1"}
        else:
            said = {"user.twice": ["1", "2", "3"], "user.once": "1"}
        speakers[sender].send(address, b"x", said)
        got = take()
    assert got["properties.twice"] in (("1", "2") if sender == STOMP else ("1",))
    (repeats,) = (got["annotations.x-opt-repeated-properties"],)
    assert list(repeats) == ["twice"]
    assert sorted([got["properties.twice"], *repeats["twice"]]) == (
        ["1", "2"] if sender == STOMP else ["1", "2", "3"]
    )


@pytest.mark.parametrize("sender", [STOMP, MQTT_5])
@pytest.mark.parametrize(
    ("name", "value"),
    [("timestamp", "yesterday"), ("JMSXGroupSeq", "last"), ("amqp-body", "encoded")],
)
def test_what_is_none_of_its_kind_is_a_property_in_amqp(
    speakers: Speakers, sender: str, name: str, value: str
) -> None:
    address = f"kind.n{uuid4().hex[:8]}"
    with speakers.amqp.receive(address) as take:
        speakers[sender].send(address, b"x", {name if sender == STOMP else f"user.{name}": value})
        assert take()[f"properties.{name}"] == value


@pytest.mark.parametrize("body", [{"map": [1, True, None]}, ["list", 2], 7, None])
@pytest.mark.parametrize("receiver", [STOMP, *MQTT])
def test_a_body_that_is_a_value_goes_out_as_its_sections(
    speakers: Speakers, receiver: str, body: Any
) -> None:
    address = f"value.n{uuid4().hex[:8]}"
    with speakers[receiver].receive(address) as take:
        speakers.amqp.send(address, body, {})
        got = take()
    if body is None:
        assert (got["body"], got.get("amqp-body")) == (b"", None)
        return
    assert decoded(got["body"]) == body
    if receiver == STOMP:
        assert got["amqp-body"] == "encoded"
    if receiver == MQTT_5:
        assert got["user.amqp-body"] == ["encoded"]


def decoded(data: bytes) -> Any:
    """Return the body that sections of AMQP are."""
    message = Message()
    message.decode(data)
    return message.body


# --- the page -------------------------------------------------------------------------------------


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the page's first table by row and column."""
    first = PAGE.read_text().partition("\n| ")[2].partition("\n\n")[0]
    lines = f"| {first}".splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = [re.sub(r" header$", "", cell) for cell in rows[0][1:]]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[2:]}


def test_the_page_and_the_tests_have_the_same_cells() -> None:
    cells = table()
    assert [tuple(row) for row in cells.values()] == [COLUMNS] * len(cells)
    assert set(cells) == {*ROWS, "given before"}
    for row, values in ROWS.items():
        assert set(values.told) == set(COLUMNS), row
        assert (cells[row][MQTT_3] == "not said") == (values.told[MQTT_3] is NOT_SAID), row


@pytest.mark.parametrize("row", ROWS)
def test_the_page_names_what_the_tests_look_at(row: str) -> None:
    values, same = ROWS[row], {"to": "address", "absolute-expiry-time": "expiry-time"}
    same |= {"message-id": "id"}
    for column, cell in table()[row].items():
        by = [told for (_, receiver), told in values.by.items() if receiver == column]
        sides = [values.told[column], values.said.get(column, {}), *by]
        names = {name for side in sides for name in side}
        looked_at = names | set(map(_written, names))
        for word in re.findall(r"`([A-Za-z][^`]+)`", cell):
            name = word.partition(":")[0]
            assert same.get(name, name) in looked_at | set(UNSEEN), (row, column, name)


UNSEEN: Final = {"AMQP_UUID", "AMQP_BINARY", "AMQ_SCHEDULED_DELAY"}
"""Spellings that are tested elsewhere: test_conversion.py of the unit tests, test_message_times."""


def _written(name: str) -> str:
    """Return a name of `ROWS` as the page writes it."""
    kind, dot, key = name.partition(".")
    return key if dot else kind.replace("_", "-")

"""One message between protocols: each cell of the table of AMQP, both ways."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from vespiary_broker.engine.message_times import MessageTimes, read_times, stamp
from vespiary_broker.server.amqp import restoring
from vespiary_broker.server.amqp.restoring import payload_of
from vespiary_broker.server.amqp.storing import Repeats, find_long_body, id_of, id_text, take
from vespiary_codec.stored_message import StoredMessage
from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Header,
    MessageProperties,
    RemoteProtocolError,
    Section,
    encode_section,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.values import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from vespiary_codec.wire.stomp.properties import lines_in, parse_properties
from vespiary_testkit.amqp_peer import message
from vespiary_testkit.seeds import seed_for

LIMITS = AmqpLimits()
NOW_MS = 1_700_000_000_000
FLOAT = Float(0.10000000149011612)
"""What 32 bits have for 0.1."""
UUID_1 = UUID("01234567-89ab-cdef-0123-456789abcdef")


def lines_of(data: bytes) -> dict[str, str]:
    """Return the header lines of a message of AMQP."""
    found: dict[str, str] = {}
    for name, value in parse_properties(take(data, LIMITS).stored_properties("/queue/a")):
        found.setdefault(name, value)
    return found


def stored(properties: bytes, body: bytes = b"", protocol: int = 1, **more: Any) -> StoredMessage:
    values = {"sequence": 7, "time_ms": NOW_MS, "deliveries": 0, "priority": 4} | more
    return StoredMessage(
        protocol=protocol,
        is_escaped=b"\\" in lines_in(properties),
        properties=properties,
        body=body,
        **values,
    )


def restored(message: StoredMessage, **more: Any) -> dict[Section, Any]:
    data = payload_of(message, 3, NOW_MS, **more)
    return {one.section: read_section(data, one) for one in sections(data)}


@pytest.mark.parametrize(
    ("fields", "line", "value"),
    [
        ({"message_id": "ID:1"}, "JMSMessageID", "ID:1"),
        ({"message_id": ULong(7)}, "JMSMessageID", "AMQP_ULONG:7"),
        ({"correlation_id": UUID_1}, "correlation-id", f"AMQP_UUID:{UUID_1}"),
        ({"correlation_id": b"\1\xff"}, "correlation-id", "AMQP_BINARY:01FF"),
        ({"correlation_id": "AMQP_ULONG:7"}, "correlation-id", "AMQP_STRING:AMQP_ULONG:7"),
        ({"reply_to": "/queue/b"}, "reply-to", "/queue/b"),
        ({"subject": "order"}, "type", "order"),
        ({"content_type": Symbol("text/plain")}, "content-type", "text/plain"),
        ({"content_encoding": Symbol("gzip")}, "content-encoding", "gzip"),
        ({"user_id": b"ann"}, "JMSXUserID", "ann"),
        ({"group_id": "g"}, "JMSXGroupID", "g"),
        ({"group_sequence": UInt(2)}, "JMSXGroupSeq", "2"),
        ({"group_sequence": UInt(2**32 - 1)}, "JMSXGroupSeq", "-1"),
        ({"creation_time": Timestamp(5)}, "timestamp", "5"),
    ],
)
def test_properties_become_lines(fields: dict[str, Any], line: str, value: str) -> None:
    assert lines_of(message(**fields))[line] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a:b\nc\\d", "a:b\nc\\d"), (True, "true"), (False, "false"), (5, "5"), (Byte(-5), "-5"),
        (ULong(2**64 - 1), str(2**64 - 1)), (1.5, "1.5"), (Float(0.5), "0.5"),
        (FLOAT, "0.1"), (Char("x"), "x"),
        (Symbol("s"), "s"), (UUID_1, str(UUID_1)), (Timestamp(9), "9"), (b"\1\2", "0102"),
        ("nul\0", "nul\ufffd"),
    ],
)  # fmt: skip
def test_application_properties_become_lines(value: Any, text: str) -> None:
    assert lines_of(message(application={"p": value}))["p"] == text


def test_what_has_no_text_is_for_amqp_alone() -> None:
    assert "p" not in lines_of(message(application={"p": None}))
    assert "p" not in lines_of(message(application={"p": Described(Symbol("a:b"), 1)}))


def test_what_has_no_line_is_named() -> None:
    footer = encode_section(Section.FOOTER, {Symbol("f"): 1})
    annotations = encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): 1})
    application = encode_section(Section.APPLICATION_PROPERTIES, {"n": None, "": "x", "p": "y"})
    found = lines_of(annotations + application + b"\0\x53\x75\xa0\0" + footer)
    assert found["amqp-omitted"] == (
        "message-annotations:x-opt-a application-properties:n application-properties: footer"
    )
    assert "amqp-omitted" not in lines_of(message(application={"p": "y"}))
    many = {f"name-{number}": None for number in range(200)}
    assert len(lines_of(message(application=many))["amqp-omitted"]) == 1001


def test_repeats_and_names_that_meet_are_an_annotation() -> None:
    lines = b"a:1\nuser-property.a:2\na:3\ndestination:/queue/a\n"
    found = restored(stored(lines))
    assert found[Section.APPLICATION_PROPERTIES] == {"a": "1"}
    annotations = found[Section.MESSAGE_ANNOTATIONS]
    assert annotations == {"x-opt-repeated-properties": {"a": ["2", "3"]}}


@pytest.mark.parametrize("name", ["destination", "persistent", "content-length", "message-id"])
def test_a_reserved_name_gets_a_prefix(name: str) -> None:
    found = lines_of(message(application={name: "x"}, durable=False))
    assert found[f"user-property.{name}"] == "x"
    assert found.get(name) == ("/queue/a" if name == "destination" else None)


def test_header_and_times() -> None:
    data = message(header={"priority": UByte(9), "ttl": UInt(5000)})
    taken = take(data, LIMITS)
    assert lines_of(data)["persistent"] == "true"
    assert lines_of(data)["priority"] == "9"
    assert taken.times(NOW_MS) == MessageTimes(NOW_MS + 5000, 0)
    both = take(
        message(header={"ttl": UInt(5)}, absolute_expiry_time=Timestamp(NOW_MS + 9)), LIMITS
    )
    assert both.times(NOW_MS).expires_ms == NOW_MS + 9
    assert read_times(stamp(b"", both.times(NOW_MS))) == MessageTimes(NOW_MS + 9, 0)


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("x-opt-delivery-time", NOW_MS + 50, NOW_MS + 50),
        ("x-opt-delivery-delay", 70, NOW_MS + 70),
        ("x-opt-delivery-delay", -5, 0),
        ("x-opt-delivery-delay", "soon", 0),
    ],
)
def test_delayed_delivery(name: str, value: Any, due_ms: int) -> None:
    annotations = encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol(name): value})
    assert take(annotations + b"\0\x53\x75\xa0\0", LIMITS).times(NOW_MS).deliver_at_ms == due_ms


@pytest.mark.parametrize(
    "text", ["plain", "AMQP_ULONG:7", f"AMQP_UUID:{UUID_1}", "AMQP_BINARY:01FF"]
)
def test_ids_come_back(text: str) -> None:
    assert id_text(id_of(text)) == text


@pytest.mark.parametrize("text", ["AMQP_ULONG:x", "AMQP_UUID:1", "AMQP_BINARY:0", "AMQP_ULONG:-1"])
def test_what_is_no_id_of_a_type_stays_text(text: str) -> None:
    assert id_of(text) == text


BODIES = {
    "data": encode_section(Section.DATA, b"\0\1\2"),
    "large data": encode_section(Section.DATA, b"x" * 300),
    "no data": encode_section(Section.DATA, b""),
    "none at all": b"",
    "two data": encode_section(Section.DATA, b"a") + encode_section(Section.DATA, b"b"),
    "string": encode_section(Section.AMQP_VALUE, "text"),
    "large string": encode_section(Section.AMQP_VALUE, "x" * 300),
    "long encoding of a short string": b"\0\x53\x77\xb1\0\0\0\1x",
    "binary value": encode_section(Section.AMQP_VALUE, b"bin"),
    "null": encode_section(Section.AMQP_VALUE, None),
    "map": encode_section(Section.AMQP_VALUE, {"a": ULong(1), 2: [None, True]}),
    "list": encode_section(Section.AMQP_VALUE, [1, Array(0x70, [UInt(1), UInt(2)])]),
    "ulong": encode_section(Section.AMQP_VALUE, ULong(7)),
    "sequences": encode_section(Section.AMQP_SEQUENCE, [1])
    + encode_section(Section.AMQP_SEQUENCE, ["b"]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("has_footer", [False, True])
def test_amqp_to_amqp_is_the_same_bytes(body: bytes, has_footer: bool) -> None:
    footer = encode_section(Section.FOOTER, {Symbol("f"): 1}) if has_footer else b""
    before = (
        encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): Byte(1)})
        + encode_section(
            Section.PROPERTIES, MessageProperties(message_id=UUID_1, correlation_id=ULong(5))
        )
        + encode_section(Section.APPLICATION_PROPERTIES, {"n": UInt(5), "f": Float(1.5), "z": None})
    )
    delivery = encode_section(Section.DELIVERY_ANNOTATIONS, {Symbol("hop"): 1})
    header = encode_section(Section.HEADER, Header())
    taken = take(header + delivery + before + body + footer, LIMITS)
    kept = stored(taken.stored_properties("a"), taken.body, protocol=3)
    data = payload_of(kept, 1, NOW_MS)
    (head, *_) = sections(data)
    assert data[head.end :] == before + body + footer


@pytest.mark.parametrize(
    ("section", "value", "stomp_body"),
    [
        (Section.DATA, b"\0bytes", b"\0bytes"),
        (Section.AMQP_VALUE, "héllo", "héllo".encode()),
        (Section.AMQP_VALUE, b"bin", b"bin"),
        (Section.AMQP_VALUE, None, b""),
    ],
)
def test_a_body_that_others_can_read(section: Section, value: Any, stomp_body: bytes) -> None:
    data = message(value, section=section)
    assert take(data, LIMITS).body == stomp_body
    assert "amqp-body" not in lines_of(data)


def test_a_body_that_others_cannot_read_is_told() -> None:
    data = message({"a": 1}, section=Section.AMQP_VALUE)
    assert lines_of(data)["amqp-body"] == "encoded"
    assert take(data, LIMITS).body == encode_section(Section.AMQP_VALUE, {"a": 1})


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("destination:/queue/a", "to", "/queue/a"),
        ("reply-to:/queue/r", "reply_to", "/queue/r"),
        ("correlation-id:c1", "correlation_id", "c1"),
        ("correlation-id:AMQP_ULONG\\c7", "correlation_id", 7),
        ("type:t", "subject", "t"),
        ("content-type:application/json", "content_type", "application/json"),
        ("JMSXGroupID:g", "group_id", "g"),
        ("expires:1700000009999", "absolute_expiry_time", 1700000009999),
        ("x:y", "message_id", "3-7"),
        ("x:y", "creation_time", NOW_MS),
    ],
)
def test_stomp_to_amqp(line: str, field: str, value: Any) -> None:
    found = restored(stored(f"{line}\n".encode()))
    assert getattr(found[Section.PROPERTIES], field) == value


@pytest.mark.parametrize(
    ("reply_to", "protocol", "kind"),
    [
        ("/queue/r", 1, Byte(0)),
        ("/topic/r", 1, Byte(1)),
        ("r", 1, None),
        ("r", 2, Byte(1)),
        ("", 2, None),
    ],
)
def test_clients_of_jms_are_told_what_an_answer_goes_to(
    reply_to: str, protocol: int, kind: Byte | None
) -> None:
    lines = f"reply-to:{reply_to}\n" if reply_to else ""
    found = restored(stored(f"a:b\n{lines}".encode(), protocol=protocol))
    annotations = found.get(Section.MESSAGE_ANNOTATIONS, {})
    assert annotations.get(Symbol("x-opt-jms-reply-to")) == kind
    if kind is not None:
        assert isinstance(annotations[Symbol("x-opt-jms-reply-to")], Byte)


def test_an_answer_goes_to_what_the_prefixes_of_the_acceptor_say() -> None:
    kinds = []
    for line in (b"reply-to:q/r\n", b"reply-to:t/r\n", b"reply-to:/queue/r\n"):
        found = restored(stored(line), prefixes=("q/", "t/"))
        kinds.append(found.get(Section.MESSAGE_ANNOTATIONS))
    name = Symbol("x-opt-jms-reply-to")
    assert kinds == [{name: Byte(0)}, {name: Byte(1)}, None]
    found = restored(stored(b"reply-to:/queue/r\n"), prefixes=("", ""))
    assert Section.MESSAGE_ANNOTATIONS not in found


def test_stomp_headers_become_application_properties() -> None:
    found = restored(stored(b"destination:/queue/a\ncolour:red\\cgreen\nn:1\nn:2\n"))
    assert found[Section.APPLICATION_PROPERTIES] == {"colour": "red:green", "n": "1"}


@pytest.mark.parametrize(
    ("content_type", "body", "section", "value"),
    [
        ("", b"abc", Section.DATA, b"abc"),
        ("application/json", b"{}", Section.DATA, b"{}"),
        ("text/plain", "é".encode(), Section.AMQP_VALUE, "é"),
        ("text/plain", b"\xff", Section.DATA, b"\xff"),
        ("x/y\nmqtt-payload-format:1", b"abc", Section.AMQP_VALUE, "abc"),
    ],
)
def test_the_body_of_stomp(content_type: str, body: bytes, section: Section, value: Any) -> None:
    line = f"content-type:{content_type}\n" if content_type else ""
    assert restored(stored(line.encode(), body))[section] == value


def test_mqtt_to_amqp() -> None:
    lines = (
        b"destination:a.b\nmqtt-qos:2\nmqtt-retain:true\nmqtt-correlation-data:AP8=\n"
        b"user-property.destination:x\nreply-to:r\n"
    )
    found = restored(stored(lines, protocol=2))
    assert found[Section.PROPERTIES].correlation_id == b"\0\xff"
    assert found[Section.APPLICATION_PROPERTIES] == {"destination": "x"}
    assert found[Section.MESSAGE_ANNOTATIONS] == {
        Symbol("x-opt-mqtt-qos"): 2, Symbol("x-opt-mqtt-retain"): "true",
        Symbol("x-opt-jms-reply-to"): 1,
    }  # fmt: skip


def test_amqp_to_mqtt() -> None:
    data = message("text", section=Section.AMQP_VALUE, correlation_id=b"\0\xff")
    assert lines_of(data)["mqtt-correlation-data"] == "AP8="
    assert lines_of(data)["mqtt-payload-format"] == "1"


def test_header_of_what_is_restored() -> None:
    lines = b"persistent:true\nexpires:%d\n" % (NOW_MS + 4000)
    header = restored(stored(lines, priority=8, deliveries=2))[Section.HEADER]
    assert header == Header(
        durable=True, priority=UByte(8), ttl=UInt(4000), first_acquirer=False,
        delivery_count=UInt(2),
    )  # fmt: skip


@pytest.mark.parametrize("code", [b"\x75\xb0", b"\x77\xb0", b"\x77\xb1"])
def test_a_long_body_is_found_before_it_has_come(code: bytes) -> None:
    before = encode_section(Section.HEADER, Header()) + encode_section(
        Section.PROPERTIES, MessageProperties(subject="s")
    )
    data = before + b"\0\x53" + code + b"\0\x10\0\0" + b"x" * 10
    for end in range(len(before) + 8):
        assert find_long_body(data[:end], LIMITS) is None
    found = find_long_body(data, LIMITS)
    assert found is not None
    assert (found.at, found.size_bytes) == (len(before) + 8, 0x100000)
    assert bytes([found.section, found.code]) == code
    map_body = encode_section(Section.AMQP_VALUE, {str(n): n for n in range(200)})
    assert find_long_body(map_body[:200], LIMITS) is None


@pytest.mark.parametrize(
    ("protocol", "properties"),
    [
        (1, b"no colon\n:no name\nbad:\\x\n\xff\xfe:\xff\nno end:1"),
        (2, b"\n\n"),
        (3, b""),
        (3, b"a:b\n\0"),
        (3, b"a:b\n\0\x01\x75\xa0"),
        (3, b"a:b\n\0\x01\x75\xb0\0\xff\xff\xff\xff"),
        (3, b"a:b\n\0\x09\x75\xb0\0\0\0\0\0"),
        (1, "content-type:é\n".encode()),
    ],
)
def test_what_was_stored_wrong_goes_out_all_the_same(protocol: int, properties: bytes) -> None:
    found = restored(stored(properties, b"body", protocol=protocol))
    assert found[Section.DATA] == b"body"


def test_a_content_type_that_is_no_symbol_is_told() -> None:
    found = restored(stored("content-type:é\n".encode()))
    assert found[Section.APPLICATION_PROPERTIES] == {"content-type": "é"}


def test_sections_that_were_stored_wrong_stay_as_they_are() -> None:
    native = b"\x01\x75\xa0\0\0\0\0\x04junk"
    kept = stored(b"_AMQ_ORIG_ADDRESS:a\n\0" + native, b"x", protocol=3)
    assert payload_of(kept, 1, NOW_MS).endswith(b"junk" + encode_section(Section.DATA, b"x"))


def test_a_dead_letter_says_where_it_comes_from() -> None:
    annotations = encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): Byte(1)})
    taken = take(annotations + encode_section(Section.DATA, b"x"), LIMITS)
    lines = b"destination:dead\n_AMQ_ORIG_ADDRESS:a\n_AMQ_REJECT_CONDITION:app\\cbad\n"
    moved = lines + taken.stored_properties("a")
    found = restored(stored(moved, taken.body, protocol=3))
    assert found[Section.MESSAGE_ANNOTATIONS] == {
        Symbol("x-opt-a"): Byte(1),
        Symbol("x-opt-ORIG-ADDRESS"): "a",
        Symbol("x-opt-reject-condition"): "app:bad",
    }


@pytest.mark.ci
@pytest.mark.parametrize("case", range(6))
def test_repeated_heads_are_read_as_each_by_itself(case: int) -> None:
    noise = random.Random(seed_for(f"repeated heads {case}"))
    repeats = Repeats(LIMITS)
    heads = [
        b"",
        encode_section(Section.HEADER, Header(durable=True)),
        encode_section(Section.APPLICATION_PROPERTIES, {"a": 1}),
        encode_section(Section.HEADER, Header(ttl=UInt(5)))
        + encode_section(Section.PROPERTIES, MessageProperties(subject="s")),
    ]
    bodies = [*BODIES.values(), encode_section(Section.DATA, b"\0\x53\x75\xa0\1x")]
    footer = encode_section(Section.FOOTER, {Symbol("f"): 1})
    for _ in range(4000):
        data = noise.choice(heads) + noise.choice(bodies) + noise.choice([b"", b"", footer])
        if noise.random() < 0.3:
            changed = bytearray(data or b"x")
            changed[noise.randrange(len(changed))] = noise.getrandbits(8)
            data = bytes(changed)
        try:
            wanted = take(data, LIMITS)
        except RemoteProtocolError:
            with pytest.raises(RemoteProtocolError):
                repeats.take(data)
            continue
        found = repeats.take(data)
        assert found._replace(lines={}) == wanted._replace(lines={}), data.hex()
        for where in ("a", "b"):
            assert found.stored_properties(where) == wanted.stored_properties(where)


def test_repeated_heads_are_not_read_again() -> None:
    repeats = Repeats(LIMITS)
    first = repeats.take(message(b"one", application={"a": 1}))
    second = repeats.take(message(b"two", application={"a": 1}))
    assert second.application is first.application
    assert (first.body, second.body) == (b"one", b"two")


@pytest.mark.parametrize("case", range(20))
def test_what_was_kept_of_other_messages_changes_nothing(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(seed_for(f"kept of other messages {case}"))
    choices = [
        b"destination:/queue/a\n", b"persistent:true\n", b"content-type:text/plain\n",
        b"content-type:x/\xc3\xa9\n", b"timestamp:5\n", b"timestamp:x\n", b"JMSMessageID:0-0\n",
        b"JMSMessageID:AMQP_ULONG:7\n", b"JMSXGroupID:g\n", b"JMSXGroupSeq:-1\n", b"a:0000\n",
        b"a\\cb:1\\n2\n", b"ingress-timestamp:9\n", b"mqtt-payload-format:1\n", b"type:t\n",
        b"correlation-id:111\n", b"long:" + b"x" * 300 + b"\n", b"expires:9999999999999\n",
        b"reply-to:/queue/a\n", b"reply-to:/topic/a\n", b"reply-to:a\n",
    ]  # fmt: skip
    for _ in range(30):
        lines = b"".join(pick.choice(choices) for _ in range(pick.randrange(6)))
        one = stored(
            lines,
            pick.choice([b"", b"text", b"\xff"]),
            pick.choice([1, 2]),
            sequence=pick.choice([1, 9, 10, 99_999, 2**40]),
            time_ms=pick.choice([0, 1, NOW_MS, 2**62]),
            deliveries=pick.choice([0, 2]),
        )
        kept = [payload_of(one, queue, NOW_MS) for queue in (1, 10, 1)]
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "_PATTERN_LINES_MAX", -1)
            assert kept == [payload_of(one, queue, NOW_MS) for queue in (1, 10, 1)]

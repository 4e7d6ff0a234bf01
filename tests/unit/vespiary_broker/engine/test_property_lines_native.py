"""What a protocol keeps behind the header lines is no line, and stays where it is."""

from __future__ import annotations

from types import SimpleNamespace

from vespiary_broker.engine.groups import closes_group, group_id_of
from vespiary_broker.engine.ingress import ingress_stamp
from vespiary_broker.engine.message_times import MessageTimes, read_times, stamp
from vespiary_broker.engine.original_headers import acquired_properties, unrouted_properties
from vespiary_broker.engine.property_lines import is_escaped, value_of, with_lines, without
from vespiary_broker.engine.restaging import Rewrite
from vespiary_broker.engine.selection.message_values import values_of
from vespiary_broker.engine.transfers import _Sent
from vespiary_broker.server.amqp.storing import take
from vespiary_codec.journal.transfer import TransferMessage
from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Header,
    MessageProperties,
    Section,
    encode_section,
)
from vespiary_codec.wire.amqp.native_part import FIRST_ACQUIRER
from vespiary_codec.wire.amqp.values import Symbol, Timestamp
from vespiary_codec.wire.stomp.properties import parse_properties, properties_for_version
from vespiary_spec.settings import AddressSettings

NATIVE = b"\0\x01\nb:2\nexpires:9\nJMSXGroupID:g\nJMSXGroupSeq:-1\n\\c\0"
LINES = b"a:1\nc:3\n"
WHOLE = LINES + NATIVE


def test_reading_stops_at_the_lines_end() -> None:
    assert value_of(WHOLE, b"c") == "3"
    assert value_of(WHOLE, b"b") is None
    assert not is_escaped(WHOLE)
    assert group_id_of(WHOLE) == b""
    assert not closes_group(WHOLE)
    assert read_times(WHOLE) == MessageTimes()
    assert parse_properties(WHOLE) == [("a", "1"), ("c", "3")]
    for version in ("1.0", "1.1", "1.2"):
        assert properties_for_version(WHOLE, version) == LINES


def test_changes_leave_it_as_it_is() -> None:
    assert without(WHOLE, (b"a", b"b")) == b"c:3\n" + NATIVE
    assert with_lines(WHOLE, [("d", "4")]) == LINES + b"d:4\n" + NATIVE
    assert stamp(WHOLE, MessageTimes(5, 6)).endswith(b"expires:5\nAMQ_SCHEDULED_TIME:6\n" + NATIVE)
    stamped = ingress_stamp(WHOLE, AddressSettings(enable_ingress_timestamp=True), 7)
    assert stamped == LINES + b"ingress-timestamp:7\n" + NATIVE
    moved = unrouted_properties(WHOLE, "x", "dead")
    assert moved == b"destination:dead\n_AMQ_ORIG_ADDRESS:x\n" + WHOLE


def test_selectors_do_not_see_it() -> None:
    view = SimpleNamespace(
        sequence=1, deliveries=0, priority=4, time_ms=0, is_journalled=True, is_escaped=False,
        body_length=0, properties=WHOLE,
    )  # fmt: skip
    found = values_of(view, ["a", "b"])
    assert found.get("a") == "1"
    assert found.get("b") is None


def test_a_moved_message_of_amqp_loses_its_expiry_in_both_forms() -> None:
    properties = MessageProperties(to="q", absolute_expiry_time=Timestamp(5), subject="s")
    annotations = encode_section(Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): 1})
    rest = encode_section(Section.APPLICATION_PROPERTIES, {"n": 1})
    body = encode_section(Section.AMQP_VALUE, "body")
    footer = encode_section(Section.FOOTER, {Symbol("f"): 1})
    sent = annotations + encode_section(Section.PROPERTIES, properties) + rest + body + footer
    stored = take(sent, AmqpLimits()).stored_properties("q")
    moved = unrouted_properties(stamp(stored, MessageTimes(5, 0)), "q", "dead")
    assert read_times(moved) == MessageTimes()
    without_it = annotations + encode_section(
        Section.PROPERTIES, MessageProperties(to="q", subject="s")
    )
    expected = take(without_it + rest + body + footer, AmqpLimits()).native
    assert moved.partition(b"\0")[2] == expected


def test_a_message_that_was_acquired_and_is_written_again_has_no_first_acquirer() -> None:
    header = encode_section(Section.HEADER, Header(first_acquirer=True))
    sent = header + encode_section(Section.AMQP_VALUE, "body")
    stored = take(sent, AmqpLimits()).stored_properties("q")
    lines, _, native = stored.partition(b"\0")
    assert native[3] == FIRST_ACQUIRER
    expected = lines + b"\0" + native[:3] + b"\0" + native[4:]
    assert acquired_properties(stored) == expected
    assert acquired_properties(expected) == expected
    assert acquired_properties(LINES) == LINES
    short, other = LINES + b"\0\1\1\1\1", LINES + b"\0\2" + native[1:]
    assert (acquired_properties(short), acquired_properties(other)) == (short, other)
    queue = SimpleNamespace(address=SimpleNamespace(name="q"))
    for deliveries in (0, 1):
        view = SimpleNamespace(properties=stored, deliveries=deliveries)
        rewrite = Rewrite(target=queue, priority=4)  # type: ignore[arg-type]
        written = rewrite.properties_of(view, queue)  # type: ignore[arg-type]
        handed_over = _Sent(TransferMessage(1, stored, b"", 0, 3, 4, deliveries), None).properties
        for properties in (written, handed_over):
            assert properties.partition(b"\0")[2][3] == (0 if deliveries else FIRST_ACQUIRER)

"""STOMP's fast path: plain SEND and ACK frames in (`abc.Core.scan_stomp`).

Owns the decision what is plain, and where a frame ends. Never words an error: what is not plain
or not a frame goes to the codec in Python. Called by the core.

Frames of one producer differ in their receipt and their content-length only, so what is known of
the other header lines is kept in a `SendPlan`, by those lines.
"""

from __future__ import annotations

import re
from typing import Final

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc import AckMode, NoRoom, ScanStatus
from vespiary_native.twin import delivery
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection, SendPlan, SendShape
from vespiary_native.twin.switching import RECEIPT, KeptSend, Switched, stage_send

LOGIN_BYTES_MAX: Final = 8192
PLANS_MAX: Final = 64
PLAN_BYTES_MAX: Final = 512
"""Bounds what a client can make a connection remember: frames with longer headers are read anew."""

DIGITS_MAX: Final = 18
LINE_SLACK: Final = 2
HEADERS_SLACK: Final = 32
"""The codec knows the limits exactly; here they are met with the ends of lines and the command."""

_LINE_FEED: Final = 10
_CARRIAGE_RETURN: Final = 13
_NOT_PLAIN: Final = b"\\\r\0"
_BLANKS: Final = b" \t"
_LEFT_TO_PYTHON: Final = frozenset(
    {
        b"AMQ_SCHEDULED_CRON",
        b"AMQ_SCHEDULED_DELAY",
        b"AMQ_SCHEDULED_PERIOD",
        b"AMQ_SCHEDULED_REPEAT",
        b"AMQ_SCHEDULED_TIME",
        b"JMSExpiration",
        b"_AMQ_DUPL_ID",
        b"_AMQ_SCHED_DELIVERY",
        b"ack",
        b"delivery-count",
        b"expires",
        b"message-id",
        b"redelivered",
        b"subscription",
        b"transaction",
        # The first of each was cut out before: what is left is a repetition.
        b"receipt",
        b"content-length",
    }
)
_BROKER_HEADERS: Final = (b"_AMQ_ORIG_", b"_AMQ_REJECT_", b"_AMQ_ACTUAL_EXPIRY")
"""How headers begin that only the broker writes: Python takes them off."""
_PRIORITY_USUAL: Final = b"4"
"""What a message without the header has; the queue's order stays as it is."""
_ACK_NAMES: Final = frozenset({b"subscription", b"receipt", b"content-length"})

_RECEIPT: Final = b"\nreceipt:"
_CONTENT_LENGTH: Final = b"\ncontent-length:"
_VARYING: Final = {_RECEIPT: rb"([0-9A-Za-z]+)", _CONTENT_LENGTH: rb"([0-9]{1,18})"}
"""Header lines that differ from frame to frame, and the values that need no second look."""

_PLAIN_ACK: Final = re.compile(rb"ACK\nid:(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})\n\n\0")
_MESSAGE_ID: Final = re.compile(rb"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
_S: Final = 0x53

# What `_take_send` and `_take_ack` answer when they did not take the frame.
_LEFT: Final = -1  # look at it with `_frame_length`
_BLOCKED: Final = -2


def scan(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    view: memoryview,
    start: int,
    end: int,
) -> tuple[int, int, int]:
    """Take complete frames from `view[start:end]` (see `abc.Core.scan_stomp`)."""
    switched.begin(connection, view)
    answer = _scan(staging, connection, switched, view, start, end)
    if not switched.sends:
        return answer
    connection.frame_taken()  # what is behind them is looked at again
    return switched.answer


def _scan(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    view: memoryview,
    start: int,
    end: int,
) -> tuple[int, int, int]:
    """Take frames until one is not plain, or not whole, or has to wait; return why."""
    data = view.obj
    assert isinstance(data, bytearray)
    at = start
    while True:
        if at < end and data[at] <= _CARRIAGE_RETURN and not connection.is_partial:
            at = _skip_line_ends(data, at, end)
        left = end - at
        if not left or (left == 1 and data[at] == _CARRIAGE_RETURN):
            return ScanStatus.NEED_DATA, at, 0
        if left < connection.need:
            return ScanStatus.NEED_DATA, at, connection.need
        taken = _LEFT
        if connection.is_ready:
            if data[at] == _S and data.startswith(b"SEND\n", at):
                taken = _take_send(staging, connection, switched, data, view, at, end)
            elif not switched.sends and data.startswith(b"ACK\n", at):
                taken = _take_ack(staging, connection, data, at, end)
        if taken > 0:
            at += taken
            if connection.is_partial:
                connection.frame_taken()
            continue
        length = _frame_length(connection, data, at, end)
        if length < 0:
            connection.frame_taken()
            return ScanStatus.ODD, at, 0
        if not length:
            connection.is_partial = True
            return ScanStatus.NEED_DATA, at, connection.need
        connection.frame_taken()
        return ScanStatus.BLOCKED if taken == _BLOCKED else ScanStatus.FRAME, at, length


def _skip_line_ends(data: bytearray, at: int, end: int) -> int:
    """Return where heart-beats, and the ends of lines behind a frame, are over."""
    while at < end and (
        data[at] == _LINE_FEED
        or (data[at] == _CARRIAGE_RETURN and data[at + 1 : min(at + 2, end)] == b"\n")
    ):
        at += 1
    return at


# --- where a frame ends ---------------------------------------------------------------------------


def _headers_end(connection: Connection, data: bytearray, at: int, end: int) -> int:
    """Return the headers' length with the empty line; 0 not there yet, -1 beyond a limit."""
    if connection.is_ready:
        most = connection.headers_max + HEADERS_SLACK
        line_most = connection.header_line_max + LINE_SLACK
    else:
        most = line_most = LOGIN_BYTES_MAX
    line = connection.scanned
    while True:
        feed = data.find(b"\n", at + line, end)
        following = (feed + 1 if feed >= 0 else end) - at
        if following - line > line_most or following > most:
            return -1
        if feed < 0:
            if data.find(b"\0", at + line, end) >= 0:
                return -1
            connection.scanned = line
            return 0
        if line and bytes(data[at + line : feed]) in (b"", b"\r"):
            return following
        line = following


def _content_length(connection: Connection, headers: bytes) -> int:
    """Return what a frame announces; -1 nothing, -2 malformed or too much.

    Args:
        connection: For its version and limits.
        headers: The command and the header lines, up to and with the empty line.
    """
    announced = -1
    lines = headers.split(b"\n")[1:-2]
    if connection.is_ready and len(lines) > connection.header_lines_max:
        return -2
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            return -2
        if connection.version == 10:
            name, value = name.strip(_BLANKS), value.removesuffix(b"\r").strip(_BLANKS)
        if name == b"content-length" and announced < 0:
            announced = _number(value.removesuffix(b"\r"))
            if announced < 0 or (connection.is_ready and announced > connection.body_max):
                return -2
    return announced


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() and len(digits) <= DIGITS_MAX else -1


def _frame_length(connection: Connection, data: bytearray, at: int, end: int) -> int:
    """Return the length of the frame at `at`; 0 more is needed (`connection.need`), -1 odd."""
    head = _headers_end(connection, data, at, end)
    if head <= 0:
        return head
    announced = _content_length(connection, bytes(data[at : at + head]))
    if announced == -2:
        return -1
    return _body_end(connection, data, at, end, head, announced)


def _body_end(
    connection: Connection, data: bytearray, at: int, end: int, head: int, announced: int
) -> int:
    """Return the length of a frame whose headers are known; 0 more is needed, -1 odd."""
    # Most bytes in front of the NUL.
    most = connection.body_max + head if connection.is_ready else LOGIN_BYTES_MAX - 1
    if announced >= 0:
        total = head + announced + 1
        if total - 1 > most:
            return -1
        if end - at < total:
            connection.need = total
            return 0
        return total if data[at + total - 1] == 0 else -1
    nul = data.find(b"\0", at + head + connection.body_scanned, end)
    if nul < 0:
        connection.body_scanned = end - at - head
        return -1 if end - at > most else 0
    return nul + 1 - at if nul - at <= most else -1


# --- SEND -----------------------------------------------------------------------------------------


def _take_send(
    staging: Staging,
    connection: Connection,
    switched: Switched,
    data: bytearray,
    view: memoryview,
    at: int,
    end: int,
) -> int:
    """Stage the SEND frame at `at` if it is whole and plain; return its length, or a code."""
    shape = connection.shape
    match = shape.match(data, at, end) if shape is not None else None
    if shape is not None and match is not None and match.end() - at <= connection.safe_bytes:
        head = match.end() - at
        plan = shape.plan
        receipt = match[shape.receipt_group] if shape.receipt_group else None
        announced = int(match[shape.length_group]) if shape.length_group else -1
        if not plan.route.is_open or announced > connection.body_max:
            return _LEFT
    else:
        known = _read_send(connection, data, view, at, end)
        if known is None:
            return _LEFT
        head, plan, receipt, announced = known
    length = head + announced + 1
    if announced < 0 or at + length > end or data[at + length - 1]:
        length = _body_end(connection, data, at, end, head, announced)
        if length <= 0:
            return _LEFT
    send = KeptSend(at, at + head, at + length - 1, at + length, plan, receipt)
    if plan.route.is_switch:
        return length if switched.keep(send) else _LEFT
    if switched.sends:  # nothing is taken before them
        return _LEFT
    status = stage_send(staging, connection, plan.route, view, send)
    if status is ScanStatus.NEED_DATA:
        return length
    return _BLOCKED if status is ScanStatus.BLOCKED else _LEFT


def _read_send(
    connection: Connection, data: bytearray, view: memoryview, at: int, end: int
) -> tuple[int, SendPlan, bytes | None, int] | None:
    """Read the headers of the SEND frame at `at`; None: they are not whole, or not plain.

    Returns:
        Their length with the empty line, what is known of them, the receipt's id or None, the
        content-length or -1.
    """
    feeds = data.find(b"\n\n", at + (connection.scanned or 5) - 1, end)
    if feeds < 0:
        return None
    headers = bytes(view[at : feeds + 1])
    head = len(headers) + 1
    rest, receipt = _cut(headers, _RECEIPT)
    if receipt is not None and not receipt.isalnum() and not _is_plain(connection, receipt):
        return None
    rest, digits = _cut(rest, _CONTENT_LENGTH)
    announced = -1
    if digits is not None:
        announced = _number(digits)
        if announced < 0 or announced > connection.body_max:
            return None
    plan = connection.plans[rest] if rest in connection.plans else _make_plan(connection, rest)
    if plan is None or not plan.route.is_open:
        return None
    lines, longest = plan.lines, 0
    for start, value in ((_RECEIPT, receipt), (_CONTENT_LENGTH, digits)):
        if value is not None:
            lines += 1
            longest = max(longest, len(start) + len(value))
    if lines > connection.header_lines_max or (
        head > connection.safe_bytes and not _is_within_limits(connection, plan, longest, head)
    ):
        return None
    _learn_shape(connection, headers, plan)
    return head, plan, receipt, announced


def _cut(headers: bytes, start: bytes) -> tuple[bytes, bytes | None]:
    """Return header lines without the first that starts so, and that one's value."""
    found = headers.find(start)
    if found < 0:
        return headers, None
    stop = headers.find(b"\n", found + len(start))
    return headers[:found] + headers[stop:], headers[found + len(start) : stop]


def _learn_shape(connection: Connection, headers: bytes, plan: SendPlan) -> None:
    """Know frames like this one at once from now on.

    Who mixes frames of several shapes makes us learn in vain, so each time it takes twice as many
    misses until the next.
    """
    connection.shape_misses += 1
    if connection.shape_misses < connection.shape_patience or len(headers) > PLAN_BYTES_MAX:
        return
    connection.shape_misses = 0
    connection.shape_patience *= 2
    varying = sorted((headers.find(start), start) for start in _VARYING if start in headers)
    pattern, at = b"", 0
    for found, start in varying:
        pattern += re.escape(headers[at : found + len(start)]) + _VARYING[start]
        at = headers.find(b"\n", found + len(start))
    pattern += re.escape(headers[at:] + b"\n")
    groups = {start: number for number, (_, start) in enumerate(varying, 1)}
    connection.shape = SendShape(
        re.compile(pattern).match, plan, groups.get(_RECEIPT, 0), groups.get(_CONTENT_LENGTH, 0)
    )


def _is_within_limits(connection: Connection, plan: SendPlan, longest_line: int, head: int) -> bool:
    return (
        max(plan.longest_line, longest_line) - 1 <= connection.header_line_max
        and head <= connection.headers_max
    )


def _is_plain(connection: Connection, value: bytes) -> bool:
    """Whether a header's value needs no codec: ASCII, no escapes, nothing that a version trims."""
    if not value.isascii() or b":" in value or any(octet in value for octet in _NOT_PLAIN):
        return False
    return connection.version != 10 or value == value.strip(_BLANKS)


def _is_trimmed(name: bytes, value: bytes) -> bool:
    """Whether STOMP 1.0, which trims, sees another name or value than stands there."""
    return name != name.strip(_BLANKS) or value != value.strip(_BLANKS)


def _make_plan(connection: Connection, rest: bytes) -> SendPlan | None:
    """Keep what the lines of a SEND say without receipt and content-length; None: not plain."""
    plan = _parse_plan(connection, rest)
    if len(rest) <= PLAN_BYTES_MAX:
        if len(connection.plans) >= PLANS_MAX:
            connection.plans.clear()
        connection.plans[rest] = plan
    return plan


def _parse_plan(connection: Connection, rest: bytes) -> SendPlan | None:
    if not rest.isascii() or any(octet in rest for octet in _NOT_PLAIN):
        return None
    lines = rest.split(b"\n")[1:-1]
    known: dict[bytes, bytes] = {}
    longest = 0
    for line in lines:
        name, colon, value = line.partition(b":")
        # A second colon is data that the canonical properties escape (journal-format §3.2).
        if not colon or not name or b":" in value or name in _LEFT_TO_PYTHON:
            return None
        if name.startswith(_BROKER_HEADERS):
            return None
        if connection.version == 10 and _is_trimmed(name, value):
            return None
        if name in known and name in (b"destination", b"destination-type"):
            return None
        known.setdefault(name, value)  # of a repeated header the first counts
        longest = max(longest, len(line) + 1)
    destination = known.get(b"destination", b"")
    if not destination:
        return None
    if b"destination-type" in known:
        destination += b"\0" + known[b"destination-type"]
    route = connection.taught.get(destination)
    if route is None:
        return None
    priority = known.get(b"priority", _PRIORITY_USUAL)
    if len(priority) != 1 or not priority.isdigit():
        return None
    is_special = priority != _PRIORITY_USUAL or b"JMSXGroupID" in known
    return SendPlan(
        route,
        rest[5:],
        is_persistent=known.get(b"persistent") == b"true",
        priority=int(priority),
        flags=RecordFlag.SPECIAL if is_special else 0,
        lines=len(lines),
        longest_line=longest,
    )


# --- ACK ------------------------------------------------------------------------------------------


def _take_ack(staging: Staging, connection: Connection, data: bytearray, at: int, end: int) -> int:
    """Take the ACK frame at `at` if it is whole and plain; return its length, or a code."""
    if connection.version == 12:
        plain = _PLAIN_ACK.match(data, at, end)
        if plain is not None and plain.end() - at <= connection.safe_bytes:
            taken = _acknowledge(staging, connection, int(plain[1]), int(plain[2]), b"")
            return plain.end() - at if taken > 0 else taken
    feeds = data.find(b"\n\n", at + (connection.scanned or 4) - 1, end)
    if feeds < 0:
        return _LEFT
    headers = bytes(data[at : feeds + 1])
    head = len(headers) + 1
    known = _parse_ack(connection, headers)
    if known is None or head > connection.headers_max:
        return _LEFT
    announced = -1
    if b"content-length" in known:
        announced = _number(known[b"content-length"])
        if announced < 0:
            return _LEFT
    length = _body_end(connection, data, at, end, head, announced)
    message_id = _MESSAGE_ID.fullmatch(known.get(_id_name(connection), b""))
    if length != head + 1 or message_id is None:  # an ACK has no body
        return _LEFT
    subscription = known.get(b"subscription", b"")
    if connection.version == 11 and b"subscription" not in known:
        return _LEFT
    taken = _acknowledge(staging, connection, int(message_id[1]), int(message_id[2]), subscription)
    if taken < 0:
        return taken
    receipt = known.get(b"receipt")
    if receipt is not None:
        staging.receipt(connection, RECEIPT % receipt, is_for_all=False)
    return length


def _id_name(connection: Connection) -> bytes:
    return b"id" if connection.version == 12 else b"message-id"


def _acknowledge(
    staging: Staging, connection: Connection, queue_id: int, sequence: int, subscription: bytes
) -> int:
    """Acknowledge what one of the connection's consumers holds; return how many, or a code."""
    consumer = connection.holder(queue_id, sequence)
    if consumer is None or consumer.mode is AckMode.AUTO:
        return _LEFT
    if connection.version == 11 and subscription != consumer.subscription:
        return _LEFT
    try:
        return delivery.acknowledge(staging, consumer, sequence)
    except NoRoom:
        return _BLOCKED


def _parse_ack(connection: Connection, headers: bytes) -> dict[bytes, bytes] | None:
    """Return the headers of an ACK by name; None: not plain."""
    lines = headers.split(b"\n")[1:-1]
    if len(lines) > connection.header_lines_max:
        return None
    known: dict[bytes, bytes] = {}
    id_name = _id_name(connection)
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or name in known or (name != id_name and name not in _ACK_NAMES):
            return None
        if not _is_plain(connection, value) or len(line) > connection.header_line_max:
            return None
        known[name] = value
    return known

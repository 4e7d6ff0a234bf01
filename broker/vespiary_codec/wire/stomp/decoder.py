r"""The decoder: bytes of one direction of one connection in, frames and heart-beats out.

Owns the bytes that it was fed and not yet turned into an event. Must never do I/O, look at a
clock, or examine a byte twice. Called by the broker's connection, by the sans-I/O client, and by
the tests of the C scanner, for which it is the specification. The events, and the violation that
ends them, do not depend on how the bytes were cut into pieces.

Theory of operation. A frame passes through four states, each of which can stop for want of data
at any byte:

    BETWEEN ──▶ COMMAND ──▶ HEADERS ──▶ BODY ──▶ BETWEEN
    ends of     one line     lines up     by content-length,
    line        ≤ 16 bytes   to a blank   else up to a NUL

Rules, where the three specifications leave a choice or stock clients differ from them:

- End of line. Before the login and in 1.2: LF, or CR LF, line by line; any other CR in a header
  is an error. In 1.0 and 1.1 an end of line is LF and a CR is data; but no command ends in a CR,
  so a command line that does tells that the sender ends the lines of *this frame* with CR LF, and
  it is taken at its word. Between frames CR LF is an end of line in every version.
- Escapes: see `escapes`. A second colon in a header line belongs to the value (the grammar of 1.1
  and 1.2 forbids it, clients send it).
- Blanks around names and values are dropped in 1.0 (its examples have them, its servers trim) and
  kept in 1.1 and 1.2. The CONNECT frame is never trimmed here, as its version is not known: see
  `negotiation`.
- Headers are UTF-8, valid, and have no NUL, which would be the end of a frame without a blank line.
- content-length is 1 to 18 ASCII digits: no sign, no blank, no more than the limit. Of several
  the first counts. After that many bytes a NUL must stand.
- A body on a command that may not have one is an error in 1.1 and 1.2. In 1.0 and before the
  login it is read, under the same limits, and dropped ("The body of SUBSCRIBE is ignored").
- Only the commands of `commands` exist, at their time: CONNECT or STOMP first and once.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple, NoReturn

from vespiary_codec.wire.stomp.commands import (
    LONGEST_COMMAND_LINE_BYTES,
    CommandRule,
    Role,
    check_required_headers,
    commands_for,
    refuse_command,
)
from vespiary_codec.wire.stomp.errors import (
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.stomp.escapes import unescape
from vespiary_codec.wire.stomp.frames import (
    NEED_DATA,
    Frame,
    Headers,
    HeartBeat,
    NeedData,
    Version,
)
from vespiary_codec.wire.stomp.limits import StompLimits

_LINE_ENDS: Final = re.compile(rb"(?:\r?\n)+")
_BLANKS: Final = " \t"
_NUL: Final = 0
_LONGEST_NUMBER_DIGITS: Final = 18  # what 64 bits hold for certain; int() need not see more


class Head(NamedTuple):
    """A frame of which only command and headers were read.

    Attributes:
        frame: The frame, without its body.
        content_length: Octets of the body that the headers announce; None: it ends with a NUL.
        head_bytes: Octets up to and with the blank line.
    """

    frame: Frame
    content_length: int | None
    head_bytes: int


class _State(enum.Enum):
    COMMAND = enum.auto()  # between frames too: nothing of a frame has been taken
    HEADERS = enum.auto()
    BODY = enum.auto()


class StompDecoder:
    """Turns bytes into events, for one direction of one connection.

    Feed it with `feed`, then call `next_event` until it answers `NEED_DATA`. After a
    `RemoteProtocolError` it takes no more data and raises the same error again.

    Owner: the task of the connection. Not for use from two threads.

    Args:
        limits: Bounds of one frame; None means the defaults.
        role: Who reads: "server" expects what clients send, "client" what servers send.
    """

    def __init__(self, limits: StompLimits | None = None, *, role: Role = "server") -> None:
        self._limits = StompLimits() if limits is None else limits
        self._role: Role = role
        self._version: Version | None = None
        self._failure: RemoteProtocolError | None = None
        self._buffer = bytearray()
        # All positions are indexes into the buffer.
        self._frame_start = 0
        self._line_start = 0
        self._body_start = 0
        self._scan = 0  # everything before it has been examined
        self._state = _State.COMMAND
        self._rule = CommandRule("", (), False)
        self._headers: Headers = []
        self._is_frame_crlf = False
        self._content_length: int | None = None
        self._body_limit = 0
        self._use_version(None)

    @property
    def version(self) -> Version | None:
        """The version agreed upon; None before the login."""
        return self._version

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes fed that no event has taken yet."""
        return len(self._buffer) - self._frame_start

    @property
    def is_mid_frame(self) -> bool:
        """Whether part of a frame has arrived and not its end.

        True only after `next_event` has answered `NEED_DATA`; until then the rest may be in the
        buffer.
        """
        return self.buffered_bytes > 0

    def set_version(self, version: Version) -> None:
        """Go on in `version`, with the limits and commands of a connection that is logged in.

        A server calls it when it has accepted a CONNECT frame, a client when it has read
        CONNECTED; data that follows the frame may be in the buffer already.

        Args:
            version: The version agreed upon.

        Raises:
            LocalProtocolError: A version is set already, or the decoder stands inside a frame.
        """
        if self._version is not None:
            raise LocalProtocolError(f"the version is {self._version} already; it cannot change")
        if self._state is not _State.COMMAND:
            raise LocalProtocolError("the version cannot change inside a frame")
        self._use_version(version)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in bytes from the peer; they are copied. After an error they are dropped.

        Args:
            data: Any number of bytes, cut anywhere.
        """
        if self._failure is not None:
            return
        taken = self._frame_start
        if taken:
            del self._buffer[:taken]
            self._frame_start = 0
            self._line_start -= taken
            self._body_start -= taken
            self._scan -= taken
        self._buffer += data

    def next_event(self) -> Frame | HeartBeat | NeedData:
        """Return the next frame or heart-beat, or `NEED_DATA` if no whole one has been fed.

        Raises:
            RemoteProtocolError: The peer broke the protocol or a limit. Final: every later call
                raises the same error.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._advance()
        except RemoteProtocolError as error:
            self._failure = error
            self._buffer = bytearray()
            self._frame_start = 0
            raise

    def next_head(self) -> Head | NeedData:
        """Return the head of a frame whose body the caller reads itself; no event may follow.

        What was fed must begin with the frame. All that the headers say is checked, the announced
        length of the body against the limits too.

        Raises:
            RemoteProtocolError: As `next_event`.
        """
        if self._state is _State.COMMAND and not self._read_command():
            return NEED_DATA
        if self._state is _State.HEADERS and not self._read_headers():
            return NEED_DATA
        frame = Frame(self._rule.command, self._headers)
        return Head(frame, self._content_length, self._body_start - self._frame_start)

    def _use_version(self, version: Version | None) -> None:
        limits = self._limits
        self._version = version
        self._commands = commands_for(self._role, version)
        self._header_bytes = limits.header_bytes
        if version is None:
            # One less, to leave room for the NUL that ends the frame.
            self._header_bytes = min(limits.header_bytes, limits.before_login_bytes - 1)
        # Before the login lines end as in 1.2 and nothing is escaped, as in 1.0: CONNECT, STOMP and
        # CONNECTED never are, and an ERROR has no version then.
        self._is_cr_line_end = version is None or version == "1.2"
        self._escapes: Version = version or "1.0"
        self._is_trimmed = version == "1.0"
        self._is_body_ignored = version is None or version == "1.0"

    def _advance(self) -> Frame | HeartBeat | NeedData:
        if self._state is _State.COMMAND:
            line_ends = _LINE_ENDS.match(self._buffer, self._frame_start)
            if line_ends is not None:
                start, self._frame_start = line_ends.span()
                return HeartBeat(self._buffer.count(b"\n", start, self._frame_start))
            if not self._read_command():
                return NEED_DATA
        if self._state is _State.HEADERS and not self._read_headers():
            return NEED_DATA
        body = self._read_body()
        if body is None:
            return NEED_DATA
        return Frame(self._rule.command, self._headers, body if self._rule.has_body else b"")

    def _read_command(self) -> bool:
        """Take the command line; False if it is not there to its end."""
        buffer = self._buffer
        start = self._frame_start
        line_feed = buffer.find(b"\n", start, start + LONGEST_COMMAND_LINE_BYTES + 1)
        stop = line_feed if line_feed >= 0 else start + LONGEST_COMMAND_LINE_BYTES + 1
        line = bytes(buffer[start:stop])
        if _NUL in line:
            self._refuse_nul()
        if line_feed < 0:
            if len(line) > LONGEST_COMMAND_LINE_BYTES:
                raise refuse_command(line[:-1], self._role, self._version)
            return False
        self._is_frame_crlf = self._is_cr_line_end
        rule = self._commands.get(line)
        if rule is None:
            if line.endswith(b"\r"):
                line = line[:-1]
                self._is_frame_crlf = True
                rule = self._commands.get(line)
            if rule is None:
                raise refuse_command(line, self._role, self._version)
        self._rule = rule
        self._headers = []
        self._line_start = self._scan = line_feed + 1
        self._state = _State.HEADERS
        return True

    def _read_headers(self) -> bool:
        """Take header lines up to and with the blank one; False if that is not there yet."""
        buffer = self._buffer
        headers = self._headers
        line_start = self._line_start
        scan = self._scan
        line_bytes = self._limits.header_line_bytes
        last_feed = self._frame_start + self._header_bytes - 1
        while True:
            # The last place where the line feed may be, by the line's limit and by the frame's.
            last = line_start + line_bytes
            if last > last_feed:
                last = last_feed
            line_feed = buffer.find(b"\n", scan, last + 1)
            if line_feed < 0:
                if buffer.find(b"\0", scan, last + 1) >= 0:
                    self._refuse_nul()
                if len(buffer) > last:
                    self._refuse_header_size(last - line_start)
                self._line_start = line_start
                self._scan = len(buffer)
                return False
            line = buffer[line_start:line_feed]
            scan = line_start = line_feed + 1
            if _NUL in line:
                self._refuse_nul()
            if self._is_frame_crlf and line.endswith(b"\r"):
                del line[-1:]
            if not line:
                break
            if len(headers) == self._limits.header_count:
                self._refuse_header_count()
            headers.append(self._parse_header(line))
        self._begin_body(line_start)
        return True

    def _parse_header(self, line: bytearray) -> tuple[str, str]:
        """Return name and value of a header line that has lost its end of line."""
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(
                Violation.NOT_UTF8,
                f"header {len(self._headers) + 1} of {self._rule.command} is not UTF-8:"
                f" octet 0x{line[error.start]:02x} at offset {error.start} of the line",
            ) from error
        name, colon, value = text.partition(":")
        if self._is_trimmed:
            name = name.strip(_BLANKS)
            value = value.strip(_BLANKS)
        if not colon or not name:
            flaw = "has an empty name" if colon else "has no colon"
            self._refuse_header(Violation.MALFORMED_HEADER, flaw)
        if "\r" in text and self._is_cr_line_end:
            self._refuse_header(Violation.MALFORMED_HEADER, "has a carriage return inside the line")
        if "\\" in text:
            return unescape(name, self._escapes), unescape(value, self._escapes)
        return name, value

    def _begin_body(self, body_start: int) -> None:
        """Check the complete headers and find out how the body will end."""
        frame = Frame(self._rule.command, self._headers)
        check_required_headers(frame, self._rule, self._version)
        limits = self._limits
        limit = limits.body_bytes
        if self._version is None:
            head_bytes = body_start - self._frame_start
            limit = min(limit, limits.before_login_bytes - head_bytes - 1)
        if not (self._rule.has_body or self._is_body_ignored):
            limit = 0
        self._body_limit = limit
        announced = frame.get("content-length")
        self._content_length = None
        if announced is not None:
            self._content_length = self._parse_content_length(announced)
        self._body_start = self._scan = body_start
        self._state = _State.BODY

    def _parse_content_length(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()):
            raise RemoteProtocolError(
                Violation.CONTENT_LENGTH,
                f"{self._rule.command} has content-length {text[:40]!a};"
                " it must be a number of octets in digits only",
                receipt_id=self._receipt_id(),
            )
        if len(text) > _LONGEST_NUMBER_DIGITS:
            self._refuse_body(f"a number of {len(text)} digits of")
        length = int(text)
        if length > self._body_limit:
            self._refuse_body(str(length))
        return length

    def _read_body(self) -> bytes | None:
        """Take the body and the NUL behind it; None if they are not there to the end."""
        buffer = self._buffer
        start = self._body_start
        if self._content_length is not None:
            end = start + self._content_length
            if len(buffer) <= end:
                return None
            if buffer[end] != _NUL:
                raise RemoteProtocolError(
                    Violation.UNTERMINATED_BODY,
                    f"the body of {self._rule.command} does not end in a NUL after the"
                    f" {self._content_length} octets that content-length announced",
                    receipt_id=self._receipt_id(),
                )
        else:
            last = start + self._body_limit
            end = buffer.find(b"\0", self._scan, last + 1)
            if end < 0:
                if len(buffer) > last:
                    self._refuse_body(f"at least {self._body_limit + 1}")
                self._scan = len(buffer)
                return None
        with memoryview(buffer) as octets:
            body = bytes(octets[start:end])
        if end + 1 == len(buffer):
            self._buffer = bytearray()
            self._frame_start = 0
        else:
            self._frame_start = end + 1
        self._state = _State.COMMAND
        return body

    # --- refusals: each a sentence with what was measured against what is allowed ----------------

    def _receipt_id(self) -> str | None:
        return Frame(self._rule.command, self._headers).get("receipt")

    def _refuse_nul(self) -> NoReturn:
        raise RemoteProtocolError(
            Violation.NUL_IN_HEADERS,
            "a NUL came before the blank line that ends the headers: the frame has no blank line,"
            " or a header contains a NUL",
        )

    def _refuse_header(self, violation: Violation, flaw: str) -> NoReturn:
        number = len(self._headers) + 1
        raise RemoteProtocolError(violation, f"header {number} of {self._rule.command} {flaw}")

    def _refuse_header_count(self) -> NoReturn:
        limit = self._limits.header_count
        raise LimitExceeded(
            Violation.HEADER_COUNT,
            f"{self._rule.command} has at least {limit + 1} headers; at most {limit} are allowed",
        )

    def _refuse_header_size(self, line_bytes: int) -> NoReturn:
        limit = self._limits.header_line_bytes
        if line_bytes == limit:
            raise LimitExceeded(
                Violation.HEADER_LINE_BYTES,
                f"header {len(self._headers) + 1} of {self._rule.command} has at least"
                f" {limit + 1} octets; at most {limit} are allowed",
            )
        limit = self._header_bytes
        until = " before the login" if self._version is None else ""
        raise LimitExceeded(
            Violation.HEADER_BYTES,
            f"the headers of {self._rule.command} have at least {limit + 1} octets;"
            f" at most {limit} are allowed{until}",
        )

    def _refuse_body(self, measured: str) -> NoReturn:
        command = self._rule.command
        if not (self._rule.has_body or self._is_body_ignored):
            raise RemoteProtocolError(
                Violation.UNEXPECTED_BODY,
                f"{command} has a body; only SEND, MESSAGE and ERROR may have one",
                receipt_id=self._receipt_id(),
            )
        until = " before the login" if self._version is None else ""
        raise LimitExceeded(
            Violation.BODY_BYTES,
            f"the body of {command} has {measured} octets;"
            f" at most {self._body_limit} are allowed{until}",
            receipt_id=self._receipt_id(),
        )

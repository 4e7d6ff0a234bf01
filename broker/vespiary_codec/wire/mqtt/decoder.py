"""The decoder: bytes of one direction of one connection in, packets out.

Owns the bytes that it was fed and not yet turned into a packet. Must never do I/O or look at a
clock. Called by the broker's connection, and by the tests of a C scanner, for which it is the
specification. The packets, and the violation that ends them, do not depend on how the bytes were
cut into pieces.

Theory of operation. A packet is a byte with type and flags, one to four bytes with the length of
the rest, and the rest. Type, flags and length are judged as soon as they are there, so that nothing
is kept of a packet that would be refused; the rest is judged when it is whole. A server's decoder
begins without a version: the first packet is CONNECT, and what that says holds for all behind it.

Rules, where the specifications leave a choice or stock clients differ from them:

- MQTT 3.1 asks for client ids of 1 to 23 characters; longer ones are taken, as all servers do.
- Texts are valid UTF-8 without NUL (MQTT 5.0 §1.5.4). Other control characters and non-characters,
  which "should not" be there, are taken: they are the users' own.
- A length is at most four bytes; one with more bytes than it needs is taken.
- A SUBSCRIBE with a filter that is not valid is a violation as a whole.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.wire.mqtt.bodies import Context, read_body
from vespiary_codec.wire.mqtt.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.packet_types import (
    FLAGS,
    MAY_BE_DUP_3_1,
    PacketType,
    Role,
    Version,
    expected,
)
from vespiary_codec.wire.mqtt.packets import NEED_DATA, Connect, NeedData, Packet
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode

_LENGTH_BYTES: Final = 4
_DUP: Final = 8


class MqttDecoder:
    """Turns bytes into packets, for one direction of one connection.

    Feed it with `feed`, then call `next_packet` until it answers `NEED_DATA`. After a
    `RemoteProtocolError` it takes no more data and raises the same error again.

    Owner: the task of the connection. Not for use from two threads.

    Args:
        limits: Bounds of one packet; None means the defaults.
        role: Who reads: "server" expects what clients send, "client" what servers send.
        version: That of the connection; None: a server reads it from CONNECT.
    """

    def __init__(
        self,
        limits: MqttLimits | None = None,
        *,
        role: Role = "server",
        version: Version | None = None,
    ) -> None:
        if role == "client" and version is None:
            raise ValueError("a client's decoder needs the version that the client asked for")
        self._limits = MqttLimits() if limits is None else limits
        self._role: Role = role
        self._version = version
        self._failure: RemoteProtocolError | None = None
        self._buffer = bytearray()
        self._begin = 0  # of the packet, in the buffer
        self._body = 0  # where it begins behind the fixed header; 0: that is not there yet
        self._end = 0
        self._kind = PacketType.CONNECT

    @property
    def version(self) -> Version | None:
        """The version of the connection; None before CONNECT."""
        return self._version

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes fed that no packet has taken yet."""
        return len(self._buffer) - self._begin

    @property
    def is_mid_packet(self) -> bool:
        """Whether part of a packet has arrived and not its end.

        True only after `next_packet` has answered `NEED_DATA`; until then the rest may be in the
        buffer.
        """
        return self.buffered_bytes > 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in bytes from the peer; they are copied. After an error they are dropped.

        Args:
            data: Any number of bytes, cut anywhere.
        """
        if self._failure is not None:
            return
        if self._begin:
            del self._buffer[: self._begin]
            if self._body:
                self._body, self._end = self._body - self._begin, self._end - self._begin
            self._begin = 0
        self._buffer += data

    def next_packet(self) -> Packet | NeedData:
        """Return the next packet, or `NEED_DATA` if it is not whole yet.

        Raises:
            LimitExceeded: The peer exceeded a limit.
            RemoteProtocolError: The peer broke a rule. The same error is raised from then on.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._next()
        except RemoteProtocolError as error:
            self._failure = error
            self._buffer.clear()
            self._begin = self._body = 0
            raise

    def _next(self) -> Packet | NeedData:
        if not self._body and not self._fixed_header():
            return NEED_DATA
        if len(self._buffer) < self._end:
            return NEED_DATA
        data = bytes(self._buffer[self._body : self._end])
        flags = self._buffer[self._begin] & 0x0F
        version = Version.V5 if self._version is None else self._version
        packet = read_body(self._kind, data, Context(version, self._role, self._limits, flags))
        self._begin, self._body = self._end, 0
        if isinstance(packet, Connect):
            self._version = packet.version
        return packet

    def _fixed_header(self) -> bool:
        """Read type, flags and length; return whether they are there."""
        at, buffer = self._begin, self._buffer
        if at == len(buffer):
            return False
        self._kind = self._judged(buffer[at])
        length = 0
        for place in range(_LENGTH_BYTES):
            at += 1
            if at == len(buffer):
                return False
            length |= (buffer[at] & 0x7F) << (7 * place)
            if not buffer[at] & 0x80:
                break
        else:
            raise RemoteProtocolError(
                Violation.REMAINING_LENGTH, "the remaining length goes on behind its fourth byte"
            )
        self._body, self._end = at + 1, at + 1 + length
        self._check_size(self._end - self._begin)
        return True

    def _judged(self, octet: int) -> PacketType:
        """Return the type that a first byte names."""
        number, flags = octet >> 4, octet & 0x0F
        allowed = expected(self._role, self._version)
        if number not in allowed:
            name = PacketType(number).name if number else "packet type 0"
            code = ReasonCode.PROTOCOL_ERROR if number else ReasonCode.MALFORMED_PACKET
            raise RemoteProtocolError(
                Violation.UNEXPECTED_PACKET, f"{name} has no place here", code
            )
        kind = PacketType(number)
        if self._version is Version.V3_1 and kind in MAY_BE_DUP_3_1:
            flags &= ~_DUP
        if kind is not PacketType.PUBLISH and flags != FLAGS[kind]:
            raise RemoteProtocolError(
                Violation.RESERVED_BITS,
                f"the flags of {kind.name} are {flags}; they must be {FLAGS[kind]}",
            )
        return kind

    def _check_size(self, size_bytes: int) -> None:
        limits = self._limits
        most = limits.before_login_bytes if self._version is None else limits.packet_bytes
        if size_bytes > most:
            raise LimitExceeded(
                Violation.PACKET_BYTES,
                f"a packet of {size_bytes} bytes is announced; at most {most} are allowed",
                ReasonCode.PACKET_TOO_LARGE,
            )

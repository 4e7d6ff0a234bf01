"""The client's side of a STOMP connection, without a socket.

Owns what a client has to remember: the state of the login, the version, which receipts are
awaited, which subscriptions are open. Actions return the bytes to send; received bytes go in by
`feed`, and `next_event` says what they mean. Must never do I/O or look at a clock: the caller
sends heart-beats when `Connected` says so. Called by the CLI's `send` and `receive` and by tests.

States, and what each allows:

    NEW ──connect──▶ CONNECTING ──CONNECTED frame──▶ CONNECTED      sends frames, gets messages
    CONNECTED ──disconnect──▶ DISCONNECTING ──its RECEIPT──▶ CLOSED
    any state ──ERROR frame, or the end of the stream──▶ CLOSED
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vespiary_codec.wire.stomp.commands import AckMode
from vespiary_codec.wire.stomp.decoder import StompDecoder
from vespiary_codec.wire.stomp.encoder import UNROUTED, encode, encode_head
from vespiary_codec.wire.stomp.errors import LocalProtocolError, RemoteProtocolError, Violation
from vespiary_codec.wire.stomp.frames import (
    NEED_DATA,
    VERSIONS,
    Frame,
    Headers,
    HeartBeat,
    NeedData,
    Version,
)
from vespiary_codec.wire.stomp.limits import StompLimits
from vespiary_codec.wire.stomp.negotiation import HeartBeats, accept_connected


class ClientState(enum.Enum):
    """Where the connection stands."""

    NEW = enum.auto()
    CONNECTING = enum.auto()
    CONNECTED = enum.auto()
    DISCONNECTING = enum.auto()
    CLOSED = enum.auto()


@dataclass(frozen=True, slots=True)
class Connected:
    """The server accepted the login.

    Attributes:
        version: The version agreed upon.
        server: What the server calls itself; "" if it does not say.
        session: Id of the session; "" if it does not say.
        send_ms: We must send something at least every so many milliseconds; 0 for never.
        receive_ms: The server will send something at least every so many milliseconds; 0 for never.
    """

    version: Version
    server: str
    session: str
    send_ms: int
    receive_ms: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message from a subscription.

    Attributes:
        subscription: Id of the subscription; "" in 1.0 if the server does not say.
        message_id: Id of the message.
        ack_id: What a 1.2 ACK repeats; None if the message needs no ACK or the version is older.
        destination: Where the message was sent to.
        headers: All headers of the frame, in order.
        body: The body.
    """

    subscription: str
    message_id: str
    ack_id: str | None
    destination: str
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Receipt:
    """The server has done what the frame with this receipt asked for.

    Attributes:
        receipt_id: Value of that frame's `receipt` header.
        is_unrouted: Whether it was a SEND, and no queue accepted its message.
    """

    receipt_id: str
    is_unrouted: bool = False


@dataclass(frozen=True, slots=True)
class ServerError:
    """The server refused something; it closes the connection.

    Attributes:
        message: Its sentence.
        detail: More from the body, or "".
        receipt_id: Receipt of the frame that it is about; None if it does not say.
    """

    message: str
    detail: str
    receipt_id: str | None


ClientEvent = Connected | Message | Receipt | ServerError | HeartBeat

_OPEN: Final = frozenset({ClientState.CONNECTED})


class StompClient:
    """One client connection, without a socket.

    Invariant: a receipt id is in `unconfirmed` from the moment its frame was made until its
        RECEIPT was read.

    Owner: the task that owns the socket. Not for use from two threads.

    Args:
        host: Value of the `host` header; by convention the name that the socket was connected to.
        login: User name, or None to send none.
        passcode: Password, or None to send none.
        versions: Versions to offer, at least one.
        heart_beats: What this client can send and wants to receive.
        limits: Bounds of what the server may send; None means the defaults.
    """

    def __init__(
        self,
        *,
        host: str,
        login: str | None = None,
        passcode: str | None = None,
        versions: tuple[Version, ...] = VERSIONS,
        heart_beats: HeartBeats | None = None,
        limits: StompLimits | None = None,
    ) -> None:
        self._host = host
        self._login = login
        self._passcode = passcode
        self._versions = versions
        self._heart_beats = heart_beats or HeartBeats()
        self._decoder = StompDecoder(limits, role="client")
        self._state = ClientState.NEW
        self._receipt_count = 0
        self._unconfirmed: dict[str, None] = {}  # a set that keeps the order of sending
        self._disconnect_receipt: str | None = None
        self._subscriptions: dict[str, AckMode] = {}

    @property
    def state(self) -> ClientState:
        """Where the connection stands."""
        return self._state

    @property
    def version(self) -> Version | None:
        """The version agreed upon; None before `Connected`."""
        return self._decoder.version

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Receipt ids that were asked for and have not come, oldest first."""
        return tuple(self._unconfirmed)

    # --- actions: each returns the bytes to send -------------------------------------------------

    def connect(self) -> bytes:
        """Return the CONNECT frame.

        Raises:
            LocalProtocolError: The login was begun already, or a value cannot be said in a
                CONNECT frame.
        """
        self._check_state("connect", frozenset({ClientState.NEW}))
        headers = [("accept-version", ",".join(self._versions)), ("host", self._host)]
        beats = self._heart_beats
        if beats != HeartBeats():
            headers.append(("heart-beat", f"{beats.send_ms},{beats.receive_ms}"))
        if self._login is not None:
            headers.append(("login", self._login))
        if self._passcode is not None:
            headers.append(("passcode", self._passcode))
        data = encode(Frame("CONNECT", headers), "1.0")
        self._state = ClientState.CONNECTING
        return data

    def new_receipt_id(self) -> str:
        """Return a receipt id that this connection has not used."""
        self._receipt_count += 1
        return str(self._receipt_count)

    def send(
        self,
        destination: str,
        body: bytes,
        headers: Iterable[tuple[str, str]] = (),
        *,
        receipt_id: str | None = None,
        transaction: str | None = None,
    ) -> bytes:
        """Return a SEND frame.

        Args:
            destination: Where to.
            body: The body.
            headers: Further headers, such as ("persistent", "true").
            receipt_id: Ask for a RECEIPT of this id; None asks for none.
            transaction: Make it part of a transaction that was begun; None for none.

        Raises:
            LocalProtocolError: Not connected, or a value that the version cannot say.

        Durability: none by itself; the message is safe when the `Receipt` of `receipt_id` has come.
        """
        mine = [("destination", destination), *_optional("transaction", transaction)]
        return self._frame("SEND", [*mine, *headers], receipt_id, body)

    def send_head(
        self,
        destination: str,
        body_bytes: int,
        headers: Iterable[tuple[str, str]] = (),
        *,
        receipt_id: str | None = None,
    ) -> bytes:
        """Return a SEND frame up to its body: the caller sends that, piece by piece, and a NUL.

        Args:
            destination: Where to.
            body_bytes: Octets of the body.
            headers: Further headers.
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected, or a value that the version cannot say.

        Durability: none by itself; the message is safe when the `Receipt` of `receipt_id` has come.
        """
        mine = [("destination", destination), *headers]
        return self._frame("SEND", mine, receipt_id, body_bytes=body_bytes)

    def subscribe(
        self,
        destination: str,
        subscription: str,
        ack: AckMode = "auto",
        headers: Iterable[tuple[str, str]] = (),
        *,
        receipt_id: str | None = None,
    ) -> bytes:
        """Return a SUBSCRIBE frame.

        Args:
            destination: Where from.
            subscription: Id of the subscription, unique in this connection.
            ack: How messages are acknowledged.
            headers: Further headers, such as ("selector", "colour = 'red'").
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected, the id is in use, or a value that the version
                cannot say.
        """
        if subscription in self._subscriptions:
            raise LocalProtocolError(f"subscription {subscription!r} exists already")
        mine = [("id", subscription), ("destination", destination), ("ack", str(ack))]
        data = self._frame("SUBSCRIBE", [*mine, *headers], receipt_id)
        self._subscriptions[subscription] = ack
        return data

    def unsubscribe(self, subscription: str, *, receipt_id: str | None = None) -> bytes:
        """Return an UNSUBSCRIBE frame. Messages that are on their way may still come.

        Args:
            subscription: Id of the subscription.
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected, or there is no such subscription.
        """
        if subscription not in self._subscriptions:
            raise LocalProtocolError(f"there is no subscription {subscription!r}")
        data = self._frame("UNSUBSCRIBE", [("id", subscription)], receipt_id)
        del self._subscriptions[subscription]
        return data

    def ack(
        self, message: Message, *, receipt_id: str | None = None, transaction: str | None = None
    ) -> bytes:
        """Return an ACK frame: the message was consumed.

        Args:
            message: The message; with ack mode "client" all earlier ones of its subscription are
                meant too.
            receipt_id: Ask for a RECEIPT of this id; None asks for none.
            transaction: Make it part of a transaction that was begun; None for none.

        Raises:
            LocalProtocolError: Not connected, or the message needs no acknowledgement.
        """
        headers = [*self._reference(message), *_optional("transaction", transaction)]
        return self._frame("ACK", headers, receipt_id)

    def nack(
        self, message: Message, *, receipt_id: str | None = None, transaction: str | None = None
    ) -> bytes:
        """Return a NACK frame: the message was not consumed. Does not exist in 1.0.

        Args:
            message: The message.
            receipt_id: Ask for a RECEIPT of this id; None asks for none.
            transaction: Make it part of a transaction that was begun; None for none.

        Raises:
            LocalProtocolError: Not connected, the version is 1.0, or the message needs no
                acknowledgement.
        """
        if self.version == "1.0":
            raise LocalProtocolError("NACK does not exist in STOMP 1.0; it came with STOMP 1.1")
        headers = [*self._reference(message), *_optional("transaction", transaction)]
        return self._frame("NACK", headers, receipt_id)

    def begin(
        self,
        transaction: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        receipt_id: str | None = None,
    ) -> bytes:
        """Return a BEGIN frame.

        Args:
            transaction: Name of the transaction, unique in this connection.
            headers: Further headers, such as ("xid", "7:0a:01").
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected.
        """
        return self._frame("BEGIN", [("transaction", transaction), *headers], receipt_id)

    def commit(
        self,
        transaction: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        receipt_id: str | None = None,
    ) -> bytes:
        """Return a COMMIT frame.

        Args:
            transaction: Name of the transaction.
            headers: Further headers, such as ("xid", "7:0a:01").
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected.

        Durability: none by itself; the transaction is safe when the `Receipt` of `receipt_id` has
            come.
        """
        return self._frame("COMMIT", [("transaction", transaction), *headers], receipt_id)

    def abort(self, transaction: str, *, receipt_id: str | None = None) -> bytes:
        """Return an ABORT frame.

        Args:
            transaction: Name of the transaction.
            receipt_id: Ask for a RECEIPT of this id; None asks for none.

        Raises:
            LocalProtocolError: Not connected.
        """
        return self._frame("ABORT", [("transaction", transaction)], receipt_id)

    def disconnect(self) -> bytes:
        """Return a DISCONNECT frame with a receipt.

        When the receipt has come, the server has received everything that was sent before.

        Raises:
            LocalProtocolError: Not connected.
        """
        receipt_id = self.new_receipt_id()
        data = self._frame("DISCONNECT", [], receipt_id)
        self._disconnect_receipt = receipt_id
        self._state = ClientState.DISCONNECTING
        return data

    # --- what comes in -------------------------------------------------------------------------

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in bytes from the server.

        Args:
            data: Any number of bytes, cut anywhere.
        """
        self._decoder.feed(data)

    def receive_end(self) -> None:
        """Note that the server closed the stream: what is unconfirmed now stays so."""
        self._state = ClientState.CLOSED

    def next_event(self) -> ClientEvent | NeedData:
        """Return the next event, or `NEED_DATA` if the bytes fed so far contain no whole one.

        Raises:
            RemoteProtocolError: The server broke the protocol. The connection cannot be used any
                more.
        """
        event = self._decoder.next_event()
        if event is NEED_DATA or isinstance(event, HeartBeat):
            return event
        if event.command == "MESSAGE":
            return self._message(event)
        if event.command == "RECEIPT":
            return self._receipt(event)
        if event.command == "ERROR":
            self._state = ClientState.CLOSED
            detail = event.body.decode("utf-8", "replace")
            return ServerError(event.get("message", ""), detail, event.get("receipt-id"))
        return self._connected(event)

    def _connected(self, frame: Frame) -> Connected:
        if self._state is not ClientState.CONNECTING:
            raise RemoteProtocolError(
                Violation.UNEXPECTED_COMMAND, "CONNECTED came before CONNECT was sent"
            )
        version, send_ms, receive_ms = accept_connected(frame, self._heart_beats, self._versions)
        self._decoder.set_version(version)
        self._state = ClientState.CONNECTED
        return Connected(
            version, frame.get("server", ""), frame.get("session", ""), send_ms, receive_ms
        )

    def _message(self, frame: Frame) -> Message:
        return Message(
            subscription=frame.get("subscription", ""),
            message_id=frame.get("message-id", ""),
            ack_id=frame.get("ack") if self.version == "1.2" else None,
            destination=frame.get("destination", ""),
            headers=frame.headers,
            body=frame.body,
        )

    def _receipt(self, frame: Frame) -> Receipt:
        receipt_id = frame.get("receipt-id", "")
        if receipt_id not in self._unconfirmed:
            raise RemoteProtocolError(
                Violation.INVALID_VALUE,
                f"RECEIPT {receipt_id[:40]!a} answers no frame that was sent",
            )
        del self._unconfirmed[receipt_id]
        if receipt_id == self._disconnect_receipt:
            self._state = ClientState.CLOSED
        name, value = UNROUTED
        return Receipt(receipt_id, is_unrouted=frame.get(name) == value)

    # --- making frames -------------------------------------------------------------------------

    def _check_state(self, action: str, allowed: frozenset[ClientState]) -> None:
        if self._state not in allowed:
            raise LocalProtocolError(
                f"cannot {action} while the connection is {self._state.name.lower()}"
            )

    def _frame(
        self,
        command: str,
        headers: Headers,
        receipt_id: str | None,
        body: bytes = b"",
        *,
        body_bytes: int | None = None,
    ) -> bytes:
        """Return a frame; with `body_bytes` only its head, for a body of that size."""
        self._check_state(command.lower(), _OPEN)
        version = self.version
        assert version is not None  # it is set before the state becomes CONNECTED
        if receipt_id is not None:
            if receipt_id in self._unconfirmed:
                raise LocalProtocolError(f"receipt {receipt_id!r} is awaited already")
            # Ours comes first: the first of a repeated header is the one that counts.
            headers = [("receipt", receipt_id), *headers]
        frame = Frame(command, headers, body)
        if body_bytes is None:
            data = encode(frame, version)
        else:
            data = encode_head(frame, version, body_bytes)
        if receipt_id is not None:
            self._unconfirmed[receipt_id] = None
        return data

    def _reference(self, message: Message) -> Headers:
        """Return the headers by which ACK and NACK name a message; each version has its own."""
        if self._subscriptions.get(message.subscription) == "auto":
            raise LocalProtocolError(
                f"message {message.message_id} came by subscription {message.subscription!r} with"
                " ack mode auto; it needs no acknowledgement"
            )
        if self.version == "1.2":
            if message.ack_id is None:
                raise LocalProtocolError(f"message {message.message_id} has no ack header")
            return [("id", message.ack_id)]
        if self.version == "1.1":
            return [("message-id", message.message_id), ("subscription", message.subscription)]
        return [("message-id", message.message_id)]


def _optional(name: str, value: str | None) -> Headers:
    return [] if value is None else [(name, value)]

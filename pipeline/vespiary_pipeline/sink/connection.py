"""One STOMP connection of a task: transactions out, receipts in.

Owns the socket. The protocol is the codec's (`vespiary_codec.wire.stomp`). Must never decide what
is sent, nor send anything twice. Called by `writer`.

Durability: `send` says nothing; what `settle` has returned for, the broker keeps (docs/howto/
stomp.md, "What a confirm is worth").
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from vespiary_codec.wire.stomp import NEED_DATA
from vespiary_codec.wire.stomp.client import Connected, Receipt, ServerError, StompClient
from vespiary_codec.wire.stomp.errors import LocalProtocolError, RemoteProtocolError
from vespiary_pipeline.broker_api import BrokerApi, read_password
from vespiary_pipeline.sink.frames import Outgoing
from vespiary_pipeline.sink.sink_options import SinkOptions, stomp_place
from vespiary_spec.errors import BrokerRefused, NativeError, VespiaryError

OPEN_MAX: Final = 4
"""Transactions that are on their way at once."""

LOGIN_TIMEOUT_S: Final = 30
"""A broker answers a login at once, however full its addresses are."""

_READ_BYTES: Final = 65536
_NAME: Final = "t"
_CURE: Final = "is it running? stompUrl names its STOMP listener"


class SinkConnection:
    """A connection that sends transactions. Owner: the task that made it.

    Args:
        options: Where the broker is, and who sends.

    Raises:
        BrokerRefused: The login was refused.
        NativeError: The broker can't be reached.
    """

    def __init__(self, options: SinkOptions) -> None:
        place = stomp_place(options)
        self._place = str(place)
        self._timeout_s = min(LOGIN_TIMEOUT_S, options.timeout_s)
        self._is_logged_in = False
        user = urlsplit(options.url).username
        self._client = StompClient(
            host=place.host,
            login=unquote(user) if user else None,
            passcode=read_password(options.password_file) if user else None,
        )
        self._open: deque[str] = deque()
        self._done: set[str] = set()
        try:
            self._socket = socket.create_connection((place.host, place.port), self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.is_tls:
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=place.host)
        except OSError as error:
            raise self._unreachable(error) from error
        try:
            self._out(self._client.connect())
            self._wait(is_login=True)
            self._is_logged_in = True
            self._timeout_s = options.timeout_s
            self._socket.settimeout(self._timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it: what is not prepared or committed is rolled back by the broker."""
        self._socket.close()

    # --- sending ----------------------------------------------------------------------------------

    def send_branch(self, xid: str, messages: Iterable[Outgoing]) -> None:
        """Send messages as a branch of a distributed transaction, and have it prepared.

        Args:
            xid: Name of the branch.
            messages: The messages, at least one.

        Raises:
            BrokerRefused: The broker refused something.
            NativeError: The connection broke, or the broker took nothing for too long.
        """
        self._transaction(messages, [("xid", xid)], [("xid", xid), ("phase", "prepare")])

    def send_transaction(self, messages: Iterable[Outgoing]) -> None:
        """Send messages as a transaction, and have it committed.

        Raises:
            BrokerRefused: The broker refused something.
            NativeError: The connection broke, or the broker took nothing for too long.
        """
        self._transaction(messages, [], [])

    def _transaction(
        self,
        messages: Iterable[Outgoing],
        begin: list[tuple[str, str]],
        commit: list[tuple[str, str]],
    ) -> None:
        client = self._client
        receipt = client.new_receipt_id()
        frames = [client.begin(_NAME, begin)]
        frames += [self._send_frame(message, transaction=_NAME) for message in messages]
        frames.append(client.commit(_NAME, commit, receipt_id=receipt))
        self._out(b"".join(frames))
        self._open.append(receipt)
        while len(self._open) > OPEN_MAX:
            self._wait()

    def send_each(self, messages: Iterable[Outgoing]) -> None:
        """Send messages one by one, each with a receipt of its own.

        Raises:
            BrokerRefused: The broker refused something.
            NativeError: The connection broke, or the broker took nothing for too long.
        """
        before = len(self._open)
        frames = []
        for message in messages:
            receipt = self._client.new_receipt_id()
            frames.append(self._send_frame(message, receipt=receipt))
            self._open.append(receipt)
        self._out(b"".join(frames))
        while len(self._open) > len(frames) and before:  # the group before this one
            self._wait()
            before -= 1

    def _send_frame(
        self, message: Outgoing, *, transaction: str | None = None, receipt: str | None = None
    ) -> bytes:
        try:
            return self._client.send(
                message.address,
                message.body,
                message.headers,
                receipt_id=receipt,
                transaction=transaction,
            )
        except LocalProtocolError as error:
            raise BrokerRefused(
                f"a row cannot be said in STOMP: {error}", where=message.address,
                cure="look at its address and its properties",
            ) from error  # fmt: skip

    def settle(self) -> None:
        """Wait for all receipts.

        Raises:
            BrokerRefused: The broker refused something.
            NativeError: The connection broke, or no receipt came for too long.

        Durability: on return all that was sent is durable: prepared, committed, or stored.
        """
        while self._open:
            self._wait()

    # --- the socket -------------------------------------------------------------------------------

    def _out(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from error

    def _wait(self, *, is_login: bool = False) -> None:
        """Read until the oldest receipt is there, or the login is answered."""
        while True:
            event = self._next_event()
            if event is NEED_DATA:
                self._read()
            elif isinstance(event, ServerError):
                raise self._refused(event)
            elif isinstance(event, Connected) and is_login:
                return
            elif isinstance(event, Receipt):
                self._done.add(event.receipt_id)
                if self._open[0] in self._done:
                    self._done.discard(self._open.popleft())
                    return

    def _next_event(self) -> object:
        try:
            return self._client.next_event()
        except RemoteProtocolError as error:
            raise BrokerRefused(
                f"the broker does not speak STOMP: {error}", where=self._place,
                cure="stompUrl names its STOMP listener",
            ) from error  # fmt: skip

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise self._unreachable(error) from error
        if not data:
            raise self._unreachable(None)
        self._client.feed(data)

    def _broken(self, error: OSError) -> VespiaryError:
        """Return why nothing can be sent: an ERROR frame says more than a broken connection."""
        self._socket.settimeout(1.0)
        try:
            while True:
                event = self._next_event()
                if isinstance(event, ServerError):
                    return self._refused(event)
                if event is NEED_DATA:
                    self._read()
        except VespiaryError:
            return self._unreachable(error)

    def _refused(self, event: ServerError) -> BrokerRefused:
        return BrokerRefused(event.message or "the broker closed the connection", where=self._place)

    def _unreachable(self, error: OSError | None) -> NativeError:
        if isinstance(error, TimeoutError):
            return NativeError(
                f"the broker took and answered nothing for {self._timeout_s} s",
                where=self._place,
                cure="is the address full? Consume some of it, or raise timeout"
                if self._is_logged_in
                else _CURE,
            )
        return NativeError(
            f"the broker can't be reached ({error or 'it closed the connection'})",
            where=self._place,
            cure=_CURE,
        )


def check_broker(options: SinkOptions) -> None:
    """Refuse a broker that messages could not be sent to.

    Args:
        options: Where it is, and who would send.

    Raises:
        BrokerRefused: It refused the login, or is no broker.
        NativeError: It can't be reached.
    """
    if options.delivery == "fenced":  # the other ways do without
        BrokerApi(options.url, options.password_file).json("GET", "/brokers")
    with SinkConnection(options):
        pass

"""A blocking STOMP connection for `send` and `receive`: a socket around the sans-I/O client.

Owns the socket. Must never interpret a frame itself: `vespiary_codec.wire.stomp` does. Called by
`messaging`.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from vespiary_broker.cli.credentials import refuse_password_in_url
from vespiary_broker.cli.terminal import CommandFailed, counted
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    ClientEvent,
    Connected,
    HeartBeat,
    ServerError,
    StompClient,
    StompLimits,
)
from vespiary_spec import limits
from vespiary_spec.errors import NativeError

DEFAULT_URL: Final = f"stomp://127.0.0.1:{limits.PORT_ALL_PROTOCOLS}"
_READ_BYTES: Final = 256 * 1024
_TLS_ALERT: Final = b"\x15\x03"
"""How a TLS server begins its answer to bytes that are not TLS (RFC 8446 §5.1)."""
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "TLSV1_ALERT_PROTOCOL_VERSION")
"""How a handshake fails with a port that does not speak TLS; the second is the broker's alert."""
_CONNECT_S: Final = 10.0
_BODY_BYTES_MAX: Final = 2**31
"""A message that the broker holds may be printed, however large."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect.

    Attributes:
        host: Name or address.
        port: Port.
        user: User name; None for none.
        is_tls: Whether to speak TLS.
    """

    host: str
    port: int
    user: str | None
    is_tls: bool

    @property
    def place(self) -> str:
        """Host and port as people write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_target(url: str) -> Target:
    """Return what `stomp://user@host:port` or `stomp+ssl://user@host:port` means.

    Raises:
        CommandFailed: It is no such URL, or holds a password.
    """
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise CommandFailed(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("stomp", "stomp+ssl") or not parts.hostname or parts.path.strip("/"):
        raise CommandFailed(
            f"{url!r} is no URL of a broker: write stomp://user@host:port, or stomp+ssl:// for TLS"
        )
    refuse_password_in_url(parts.password, parts.hostname)
    return Target(
        parts.hostname,
        port or limits.PORT_ALL_PROTOCOLS,
        parts.username,
        parts.scheme == "stomp+ssl",
    )


class StompConnection:
    """A connection that is logged in, from `with` to its end.

    Attributes:
        waiting: Returns what is around each wait for bytes: nothing is lost if it is interrupted.

    Args:
        target: Where to connect.
        password: Password; None for none.
        ca: File with authorities to trust for TLS; None trusts the system's.
    """

    def __init__(self, target: Target, password: str | None, ca: Path | None = None) -> None:
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        self._target = target
        self.client = StompClient(
            host=target.host,
            login=target.user,
            passcode=password,
            limits=StompLimits(body_bytes=_BODY_BYTES_MAX),
        )
        self._socket = self._connect(ca)

    def _connect(self, ca: Path | None) -> socket.socket:
        target = self._target
        try:
            plain = socket.create_connection((target.host, target.port), timeout=_CONNECT_S)
        except OSError as error:
            raise NativeError(
                "cannot connect" if error.errno else f"cannot connect: {error}",
                error.errno or 0,
                where=target.place,
                cure="is a broker running there? `vespiary run` starts one on this machine",
            ) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not target.is_tls:
            return plain
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            plain.close()
            reason = "no certificates in PEM form" if error.errno is None else error.strerror
            if isinstance(error, ssl.SSLError):
                reason = "no certificates in PEM form"
            raise CommandFailed(f"--ca {ca}: {reason}") from error
        try:
            return context.wrap_socket(plain, server_hostname=target.host)
        except OSError as error:
            plain.close()
            raise CommandFailed(f"{target.place}: {_tls_problem(error, target)}") from error

    def __enter__(self) -> Self:
        try:
            self.write(self.client.connect())
            event = self.wait(_CONNECT_S)
            if not isinstance(event, Connected):
                raise CommandFailed(f"{self._target.place}: no STOMP broker answers there")
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes that the client made.

        Raises:
            CommandFailed: The broker has closed the connection; with its reason, if it gave one.
        """
        self._socket.settimeout(None)
        try:
            self._socket.sendall(data)
        except OSError as error:
            # What it said before it closed the connection is worth more than the errno.
            while self.wait(1.0) is not None:
                pass
            raise CommandFailed(f"{self._target.place}: the connection broke: {error}") from error

    def wait(self, timeout_s: float | None) -> ClientEvent | None:
        """Return the next event; None when the time is up.

        Args:
            timeout_s: Seconds to wait; 0 takes what has come; None waits for ever.

        Raises:
            CommandFailed: The broker refused something, or has closed the connection.
            RemoteProtocolError: It broke the protocol.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event = self.client.next_event()
            if isinstance(event, HeartBeat):
                continue
            if isinstance(event, ServerError):
                raise CommandFailed(self._refusal(event))
            if event is not NEED_DATA:
                return event
            if not self._read(deadline_s):
                return None

    def _refusal(self, event: ServerError) -> str:
        if self.client.version is None and self._target.user is None:
            return (
                f"the broker refused: {event.message} Name a user: "
                f"--url stomp://USER@{self._target.place}"
            )
        return f"the broker refused: {_sentence(event)}"

    def _read(self, deadline_s: float | None) -> bool:
        """Feed what comes; False when the time is up."""
        left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
        if not self._is_readable(left_s):
            return False
        self._socket.settimeout(0)
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):  # a part of a TLS record
            return True
        except OSError as error:
            raise CommandFailed(
                f"{self._target.place}: the connection broke: {error}{self._tls_hint()}"
            ) from error
        if not data:
            self.client.receive_end()
            raise CommandFailed(
                f"{self._target.place}: the broker closed the connection{self._tls_hint()}"
            )
        if self.client.version is None and not self._target.is_tls and data[:2] == _TLS_ALERT:
            raise CommandFailed(
                f"{self._target.place} speaks TLS: write --url stomp+ssl://{self._target.place}"
            )
        self.client.feed(data)
        return True

    def _is_readable(self, timeout_s: float | None) -> bool:
        """Wait until there are bytes; False when the time is up."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        with self.waiting():
            return bool(select.select([self._socket], [], [], timeout_s)[0])

    def _tls_hint(self) -> str:
        """Return what to try if the broker ends the connection before it answers."""
        if self.client.version is not None or self._target.is_tls:
            return ""
        return f". If this port speaks TLS, write --url stomp+ssl://{self._target.place}"

    def settle(self, timeout_s: float) -> None:
        """Wait until everything that a receipt was asked for is confirmed.

        Raises:
            CommandFailed: The time was up before.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.client.unconfirmed:
            if self.wait(max(deadline_s - time.monotonic(), 0.0)) is None:
                missing = counted(len(self.client.unconfirmed), "confirmation")
                raise CommandFailed(
                    f"{self._target.place}: {missing} did not come within {timeout_s:g} s"
                )

    def disconnect(self, timeout_s: float = _CONNECT_S) -> None:
        """Say good-bye and wait for the answer."""
        self.write(self.client.disconnect())
        self.settle(timeout_s)


def _tls_problem(error: OSError, target: Target) -> str:
    """Return why a TLS handshake failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message}. Pass the certificate of its "
            "authority with --ca, and use a host name of the certificate in --url"
        )
    if getattr(error, "reason", None) in _NOT_TLS:
        return f"this port does not speak TLS: write --url stomp://{target.place}"
    if isinstance(error, ssl.SSLEOFError):
        return "the connection was closed during the TLS handshake"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "unknown reason").lower().replace("_", " ")
        return f"the TLS handshake failed: {reason}"
    return f"the connection failed during the TLS handshake: {error.strerror or error}"


def _sentence(event: ServerError) -> str:
    """Return the broker's sentence: that of the body if it says more, such as the error's code."""
    first, *_ = event.detail.strip().splitlines() or [""]
    return first if first.startswith(event.message.rstrip(".")) else event.message

"""The other broker, as the one that is drained talks to it: over its HTTP listener.

Owns the requests, and which answers are worth another try. Must never decide what is sent. Called
by `draining`; owner: the event loop.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, Self
from urllib.parse import urlsplit

from vespiary_codec.journal.transfer import MEDIA_TYPE
from vespiary_spec.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    import aiohttp

_TIMEOUT_S: Final = 60.0
_ANSWER_BYTES_MAX: Final = 64 * 1024
LARGE_LENGTH: Final = "Vespiary-Batch-Length"
"""Header: how many bytes of the request are the batch, in front of a large body."""


class Unreachable(Exception):  # noqa: N818  (a state, not a fault)
    """The other broker cannot be reached, or has no room now; worth another try."""


class Pieces(Protocol):
    """A large body, piece by piece."""

    async def next_piece(self) -> bytes:
        """Return the next bytes, nothing at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The other broker, and how to get in there.

    Attributes:
        url: Of its HTTP listener.
        login: User and password of an administrator there; None for nobody.
        tls: Which certificates are trusted; None: those of the system's authorities.
        server_name: Name that its certificate has to be for; empty: the URL's host.
    """

    url: str
    login: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    server_name: str = ""

    @property
    def place(self) -> str:
        """Host and port: two targets with the same are the same broker."""
        return urlsplit(self.url).netloc


def trusting(authorities: str) -> ssl.SSLContext | None:
    """Return what trusts these certificates, and what they have signed.

    A certificate that no authority in the list has signed is trusted as it is.

    Args:
        authorities: Certificates, as PEM; empty for those of the system.

    Raises:
        ConfigError: They are none.
    """
    if not authorities:
        return None
    try:
        context = ssl.create_default_context(cadata=authorities)
    except (ssl.SSLError, TypeError, ValueError) as error:  # bad PEM, or not ASCII
        raise ConfigError(
            "these are no certificates in PEM form", path="authorities", value=authorities[:40]
        ) from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class Receiver(Protocol):
    """A broker that takes messages over. Use as an async context manager.

    Attributes:
        target: Where it is; another one counts from the next request on.
    """

    target: Target

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def make_queue(self, binding: dict[str, Any], is_durable: bool) -> None:
        """Make a queue there, if there is none of its name."""

    async def send(self, broker_id: str, queue_id: int, queue: str, data: bytes) -> int:
        """Hand a batch over; return how many messages of it were there before.

        Raises:
            Unreachable: It may have been taken or not.
            RemoteProtocolError: It was refused.

        Durability: on return all of it survives a power loss there.
        """

    async def send_large(
        self, broker_id: str, queue_id: int, queue: str, data: bytes, body: Pieces
    ) -> int:
        """Hand a large message over; otherwise like `send`."""


class TransferClient:
    """A broker that takes messages over.

    Args:
        target: Where it is, and how to get in.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_TIMEOUT_S),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def make_queue(self, binding: dict[str, Any], is_durable: bool) -> None:
        """See `Receiver.make_queue`."""
        await self._post("queues", {}, {"binding": binding, "durable": is_durable})

    async def send(self, broker_id: str, queue_id: int, queue: str, data: bytes) -> int:
        """See `Receiver.send`."""
        return await self._hand_over("messages", broker_id, queue_id, queue, data)

    async def send_large(
        self, broker_id: str, queue_id: int, queue: str, data: bytes, body: Pieces
    ) -> int:
        """See `Receiver.send_large`."""

        async def stream() -> AsyncIterator[bytes]:
            yield data
            while piece := await body.next_piece():
                yield piece

        headers = {LARGE_LENGTH: str(len(data))}
        return await self._hand_over("large", broker_id, queue_id, queue, stream(), headers)

    async def _hand_over(
        self,
        what: str,
        broker_id: str,
        queue_id: int,
        queue: str,
        data: bytes | AsyncIterator[bytes],
        headers: dict[str, str] | None = None,
    ) -> int:
        query = {"broker": broker_id, "queue": queue, "queueId": str(queue_id)}
        answer = await self._post(
            what, query, data, {"Content-Type": MEDIA_TYPE, **(headers or {})}
        )
        return int(answer["seen"])

    async def _post(
        self,
        what: str,
        query: dict[str, str],
        data: bytes | AsyncIterator[bytes] | dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        import aiohttp

        assert self._session is not None
        target = self.target
        place = target.url.rstrip("/")
        given: dict[str, Any] = {"json": data} if isinstance(data, dict) else {"data": data}
        try:
            _check_name(target.server_name)
            async with self._session.post(
                f"{place}/api/v1/transfers/{what}",
                params=query,
                headers=headers,
                auth=aiohttp.BasicAuth(*target.login, encoding="utf-8") if target.login else None,
                ssl=target.tls or True,
                server_hostname=target.server_name or None,
                allow_redirects=False,
                **given,
            ) as response:
                text = await response.content.read(_ANSWER_BYTES_MAX)
                status = response.status
        except (TimeoutError, aiohttp.ClientError, OSError, UnicodeError) as error:
            said = str(error) or type(error).__name__
            raise Unreachable(f"the broker at {place} cannot be reached: {said}") from error
        answer = _parsed(text)
        if status == 200:
            return answer
        detail = str(answer.get("detail", ""))[:500] or f"it answered {status}"
        if status in (429, 503):
            raise Unreachable(f"the broker at {place} takes nothing now: {detail}")
        raise RemoteProtocolError(
            f"the broker at {place} does not take what is handed over: {detail}",
            measured=f"status {status}",
        )


def _check_name(name: str) -> None:
    """Refuse a name that no certificate can be for, before there is a connection.

    When its handshake cannot begin, uvloop closes the connection's descriptor twice; by then it may
    be somebody else's, another connection's or a file's.

    Raises:
        UnicodeError: It is no host name.
    """
    name.encode("idna")
    if "\0" in name:
        raise UnicodeError("a host name has no NUL in it")


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

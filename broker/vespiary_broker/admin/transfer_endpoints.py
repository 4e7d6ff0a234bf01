"""What the HTTP listener takes from a broker that is being drained into this one.

Owns the way from requests to `Transfers`: bytes, not records, so these stand beside the API's
table. Must never hold more of a request than one batch. A broker that is drained itself takes
nothing. Called by `endpoints`, which has let the request in: it is a change, and needs an
administrator. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from vespiary_broker.admin.problems import Refused
from vespiary_broker.engine.logins import Principal
from vespiary_broker.engine.transfers import Origin, Taken

if TYPE_CHECKING:
    from vespiary_broker.admin.ports import Broker

PRINCIPAL: Final = web.RequestKey("principal", Principal)
"""Who asks; set on every request that was let in."""

PREFIX: Final = "/api/v1/transfers/"
LARGE_LENGTH: Final = "Vespiary-Batch-Length"
_PIECE_BYTES: Final = 256 * 1024
_PIECE_S: Final = 60.0
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_QUEUE_BYTES_MAX: Final = 256 * 1024


class TransferEndpoints:
    """Takes queues, batches and large messages.

    Args:
        broker: The broker.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def make_queue(self, request: web.Request) -> dict[str, Any]:
        """Make a queue as it is in the other broker."""
        self._check()
        try:
            wanted = json.loads(await self._read(request, _QUEUE_BYTES_MAX))
            binding, is_durable = dict(wanted["binding"]), bool(wanted["durable"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(400, f"The body is no definition of a queue: {error}.") from error
        is_new = await self._broker.transfers.make_queue(binding, is_durable=is_durable)
        return {"made": is_new}

    async def take_messages(self, request: web.Request) -> dict[str, Any]:
        """Take a batch of messages."""
        self._check()
        queue, origin = self._origin(request)
        limit = max(_BATCH_BYTES_MAX, self._broker.configuration.journal_buffer_size + 1024 * 1024)
        data = await self._read(request, limit)
        return _answer(await self._broker.transfers.take(origin, queue, data))

    async def take_large(self, request: web.Request) -> dict[str, Any]:
        """Take a large message, whose body follows the batch of its properties."""
        self._check()
        queue, origin = self._origin(request)
        text = request.headers.get(LARGE_LENGTH, "")
        if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _QUEUE_BYTES_MAX):
            raise Refused(400, f"The header {LARGE_LENGTH} does not say where the body begins.")
        try:
            async with asyncio.timeout(_PIECE_S):
                data = await request.content.readexactly(int(text))
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            raise Refused(400, "The request ends before the body begins.") from error
        pieces = self._pieces(request)
        return _answer(await self._broker.transfers.take_large(origin, queue, data, pieces))

    def _check(self) -> None:
        if self._broker.draining.is_cordoned:
            raise Refused(
                409, "This broker is being drained itself, and takes nothing over: name another."
            )

    def _origin(self, request: web.Request) -> tuple[str, Origin]:
        query = request.query
        broker, number = query.get("broker", ""), query.get("queueId", "")
        is_number = number.isascii() and number.isdigit() and len(number) < 11
        if not (broker.isascii() and broker.isalnum() and len(broker) <= 64 and is_number):
            raise Refused(400, "The query names neither broker nor queueId as it should.")
        if broker == self._broker.draining.broker_id:
            raise Refused(409, "This broker is the one that is drained: name another.")
        return query.get("queue", ""), Origin(broker, int(number))

    async def _read(self, request: web.Request, limit_bytes: int) -> bytes:
        """Return the body of a request.

        Raises:
            Refused: 413: it is too large. 400: it stopped coming.
        """
        data = bytearray()
        async for piece in self._pieces(request):
            data += piece
            if len(data) > limit_bytes:
                raise Refused(413, f"The body is larger than {limit_bytes} bytes.")
        return bytes(data)

    async def _pieces(self, request: web.Request) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(_PIECE_S):
                    piece = await request.content.read(_PIECE_BYTES)
            except TimeoutError as error:
                raise Refused(400, f"Nothing of the body came for {_PIECE_S:g} s.") from error
            if not piece:
                return
            logins = self._broker.logins
            if logins is not None and not logins.is_current(request[PRINCIPAL].name):
                raise Refused(401, "The user was removed.")
            yield piece


def _answer(taken: Taken) -> dict[str, Any]:
    return {"taken": taken.taken, "seen": taken.seen}

"""Runs broker code in tests on the event loop of production (`app.event_loop`: uvloop).

asyncio's own loop hides bugs: an assertion about a transport's class passed on it and failed on
uvloop, which broke the HTTP port of every real broker. An event loop only logs a callback that
raises; here that fails the test. Tests on virtual time have a loop of their own (`virtual_time`),
and the operator, which runs on asyncio's loop, is tested on that one. tests/repo/test_event_loop.py
checks this rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from vespiary_broker.app import event_loop

T = TypeVar("T")


@contextmanager
def product_runner() -> Iterator[asyncio.Runner]:
    """Yield a runner with a new event loop, whose callbacks may not raise.

    Errors of the operating system are exempt: the loop reports a TLS handshake that a client breaks
    off in the same way.
    """
    raised: list[BaseException] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):
            raised.append(error)

    with event_loop.make_runner() as runner:
        runner.get_loop().set_exception_handler(note)
        yield runner
    if raised:
        raise raised[0]


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new event loop, and return its result.

    Raises:
        Exception: `main` raised it, or a callback of the loop did.
    """
    with product_runner() as runner:
        return runner.run(main)


class ServedConnection(Protocol):
    """A connection of a test's server.

    Attributes:
        transport: Its transport.
        ended: Set by `connection_lost`.
    """

    transport: asyncio.Transport
    ended: asyncio.Event


async def close_server(
    listener: asyncio.AbstractServer, connections: Collection[ServedConnection]
) -> None:
    """Stop listening, abort the open connections, and wait until they have ended.

    uvloop ends a connection some turns after its abort; a loop that closes before that leaves its
    transports open.
    """
    listener.close()
    await asyncio.sleep(0)  # `connection_made` of those accepted in this turn
    ending = list(connections)
    for connection in ending:
        connection.transport.abort()
    for connection in ending:
        await connection.ended.wait()
    await listener.wait_closed()

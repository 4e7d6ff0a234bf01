"""What the engine needs from outside, as Protocols: bindings, connections, background work.

Owns the interfaces. Must never hold an implementation: `store`, `server` and `app` have them, and
tests have named fakes in `vespiary_testkit`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from vespiary_broker.engine.core import LargeDelivery

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Consumer

from vespiary_spec.errors import JournalError

JsonObject = dict[str, Any]
Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine in the background; logs what it raises."""
Lock = AbstractAsyncContextManager[Any]
"""Serialises changes of definitions; `asyncio.Lock` is one."""


class Event(Protocol):
    """Something that happens once; `asyncio.Event` is one."""

    def set(self) -> None:
        """Let those go on who wait."""

    async def wait(self) -> Any:
        """Wait until it is set."""


class Bindings(Protocol):
    """The bindings journal: what exists, by key (docs/internals/journal-format.md §3.4)."""

    async def put(self, key: str, value: JsonObject) -> None:
        """Set the value of a key.

        Durability: on return it survives a power loss.
        """

    async def remove(self, key: str) -> None:
        """Remove a key.

        Durability: on return the removal survives a power loss.
        """

    def snapshot(self) -> Mapping[str, JsonObject]:
        """Return all keys and their values."""


class Journal(Protocol):
    """The message journal, as those who stage into its core need it."""

    @property
    def blocked(self) -> JournalError | None:
        """Why no journal file can be made now; None while there is room."""

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight, whose end will confirm."""

    def kick(self) -> None:
        """Write what is staged if somebody waits for it; to be called after staging."""

    def request_space(self) -> None:
        """Say that something found no room."""

    async def wait_durable(self) -> None:
        """Wait until everything staged so far is durable.

        Durability: on return it survives a power loss.
        """


class Output(Protocol):
    """Where a consumer's messages go: a connection."""

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""

    def room_bytes(self) -> int:
        """Return how many bytes more it takes now; 0 or less when it is full.

        Once it has answered 0 or less it calls `Dispatcher.output_ready` when there is room again.
        """

    def write(self, data: bytes) -> None:
        """Send bytes behind those given before."""

    def stream(self, consumer: Consumer, given: LargeDelivery) -> None:
        """Send a large message that the consumer was given; `room_bytes` is 0 until it is out."""

    def refuse(self, sentence: str) -> None:
        """Tell the client why its connection ends, and end it."""

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Close a consumer because its client has come again by another connection.

        Args:
            consumer: The consumer.
            sentence: What the client is told.

        Returns:
            Whether it is closed; what it held is back in its queue then.
        """

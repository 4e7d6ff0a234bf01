"""What administrators may do to JMS objects: the table of the engine, and the queues behind it.

Owns the order of a deletion: first the entry in the JMS journal, then the address, so that a crash
in between leaves an address without JNDI names and never names that lead nowhere. Must never hold a
rule of its own about names. Called by the HTTP API; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from vespiary_broker.engine.jms import JmsKind, JmsObject, JmsObjects
from vespiary_spec.errors import RemoteProtocolError


class Addresses(Protocol):
    """The broker, as far as a deletion needs it."""

    def queues_of(self, address: str) -> list[str]:
        """Return the names of an address's queues."""

    async def end_sessions(self, address: str) -> int:
        """End MQTT sessions with queues of an address; return how many messages went along."""

    def drop_queue(self, name: str, *, is_forced: bool = False) -> int:
        """Delete a queue; RemoteProtocolError if it is in use and not forced."""

    def has_queue(self, name: str) -> bool:
        """Whether there is such a queue."""

    def drop_address(self, name: str) -> None:
        """Delete an address without queues."""

    def bound_keys(self, address: str) -> list[str]:
        """Return the keys in the bindings of an address and its queues, for `wait_removed`."""

    async def wait_removed(self, *keys: str) -> None:
        """Wait until what was dropped so far will not come back after a power loss."""

    def check_unused(self, name: str) -> None:
        """Raise RemoteProtocolError if a queue has consumers or messages."""

    def has_address(self, name: str) -> bool:
        """Whether there is such an address."""


class JmsAdministration:
    """Objects of JMS for administrators.

    Args:
        objects: The table.
        addresses: The broker.
    """

    def __init__(self, objects: JmsObjects, addresses: Addresses) -> None:
        self.objects = objects
        self._addresses = addresses

    async def create(
        self, kind: JmsKind, name: str, jndi_names: Iterable[str] = (), url: str = ""
    ) -> JmsObject:
        """Return the object, made or given more names if need be: `JmsObjects.create`.

        Durability: on return the object survives a power loss.
        """
        return await self.objects.create(kind, name, jndi_names, url)

    async def delete(self, kind: JmsKind, name: str, *, is_forced: bool = False) -> int:
        """Delete an object; a destination goes with its queues and everything in them.

        Args:
            kind: What it is.
            name: Its name.
            is_forced: Delete it although a queue of it has messages or consumers.

        Returns:
            Number of messages that went with it.

        Raises:
            RemoteProtocolError: There is none of that name, or it is in use and not forced.

        Durability: on return neither the object nor its queues come back after a power loss.
        """
        if self.objects.get(kind, name) is None:
            raise RemoteProtocolError(f"there is no JMS {kind} {name[:100]!r}")
        is_destination = kind is not JmsKind.CONNECTION_FACTORY
        queues = self._addresses.queues_of(name) if is_destination else []
        if not is_forced:
            for queue in queues:
                self._addresses.check_unused(queue)
        await self.objects.forget(kind, name)
        messages = 0
        if is_destination:
            messages += await self._addresses.end_sessions(name)
            # From here to the end without a pause, in which clients could make other queues.
            keys = self._addresses.bound_keys(name)
            for queue in self._addresses.queues_of(name):
                if self._addresses.has_queue(queue):  # it may have gone with another one
                    messages += self._addresses.drop_queue(queue, is_forced=True)
            if self._addresses.has_address(name):
                self._addresses.drop_address(name)
            await self._addresses.wait_removed(*keys)
        return messages

"""What a JMS administrator made through the API: destinations, connection factories, JNDI names.

Owns the table of these objects and every change of it, kept in step with the JMS journal
(docs/internals/journal-format.md §3.6). Must never hold what configuration files say: they are read
again at each start. Does no I/O itself: the journal is a Protocol. Called by `app` for the HTTP
API; owner: the event loop.

A JMS queue is an address with an anycast queue of the same name, a JMS topic a multicast address
(docs/howto/jms.md). Both are made before their entry is: after a crash in between they are there
without JNDI names, and making them again completes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from vespiary_broker.engine.names import check_name
from vespiary_broker.engine.ports import Bindings, JsonObject, Lock
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType

JNDI_NAME_CHARACTERS_MAX: Final = 255
URL_CHARACTERS_MAX: Final = 2048
OBJECTS_MAX: Final = 10_000
"""Objects of all kinds: the table is kept in memory and in one small journal."""
JNDI_NAMES_MAX: Final = 64
"""JNDI names of one object."""
_SCHEMES: Final = ("amqp", "amqps", "amqpws", "amqpwss", "failover", "discovery")
_INITIAL_CONTEXT: Final = "org.apache.qpid.jms.jndi.JmsInitialContextFactory"
_ESCAPED_IN_KEYS: Final = frozenset("\\ :=#!\t\f")


class JmsKind(StrEnum):
    """What a JNDI name may lead to; also the first part of the object's key in the journal."""

    QUEUE = "queue"
    TOPIC = "topic"
    CONNECTION_FACTORY = "connection-factory"


_PROPERTY_PREFIXES: Final = {
    JmsKind.CONNECTION_FACTORY: "connectionfactory",
    JmsKind.QUEUE: "queue",
    JmsKind.TOPIC: "topic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JmsObject:
    """One administered object.

    Attributes:
        kind: What it is.
        name: Its name, unique among its kind.
        jndi_names: Names that it is bound to, in the order of binding.
        url: Where a connection factory connects to; empty for destinations.
    """

    kind: JmsKind
    name: str
    jndi_names: tuple[str, ...] = ()
    url: str = ""

    @property
    def key(self) -> str:
        """Its key in the JMS journal."""
        return f"{self.kind}/{self.name}"

    def to_value(self) -> JsonObject:
        """Return its value in the JMS journal."""
        value: JsonObject = {"jndi-names": list(self.jndi_names)}
        return value | {"url": self.url} if self.url else value


class Definitions(Protocol):
    """Who makes addresses and queues: the registry."""

    async def create_address(self, name: str, routing_types: set[RoutingType]) -> object:
        """Make an address, or widen it by routing types; durable on return."""

    async def create_queue(self, name: str, address: str, routing_type: RoutingType) -> object:
        """Make a durable queue, or take the one that is there; durable on return."""


class JmsObjects:
    """The table.

    Invariant: what stands in the table is durable in the JMS journal, and a JNDI name leads to one
    object.

    Args:
        journal: The JMS journal.
        definitions: Makes addresses and queues.
        lock: Held while the table changes, so that a JNDI name is given once.
    """

    def __init__(self, journal: Bindings, definitions: Definitions, *, lock: Lock) -> None:
        self._journal = journal
        self._definitions = definitions
        self._lock = lock
        self._objects: dict[tuple[JmsKind, str], JmsObject] = {}
        self._by_jndi: dict[str, JmsObject] = {}

    # --- at the start ---------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take the objects from the journal, and make destinations that are missing.

        Raises:
            ValueError: An entry is not what this version writes; names its key.
        """
        for key, value in sorted(self._journal.snapshot().items()):
            kind, _, name = key.partition("/")
            try:
                found = JmsObject(
                    kind=JmsKind(kind),
                    name=name,
                    jndi_names=tuple(map(str, value["jndi-names"])),
                    url=str(value.get("url", "")),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"JMS entry {key} cannot be understood: {error}") from error
            await self._ensure_destination(found.kind, found.name)
            self._enter(found)

    # --- looking --------------------------------------------------------------------------------

    def all(self, kind: JmsKind) -> list[JmsObject]:
        """Return the objects of a kind, by name."""
        found = [item for item in self._objects.values() if item.kind is kind]
        return sorted(found, key=lambda item: item.name)

    def get(self, kind: JmsKind, name: str) -> JmsObject | None:
        """Return one object, or None if there is none of that name."""
        return self._objects.get((kind, name))

    def jndi_names(self) -> Mapping[str, JmsObject]:
        """Return what each JNDI name leads to."""
        return self._by_jndi

    def properties(self) -> str:
        """Return the JNDI names as a `jndi.properties` file for Qpid JMS.

        Source: the client's JNDI configuration (keys `connectionfactory.`, `queue.`, `topic.`), and
        the format that `java.util.Properties.load` reads.
        """
        lines = [f"java.naming.factory.initial = {_INITIAL_CONTEXT}"]
        for jndi_name, item in sorted(self._by_jndi.items()):
            value = item.url if item.kind is JmsKind.CONNECTION_FACTORY else item.name
            key = f"{_PROPERTY_PREFIXES[item.kind]}.{_escaped(jndi_name, _ESCAPED_IN_KEYS)}"
            lines.append(f"{key} = {_escaped(value, frozenset(chr(92)))}")
        return "\n".join(lines) + "\n"

    # --- changing -------------------------------------------------------------------------------

    async def create(
        self, kind: JmsKind, name: str, jndi_names: Iterable[str] = (), url: str = ""
    ) -> JmsObject:
        """Return the object, made or given more JNDI names if need be.

        Args:
            kind: What it is.
            name: Its name; a destination's is that of its address.
            jndi_names: Names to bind it to; one that it has already is fine.
            url: Where a connection factory connects to; it replaces an earlier one.

        Raises:
            RemoteProtocolError: A name or the URL may not be one, a JNDI name leads elsewhere, or
                the destination exists otherwise.

        Durability: on return the object survives a power loss.
        """
        wanted = tuple(dict.fromkeys(jndi_names))
        for jndi_name in wanted:
            _check_jndi_name(jndi_name)
        if kind is JmsKind.CONNECTION_FACTORY:
            _check_url(url)
        check_name(name, kind.replace("-", " "))
        async with self._lock:
            old = self.get(kind, name)
            for jndi_name in wanted:
                self._check_free(jndi_name, kind, name)
            if old is None and len(self._objects) >= OBJECTS_MAX:
                raise RemoteProtocolError(
                    "there are too many JMS objects",
                    measured=f"{len(self._objects)}",
                    allowed=f"at most {OBJECTS_MAX}",
                    cure="delete some",
                )
            names = tuple(dict.fromkeys((*(old.jndi_names if old else ()), *wanted)))
            if len(names) > JNDI_NAMES_MAX:
                raise RemoteProtocolError(
                    f"{kind} {name} would have too many JNDI names",
                    measured=f"{len(names)}",
                    allowed=f"at most {JNDI_NAMES_MAX}",
                )
            await self._ensure_destination(kind, name)
            made = JmsObject(kind=kind, name=name, jndi_names=names, url=url)
            if made != old:
                await self._journal.put(made.key, made.to_value())
                self._enter(made)
            return made

    async def unbind(self, jndi_name: str) -> JmsObject:
        """Take a JNDI name from its object, which stays; return the object.

        Raises:
            RemoteProtocolError: There is no such name.

        Durability: on return the removal survives a power loss.
        """
        async with self._lock:
            old = self._by_jndi.get(jndi_name)
            if old is None:
                raise RemoteProtocolError(f"the JNDI name {jndi_name[:100]!r} leads nowhere")
            kept = tuple(name for name in old.jndi_names if name != jndi_name)
            made = replace(old, jndi_names=kept)
            await self._journal.put(made.key, made.to_value())
            self._enter(made)
            return made

    async def forget(self, kind: JmsKind, name: str) -> None:
        """Take an object and its JNDI names out of the table; its address stays.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return the removal survives a power loss.
        """
        async with self._lock:
            old = self.get(kind, name)
            if old is None:
                raise RemoteProtocolError(f"there is no JMS {kind} {name[:100]!r}")
            await self._journal.remove(old.key)
            self._leave(old)

    async def _ensure_destination(self, kind: JmsKind, name: str) -> None:
        if kind is JmsKind.QUEUE:
            await self._definitions.create_address(name, {RoutingType.ANYCAST})
            await self._definitions.create_queue(name, name, RoutingType.ANYCAST)
        elif kind is JmsKind.TOPIC:
            await self._definitions.create_address(name, {RoutingType.MULTICAST})

    def _check_free(self, jndi_name: str, kind: JmsKind, name: str) -> None:
        other = self._by_jndi.get(jndi_name)
        if other is not None and (other.kind, other.name) != (kind, name):
            raise RemoteProtocolError(
                f"the JNDI name {jndi_name} is taken",
                measured=f"it leads to the {other.kind} {other.name}",
                cure="unbind it first, or take another name",
            )

    def _enter(self, item: JmsObject) -> None:
        old = self._objects.get((item.kind, item.name))
        if old is not None:
            self._leave(old)
        self._objects[item.kind, item.name] = item
        for jndi_name in item.jndi_names:
            self._by_jndi[jndi_name] = item

    def _leave(self, item: JmsObject) -> None:
        del self._objects[item.kind, item.name]
        for jndi_name in item.jndi_names:
            del self._by_jndi[jndi_name]


def _check_jndi_name(name: str) -> None:
    is_name = 0 < len(name) <= JNDI_NAME_CHARACTERS_MAX and name.isprintable()
    if not is_name or name != name.strip():
        raise RemoteProtocolError(
            "this is no JNDI name",
            measured=repr(name[:100]),
            allowed=f"1 to {JNDI_NAME_CHARACTERS_MAX} printable characters, no blanks around them",
        )


def _check_url(url: str) -> None:
    is_url = re.match(rf"({'|'.join(_SCHEMES)}):\S", url) is not None
    if not is_url or len(url) > URL_CHARACTERS_MAX or not url.isprintable() or " " in url:
        raise RemoteProtocolError(
            "this is no URL of a connection factory",
            measured=repr(url[:100]),
            allowed=f"{', '.join(_SCHEMES[:4])} or failover, as amqp://broker:5672, "
            f"at most {URL_CHARACTERS_MAX} characters",
        )


def _escaped(text: str, characters: frozenset[str]) -> str:
    """Return text as `java.util.Properties.load` reads it back."""
    pieces = []
    for character in text:
        if character in characters:
            pieces.append("\\" + character)
        elif " " <= character <= "~":
            pieces.append(character)
        else:
            units = character.encode("utf-16-be")
            pieces += [f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)]
    return "".join(pieces)

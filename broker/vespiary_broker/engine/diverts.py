"""Diverts: messages of one address that go to another one, instead or as well.

Owns the table of diverts, their form in the bindings, and where they lead. A message that is
diverted is one message: it is written once, with a place in every queue that it gets to, so all of
them have it or none. Its headers stay as they were sent. Must never make an address or a queue.
Called by `registry`, `app` and the HTTP API; owner: the event loop.

No divert leads back to where it stands, over however many others: such a one is refused, with the
names of all that are involved. What is reached is therefore a tree, and its size is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from vespiary_broker.engine.names import check_name, is_reserved
from vespiary_broker.engine.ports import Bindings, JsonObject, Lock
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.reach import Diversion, Passes, Reach, reach_of
from vespiary_broker.engine.selection.selector import (
    Selector,
    compile_filter,
    compile_stored_filter,
)
from vespiary_broker.engine.wildcards import Pattern, Patterns, WildcardSyntax
from vespiary_spec import limits
from vespiary_spec.diverts import Divert as ConfiguredDivert
from vespiary_spec.diverts import DivertRoutingType
from vespiary_spec.errors import (
    ConfigError,
    InvalidSelector,
    LimitExceeded,
    RemoteProtocolError,
)
from vespiary_spec.settings import RoutingType

CHAIN_MAX: Final = 16
"""Most diverts that one message passes, one behind the other."""
WAYS_MAX: Final = 10_000
"""Most ways through the diverts of a broker; ten in a row of two each are two thousand."""
_PREFIX: Final = "divert/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divert:
    """A divert.

    Attributes:
        name: Its name, unique.
        address: Address whose messages it takes; may have wildcards.
        forwarding_address: Address that they go to.
        routing_name: Another name.
        selector: Its filter; None takes every message.
        is_exclusive: Whether what it takes goes nowhere else.
        routing_type: Queues of the forwarding address that it leads to.
        is_configured: Whether it stands in the configuration, or did when that was read last.
    """

    name: str
    address: str
    forwarding_address: str
    routing_name: str
    selector: Selector | None
    is_exclusive: bool
    routing_type: DivertRoutingType
    is_configured: bool = field(default=False, compare=False)

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return _PREFIX + self.name

    @property
    def filter_string(self) -> str:
        """The text of its filter; empty for none."""
        return "" if self.selector is None else self.selector.text

    def type_behind(self, routing_type: RoutingType | None) -> RoutingType | None:
        """Return the routing type of a message behind it."""
        if self.routing_type is DivertRoutingType.STRIP:
            return None
        if self.routing_type is DivertRoutingType.PASS:
            return routing_type
        return RoutingType(self.routing_type.value)

    def to_binding(self) -> JsonObject:
        """Return its value in the bindings."""
        return {
            "address": self.address,
            "forwarding-address": self.forwarding_address,
            "routing-name": self.routing_name,
            "filter-string": self.filter_string,
            "exclusive": self.is_exclusive,
            "routing-type": str(self.routing_type),
            "configured": self.is_configured,
        }


def make_divert(wanted: ConfiguredDivert, *, is_configured: bool = False) -> Divert:
    """Return a divert as it is asked for.

    Args:
        wanted: What is asked for.
        is_configured: Whether the configuration asks for it.

    Raises:
        InvalidSelector: Its filter is none.
        RemoteProtocolError: A name may not be one.
    """
    check_name(wanted.name, "divert")
    check_name(wanted.address, "address")
    check_name(wanted.forwarding_address, "address")
    return Divert(
        name=wanted.name,
        address=wanted.address,
        forwarding_address=wanted.forwarding_address,
        routing_name=wanted.routing_name or wanted.name,
        selector=compile_filter(wanted.filter_string),
        is_exclusive=wanted.exclusive,
        routing_type=wanted.routing_type,
        is_configured=is_configured,
    )


class Diverts:
    """The diverts of a broker.

    Invariant: no divert leads to an address that it stands at.

    Args:
        bindings: The bindings journal.
        lock: Held while a definition is made.
        syntax: What wildcards look like.
        on_changed: Awaited after every change with the address that a divert stands or stood at:
            its messages go elsewhere now.
    """

    def __init__(
        self,
        bindings: Bindings,
        *,
        lock: Lock,
        syntax: WildcardSyntax,
        on_changed: Callable[[str], Awaitable[None]],
    ) -> None:
        self._bindings = bindings
        self._lock = lock
        self._syntax = syntax
        self._on_changed = on_changed
        self._table: dict[str, Divert] = {}
        self._coming: dict[str, Divert] = {}  # of the configuration, checked and not yet made
        self._plain: dict[str, list[Divert]] = {}
        self._wild: list[tuple[Pattern, Divert]] = []
        self._roots: dict[str, dict[str, None]] = {}
        self._reached: dict[str, set[str]] = {}

    # --- looking --------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of all diverts, sorted."""
        return sorted(self._table)

    def get(self, name: str) -> Divert | None:
        """Return a divert, or None if there is none of that name."""
        return self._table.get(name)

    def at(self, address: str) -> list[Divert]:
        """Return the diverts that messages of an address meet."""
        found = list(self._plain.get(address, ()))
        found += [divert for pattern, divert in self._wild if pattern.is_match(address)]
        return found

    # --- where they lead ------------------------------------------------------------------------

    def reach(
        self,
        address: str,
        routing_type: RoutingType | None,
        sources: Callable[[str], Iterable[Queue]],
    ) -> Reach:
        """Return what messages of an address can get to, through diverts as well.

        Args:
            address: The address.
            routing_type: What senders ask for; None is both.
            sources: From an address' name to the queues that its messages can go to.
        """
        if not self._table:
            return reach_of(sources(address), routing_type)
        return self._reach(address, routing_type, sources, address)

    def _reach(
        self,
        address: str,
        routing_type: RoutingType | None,
        sources: Callable[[str], Iterable[Queue]],
        root: str,
    ) -> Reach:
        diversions = []
        for divert in self.at(address):
            target = divert.forwarding_address
            self._roots.setdefault(target, {})[root] = None
            self._reached.setdefault(root, set()).add(target)
            behind = self._reach(target, divert.type_behind(routing_type), sources, root)
            diversions.append(Diversion(divert.selector, divert.is_exclusive, behind))
        return reach_of(sources(address), routing_type, diversions)

    def roots_of(self, address: str, *, is_wildcard: bool) -> list[str]:
        """Return the addresses whose messages may come to an address through diverts."""
        if is_wildcard:
            return list(self._reached)
        return list(self._roots.get(address, ()))

    def targets_of(self, address: str, passes: Passes) -> set[str]:
        """Return the addresses that diverts lead a message of an address to, all the way.

        An exclusive divert that takes it leaves nothing to those beside it that are not.

        Args:
            address: The address.
            passes: Says which filters the message passes.
        """
        found: set[str] = set()
        open_names = [address]
        while open_names:
            taking = [each for each in self.at(open_names.pop()) if passes(each.selector)]
            for divert in [each for each in taking if each.is_exclusive] or taking:
                if divert.forwarding_address not in found:
                    found.add(divert.forwarding_address)
                    open_names.append(divert.forwarding_address)
        return found

    def is_root(self, address: str) -> bool:
        """Whether diverts take messages of an address, as its routes are now."""
        return address in self._reached

    def forget(self, root: str) -> None:
        """Forget an address: it has no routes any more."""
        for target in self._reached.pop(root, ()):
            del self._roots[target][root]
            if not self._roots[target]:
                del self._roots[target]

    # --- changing -------------------------------------------------------------------------------

    def restore(self, snapshot: Mapping[str, JsonObject]) -> None:
        """Take the diverts out of the bindings.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        for key, value in sorted(snapshot.items()):
            if not key.startswith(_PREFIX):
                continue
            try:
                divert = Divert(
                    name=key.removeprefix(_PREFIX),
                    address=value["address"],
                    forwarding_address=value["forwarding-address"],
                    routing_name=value["routing-name"],
                    selector=compile_stored_filter(value["filter-string"]),
                    is_exclusive=bool(value["exclusive"]),
                    routing_type=DivertRoutingType(value["routing-type"]),
                    is_configured=bool(value.get("configured", False)),
                )
            except (KeyError, TypeError, ValueError, InvalidSelector) as error:
                raise ValueError(f"binding {key} cannot be understood: {error}") from error
            self._enter(divert)
        try:  # they were checked one by one, maybe when wildcards had other characters
            _Graph(list(self._table.values()), self._syntax).check("that was made last")
        except RemoteProtocolError as error:
            raise ValueError(f"the diverts of the bindings cannot be used: {error}") from error

    async def configure(
        self,
        wanted: Sequence[ConfiguredDivert],
        is_deleted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Make the diverts of the configuration; those that are there otherwise are changed.

        Args:
            wanted: `diverts` of the configuration.
            is_deleted: Says of an address whether diverts there that were configured before, and
                are not any more, go.

        Raises:
            ConfigError: One cannot be made.

        Durability: on return they survive a restart, and those that went do not come back.
        """
        names = {each.name for each in wanted}
        for found in list(self._table.values()):
            if found.is_configured and found.name not in names and is_deleted(found.address):
                await self.delete(found.name)
        async with self._lock:
            self._coming = check_diverts(wanted, self._syntax, self._table)
        try:
            for name in list(self._coming):
                divert = self._coming[name]
                there = self._table.get(name)
                if there != divert or not there.is_configured:
                    await self._put(divert, is_checked=True)
        finally:
            self._coming = {}

    def check_configured(
        self,
        wanted: Sequence[ConfiguredDivert],
        is_deleted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Refuse what `configure` could not make, before anything is changed.

        Args:
            wanted: `diverts` of the configuration.
            is_deleted: As for `configure`.

        Raises:
            ConfigError: One cannot be made.
        """
        names = {each.name for each in wanted}
        table = {
            name: found
            for name, found in self._table.items()
            if name not in names and not (found.is_configured and is_deleted(found.address))
        }
        check_diverts(wanted, self._syntax, table)

    async def create(self, wanted: ConfiguredDivert) -> Divert:
        """Make a divert; one that exists just so is fine.

        Raises:
            InvalidSelector: Its filter is none.
            LimitExceeded: There are too many, or they lead too far.
            RemoteProtocolError: A name may not be one, it exists otherwise, or it would lead back
                to where it stands.

        Durability: on return it survives a power loss.
        """
        divert = make_divert(wanted)
        found = self._table.get(divert.name)
        if found == divert:
            return found
        if found is not None:
            raise RemoteProtocolError(
                f"the divert {divert.name} exists, from {found.address} to "
                f"{found.forwarding_address}, and is another one",
                cure="delete it first, or take another name",
            )
        await self._put(divert)
        return divert

    async def _put(self, divert: Divert, *, is_checked: bool = False) -> None:
        async with self._lock:
            if not is_checked:
                others = [
                    each
                    for name, each in {**self._table, **self._coming}.items()
                    if name != divert.name
                ]
                _check_alone(divert, len(others), self._syntax)
                _Graph([*others, divert], self._syntax).check(divert.name)
            await self._bindings.put(divert.key, divert.to_binding())
            before = self._table.get(divert.name)
            self._leave(divert.name)
            self._enter(divert)
        if before is not None and before.address != divert.address:
            await self._on_changed(before.address)
        await self._on_changed(divert.address)

    async def delete(self, name: str) -> None:
        """Delete a divert.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return it will not come back after a power loss.
        """
        async with self._lock:
            divert = self._table.get(name)
            if divert is None:
                raise RemoteProtocolError(f"there is no divert {name}")
            self._leave(name)
            await self._on_changed(divert.address)
            await self._bindings.remove(divert.key)

    def _enter(self, divert: Divert) -> None:
        self._table[divert.name] = divert
        if self._syntax.is_wildcard(divert.address):
            self._wild.append((Pattern(divert.address, self._syntax), divert))
        else:
            self._plain.setdefault(divert.address, []).append(divert)

    def _leave(self, name: str) -> None:
        divert = self._table.pop(name, None)
        if divert is None:
            return
        self._wild = [entry for entry in self._wild if entry[1] is not divert]
        if divert in self._plain.get(divert.address, ()):
            self._plain[divert.address].remove(divert)
            if not self._plain[divert.address]:
                del self._plain[divert.address]

    # --- what may be ----------------------------------------------------------------------------


def check_diverts(
    wanted: Sequence[ConfiguredDivert],
    syntax: WildcardSyntax,
    others: Mapping[str, Divert] = MappingProxyType({}),
) -> dict[str, Divert]:
    """Refuse diverts of a configuration that cannot be made.

    Args:
        wanted: `diverts` of the configuration.
        syntax: What wildcards look like.
        others: Diverts beside them, by name; those that they replace do not count.

    Returns:
        The diverts of the configuration, by name.

    Raises:
        ConfigError: One cannot be made.
    """
    table = dict(others)
    made: dict[str, Divert] = {}
    for each in wanted:
        try:
            divert = make_divert(each, is_configured=True)
            _check_alone(divert, len(table) - (divert.name in table), syntax)
        except (InvalidSelector, RemoteProtocolError) as error:
            raise _refusal(each.name, error) from error
        table[divert.name] = made[divert.name] = divert
    try:
        _Graph(list(table.values()), syntax).check("of the configuration")
    except RemoteProtocolError:
        _find_culprit(made, others, syntax)
        raise  # never: the last one is checked beside all others
    return made


def _find_culprit(
    made: Mapping[str, Divert], others: Mapping[str, Divert], syntax: WildcardSyntax
) -> None:
    """Raise for the first divert that cannot be made beside those before it."""
    table = dict(others)
    for divert in made.values():
        table[divert.name] = divert
        try:
            _Graph(list(table.values()), syntax).check(divert.name)
        except RemoteProtocolError as error:
            raise _refusal(divert.name, error) from error


def _refusal(name: str, error: Exception) -> ConfigError:
    return ConfigError(f"the divert {name} cannot be made: {error}", path="diverts")


def _check_alone(divert: Divert, others: int, syntax: WildcardSyntax) -> None:
    """Refuse a divert that leads to no address, or is one too many beside so many others."""
    if syntax.is_wildcard(divert.forwarding_address):
        raise RemoteProtocolError(
            f"the divert {divert.name} leads to {divert.forwarding_address}, a wildcard",
            cure="give one address without wildcards",
        )
    if is_reserved(divert.forwarding_address, syntax.delimiter):
        raise RemoteProtocolError(
            f"the divert {divert.name} leads to {divert.forwarding_address}, to which only the "
            "broker itself sends",
            cure="give another address",
        )
    if others >= limits.DIVERTS_MAX:
        raise LimitExceeded(
            "there are too many diverts",
            measured=others + 1,
            allowed=f"at most {limits.DIVERTS_MAX}",
        )


class _Graph:
    """Diverts, and which of them comes behind which.

    Args:
        diverts: All of them.
        syntax: What wildcards look like.
    """

    def __init__(self, diverts: list[Divert], syntax: WildcardSyntax) -> None:
        self._diverts = diverts
        self._plain: dict[str, list[Divert]] = {}
        self._wild: Patterns[str] = Patterns(syntax)  # of names of diverts
        self._syntax = syntax
        self._by_name = {divert.name: divert for divert in diverts}
        for divert in diverts:
            if syntax.is_wildcard(divert.address):
                self._wild.add(divert.name, syntax.words(divert.address))
            else:
                self._plain.setdefault(divert.address, []).append(divert)
        self._measured: dict[str, tuple[int, int]] = {}

    def _behind(self, divert: Divert) -> list[Divert]:
        target = divert.forwarding_address
        wild = self._wild.matching(self._syntax.words(target))
        return [*self._plain.get(target, ()), *(self._by_name[name] for name in wild)]

    def check(self, name: str) -> None:
        """Refuse what leads back or too far.

        Args:
            name: Name of the divert that is new, for the message.

        Raises:
            LimitExceeded: It leads too far.
            RemoteProtocolError: It leads back.
        """
        measured = [self._measure(divert, []) for divert in self._diverts]
        longest = max((length for length, _ in measured), default=0)
        ways = sum(ways for _, ways in measured)
        if longest > CHAIN_MAX:
            raise LimitExceeded(
                f"with the divert {name} a message passes too many diverts in a row",
                measured=longest,
                allowed=f"at most {CHAIN_MAX}",
            )
        if ways > WAYS_MAX:
            raise LimitExceeded(
                f"with the divert {name} there are too many ways through the diverts",
                measured=ways,
                allowed=f"at most {WAYS_MAX}",
            )

    def _measure(self, divert: Divert, way: list[Divert]) -> tuple[int, int]:
        """Return the longest chain that begins with a divert, and the number of ways."""
        known = self._measured.get(divert.name)
        if known is not None:
            return known
        if divert in way:
            ring = way[way.index(divert) :]
            names = " -> ".join(f"{each.address} (divert {each.name})" for each in ring)
            raise RemoteProtocolError(
                f"diverts lead back to where they stand: {names} -> {ring[-1].forwarding_address}",
                cure="divert to an address that leads elsewhere",
            )
        if len(way) > 2 * CHAIN_MAX:  # two chains that a new divert joins cannot be longer
            return 1, 1
        behind = [self._measure(each, [*way, divert]) for each in self._behind(divert)]
        longest = 1 + max((length for length, _ in behind), default=0)
        known = self._measured[divert.name] = longest, 1 + sum(ways for _, ways in behind)
        return known

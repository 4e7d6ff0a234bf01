"""What exists: addresses and queues by name, kept in step with bindings and core.

Owns the tables, and every change of them: creation, deletion, automatic or asked for. Must never do
I/O itself: bindings are a Protocol. Called by `subscriptions`, `publishing`, the server's sessions
and the admin API; owner: the event loop.

Order of things. A durable queue is written to the bindings before anything can be sent to it, so no
confirmed message is ever in a queue that a restart does not know. A deleted queue leaves the tables
and the core at once and the bindings a little later: after a crash in between it is back, with the
messages whose records still stand in the journal's files. Who promises more than that waits for
`wait_removed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from vespiary_broker.engine.address_memory import AddressMemory
from vespiary_broker.engine.address_settings import AddressSettingsTable, EffectiveSetting
from vespiary_broker.engine.address_table import AddressTable
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.automatic_deletion import is_address_due
from vespiary_broker.engine.branch_holds import held_by_branches
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.diverts import Diverts
from vespiary_broker.engine.guards import Guards
from vespiary_broker.engine.kind_rules import set_kind
from vespiary_broker.engine.large_bodies import LargeBodies, Quarantine
from vespiary_broker.engine.limits import Limits
from vespiary_broker.engine.names import Destination, check_name, check_names
from vespiary_broker.engine.naming import DEFAULT_RULES, NamingRules
from vespiary_broker.engine.pausing import Pausing
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.ports import Bindings, Event, JsonObject, Lock, Spawn
from vespiary_broker.engine.queue_owners import QueueOwners, is_ownable
from vespiary_broker.engine.queue_traits import NO_TRAITS, QueueTraits, configured_traits
from vespiary_broker.engine.queues import CHANGED, Queue, QueueIds
from vespiary_broker.engine.reach import reach_of_queue
from vespiary_broker.engine.removals import Removals
from vespiary_broker.engine.restoration import (
    bound_addresses,
    durable_queue_ids,
    reading,
    restored_address,
    restored_ids,
    restored_queue,
)
from vespiary_broker.engine.retroactive import Retroactive
from vespiary_broker.engine.returns import Returns, Unrouted
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.settling import Judge
from vespiary_broker.engine.streams import check_not_streamed
from vespiary_broker.engine.switching import Switches
from vespiary_broker.engine.unrouted_messages import Explanation, UnroutedMessages
from vespiary_broker.engine.unrouted_reasons import explain_unrouted
from vespiary_broker.engine.usage import Usage
from vespiary_spec.errors import JournalError, RemoteProtocolError, VespiaryError
from vespiary_spec.settings import Address as ConfiguredAddress
from vespiary_spec.settings import AddressSettings, RoutingType

UNUSED_ADDRESSES_MAX: Final = 10_000
"""Created addresses without a queue that are remembered in any case, or a tenth of all that there
may be; they hold nothing, so the oldest go."""


class Registry:
    """The tables of addresses and queues.

    Invariant: what stands in a table is open in the core, and routes lead to it.

    Attributes:
        syntax: What wildcards in addresses look like.
        addresses: Addresses by name.
        queues: Queues by name.
        queues_by_id: Queues by number.
        limits: How many addresses, queues and sessions there may be.
        permissions: Who may do what where.
        owners: Whose queues are.
        usage: What becomes of queues as consumers come and go.
        retroactive: Keeps messages for queues to come.
        guards: Withhold from consumers what their users may not have.
        pausing: Pauses queues and addresses.
        unused: Created addresses without queues, oldest first.
        diverts: Where messages go instead or as well.
        switches: All switches.
        unrouted_messages: Counts the messages that no queue accepted.
        large_bodies: Bodies in files; None: there are none.
        transaction_room_bytes: Room in the journal that each transaction finds sooner or later.
        returns: Takes messages back from consumers; set by who puts the engine together.
        unrouted: Says where messages go that no queue takes; None: nowhere.
        judge: Decides about special messages; None: they are given like all others.
        on_dropped: Called with the number of a queue that goes.
        before_deletion: Awaited with queues that an administrator or the configuration deletes,
            before they go: ends what cannot go on without them.
        on_lost: Called with a queue that has gone, unless it was never written or its owner has
            dropped it.

    Args:
        core: The core.
        bindings: The bindings journal.
        lock: Held while a definition is made.
        make_event: Makes what those wait for who want a removal to be durable.
        spawn: Runs a removal from the bindings in the background.
        settings: Settings by address.
        is_persistent: Whether anything is journalled; False makes every queue volatile.
        transaction_room_bytes: Room in the journal that each transaction finds sooner or later.
        large_bodies: Bodies in files; None: there are none.
        quarantine: Holds messages whose body is lost; None makes one.
        naming: Rules about what has a name.
        memory: Counts what messages take; None makes one without a limit over all addresses.
        permissions: Who may do what where; None lets everybody do everything.
        is_open: Whether nobody has to log in, so that queues have no owners.
    """

    def __init__(
        self,
        core: Core,
        bindings: Bindings,
        *,
        lock: Lock,
        make_event: Callable[[], Event],
        spawn: Spawn,
        settings: AddressSettingsTable,
        transaction_room_bytes: int,
        is_persistent: bool = True,
        large_bodies: LargeBodies | None = None,
        quarantine: Quarantine | None = None,
        naming: NamingRules = DEFAULT_RULES,
        memory: AddressMemory | None = None,
        permissions: Permissions | None = None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self.syntax = naming.syntax
        self.large_bodies = large_bodies
        self.transaction_room_bytes = transaction_room_bytes
        self.returns: Returns
        self.unrouted: Unrouted | None = None
        self.judge: Judge | None = None
        self.on_dropped: Callable[[int], None] = lambda _: None
        self.before_deletion: Callable[[Collection[Queue]], Awaitable[None]] = _nothing_to_end
        self.on_lost: Callable[[Queue], None] = lambda _: None
        self._quarantine = quarantine or Quarantine(core)
        self._memory = memory or AddressMemory(core, settings)
        self.queues: dict[str, Queue] = {}
        self.queues_by_id: dict[int, Queue] = {}
        self._dropped_added = 0
        self._dropped_acknowledged = 0
        self._departures: Counter[str] = Counter()
        self.switches = Switches()
        self.unrouted_messages = UnroutedMessages(
            core, naming.syntax.delimiter, naming.clock_s, self._explain_unrouted
        )
        self.diverts = Diverts(
            bindings,
            lock=lock,
            syntax=naming.syntax,
            on_changed=lambda name: self._table.refresh_diverted(name),
        )
        self._table = AddressTable(
            core, naming, self.diverts, self.switches, self.unrouted_messages, settings,
            self.takes_from, spawn,
        )  # fmt: skip
        self.addresses = self._table.by_name
        self._core = core
        self._bindings = bindings
        self._lock = lock
        self._settings = settings
        self._is_persistent = is_persistent
        self._ids = QueueIds(bindings)
        self._is_reserving = False
        self._spawn = spawn
        self.unused: dict[str, None] = {}
        self._clock_s = naming.clock_s
        self._removals = Removals(bindings, spawn, make_event, large_bodies)
        self.limits = Limits(naming)
        self.permissions = permissions or Permissions()
        self.owners = QueueOwners(self.permissions, is_open)
        self.usage = Usage(core, self, self._quarantine, naming, spawn)
        self.retroactive = Retroactive(core, self)
        self.guards = Guards(core, self, naming.prefixes)
        self.pausing = Pausing(self._write_again, self._bind, self._note_unused)

    def restore(self) -> None:
        """Take addresses and queues from the bindings; the core has the durable queues already.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        snapshot = self._bindings.snapshot()
        self.diverts.restore(snapshot)
        self._ids = restored_ids(self._bindings, snapshot)
        for name in bound_addresses(snapshot):
            self._table.admit(restored_address(name, snapshot))
        for queue_id in durable_queue_ids(snapshot):
            key = f"queue/{queue_id}"
            with reading(key):
                self._restore_queue(queue_id, snapshot[key])

    def _restore_queue(self, queue_id: int, value: JsonObject) -> None:
        kind = RoutingType(value["routing-type"])
        address = self.addresses.get(value["address"])
        if address is None:  # it was created for this queue, and its own binding was not needed
            address = Address(value["address"], {kind}, is_auto_created=True)
            self._table.admit(address)
        address.routing_types.add(kind)
        queue = restored_queue(queue_id, value, address)
        self._enter(queue)
        self._note_unfiltered(queue)  # its user may have had other permissions then
        self._table.refresh_routes(address)

    async def configure(self, addresses: Iterable[ConfiguredAddress]) -> None:
        """Make the addresses and queues of the configuration that do not exist yet.

        Args:
            addresses: `addresses` of the configuration.

        Raises:
            ConfigError: A filter is none.
            RemoteProtocolError: A queue exists under another address or with another type.

        Durability: on return they survive a restart.
        """
        self._reserve_ids()
        for wanted in addresses:
            kinds = set(wanted.routing_types) | {queue.routing_type for queue in wanted.queues}
            if not kinds and wanted.name not in self.addresses:  # one that exists has its types
                default = self.settings_for(wanted.name).default_address_routing_type
                assert default is not None
                kinds = {default}
            await self.create_address(wanted.name, kinds, is_configured=True)
            for queue in wanted.queues:
                traits = configured_traits(queue, wanted.name)
                made = await self.create_queue(
                    queue.name,
                    wanted.name,
                    queue.routing_type,
                    is_durable=queue.durable,
                    traits=traits,
                )
                await self.change_traits(made, traits.owned_as(made.traits))

    # --- looking --------------------------------------------------------------------------------

    def settings_for(self, address: str) -> AddressSettings:
        """Return the settings of an address; no field is None."""
        return self._settings.settings_for(address)

    def effective_settings(self, address: str) -> list[EffectiveSetting]:
        """Return the settings of an address by name, with the match that each is from."""
        return self._settings.effective(address)

    def match_of(self, setting: str, address: str) -> str | None:
        """Return the match that a setting of an address is from; None: it is the default."""
        return self._settings.match_of(setting, address)

    def is_last_resort(self, address: str) -> bool:
        """Return whether an address is the dead-letter or expiry address of any address."""
        return self._settings.is_last_resort(address)

    def change_settings(self, matches: Mapping[str, AddressSettings]) -> None:
        """Take other settings by address from now on, for what there is as well."""
        self._settings.replace(matches)
        self._memory.settings_changed()
        for queue in self.queues.values():
            set_kind(self._core, queue, self.settings_for(queue.address.name))
            queue.rota.kind_changed(queue)
            self.usage.open_or_close(queue)
        self.ask_again()

    def ask_again(self) -> None:
        """Have all senders ask again where their messages go, and whether they may send them."""
        for queue in self.queues.values():
            if queue.route is not None:
                queue.route.lead_anew(reach_of_queue(queue))
        self._table.lead_anew()

    def takes_from(self, queue: Queue, address: str) -> bool:
        """Return whether a queue takes messages of an address, as far as its user is concerned."""
        user = queue.traits.user
        return not queue.traits.is_filtered or self.permissions.takes_from(
            user, address, is_durable=queue.is_durable
        )

    def permissions_changed(self) -> None:
        """Let queues take what their users may consume by now, and have all senders ask again."""
        self.permissions.forget()
        self.ask_again()
        for queue in self.queues.values():
            self._note_unfiltered(queue)

    def _note_unfiltered(self, queue: Queue) -> None:
        """Note that a queue may hold what its user may not consume any more."""
        if queue.traits.is_filtered:
            counters = self._core.queue_statistics(queue.id)
            is_empty = counters.head == counters.tail and not counters.paged
            queue.unfiltered_below = 0 if is_empty else counters.tail

    @property
    def withheld(self) -> int:
        """Messages that subscribers of wildcards did not get since the start: they may not."""
        return self._core.withheld() + self.switches.withheld + self.permissions.withheld

    def is_said_apart(self, names: Collection[str], address: str, other: str) -> bool:
        """Return whether settings of an address come from a match that another one is not in."""
        return self._settings.is_said_apart(names, address, other)

    def queue_of(self, address: str, name: str) -> Queue | None:
        """Return a queue by its fully qualified name.

        Raises:
            RemoteProtocolError: The queue exists, but in another address.
        """
        queue = self.queues.get(name)
        if queue is not None and queue.address.name != address:
            raise RemoteProtocolError(
                f"the queue {name} belongs to the address {queue.address.name}",
                measured=address,
            )
        return queue

    def route_of(self, address: Address, routing_type: RoutingType | None) -> Route:
        """Return the route for what senders ask for."""
        return self._table.route_of(address, routing_type)

    def refresh_routes(self, address: Address) -> None:
        """Lead senders to the queues that an address has now."""
        self._table.refresh_routes(address)

    def queues_to_come(self, address: Address) -> list[Queue]:
        """Return the queues that an address' messages will get to, but may not get to yet."""
        return self._table.queues_to_come(address)

    def queue_route(self, queue: Queue) -> Route:
        """Return the route to one queue alone."""
        if queue.route is None:
            reach = reach_of_queue(queue)
            queue.route = Route(
                self._core, reach, queue.address.name, self.switches, self.unrouted_messages
            )
        return queue.route

    def _explain_unrouted(self, name: str) -> Explanation:
        is_diverted = any(divert.is_exclusive for divert in self.diverts.at(name))
        return explain_unrouted(name, self.addresses.get(name), is_diverted=is_diverted)

    def _has_anycast(self, name: str) -> bool:
        address = self.addresses.get(name)
        return address is not None and RoutingType.ANYCAST in address.routing_types

    def is_for_one_queue(self, destination: Destination) -> bool:
        """Whether a message is for a queue, not for whoever has subscribed to a topic.

        Args:
            destination: Where it is sent to.
        """
        if destination.queue is not None or destination.routing_type is not None:
            return destination.routing_type is not RoutingType.MULTICAST
        return self._has_anycast(destination.address)

    def message_totals(self) -> tuple[int, int]:
        """Return (messages that came into queues, those acknowledged) since the start.

        Queues that are gone count as well. What left a queue by no consumer was not acknowledged,
        and what replaces another message in its queue did not come in.
        """
        added, acknowledged = self._core.queue_totals()
        return (
            self._dropped_added + added - self._departures[CHANGED],
            self._dropped_acknowledged + acknowledged - self._departures.total(),
        )

    # --- making ---------------------------------------------------------------------------------

    async def create_address(
        self,
        name: str,
        routing_types: set[RoutingType],
        *,
        is_auto_created: bool = False,
        is_configured: bool = False,
    ) -> Address:
        """Return the address, made or widened by routing types if need be.

        Args:
            name: Its name.
            routing_types: Types that it has to serve.
            is_auto_created: Whether it may be deleted automatically, if it is made.
            is_configured: Whether it stands in the configuration.

        Raises:
            RemoteProtocolError: The name may not be one.
            LimitExceeded: There are as many as there may be.

        Durability: on return an address that was asked for survives a power loss. One that is
            created for a client lasts as long as a queue of it.
        """
        check_name(name, "address")
        async with self._lock:
            await self._removals.outlive(f"address/{name}")
            if not is_configured:
                self._make_room(name)
            address = await self._ensure_address(
                name, routing_types, is_auto_created=is_auto_created
            )
            if is_configured and not address.is_configured:
                address.is_configured = True
                await self._bindings.put(address.key, address.to_binding())
            return address

    def _make_room(self, name: str) -> None:
        """Have an address that is not there yet find room, if need be in place of an unused one.

        Raises:
            LimitExceeded: There is none.
        """
        while name not in self.addresses and self.limits.is_full(len(self.addresses)):
            if not self.unused:
                raise self.limits.refuse_address(name, len(self.addresses))
            self.drop_address(self.addresses[next(iter(self.unused))])

    async def _ensure_address(
        self, name: str, routing_types: set[RoutingType], *, is_auto_created: bool
    ) -> Address:
        address = self.addresses.get(name)
        if address is None:
            address = Address(name, set(routing_types), is_auto_created)
            if not is_auto_created:
                await self._bindings.put(address.key, address.to_binding())
                address.is_bound = True
            await self._table.admit_in_steps(address)
            if name in self.addresses:
                self._note_unused(address)
        elif not routing_types <= address.routing_types or (
            address.is_auto_created and not is_auto_created
        ):
            address.routing_types |= routing_types
            address.is_auto_created = address.is_auto_created and is_auto_created
            if not address.is_auto_created:
                await self._bindings.put(address.key, address.to_binding())
                address.is_bound = True
        await self.retroactive.keep(address)
        return address

    async def set_routing_types(self, address: Address, routing_types: set[RoutingType]) -> None:
        """Have an address serve these types and no others; it does not go by itself any more.

        Raises:
            RemoteProtocolError: A queue of it has another type.

        Durability: on return it does so after a power loss too.
        """
        async with self._lock:
            for queue in address.queues.values():
                if queue.routing_type not in routing_types:
                    raise RemoteProtocolError(
                        f"the address {address.name} has the queue {queue.name}, which is "
                        f"{queue.routing_type}",
                        measured=", ".join(sorted(routing_types)),
                        cure="keep that type, or delete the queue first",
                    )
            address.routing_types = set(routing_types)
            await self._bind_locked(address)

    async def _bind(self, address: Address) -> None:
        async with self._lock:
            await self._bind_locked(address)

    async def _bind_locked(self, address: Address) -> None:
        """Write an address down, which does not go by itself any more.

        Raises:
            RemoteProtocolError: It has gone meanwhile.

        Durability: on return it survives a power loss.
        """
        await self._removals.outlive(address.key)
        if self.addresses.get(address.name) is not address:
            raise RemoteProtocolError(f"there is no address {address.name}")
        address.is_auto_created = False
        address.is_bound = True
        self.unused.pop(address.name, None)
        await self._bindings.put(address.key, address.to_binding())

    async def create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType,
        *,
        is_durable: bool = True,
        is_auto_created: bool = False,
        is_temporary: bool = False,
        client_id: str = "",
        traits: QueueTraits = NO_TRAITS,
        is_trusted: bool = False,
        is_early: bool = False,
    ) -> Queue:
        """Return the queue of this name, made if it does not exist, and its address with it.

        Args:
            name: Its name, unique in the broker.
            address: Name of its address.
            routing_type: Its routing type.
            is_durable: Whether it survives a restart.
            is_auto_created: Whether it may be deleted automatically.
            is_temporary: Whether it goes with its only consumer.
            client_id: Owner of a durable subscription; empty for none.
            traits: What is particular about it, if it is made; its user needs the permission.
            is_trusted: Whether the broker itself asks, in whoever's name.
            is_early: Whether it takes messages before it is written; for the queue of a
                subscription alone. `write_queue` has to follow before the subscription is
                confirmed. Until then it takes no message in place of another queue
                (`QueueTraits.rank`), and none that is sent to it by name.

        Raises:
            NotPermitted: Its user may not make it, or the address; or it is another user's.
            InvalidName: The name is one for subscriptions, and the queue is of none.
            RemoteProtocolError: A name may not be one, or the queue exists in another address,
                with another type, or for another client or protocol.
            LimitExceeded: There are as many as there may be, in all or for its user.

        Durability: on return a durable queue survives a power loss, unless `is_early`: then it is
            gone after a crash, with what it took.
        """
        check_names(name, address, is_own=traits.is_internal)
        async with self._lock:
            queue = self.queue_of(address, name)
            if queue is None:
                if traits.user and not is_trusted:
                    if not is_early:
                        self.owners.check_chosen(name, traits.user)
                    traits = self._permitted(address, routing_type, traits, is_durable=is_durable)
                if not traits.is_configured:
                    self.usage.check_queue(name, address, traits.user)
                    self._make_room(address)
                owner = await self._ensure_address(address, {routing_type}, is_auto_created=True)
                queue = Queue(
                    *(await self._ids.take(), name, owner, routing_type),
                    is_durable=is_durable,
                    is_auto_created=is_auto_created,
                    is_temporary=is_temporary,
                    client_id=client_id,
                    traits=traits,
                    is_written=not (is_early and is_durable),
                )
                await self._open(queue)
                self._reserve_ids()
            else:
                self._check_there(queue, routing_type, client_id, traits, is_trusted=is_trusted)
        if not is_early:
            await self.write_queue(queue)
        return queue

    def _permitted(
        self, address: str, routing_type: RoutingType, traits: QueueTraits, *, is_durable: bool
    ) -> QueueTraits:
        """Return the traits of a new queue, filtered if its user may have a part of its address.

        Raises:
            NotPermitted: Its user may not make it.
        """
        known, check = self.addresses.get(address), self.permissions.check_making
        check(traits.user, address, known, routing_type, is_durable=is_durable)
        if routing_type is RoutingType.MULTICAST and self.permissions.is_filtered(address):
            return replace(traits, is_filtered=True)
        return traits

    def _check_there(
        self,
        queue: Queue,
        routing_type: RoutingType,
        client_id: str,
        traits: QueueTraits,
        *,
        is_trusted: bool,
    ) -> None:
        """Refuse to take a queue that is there for one that is wanted; arguments of `create_queue`.

        Raises:
            NotOwner: It belongs to another user.
            RemoteProtocolError: It is not the one that is wanted.
        """
        if traits.user and not is_trusted:
            self.owners.check(queue, traits.user)
        queue.check_same(routing_type, client_id, traits.protocol)

    async def write_queue(self, queue: Queue) -> None:
        """Write a queue down that is not written yet.

        Raises:
            RemoteProtocolError: It was deleted meanwhile.
            JournalError: It cannot be written, and is gone again.

        Durability: on return a durable queue survives a power loss.
        """
        if queue.is_written:
            await self._table.wait_led(queue)  # another subscriber may have written it just now
            return
        try:
            await self._bindings.put(queue.key, queue.to_binding())
        except VespiaryError:  # unless another subscriber has written it
            if not queue.is_written and not queue.is_deleted:
                self.drop_queue(queue)
            raise
        if not queue.is_deleted:
            queue.is_written = True
            await self._table.queue_written(queue)
        if queue.is_deleted:
            raise RemoteProtocolError(f"the queue {queue.name} was deleted meanwhile")

    def _reserve_ids(self) -> None:
        """Reserve numbers ahead of need: a new subscription takes effect without waiting for them.

        Durability: none; `QueueIds.take` waits for numbers where there are none.
        """
        if self._ids.are_few and not self._is_reserving:
            self._is_reserving = True
            self._spawn(self._reserve_ids_now())

    async def _reserve_ids_now(self) -> None:
        try:
            with suppress(JournalError):  # who takes a number tries again, and is told
                await self._ids.reserve()
        finally:
            self._is_reserving = False

    async def _open(self, queue: Queue) -> None:
        """Write a new queue down, unless that is to follow, then let messages in."""
        if queue.is_durable and queue.is_written:
            await self._bindings.put(queue.key, queue.to_binding())
        self._core.open_queue(queue.id, durable=queue.is_durable and self._is_persistent)
        copying = await self.retroactive.fill(queue)
        # While the bindings were written the address may have gone; it comes back with its queue.
        owner = queue.address
        owner.routing_types.add(queue.routing_type)
        if owner.name not in self.addresses:
            self._table.admit(owner)
        self._enter(queue)
        await self._table.lead_to(queue)
        if copying is not None:
            await self.retroactive.end(copying)

    async def make_internal(self, name: str, address: Address) -> None:
        """Make a queue for the broker itself; only while the registry's lock is held.

        Durability: on return it survives a power loss.
        """
        traits = QueueTraits(is_internal=True, max_consumers=-1, is_purged_when_unused=False)
        kind = RoutingType.MULTICAST
        number = await self._ids.take()
        queue = Queue(
            number, name, address, kind, is_durable=True, is_auto_created=False, traits=traits
        )
        await self._open(queue)

    def _enter(self, queue: Queue) -> None:
        address = queue.address
        queue.departures_of_all = self._departures
        set_kind(self._core, queue, self.settings_for(address.name))
        self._table.enter(queue)
        self.queues[queue.name] = queue
        self.queues_by_id[queue.id] = queue
        self.unused.pop(address.name, None)
        queue.idle_since_s = self._clock_s()
        self.limits.queue_made(queue.traits.user)
        queue.is_open = not self.usage.is_purged_when_unused(queue)
        address.was_used = True
        self._memory.enter(queue)

    async def change_traits(self, queue: Queue, traits: QueueTraits) -> None:
        """Give a queue other traits.

        Durability: on return a durable queue has them after a power loss too.
        """
        if queue.traits == traits or queue.is_deleted:
            return
        self.limits.queue_gone(queue.traits.user)
        self.limits.queue_made(traits.user)
        before, queue.traits = queue.traits, traits
        if (before.user, before.is_filtered) != (traits.user, traits.is_filtered):
            self._note_unfiltered(queue)
        self._table.rank_changed(queue)
        set_kind(self._core, queue, self.settings_for(queue.address.name))
        queue.rota.kind_changed(queue)
        self.usage.open_or_close(queue)
        if queue.route is not None:
            queue.route.lead(reach_of_queue(queue))
        if replace(before, rank=traits.rank, is_no_local=traits.is_no_local) == traits:
            await self._table.refresh_in_steps(queue)
        else:  # no sender may choose by the former selector, or for the former user
            self._table.refresh_routes(queue.address)
        await self._write_again(queue)

    async def take_into_use(self, queue: Queue, user: str) -> None:
        """Let a user consume from a queue; one that could have an owner and has none is its now.

        So is one that users share at a wildcard, if who began it was removed: it takes what the
        user may have from now on.

        Args:
            queue: The queue.
            user: Who consumes; empty is nobody.

        Raises:
            NotOwner: It belongs to another user.

        Durability: on return a durable queue that was adopted has its owner after a power loss too.
        """
        self.owners.check(queue, user)
        traits = queue.traits
        is_left = traits.is_filtered and self.permissions.is_gone(traits.user)
        if self.owners.is_adopted(queue, user) or (is_left and not is_ownable(queue)):
            traits = replace(traits, user=user)
        is_own = is_ownable(queue) and traits.user == user
        if is_own and queue.routing_type is RoutingType.MULTICAST:
            is_filtered = self.permissions.is_filtered(queue.address.name)
            traits = replace(traits, is_filtered=traits.is_filtered or is_filtered)
        await self.change_traits(queue, traits)

    async def _write_again(self, queue: Queue) -> None:
        async with self._lock:
            if queue.is_durable and not queue.is_deleted:
                await self._bindings.put(queue.key, queue.to_binding())

    # --- deleting -------------------------------------------------------------------------------

    def check_deletable(self, queue: Queue) -> None:
        """Refuse to delete a queue that prepared branches or a stream need.

        Raises:
            RemoteProtocolError: It is durable, and holds messages that prepared branches have
                added or acknowledged; or a stream reads it.
        """
        check_not_streamed(queue)
        prepared = held_by_branches(self._core, queue.id) if queue.is_durable else 0
        if prepared:
            raise RemoteProtocolError(
                f"the queue {queue.name} holds messages of prepared transactions",
                measured=prepared,
                cure="let their coordinator end them, or decide with `vespiary transaction`",
            )

    def drop_queue(self, queue: Queue, *, is_lost: bool = True) -> None:
        """Delete a queue without consumers and everything in it; its address too if that is due.

        Args:
            queue: The queue.
            is_lost: Whether `on_lost` is called; False if its owner drops it.

        Durability: the removal from the bindings follows in the background, and is durable when
            `wait_removed` returns. After a crash before that the queue is back, with those of its
            messages whose records have not been freed: a queue that is deleted automatically was
            empty, or temporary.
        """
        assert not queue.consumers
        address = queue.address
        queue.is_deleted = True
        self.limits.queue_gone(queue.traits.user)
        del address.queues[queue.name], self.queues[queue.name], self.queues_by_id[queue.id]
        self._table.lead_away(queue)
        if queue.route is not None:
            queue.route.close()
            queue.route = None
        counters = self._core.queue_statistics(queue.id)
        self._dropped_added += counters.added
        self._dropped_acknowledged += counters.acknowledged
        self._quarantine.release(queue.id)
        self.on_dropped(queue.id)
        self._core.drop_queue(queue.id)
        self._memory.leave(queue)
        if queue.is_durable:
            # A queue that is back after a crash has its messages: their bodies stay until then.
            if self.large_bodies is not None:
                self.large_bodies.hold_removals()
            self._removals.begin(queue.key)
        elif self.large_bodies is not None:
            self.large_bodies.look()
        if is_lost and queue.is_written:
            self.on_lost(queue)
        if not address.queues:
            address.idle_since_s = self._clock_s()
            settings = self.settings_for(address.name)
            if is_address_due(address, settings, address.idle_since_s):
                self.drop_address(address)
            else:
                self._note_unused(address)

    async def wait_removed(self, *keys: str) -> None:
        """Wait until queues and addresses that were dropped are gone from the bindings.

        Args:
            keys: Their `key`; others that are on their way out are not waited for.

        Raises:
            JournalFull: The disk of the bindings has no room: one of them will be back.
            WriterFailed: The bindings have failed.

        Durability: on return none of them is back after a power loss.
        """
        await self._removals.wait(keys)

    def drop_address(self, address: Address) -> None:
        """Delete an address without queues.

        Durability: the removal from the bindings follows in the background, and is durable when
            `wait_removed` returns.
        """
        assert not address.queues
        self.unused.pop(address.name, None)
        self._table.part(address)
        if address.is_bound:
            address.is_bound = False
            self._removals.begin(address.key)

    def _note_unused(self, address: Address) -> None:
        """Remember a created address that holds nothing, and forget the oldest of too many."""
        if not address.is_auto_created or address.queues or address.is_paused:
            self.unused.pop(address.name, None)
            return
        self.unused[address.name] = None
        if len(self.unused) > max(UNUSED_ADDRESSES_MAX, self.limits.addresses_max // 10):
            self.drop_address(self.addresses[next(iter(self.unused))])


async def _nothing_to_end(queues: Collection[Queue]) -> None:
    """Do nothing before queues are deleted."""

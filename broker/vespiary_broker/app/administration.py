"""What administrators may do to a broker, and what they may see of it.

Owns the operations behind the HTTP API, as one part of the broker. Must never hold a rule of its
own: engine and store have those. `BrokerApp` is the only heir; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from vespiary_broker.app import states
from vespiary_broker.app.browsing import Browsing
from vespiary_broker.app.counting_messages import CountingMessages
from vespiary_broker.app.draining import Draining
from vespiary_broker.app.fencing import Fencing
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.memory_states import AddressMemoryState, address_memory
from vespiary_broker.app.message_acts import MessageActs
from vespiary_broker.app.naming_acts import NamingActs
from vespiary_broker.app.queue_groups import QueueGroups
from vespiary_broker.app.reloading import Reloading
from vespiary_broker.app.streaming import Streaming
from vespiary_broker.app.tasks import Tasks
from vespiary_broker.app.transactions import TransactionAdministration
from vespiary_broker.app.transfers import Transfers
from vespiary_broker.engine.address_settings import EffectiveSetting
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.diverts import Diverts
from vespiary_broker.engine.duplicates import DuplicateState
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.queue_changes import NO_WISHES, QueueWishes, wished_traits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.stall_watch import StalledPlace
from vespiary_broker.engine.stalls import StallReason
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.listener import Listener
from vespiary_broker.server.mqtt.hub import MqttHub
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_broker.store.journal import Journal
from vespiary_broker.store.owned import Ownership
from vespiary_broker.store.paging.pager import Pager
from vespiary_spec.errors import CorruptRecord, PageDamaged, RemoteProtocolError, VespiaryError
from vespiary_spec.settings import RoutingType

log = logging.getLogger(__name__)

_READ_OLDEST_MAX: Final = 16
"""Reads of one request for messages that are not in memory: each may load 2 MiB."""


def _by_name(counts: Counter[StallReason]) -> dict[str, int]:
    return {str(reason): count for reason, count in sorted(counts.items())}


class Administration:
    """The parts that are there once the broker has started, and what is done to them.

    Attributes:
        tasks: What goes on in the background because somebody asked for it.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._ready_s = 0.0
        self._not_ready_reason = "the broker is starting"
        self._failure: VespiaryError | None = None
        self._engine: Engine | None = None
        self._cycle: Cycle | None = None
        self._journal: Journal | None = None
        self._jms: JmsAdministration | None = None
        self._pager: Pager | None = None
        self._ownership = Ownership()
        self._counters: CountingMessages | None = None
        self._draining: Draining | None = None
        self._streaming: Streaming | None = None
        self._fencing: Fencing | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._reloading: Reloading | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the broker takes connections."""
        return not self.not_ready_reason

    @property
    def not_ready_reason(self) -> str:
        """Why the broker takes no connections now, as one sentence; empty while it does.

        A full disk is no reason: consumers have to reach the broker to make room. The journal's
        `blocked` says it, and the metric of that name.
        """
        if self._not_ready_reason:
            return self._not_ready_reason
        return "" if self._cycle is None else self._cycle.cordon

    @property
    def engine(self) -> Engine:
        """The engine of a broker that has started."""
        assert self._engine is not None
        return self._engine

    @property
    def permissions(self) -> Permissions:
        """Who may do what where, of a broker that has started."""
        return self.engine.registry.permissions

    def check_owner(self, queue: str, user: str) -> None:
        """Refuse a queue that belongs to another user; one that is not there belongs to nobody.

        Args:
            queue: Name of the queue.
            user: Who wants to read it, to change it or to take from it.

        Raises:
            NotOwner: It belongs to another user, and `user` is no administrator.
        """
        registry = self.engine.registry
        found = registry.queues.get(queue)
        if found is not None:
            registry.owners.check(found, user)

    @property
    def naming(self) -> NamingActs:
        """Changes of queues and addresses of a broker that has started."""
        assert self._cycle is not None
        return NamingActs(self.engine, self._cycle)

    @property
    def groups(self) -> QueueGroups:
        """Message groups of queues of a broker that has started."""
        assert self._cycle is not None
        return QueueGroups(self.engine, self._cycle)

    @property
    def transactions(self) -> TransactionAdministration:
        """Distributed transactions of a broker that has started."""
        assert self._cycle is not None
        return TransactionAdministration(self.engine, self._cycle)

    @property
    def streams(self) -> Streaming:
        """Queues that are read by ranges, of a broker that has started."""
        if self._streaming is None:
            assert self._cycle is not None
            assert self._journal is not None
            self._streaming = Streaming(self.engine, self._cycle, self._journal, self._pager)
        return self._streaming

    @property
    def fences(self) -> Fencing:
        """Which staged tries of a batch count, of a broker that has started."""
        if self._fencing is None:
            assert self._cycle is not None
            self._fencing = Fencing(self.engine, self._cycle)
        return self._fencing

    @property
    def browsing(self) -> Browsing:
        """Messages in the queues of a broker that has started."""
        assert self._journal is not None
        return Browsing(self.engine, self._journal, self._pager)

    @property
    def counters(self) -> CountingMessages:
        """Message counters of a broker that has started."""
        assert self._counters is not None
        return self._counters

    @property
    def reloading(self) -> Reloading:
        """What takes another configuration, of a broker that has started."""
        assert self._reloading is not None
        return self._reloading

    @property
    def message_acts(self) -> MessageActs:
        """Acts on the messages of queues of a broker that has started."""
        assert self._cycle is not None
        assert self._journal is not None
        return MessageActs(self.engine, self._cycle, self._journal, self._pager, self.tasks)

    @property
    def draining(self) -> Draining:
        """The drain of a broker that has started."""
        assert self._draining is not None
        return self._draining

    @property
    def transfers(self) -> Transfers:
        """What other brokers hand over to a broker that has started."""
        assert self._cycle is not None
        assert self._journal is not None
        return Transfers(self.engine, self._cycle, self._journal)

    @property
    def diverts(self) -> Diverts:
        """Diverts of a broker that has started."""
        return self.engine.registry.diverts

    @property
    def jms(self) -> JmsAdministration:
        """JMS objects of a broker that has started."""
        assert self._jms is not None
        return self._jms

    @property
    def logins(self) -> Logins | None:
        """Who comes in; None while the broker starts or stops."""
        return None if self._not_ready_reason else self.engine.logins

    def count_error(self, kind: str) -> None:
        """Count an error that a client of the HTTP port caused, by its kind."""
        if self._cycle is not None:
            self._cycle.count_error(kind)

    @property
    def passwords(self) -> PasswordChecks:
        """Checks passwords, of a broker that has started."""
        assert self._cycle is not None
        return self._cycle.passwords

    @property
    def failed_reason(self) -> str:
        """The sentence of the failure that fenced a journal; empty while they work."""
        return "" if self._failure is None else str(self._failure)

    @property
    def blocked_reason(self) -> str:
        """Why producers wait for the disk, as one sentence; empty while there is room."""
        blocked = None if self._journal is None else self._journal.blocked
        return "" if blocked is None else str(blocked)

    def statistics(self) -> states.BrokerStatistics:
        """Return the state of the whole broker."""
        assert self._cycle is not None
        assert self._journal is not None
        return states.broker_statistics(
            self.engine,
            self._cycle,
            self._listeners,
            replace(self._journal.statistics(), ownership=self._ownership.state),
            not_ready_reason=self.not_ready_reason,
            uptime_s=time.monotonic() - self._ready_s,
            paging=self._pager.statistics() if self._pager is not None else None,
        )

    def journal_files(self, after_id: int, limit: int) -> Sequence[object]:
        """Return what keeps the journal's files, by id."""
        assert self._journal is not None
        return self._journal.file_uses(after_id, limit)

    def image_statistics(self) -> object:
        """Return the counters of the journal's image in memory."""
        return self.engine.core.image_statistics()

    def queues(self) -> list[states.QueueState]:
        """Return the state of all queues, by name."""
        queues = sorted(self.engine.registry.queues.values(), key=lambda queue: queue.name)
        return [self._queue_state(queue) for queue in queues]

    async def read_oldest(self, names: Iterable[str]) -> None:
        """Find out when the oldest messages of queues came that are not in memory.

        Args:
            names: Queues, of which `_READ_OLDEST_MAX` are read for; the others keep what is known.
        """
        reads = 0
        for name in names:
            queue = self.engine.registry.queues.get(name)
            if queue is None or not self.engine.oldest.find(queue).is_unread:
                continue
            await self._read_oldest(queue)
            reads += 1
            if reads == _READ_OLDEST_MAX:
                return

    async def _read_oldest(self, queue: Queue) -> None:
        try:
            self.engine.oldest.note(queue, await self.browsing.oldest_ms(queue))
        except (CorruptRecord, PageDamaged) as error:
            if queue.is_deleted:
                return
            damage = f"{error} `vespiary page verify` and `vespiary journal verify` list damage"
            self.engine.oldest.note_damage(queue, damage)
            what = "the oldest message of a queue cannot be read queue=%s: %s"
            log.error(what, queue.name, damage)  # noqa: TRY400
        except VespiaryError:
            pass  # it was deleted meanwhile, or is tried again: nothing is known

    def queue_names(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return sorted(self.engine.registry.queues)

    def queue(self, name: str) -> states.QueueState | None:
        """Return the state of one queue, or None if there is none of that name."""
        queue = self.engine.registry.queues.get(name)
        return None if queue is None else self._queue_state(queue)

    def _queue_state(self, queue: Queue) -> states.QueueState:
        assert self._cycle is not None
        return states.queue_state(self.engine, queue, self._cycle.stalls)

    def stalls(self, limit: int) -> list[StalledPlace]:
        """Return the queues and addresses that are not moving, at most `limit` of them."""
        assert self._cycle is not None
        return self._cycle.stall_watch.stalled(limit, self._cycle.producers.addresses)

    def stall_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many queues, and how many addresses, are stalled, by reason."""
        assert self._cycle is not None
        queues, addresses = self._cycle.stall_watch.counts()
        return _by_name(queues), _by_name(addresses)

    def address_names(self) -> list[str]:
        """Return the names of all addresses, sorted."""
        return sorted(self.engine.registry.addresses)

    def address(self, name: str) -> states.AddressState | None:
        """Return the state of one address, or None if there is none of that name."""
        address = self.engine.registry.addresses.get(name)
        return None if address is None else self._address_state(address)

    def address_settings(self, name: str) -> Sequence[EffectiveSetting]:
        """Return the settings that hold for an address, and the match that each is from."""
        return self.engine.registry.effective_settings(name)

    def _address_state(self, address: Address) -> states.AddressState:
        assert self._cycle is not None
        return states.address_state(self.engine, self._cycle, address)

    def has_metrics(self, address: str) -> bool:
        """Return whether an address and its queues have series of their own in the metrics."""
        return bool(self.engine.registry.settings_for(address).enable_metrics)

    def address_memory(self, name: str) -> AddressMemoryState | None:
        """Return what the messages of an address take; None if it has no queues."""
        assert self._cycle is not None
        return address_memory(self.engine, self._cycle, name)

    def addresses(self) -> list[states.AddressState]:
        """Return the state of all addresses, by name."""
        addresses = sorted(self.engine.registry.addresses.values(), key=lambda a: a.name)
        return [self._address_state(address) for address in addresses]

    def connections(self) -> list[states.ConnectionState]:
        """Return the state of all connections, oldest first."""
        now_s = asyncio.get_running_loop().time()
        connections = [c for listener in self._listeners for c in listener.connections]
        connections.sort(key=lambda connection: connection.connected_at_s)
        return [states.connection_state(connection, now_s) for connection in connections]

    def close_connection(self, number: int) -> states.ConnectionState | None:
        """Close a connection, and tell its client; return how it was, None if there is none."""
        for listener in self._listeners:
            for connection in listener.connections:
                if connection.handle == number and connection.is_open:
                    state = states.connection_state(connection, asyncio.get_running_loop().time())
                    connection.refuse("an administrator closed the connection")
                    return state
        return None

    def consumers(self) -> list[states.ConsumerStatistics]:
        """Return the state of all consumers, by queue."""
        queues = sorted(self.engine.registry.queues.values(), key=lambda queue: queue.name)
        core = self.engine.core
        return [states.consumer_statistics(core, c) for queue in queues for c in queue.consumers]

    async def create_address(
        self, name: str, routing_types: set[RoutingType]
    ) -> states.AddressState:
        """Make an address, or widen it by routing types.

        Raises:
            RemoteProtocolError: The name may not be one.

        Durability: on return it survives a power loss.
        """
        address = await self.engine.registry.create_address(name, routing_types)
        return self._address_state(address)

    async def delete_address(self, name: str) -> None:
        """Delete an address that has no queues.

        Raises:
            RemoteProtocolError: There is none of that name, or it has queues.
            JournalError: It is gone, and the removal could not be stored: a restart brings it back.

        Durability: on return it will not come back after a power loss.
        """
        keys = self.bound_keys(name)
        self.drop_address(name)
        await self.wait_removed(*keys)

    def bound_keys(self, address: str) -> list[str]:
        """Return the keys in the bindings of an address and its queues, for `wait_removed`."""
        found = self.engine.registry.addresses.get(address)
        if found is None:
            return []
        return [found.key, *(queue.key for queue in found.queues.values())]

    async def wait_removed(self, *keys: str) -> None:
        """Wait until what was dropped will not come back: `Registry.wait_removed`."""
        await self.engine.registry.wait_removed(*keys)

    def drop_address(self, name: str) -> None:
        """Delete an address that has no queues; the removal follows in the background.

        Raises:
            RemoteProtocolError: There is none of that name, or it has queues.
        """
        address = self.engine.registry.addresses.get(name)
        if address is None:
            raise RemoteProtocolError(f"there is no address {name}")
        if address.queues:
            raise RemoteProtocolError(
                f"the address {name} has queues",
                measured=", ".join(list(address.queues)[:10]),
                cure="delete them first",
            )
        self.engine.registry.drop_address(address)
        self.engine.duplicates.clear(name)
        assert self._cycle is not None
        self._cycle.touch()

    def duplicates(self, name: str, limit: int) -> DuplicateState:
        """Return the duplicate ids of an address, at most `limit` of them."""
        return self.engine.duplicates.state(name, limit)

    async def clear_duplicates(self, name: str) -> int:
        """Forget the duplicate ids of an address; return how many.

        Durability: on return they will not come back after a power loss.
        """
        assert self._journal is not None
        count = self.engine.duplicates.clear(name)
        await self._journal.wait_durable()
        return count

    def has_address(self, name: str) -> bool:
        """Return whether there is such an address."""
        return name in self.engine.registry.addresses

    def has_queue(self, name: str) -> bool:
        """Whether there is such a queue."""
        return name in self.engine.registry.queues

    def queues_of(self, address: str) -> list[str]:
        """Return the names of an address's queues; none if there is no such address."""
        found = self.engine.registry.addresses.get(address)
        return [] if found is None else list(found.queues)

    async def compile_filter(self, text: str) -> None:
        """Compile the filter of a request, so that it is at hand for whoever wants it at once.

        Args:
            text: The filter; empty: there is none.

        Raises:
            InvalidSelector: It is none.
        """
        if text.strip():
            await compile_in_time(text.strip(), self.engine.turn_time)

    async def create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType = RoutingType.ANYCAST,
        *,
        is_durable: bool = True,
        wishes: QueueWishes = NO_WISHES,
    ) -> states.QueueState:
        """Make a queue, and its address if need be.

        Raises:
            ConfigError: What is said of it contradicts itself.
            InvalidSelector: The filter is none.
            RemoteProtocolError: A name may not be one, or the queue exists otherwise.

        Durability: on return a durable queue survives a power loss.
        """
        queue = await self.engine.registry.create_queue(
            name,
            address,
            routing_type,
            is_durable=is_durable,
            traits=wished_traits(name, wishes),
        )
        return self._queue_state(queue)

    async def delete_queue(self, name: str, *, is_forced: bool = False) -> int:
        """Delete a queue and everything in it.

        Args:
            name: Its name.
            is_forced: Delete it although it has consumers (they are disconnected) or messages, or
                belongs to MQTT sessions (they end).

        Returns:
            Number of messages that went with it.

        Raises:
            RemoteProtocolError: There is none of that name; or it is in use, and not forced.
            JournalError: It is gone, and the removal could not be stored: a restart brings it back.

        Durability: on return neither it nor a message of it will come back after a power loss.
        """
        queue = self._queue(name)
        if not is_forced:
            self.check_unused(name)
        self.engine.registry.check_deletable(queue)
        count = await self._end_sessions([queue])
        if not queue.is_deleted:
            count = self.drop_queue(name, is_forced=is_forced)
        await self.wait_removed(queue.key)
        return count

    async def end_sessions(self, address: str) -> int:
        """End the MQTT sessions that have queues of an address, before it is deleted.

        Returns:
            Number of messages of those queues that went with the sessions.

        Raises:
            RemoteProtocolError: A queue cannot be deleted: prepared branches or a stream need it.
            JournalError: The removal of a session could not be stored.

        Durability: on return neither the sessions nor their queues come back after a power loss.
        """
        found = self.engine.registry.addresses.get(address)
        queues = [] if found is None else list(found.queues.values())
        for queue in queues:
            self.engine.registry.check_deletable(queue)
        return await self._end_sessions(queues)

    async def _end_sessions(self, queues: list[Queue]) -> int:
        """End the sessions that have queues; return how many messages of these went along."""
        counts = [states.queue_state(self.engine, queue).messages for queue in queues]
        await self.engine.registry.before_deletion(queues)
        pairs = zip(counts, queues, strict=True)
        return sum(count for count, queue in pairs if queue.is_deleted)

    def drop_queue(self, name: str, *, is_forced: bool = False) -> int:
        """Delete a queue and everything in it; the removal follows in the background.

        Args:
            name: Its name.
            is_forced: Delete it although it has consumers (they are disconnected) or messages.

        Returns:
            Number of messages that went with it.

        Raises:
            RemoteProtocolError: There is none of that name; or it is in use, and not forced.

        Durability: see `Registry.drop_queue`; `wait_removed` waits for it.
        """
        queue = self._queue(name)
        state = states.queue_state(self.engine, queue)
        if not is_forced:
            self.check_unused(name)
        self.engine.registry.check_deletable(queue)
        for consumer in list(queue.consumers):
            consumer.output.refuse(f"the queue {name} was deleted by an administrator")
        if not queue.is_deleted:  # the last consumer may have taken it along
            self.engine.registry.drop_queue(queue)
        return state.messages

    def check_unused(self, name: str) -> None:
        """Refuse a queue that is in use.

        Raises:
            RemoteProtocolError: There is none of that name, it has consumers or messages, or it
                belongs to MQTT sessions.
        """
        queue = self._queue(name)
        if self._hub is not None:
            self._hub.check_no_session(queue)
        state = states.queue_state(self.engine, queue)
        if state.consumers or state.messages:
            raise RemoteProtocolError(
                f"the queue {name} is in use",
                measured=f"{state.consumers} consumers, {state.messages} messages",
                cure="purge it and close its consumers, or force it",
            )

    async def purge_queue(self, name: str) -> int:
        """Acknowledge every message that waits in a queue; those given out stay.

        Returns:
            Number of messages.

        Raises:
            RemoteProtocolError: There is no queue of that name.
            WriterFailed: The journal has failed.

        Durability: on return the messages will not come back after a power loss.
        """
        assert self._journal is not None
        queue = self._queue(name)
        self.engine.quarantine.release(queue.id)  # what cannot be delivered goes too
        self.engine.fates.forget(queue.id)
        self.engine.streams.note_purge(queue)
        count = self.engine.core.purge_queue(queue.id)
        self._journal.kick()
        await self._journal.wait_durable()
        return count

    @property
    def _hub(self) -> MqttHub | None:
        return None if self._cycle is None else self._cycle.mqtt

    def _queue(self, name: str) -> Any:
        queue = self.engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue

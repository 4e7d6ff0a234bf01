"""The HTTP listener around a broker that exists in memory only, and a client that talks to it.

`MemoryBroker` has what `vespiary_broker.admin.ports.Broker` asks for; `AdminRig` runs the real
`AdminServer` on it, on a free port of loopback, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vespiary_broker.admin.server import AdminServer
from vespiary_broker.app import states
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.memory_states import AddressMemoryState, MemoryState
from vespiary_broker.app.tasks import Tasks
from vespiary_broker.engine.address_settings import AddressSettingsTable, EffectiveSetting
from vespiary_broker.engine.branches import BranchStatistics
from vespiary_broker.engine.diverts import Diverts
from vespiary_broker.engine.duplicates import DuplicateState
from vespiary_broker.engine.fates import FateStatistics
from vespiary_broker.engine.jms import JmsObjects
from vespiary_broker.engine.limits import NamingStatistics
from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.queue_changes import NO_WISHES, QueueWishes
from vespiary_broker.engine.slow_consumers import SlowConsumerStatistics
from vespiary_broker.engine.stall_watch import StalledPlace
from vespiary_broker.engine.users import User, make_user
from vespiary_broker.engine.wildcards import DEFAULT_SYNTAX
from vespiary_broker.server.mqtt.hub import MqttStatistics
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_broker.store.counters import (
    FLUSH_BOUNDS_US,
    CompactionCounts,
    FileCounts,
    JournalStatistics,
    LeaseState,
    RetentionStatistics,
)
from vespiary_broker.store.file_uses import FileUse
from vespiary_broker.store.large_messages import LargeMessageStatistics
from vespiary_broker.store.options import Durability
from vespiary_broker.store.paging.pager import PagingStatistics
from vespiary_broker.store.volumes.report import Report
from vespiary_native.abc import ImageStatistics
from vespiary_spec.errors import (
    NotOwner,
    RemoteProtocolError,
    WriterFailed,
)
from vespiary_spec.settings import Admin, Configuration, RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.admin_fakes import (
    MemoryActs,
    MemoryBrowsing,
    MemoryCounters,
    MemoryDraining,
    MemoryGroups,
    MemoryTransactions,
    MemoryTransfers,
)
from vespiary_testkit.memory_fences import MemoryFences
from vespiary_testkit.memory_journal import MemoryBindings
from vespiary_testkit.memory_reloading import MemoryReloading
from vespiary_testkit.memory_streams import MemoryStreams

START_S = 60.0


def journal_statistics(**changes: Any) -> JournalStatistics:
    """Figures of a journal that has made seven writes."""
    flushes = (1, 2, 4, *(0 for _ in FLUSH_BOUNDS_US[2:]))
    values: dict[str, Any] = {
        "engine": "ASYNCIO",
        "fallback_reason": None,
        "durability": Durability.D2,
        "writes": 7,
        "written_bytes": 28672,
        "blocks": 7,
        "records": 70,
        "payload_bytes": 7000,
        "flush_counts": flushes,
        "flush_sum_us": 700,
        "slab_loads": 0,
        "files": FileCounts(active=3, ahead=2, free=1, bytes_on_disk=40 * 2**20),
        "files_made": 4,
        "preallocation_fallbacks": 1,
        "files_reclaimed": 0,
        "sequence_durable": 7,
        "unwritten_bytes": 0,
        "live_bytes": 2**20,
        "live_percent": 25.0,
        "compaction": CompactionCounts(
            waiting_files=2, waiting_bytes=512, files=3, moved_bytes=4096, moved_messages=9
        ),
        "failed_reason": None,
        "blocked_reason": None,
        "retention": RetentionStatistics(copies=2, copies_bytes=20 * 2**20, copied=1),
        "ownership": LeaseState(4, 3.0, 0.5, None),
    }
    return JournalStatistics(**values | changes)


def queue_state(name: str, **changes: Any) -> states.QueueState:
    """A durable anycast queue of an address of its own."""
    values: dict[str, Any] = {
        "id": 1,
        "name": name,
        "address": name,
        "routing_type": "ANYCAST",
        "is_durable": True,
        "is_auto_created": False,
        "is_temporary": False,
        "filter_string": "",
        "is_configured": False,
        "is_paused": False,
        "max_consumers": -1,
        "purge_on_no_consumers": False,
        "user": "",
        "consumers": 0,
        "messages": 0,
        "ready": 0,
        "delivering": 0,
        "prepared": 0,
        "aside": 0,
        "scheduled": 0,
        "added": 0,
        "acknowledged": 0,
        "redelivered": 0,
        "live_bytes": 0,
    }
    return states.QueueState(**values | changes)


def wished_values(wishes: QueueWishes) -> dict[str, Any]:
    """What wishes mean for the state of a queue."""
    values = {
        "max_consumers": wishes.max_consumers,
        "purge_on_no_consumers": wishes.is_purged_when_unused,
        "filter_string": wishes.filter_string,
        "auto_delete": wishes.auto_delete,
        "auto_delete_delay": wishes.auto_delete_delay_ms,
        "auto_delete_message_count": wishes.auto_delete_message_count,
    } | {name.replace("-", "_"): value for name, value in wishes.kind}
    return {name: value for name, value in values.items() if value is not None}


class MemoryNaming:
    """Changes of the queues and addresses of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def pause_queue(self, name: str, *, is_kept: bool) -> states.QueueState:
        if is_kept and not self._broker.queue_states[name].is_durable:
            raise RemoteProtocolError(f"the queue {name} does not survive a restart")
        return self._change(name, is_paused=True)

    async def resume_queue(self, name: str) -> states.QueueState:
        return self._change(name, is_paused=False)

    async def change_queue(self, name: str, wishes: QueueWishes) -> states.QueueState:
        self._broker._fail()
        return self._change(name, **wished_values(wishes))

    def _change(self, name: str, **changes: Any) -> states.QueueState:
        found = self._broker.queue_states
        found[name] = replace(found[name], **changes)
        return found[name]

    async def pause_address(self, name: str, *, is_kept: bool) -> object:
        del is_kept
        self._broker.paused_addresses.add(name)
        return self._broker.address(name)

    async def resume_address(self, name: str) -> object:
        self._broker.paused_addresses.discard(name)
        return self._broker.address(name)

    async def change_address(self, name: str, routing_types: set[RoutingType]) -> object:
        self._broker._fail()
        self._broker.address_types[name] = set(routing_types)
        return self._broker.address(name)


LARGE = LargeMessageStatistics(
    live=2,
    live_bytes=3_000_000,
    damaged=1,
    receiving=1,
    waiting=1,
    received=5,
    received_bytes=9_000_000,
    delivered=3,
    delivered_bytes=6_000_000,
    removed=3,
    swept=4,
    removals_failed=0,
)


MEMORY = MemoryState(
    size_bytes=5000,
    messages=7,
    max_bytes=1_000_000,
    max_messages=1000,
    is_full=False,
    paging_addresses=1,
    page_full_addresses=1,
    page_modes=2,
    blocked_producers=3,
    blocked_producers_closed=1,
    waits=4,
    refused=5,
    dropped=6,
)
PAGING = PagingStatistics(
    pages=9,
    pages_bytes=9_000_000,
    open_pages=2,
    addresses=1,
    written=10,
    written_bytes=10_000_000,
    opened=3,
    removed=1,
    removals_failed=0,
    failures=1,
    damaged=0,
    waiting_queues=1,
    blocked_reason="",
)
ADDRESS_MEMORY = AddressMemoryState(
    name="orders",
    policy="BLOCK",
    size_bytes=3000,
    messages=5,
    max_bytes=3000,
    max_messages=100,
    is_full=True,
    is_paging=False,
    blocked_producers=3,
    blocked_producers_closed=1,
    dropped=6,
    page_full_policy="FAIL",
    is_page_full=True,
    page_limit_bytes=10_000_000,
    page_limit_messages=None,
    pages_bytes=9_000_000,
    pages_messages=9000,
)


class MemoryBroker:
    """A broker whose queues are a dictionary."""

    def __init__(self, users: Mapping[str, User] | None = None) -> None:
        self.configuration = Configuration()
        self.data_directory = Path("/data")
        self.report: Report | None = None
        self.not_ready_reason = ""
        self.failed_reason = self.blocked_reason = ""
        self.journal_waiters = 0
        self.large = LARGE
        self.is_started = True
        self.users = dict(users or {})
        self.own_logins = Logins(lambda: self.users)
        self.errors: Counter[str] = Counter()
        self.filters: list[str] = []  # that were compiled in time
        self.admin_server: AdminServer | None = None
        self.passwords = PasswordChecks(self.own_logins)
        self.queue_states: dict[str, states.QueueState] = {}
        self.address_types: dict[str, set[RoutingType]] = {}
        self.paused_addresses: set[str] = set()
        self.connection_states: list[states.ConnectionState] = []
        self.consumer_states: list[states.ConsumerStatistics] = []
        self.stalled: list[StalledPlace] = []
        self.moving: list[StalledPlace] = []  # that were stalled at the last scan
        self.journal = journal_statistics()
        self.duplicate_ids: dict[str, list[str]] = {}
        self.dead_letter_address = ""
        self.failure: Exception | None = None
        self.transactions = MemoryTransactions()
        self.draining = MemoryDraining()
        self.transfers = MemoryTransfers()
        self.naming = MemoryNaming(self)
        self.groups = MemoryGroups()
        self.permissions = Permissions(users=lambda: self.users)
        self.owned: dict[str, str] = {}  # queues that belong to a user
        self.browsing = MemoryBrowsing()
        self.without_metrics: set[str] = set()
        self.tasks = Tasks(self._spawn, lambda: 1_700_000_000_000)
        self.message_acts = MemoryActs(self)
        self.counters = MemoryCounters(self)
        self.reloading = MemoryReloading()
        self.streams = MemoryStreams()
        self.fences = MemoryFences()
        self.diverts = Diverts(
            MemoryBindings(),
            lock=asyncio.Lock(),
            syntax=DEFAULT_SYNTAX,
            on_changed=lambda _: asyncio.sleep(0),
        )
        self.jms = JmsAdministration(JmsObjects(MemoryBindings(), self, lock=asyncio.Lock()), self)

    def count_error(self, kind: str) -> None:
        self.errors[kind] += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.background = asyncio.get_running_loop().create_task(work)

    @property
    def logins(self) -> Logins | None:
        return self.own_logins if self.is_started else None

    def statistics(self) -> states.BrokerStatistics:
        return states.BrokerStatistics(
            is_ready=not self.not_ready_reason,
            not_ready_reason=self.not_ready_reason,
            uptime_s=1.5,
            listeners=(
                states.ListenerState(
                    name="all",
                    host="127.0.0.1",
                    port=61616,
                    protocols=("stomp",),
                    is_tls=False,
                    connections=1,
                ),
            ),
            connections_total=3,
            frames=12,
            messages_in=10,
            messages_out=9,
            messages_acknowledged=8,
            errors={"header-count": 2},
            logins_refused=1,
            logins_delayed=2,
            transactions=BranchStatistics(
                prepared=2, quarantined=1, heuristic=3, oldest_prepared_s=1.5, timed_out=6
            ),
            duplicates_discarded=4,
            duplicate_ids=5,
            messages_dropped=0,
            journal_waiters=self.journal_waiters,
            paging=PAGING,
            mqtt=MqttStatistics(
                sessions=5,
                sessions_connected=2,
                sessions_durable=3,
                sessions_expired=1,
                retained_messages=4,
                wills_waiting=1,
                wills_sent=3,
            ),
            fates=FateStatistics(
                dead=31,
                dead_dropped=32,
                expired=33,
                expired_dropped=34,
                scheduled=0,
                delayed=35,
                dead_kept=36,
                unmovable=38,
                unreadable_parts=37,
            ),
            slow_consumers=SlowConsumerStatistics(detected=3, killed=2),
            messages_unrouted=12,
            messages_unrouted_by_address={"tasks": 10, "news": 2},
            filter_waits=0,
            journal=self.journal,
            naming=NamingStatistics(
                permissions_refused=17,
                permissions_withheld=19,
                throttled=18,
                addresses_max=100,
                queues_max=50,
                refused=7,
                addresses_deleted=8,
                queues_deleted=9,
            ),
            memory=MEMORY,
            large=self.large,
        )

    def image_statistics(self) -> ImageStatistics:
        return ImageStatistics(4, 3, 128, 2, 0, 0, 7, 7, 70, 7000, 5000)

    def journal_files(self, after_id: int, limit: int) -> list[FileUse]:
        ids = [number for number in (1, 2, 10) if number > after_id]
        return [
            FileUse(id=number, name=f"activemq-data-{number}.hq", state="ahead", size_bytes=1 << 20)
            for number in ids[:limit]
        ]

    def queue_names(self) -> list[str]:
        return sorted(self.queue_states)

    def queue(self, name: str) -> states.QueueState | None:
        return self.queue_states.get(name)

    def check_owner(self, queue: str, user: str) -> None:
        if self.owned.get(queue, user) != user:
            raise NotOwner(user, queue)

    def address_names(self) -> list[str]:
        return sorted(self.address_types)

    def address(self, name: str) -> states.AddressState | None:
        if name not in self.address_types:
            return None
        queues = tuple(q.name for q in self.queue_states.values() if q.address == name)
        types = tuple(sorted(str(kind) for kind in self.address_types[name]))
        return states.AddressState(
            name=name,
            routing_types=types,
            is_auto_created=False,
            is_paused=name in self.paused_addresses,
            queues=queues,
            messages=0,
            messages_unrouted=2,
            memory=self.address_memory(name),
        )

    def address_settings(self, name: str) -> list[EffectiveSetting]:
        return AddressSettingsTable(self.configuration.address_settings).effective(name)

    def stalls(self, limit: int) -> list[StalledPlace]:
        return self.stalled[:limit]

    def stall_counts(self) -> tuple[dict[str, int], dict[str, int]]:
        counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for place in (*self.stalled, *self.moving):
            counts[place.kind == "address"][str(place.stall.reason)] += 1
        return dict(counts[0]), dict(counts[1])

    async def read_oldest(self, names: Iterable[str]) -> None:
        pass

    def has_metrics(self, address: str) -> bool:
        return address not in self.without_metrics

    def address_memory(self, name: str) -> AddressMemoryState | None:
        return ADDRESS_MEMORY if name == ADDRESS_MEMORY.name else None

    def has_address(self, name: str) -> bool:
        return name in self.address_types

    def has_queue(self, name: str) -> bool:
        return name in self.queue_states

    async def end_sessions(self, address: str) -> int:
        return 0

    def queues_of(self, address: str) -> list[str]:
        return [q.name for q in self.queue_states.values() if q.address == address]

    def check_unused(self, name: str) -> None:
        if self.queue_states[name].messages:
            raise RemoteProtocolError(f"the queue {name} is in use")

    def duplicates(self, name: str, limit: int) -> DuplicateState:
        newest = tuple(self.duplicate_ids.get(name, ()))
        return DuplicateState(name, 100, len(newest), 2, newest[:limit])

    async def clear_duplicates(self, name: str) -> int:
        self._fail()
        return len(self.duplicate_ids.pop(name, ()))

    def connections(self) -> list[states.ConnectionState]:
        return self.connection_states

    def close_connection(self, number: int) -> states.ConnectionState | None:
        for state in self.connection_states:
            if state.id == number:
                self.connection_states.remove(state)
                return state
        return None

    def consumers(self) -> list[states.ConsumerStatistics]:
        return self.consumer_states

    async def create_address(self, name: str, routing_types: set[RoutingType]) -> object:
        self._fail()
        self.address_types.setdefault(name, set()).update(routing_types)
        return self.address(name)

    async def delete_address(self, name: str) -> None:
        self.drop_address(name)

    def bound_keys(self, address: str) -> list[str]:
        return [f"address/{address}"]

    async def wait_removed(self, *keys: str) -> None:
        pass

    def drop_address(self, name: str) -> None:
        if any(queue.address == name for queue in self.queue_states.values()):
            raise RemoteProtocolError(f"the address {name} has queues", cure="delete them first")
        del self.address_types[name]

    async def compile_filter(self, text: str) -> None:
        if text:
            self.filters.append(text)

    async def create_queue(
        self,
        name: str,
        address: str,
        routing_type: RoutingType = RoutingType.ANYCAST,
        *,
        is_durable: bool = True,
        wishes: QueueWishes = NO_WISHES,
    ) -> object:
        self._fail()
        found = self.queue_states.get(name)
        if found is not None and found.address != address:
            raise RemoteProtocolError(f"the queue {name} belongs to the address {found.address}")
        await self.create_address(address, {routing_type})
        made = queue_state(
            name,
            address=address,
            routing_type=str(routing_type),
            is_durable=is_durable,
            **wished_values(wishes),
        )
        return self.queue_states.setdefault(name, made)

    async def delete_queue(self, name: str, *, is_forced: bool = False) -> int:
        return self.drop_queue(name, is_forced=is_forced)

    def drop_queue(self, name: str, *, is_forced: bool = False) -> int:
        messages = self.queue_states[name].messages
        if messages and not is_forced:
            raise RemoteProtocolError(
                f"the queue {name} is in use", measured=f"{messages} messages"
            )
        del self.queue_states[name]
        return messages

    async def purge_queue(self, name: str) -> int:
        self._fail()
        state = self.queue_states[name]
        self.queue_states[name] = replace(state, messages=state.delivering, ready=0)
        return state.ready

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


def failed_writer() -> WriterFailed:
    """The failure of a journal whose disk gave an error."""
    return WriterFailed("a write failed", where="activemq-data-1.hq:8192")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class AdminRig:
    """The listener at work; `call` asks it."""

    def __init__(self, broker: MemoryBroker, port: int) -> None:
        self.broker = broker
        self.port = port

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        login: tuple[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        if login is not None:
            sent["Authorization"] = basic(*login)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.call("GET", path, **options)


def basic(name: str, password: str) -> str:
    """Value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def users_with_roles() -> dict[str, User]:
    """`root` is an administrator, `alice` is not; both have the password `secret`."""
    root = make_user("root", "secret", roles=("admin",), iterations=4096)
    return {"root": root, "alice": make_user("alice", "secret", iterations=4096)}


@contextmanager
def admin_rig(
    broker: MemoryBroker | None = None, *, host: str = "127.0.0.1", **settings: Any
) -> Iterator[AdminRig]:
    """Run the listener until the end of the block."""
    broker = broker or MemoryBroker()
    started = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        made = Admin(host=host, port=0, **settings)
        server = AdminServer(broker, made, has_users=bool(broker.users))
        async with server.running():
            server.begin()
            await server.wait_served()
            found["port"], broker.admin_server = server.port, server
            started.set()
            await found["stop"].wait()

    def run() -> None:
        try:
            product_loop.run(serve())
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert started.wait(START_S)
        assert "port" in found, "the listener did not start"
        yield AdminRig(broker, found["port"])
    finally:
        if not found["loop"].is_closed():
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(START_S)
        assert not thread.is_alive(), "the listener did not stop"

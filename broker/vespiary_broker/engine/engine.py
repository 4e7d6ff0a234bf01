"""The engine as one thing: core, tables, dispatch and logins of one broker.

Owns nothing but the way the parts are put together. Called by `app`, which makes it, and by the
server's sessions and the admin API, which use its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from vespiary_broker.engine.address_memory import NO_LIMITS, AddressMemory, MemoryLimits
from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.automatic_deletion import Reaper
from vespiary_broker.engine.branches import Branches, TransactionTimes
from vespiary_broker.engine.clocks import Clocks
from vespiary_broker.engine.core import Core
from vespiary_broker.engine.dead_letters import DeadLetters
from vespiary_broker.engine.delivery_counts import CountRules
from vespiary_broker.engine.dispatch import Dispatcher, LoadSlab
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.fates import Fates
from vespiary_broker.engine.fences import Fences
from vespiary_broker.engine.full_disk import FullDisk
from vespiary_broker.engine.large_bodies import LargeBodies, Quarantine
from vespiary_broker.engine.logins import Logins
from vespiary_broker.engine.moves import Mover
from vespiary_broker.engine.naming import DEFAULT_RULES, NamingRules
from vespiary_broker.engine.oldest_messages import OldestMessages
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.ports import Bindings, Event, Lock, Spawn
from vespiary_broker.engine.queue_rates import QueueRates
from vespiary_broker.engine.redelivery import Redelivery
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.slow_consumers import SlowConsumers
from vespiary_broker.engine.streams import Streams
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.engine.users import User
from vespiary_broker.engine.views import show_released
from vespiary_spec.settings import AddressSettings


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of the engine of one broker.

    Attributes:
        core: The core.
        registry: Addresses and queues.
        dispatcher: Gives messages to consumers.
        duplicates: Duplicate ids that addresses have seen.
        logins: Decides who comes in.
        full_disk: Decides about messages while the disk is full.
        memory: What messages take, and decides about those to full addresses.
        branches: Branches of distributed transactions.
        transaction_bytes_max: Bytes that the open transactions of one connection may buffer.
        transaction_scan_period_s: Seconds between two looks for transactions that take too long.
        quarantine: Holds messages whose body is lost.
        reaper: Deletes what is to go by itself.
        fates: Decides about messages that are not simply given to the next consumer.
        slow_consumers: Measures consumers.
        streams: Queues that are read by ranges.
        fences: Which staged tries of a batch count.
        rates: How fast messages come into queues and leave them.
        oldest: When the oldest messages of queues came.
    """

    core: Core
    registry: Registry
    dispatcher: Dispatcher
    duplicates: DuplicateIds
    logins: Logins
    full_disk: FullDisk
    memory: AddressMemory
    branches: Branches
    transaction_bytes_max: int
    transaction_scan_period_s: float
    quarantine: Quarantine
    streams: Streams
    fences: Fences
    reaper: Reaper
    rates: QueueRates
    fates: Fates
    slow_consumers: SlowConsumers
    oldest: OldestMessages

    @property
    def turn_time(self) -> TurnTime:
        """What a turn of the event loop has for filters and selectors."""
        return self.registry.switches.turn_time

    def restore(self) -> None:
        """Take what exists from the bindings and the core, each after what it stands on.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        self.registry.restore()
        self.branches.restore()
        self.streams.restore()
        self.fences.restore()


def make_engine(
    core: Core,
    bindings: Bindings,
    *,
    lock: Lock,
    make_event: Callable[[], Event],
    duplicates: DuplicateIds,
    is_persistent: bool = True,
    spawn: Spawn,
    load_slab: LoadSlab,
    users: Callable[[], Mapping[str, User]],
    logins: Logins | None = None,
    address_settings: Mapping[str, AddressSettings],
    memory_limits: MemoryLimits = NO_LIMITS,
    transaction_bytes_max: int,
    transaction_room_bytes: int,
    transaction_times: TransactionTimes = TransactionTimes(),  # noqa: B008  (it is immutable)
    clocks: Clocks = Clocks(),  # noqa: B008  (it is immutable)
    large_bodies: LargeBodies | None = None,
    naming: NamingRules = DEFAULT_RULES,
    expiry_scan_period_ms: int = 30_000,
    count_rules: CountRules = CountRules(),  # noqa: B008  (it is immutable)
    permissions: Permissions | None = None,
) -> Engine:
    """Put an engine together; `restore` and `configure` of its parts are the caller's to call.

    Args:
        core: The core, recovered.
        bindings: The bindings journal.
        lock: Held while a definition is made.
        make_event: Makes an event, as `asyncio.Event` does.
        duplicates: Filled by the journal's recovery.
        is_persistent: Whether anything is journalled; False makes every queue volatile.
        spawn: Runs a coroutine in the background.
        load_slab: Begins to read a slab that is not in memory.
        users: Returns the users as they are now.
        logins: Checks logins; None: everybody comes in without one while there are no users.
        address_settings: Settings by match.
        memory_limits: What the messages of all addresses may take.
        transaction_bytes_max: Bytes that the open transactions of one connection may buffer.
        transaction_room_bytes: Room in the journal that each transaction finds sooner or later.
        transaction_times: How long transactions may take.
        clocks: The clocks.
        large_bodies: Bodies in files; None: there are none.
        naming: Rules about what has a name.
        expiry_scan_period_ms: Time between two scans for expired messages; 0 or less: none.
        count_rules: Which deliveries are counted in the journal, and when.
        permissions: What users may; None: those of `users`, with the default settings.
    """
    login, settings = logins or Logins(users), AddressSettingsTable(address_settings, naming.syntax)
    quarantine, memory = Quarantine(core), AddressMemory(core, settings, memory_limits)
    registry = Registry(
        core, bindings, lock=lock, make_event=make_event, spawn=spawn, settings=settings,
        transaction_room_bytes=transaction_room_bytes, is_persistent=is_persistent,
        large_bodies=large_bodies, quarantine=quarantine, memory=memory, naming=naming,
        permissions=permissions or Permissions(users=users), is_open=lambda: login.is_open,
    )  # fmt: skip
    branches = Branches(core, registry, bindings, duplicates, clock_ms=clocks.wall_ms,
        timeout_s=transaction_times.timeout_s, branch_bytes_max=transaction_bytes_max)  # fmt: skip
    fates = _make_fates(core, registry, memory, spawn, load_slab, clocks, expiry_scan_period_ms)
    duplicates.start(core, registry.addresses.__contains__)
    dispatcher = Dispatcher(core, registry.queues_by_id, load_slab, large_bodies, quarantine,
        fates, count_rules, turn_time=registry.switches.turn_time)  # fmt: skip
    streams, fences = _make_streams(core, bindings, registry, branches, naming, clocks)
    return Engine(
        core, registry, dispatcher, duplicates, login, FullDisk(settings), memory, branches,
        transaction_bytes_max, transaction_times.scan_period_s, quarantine, streams, fences,
        Reaper(registry, naming.clock_s, naming.scan_period_s), QueueRates(core, naming.clock_s),
        fates, SlowConsumers(core, registry, settings, naming.clock_s), OldestMessages(core),
    )  # fmt: skip


def _make_streams(
    core: Core,
    bindings: Bindings,
    registry: Registry,
    branches: Branches,
    naming: NamingRules,
    clocks: Clocks,
) -> tuple[Streams, Fences]:
    """Put together what looks after those who read by ranges, and who write by batches."""
    streams = Streams(core, bindings, registry, naming.clock_s)
    branches.on_ending = streams.note_ending
    return streams, Fences(branches, bindings, clocks.wall_ms)


def _make_fates(
    core: Core,
    registry: Registry,
    memory: AddressMemory,
    spawn: Spawn,
    load_slab: LoadSlab,
    clocks: Clocks,
    scan_period_ms: int,
) -> Fates:
    """Put together what looks after messages that come back, wait or expire."""
    mover = Mover(
        core,
        transaction_room_bytes=registry.transaction_room_bytes,
        load_slab=load_slab,
        clock_ms=clocks.wall_ms,
        steady_ms=clocks.steady_ms,
        turn_time=registry.switches.turn_time,
    )
    redelivery = Redelivery(core, registry.settings_for, mover, clocks.steady_ms)
    fates = Fates(
        core, registry.queues_by_id, mover, redelivery,
        load_slab=load_slab, clocks=clocks, scan_period_ms=scan_period_ms,
        turn_time=registry.switches.turn_time,
    )  # fmt: skip
    registry.returns = redelivery
    registry.on_dropped = fates.forget
    registry.judge = fates
    fates.schedule.on_released = partial(show_released, registry.queues_by_id)
    dead_letters = DeadLetters(registry, memory, spawn, fates.place_made, clocks.steady_ms)
    mover.places = registry.unrouted = dead_letters
    return fates

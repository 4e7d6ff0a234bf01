"""The composition root: folders, journals, engine, server, in the right order, and back.

Owns the start and the stop of one broker in this process (`administration` owns what may be done to
it meanwhile). Must never hold a rule of its own: store, engine and server have those. Called by the
CLI and by tests.

Start: volumes verified → bindings read → journal locked and recovered → queues → listeners → ready.
Stop (SIGTERM): no new connections → clients told and disconnected → everything staged made
durable → folders let go. A journal that fails ends the broker: clients are told, exit code 1.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from vespiary_broker.admin.server import AdminServer
from vespiary_broker.app import states
from vespiary_broker.app.administration import Administration
from vespiary_broker.app.aio_room import AioRoom, is_aio_proved
from vespiary_broker.app.configuration_source import ConfigurationSource
from vespiary_broker.app.configured import configure, remove_unconfigured
from vespiary_broker.app.counting_messages import CountingMessages
from vespiary_broker.app.draining import Draining
from vespiary_broker.app.duplicate_ids import make_duplicate_ids
from vespiary_broker.app.early import begin_verification
from vespiary_broker.app.garbage import Garbage
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.journal_options import journal_options
from vespiary_broker.app.large import open_large
from vespiary_broker.app.listening import make_http_listener, make_listeners
from vespiary_broker.app.login_secret import SECRET_NAME, LoginSecret
from vespiary_broker.app.memory import MemoryBindings, memory_limits
from vespiary_broker.app.mqtt import begin_mqtt, restore_mqtt
from vespiary_broker.app.naming import count_rules, naming_rules
from vespiary_broker.app.ownership import exit_code, take_ownership
from vespiary_broker.app.paged_expiry import PagedExpiry, run_paged_expiry
from vespiary_broker.app.paging import begin_paging, open_pager
from vespiary_broker.app.preflight import check_start
from vespiary_broker.app.recovery_progress import RecoveryProgress
from vespiary_broker.app.rehashing import Rehashing
from vespiary_broker.app.reloading import Certified, Reloading, Running
from vespiary_broker.app.start_interruption import StartInterruption
from vespiary_broker.app.tasks import Tasks
from vespiary_broker.app.users_file import MARK_NAME, UsersFile, closed_reason
from vespiary_broker.app.withholding import Withholding
from vespiary_broker.engine.branches import TransactionTimes
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.engine import Engine, make_engine
from vespiary_broker.engine.jms import JmsObjects
from vespiary_broker.engine.logins import Logins, guest
from vespiary_broker.engine.permissions import Permissions
from vespiary_broker.engine.ports import Bindings
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.listener import Timing
from vespiary_broker.store.bindings import BindingsJournal, BindingsParts
from vespiary_broker.store.jms import JmsJournal
from vespiary_broker.store.journal import Journal, open_journal
from vespiary_broker.store.large_messages import LargeMessages
from vespiary_broker.store.lock import wait_for_folder
from vespiary_broker.store.opening import OpeningParts, find_reserve
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.rates import log_write_rates
from vespiary_broker.store.volumes import request
from vespiary_broker.store.volumes.report import Report
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.page import PAGE_BIT
from vespiary_spec.errors import (
    CorruptRecord,
    EngineUnavailable,
    JournalLocked,
    NativeError,
    OwnershipLost,
    PageDamaged,
    VespiaryError,
    WriterFailed,
)
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.security import WildcardSubscriptions
from vespiary_spec.settings import Configuration

Event = dict[str, Any]
T = TypeVar("T")

_TRANSACTION_BYTES_MAX: Final = 8 * 1024 * 1024
_CLOSE_S: Final = 1.0
_LOAD_AGAIN_S: Final = 0.02
_LOAD_FAILED_S: Final = 1.0

log = logging.getLogger(__name__)


class Stores(NamedTuple):
    """The bindings, open, and what the message journal is to be opened with."""

    bindings: BindingsJournal | MemoryBindings
    options: JournalOptions
    parts: OpeningParts


class BrokerApp(Administration):
    """One broker.

    Owner: the event loop that `run` or `running` is awaited on.

    Args:
        configuration: Its configuration.
        base: Replaces `data-directory`; None uses the setting.
        on_event: Called with `listening` for each listener, then with `ready`.
        policy: Which filesystems are taken; None takes the defaults.
        timing: Times that are no settings.
        is_ephemeral: Losing the data was asked for, so volumes in memory are taken.
        waits_for_aio: Wait for AIO requests that the node lacks, rather than take another engine.
        verified: What `early.begin_verification` found, for this configuration, base and policy;
            None: the volumes are verified at the start.
        source: Where the configuration comes from, to be read again; None: from nowhere.
        journal_parts: What the message journal is made of; None takes the real parts.
        bindings_parts: Likewise for the bindings.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        base: Path | None = None,
        on_event: Callable[[Event], None] = lambda _: None,
        policy: FilesystemPolicy | None = None,
        timing: Timing | None = None,
        is_ephemeral: bool = False,
        waits_for_aio: bool = False,
        verified: Future[Report] | None = None,
        source: ConfigurationSource | None = None,
        journal_parts: OpeningParts | None = None,
        bindings_parts: BindingsParts | None = None,
    ) -> None:
        super().__init__(Tasks(self._spawn))
        self.configuration = configuration
        self.data_directory = Path(base or configuration.data_directory).absolute()
        self.report: Report | None = None
        self._base = base
        self._on_event = on_event
        self._policy = policy
        self._timing = timing
        self._begin_verification = partial(
            begin_verification, is_ephemeral=is_ephemeral, waits_for_aio=waits_for_aio
        )
        self._waits_for_aio = waits_for_aio
        self._verified = verified
        self._source = source or ConfigurationSource()
        self._users = self._users_file()
        self._journal_parts = journal_parts
        self._bindings_parts = bindings_parts
        self._started_s = time.monotonic()
        self._stop = asyncio.Event()
        self._room = AioRoom(self._stop, partial(setattr, self, "_not_ready_reason"))
        self._group: asyncio.TaskGroup | None = None
        self._admin: AdminServer | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until SIGTERM, SIGINT, `request_stop` or a failed journal.

        Returns:
            Exit code: 0 after a stop that was asked for, 3 if another broker has the journal now,
            1 after any other failure.

        Raises:
            VespiaryError: The broker could not start; says why.
        """
        loop = asyncio.get_running_loop()
        start = StartInterruption(loop)

        def stop() -> None:
            self.request_stop()
            start.ask()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, self.request_reload)
        try:
            async with self.running():
                start.over()
                await self._stop.wait()
        except (JournalLocked, EngineUnavailable):
            if not self._stop.is_set():  # else it was waiting when it was told to stop
                raise
        finally:
            start.over()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
        return exit_code(self._failure)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerApp]:
        """Start, and stop at the end of the `async with` block.

        Raises:
            VespiaryError: The broker could not start; says why.
        """
        try:
            async with AsyncExitStack() as stack:
                await self._start(stack)
                yield self
        except BaseExceptionGroup as group:
            # Background work handles its own errors: what task groups wrap came from here.
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None

    def request_stop(self) -> None:
        """Let `run` stop the broker."""
        self._not_ready_reason = self._not_ready_reason or "the broker is stopping"
        self._stop.set()

    async def _start(self, stack: AsyncExitStack) -> None:
        configuration = self.configuration
        security = configuration.security
        check_start(configuration, self.data_directory, self._users)
        folders = configuration.directories(self._base)
        self.report = await self._verify()
        self._admin = AdminServer(
            self,
            configuration.admin,
            has_users=bool(self._users.read()) or security.allow_anonymous,
        )
        await stack.enter_async_context(self._admin.running())
        self.report = await self._room.verified(self.report, self._verify)
        options = self._journal_options(folders.journal)
        await self._own(stack, options)
        # Before anything needs space: the bindings may, and the journal is read back once.
        reserve = find_reserve(options, self._ownership.disk)
        await asyncio.to_thread(reserve.release_if_full)
        bindings = await self._wait_for_folder(partial(self._open_bindings, folders.bindings))
        stack.push_async_callback(bindings.close)
        queue_ids = durable_queue_ids(bindings.snapshot())
        duplicates = make_duplicate_ids(configuration)
        progress = RecoveryProgress(partial(setattr, self, "_not_ready_reason"))
        parts = replace(self._ownership.journal_parts, progress=progress.report, reserve=reserve)
        open_it = partial(open_journal, options, queue_ids=queue_ids, kept=duplicates, parts=parts)
        journal = await self._room.opened(partial(self._wait_for_folder, open_it))
        stack.push_async_callback(journal.close)
        self._journal = journal
        await self._open_paging(stack, folders.paging, journal)
        disk = self._ownership.disk
        large = await open_large(stack, configuration, folders.large_messages, journal, disk=disk)
        self._group = await stack.enter_async_context(asyncio.TaskGroup())
        engine = self._make_engine(journal, bindings, duplicates, large, options)
        self._engine = engine
        engine.restore()
        await configure(engine, configuration, self._load_slab)
        cycle = self._cycle = Cycle(engine, journal, self._spawn, large)
        self._join(engine, cycle, journal, bindings)
        stack.callback(cycle.close)
        await remove_unconfigured(engine, configuration)
        await self._open_jms(stack, folders.jms)
        begin_mqtt(stack, cycle)
        stack.push_async_callback(self._disconnect)
        self._garbage = Garbage(cycle.loop.call_soon_threadsafe)
        stack.callback(self._garbage.stop)
        cycle.start()
        begin_paging(self._pager, engine, cycle)
        Withholding(engine, cycle, journal, self._pager)
        self._begin_background(stack, engine, cycle, journal)
        await self._listen(cycle, options.record_limit_bytes)
        self._become_ready(journal)

    def _make_engine(
        self,
        journal: Journal,
        bindings: Bindings,
        duplicates: DuplicateIds,
        large: LargeMessages | None,
        options: JournalOptions,
    ) -> Engine:
        """Return the engine as the configuration has it, on what was recovered."""
        configuration = self.configuration
        security, naming = configuration.security, naming_rules(configuration)
        permissions = Permissions(
            syntax=naming.syntax,
            users=self._users.users,
            anonymous_role=security.anonymous_role,
            is_filtering=security.wildcard_subscriptions is WildcardSubscriptions.FILTER,
        )
        return make_engine(
            journal.core,
            bindings,
            lock=asyncio.Lock(),
            make_event=asyncio.Event,
            duplicates=duplicates,
            is_persistent=configuration.persistence_enabled,
            spawn=self._spawn,
            load_slab=self._load_slab,
            users=self._users.users,
            logins=Logins(
                self._users.users,
                closed_reason=self._closed_reason,
                anonymous=guest(security.anonymous_role) if security.allow_anonymous else None,
                secret=LoginSecret(self.data_directory / SECRET_NAME),
            ),
            address_settings=configuration.address_settings,
            permissions=permissions,
            memory_limits=memory_limits(configuration),
            transaction_bytes_max=min(_TRANSACTION_BYTES_MAX, configuration.journal_file_size),
            transaction_room_bytes=options.transaction_room_bytes,
            transaction_times=TransactionTimes(
                configuration.transaction_timeout / 1000,
                configuration.transaction_timeout_scan_period / 1000,
            ),
            expiry_scan_period_ms=configuration.message_expiry_scan_period,
            large_bodies=large,
            naming=naming,
            count_rules=count_rules(configuration),
        )

    def _join(self, engine: Engine, cycle: Cycle, journal: Journal, bindings: Bindings) -> None:
        """Have the parts tell one another what they have to know."""
        engine.registry.retroactive.touch = cycle.touch
        journal.on_durable = cycle.on_durable
        journal.on_space = cycle.on_space
        journal.on_blocked = cycle.on_blocked
        journal.on_failed = self._on_failed
        self._draining = Draining(
            *(engine, cycle, journal, self._pager, bindings),
            listeners=lambda: self._listeners,
            spawn=self._spawn,
            journal_id=journal.readable.journal_id.hex()
            if isinstance(journal, MessageJournal)
            else "",
        )
        cycle.passwords.on_outdated = Rehashing(
            self._users.path, engine.logins, cycle.passwords, self._spawn
        ).begin
        restore_mqtt(cycle, bindings, self.configuration, self._load_slab)

    async def open_stores(self, stack: AsyncExitStack) -> Stores:
        """Verify the volumes and open the bindings, as a start does; for work without a broker.

        Args:
            stack: Closes what was opened.

        Raises:
            VespiaryError: A volume is refused, or another process has the folder.
        """
        folders = self.configuration.directories(self._base)
        self.report = await self._verify()
        options = self._journal_options(folders.journal)
        await self._own(stack, options)
        bindings = await self._open_bindings(folders.bindings)
        stack.push_async_callback(bindings.close)
        return Stores(bindings, options, self._ownership.journal_parts)

    async def _verify(self) -> Report:
        """Verify the volumes before anything of the store is opened."""
        found = self._verified or self._begin_verification(
            self.configuration, self._base, self._policy
        )
        self._verified = None  # it holds once
        report = await asyncio.wrap_future(found)
        report.raise_if_refused()
        for sentence in report.sentences:
            log.warning("volume: %s", sentence)
        return report

    async def _listen(self, cycle: Cycle, record_bytes_max: int) -> None:
        has_large = cycle.large is not None
        parts = self.configuration, record_bytes_max, self._timing
        for listener in make_listeners(*parts, has_large=has_large):
            await listener.start(cycle)
            self._listeners += (listener,)
            state = states.listener_state(listener)
            self._tell_listening(state.name, state.protocols, state.host, state.port)
        if self._admin is not None:
            self._tell_listening("http", ("http",), self._admin.host, self._admin.port)
            if (probe_port := self._admin.probe_port) is not None:
                self._tell_listening("probes", ("http",), self._admin.host, probe_port)
            http = make_http_listener(*parts, has_large=has_large, port=self._admin.port)
            if http is not None:
                self._listeners += (http,)
                self._admin.on_websocket = partial(http.adopt, cycle)

    def _tell_listening(self, name: str, protocols: tuple[str, ...], host: str, port: int) -> None:
        log.info("listening name=%s host=%s port=%d", name, host, port)
        event = {"event": "listening", "name": name, "protocols": list(protocols)}
        self._on_event(event | {"host": host, "port": port})

    @property
    def _certified(self) -> tuple[Certified, ...]:
        """What shows certificates: the acceptors, and the HTTP port if it speaks TLS."""
        http = () if self._admin is None or self._admin.tls is None else (self._admin.tls,)
        return (*(each for each in self._listeners if not each.is_http), *http)

    def _begin_counting(self) -> None:
        """Let message counters be sampled from now on."""
        assert self._group is not None
        self._counters = CountingMessages(self.engine, self.configuration)
        self._sampling = self._group.create_task(self._guard(self._counters.run()))

    def _begin_reloading(self) -> None:
        """Let changed files be taken from now on."""
        assert self._group is not None
        assert self._cycle is not None
        running = Running(
            engine=self.engine,
            cycle=self._cycle,
            pager=self._pager,
            counters=self.counters,
            certified=self._certified,
            users=self._users,
        )
        taken = partial(setattr, self, "configuration")
        self._reloading = Reloading(self._source, self.configuration, running, taken)
        self._watching = self._group.create_task(self._guard(self._reloading.run()))

    def request_reload(self) -> None:
        """Read configuration, users and certificates again, in the background."""
        if self._reloading is not None and not self._stop.is_set():
            self._spawn(self._reloading.reload())

    def _become_ready(self, journal: Journal) -> None:
        self._begin_counting()
        self._begin_reloading()
        self._ready_s = time.monotonic()
        self._not_ready_reason = ""
        seconds = round(self._ready_s - self._started_s, 3)
        self._garbage.start()
        if journal.fallback_reason:
            log.warning("journal engine: %s", journal.fallback_reason)
        log.info(
            "ready seconds=%.3f engine=%s durability=%s data=%s",
            seconds,
            journal.engine_name,
            journal.durability,
            self.data_directory,
        )
        self._on_event(
            {
                "event": "ready",
                "seconds": seconds,
                "engine": journal.engine_name,
                "durability": str(journal.durability),
                "data": str(self.data_directory),
            }
        )
        if self._admin is not None:
            self._admin.begin()

    async def _disconnect(self) -> None:
        """Stop listening, tell the clients, and wait until they are gone."""
        self.tasks.close()
        for task in (self._sampling, self._watching):
            if task is not None:
                task.cancel()
        self._not_ready_reason = self._not_ready_reason or "the broker is stopping"
        log.info("stopping connections=%d", sum(len(x.connections) for x in self._listeners))
        if self._cycle is not None:
            self._cycle.is_stopping = True
        if self._draining is not None:
            self._draining.abort()
        if self._admin is not None:
            self._admin.on_websocket = None
        for listener in self._listeners:
            listener.stop()
        for listener in self._listeners:
            for connection in list(listener.connections):
                connection.refuse(self._not_ready_reason)
        for listener in self._listeners:
            await listener.wait_closed(_CLOSE_S)

    def _on_failed(self, failure: WriterFailed) -> None:
        """Tell everybody that nothing will be confirmed any more, and end."""
        self._failure = self._failure or failure  # what comes behind the first follows from it
        self._not_ready_reason = str(self._failure)
        if self._cycle is not None:
            self._cycle.fail(str(self._failure))
        self._stop.set()

    async def _own(self, stack: AsyncExitStack, options: JournalOptions) -> None:
        """Make the journal this broker's, before anything of the store is opened."""
        take = partial(
            take_ownership,
            *(stack, options),
            lease_s=self.configuration.journal_ownership_lease / 1000,
            stop=self._stop,
            on_wait=partial(setattr, self, "_not_ready_reason"),
            journal_parts=self._journal_parts,
            bindings_parts=self._bindings_parts,
        )
        self._ownership = await self._wait_for_folder(take)
        self._ownership.tell(self._on_ownership_lost)

    def _on_ownership_lost(self, error: OwnershipLost) -> None:
        """Fence the journal before its writes fail, so that clients are told why."""
        if isinstance(self._journal, MessageJournal):
            self._journal.fail(error)
        if self._failure is None:  # it is not joined yet, or not open
            self._on_failed(error)

    # --- parts ------------------------------------------------------------------------------------

    def _journal_options(self, folder: Path) -> JournalOptions:
        return journal_options(
            self.configuration,
            folder,
            self._base,
            is_direct=self._is_direct(request.JOURNAL),
            is_in_memory=self._is_in_memory(request.JOURNAL),
            is_waited_for=self._waits_for_aio and is_aio_proved(self.report),
        )

    async def _open_paging(self, stack: AsyncExitStack, folder: Path, journal: Journal) -> None:
        is_direct = self._is_direct(request.PAGING)
        self._pager = await open_pager(
            *(stack, self.configuration, folder, journal),
            is_direct=is_direct,
            disk=self._ownership.disk,
        )

    async def _open_bindings(self, folder: Path) -> BindingsJournal | MemoryBindings:
        settings = self.configuration
        if not settings.persistence_enabled:
            return MemoryBindings()
        bindings = await BindingsJournal.open(
            folder,
            create_directory=settings.create_bindings_dir,
            is_direct=self._is_direct(request.BINDINGS),
            parts=self._ownership.bindings_parts,
        )
        bindings.on_failed = self._on_failed
        return bindings

    async def _open_jms(self, stack: AsyncExitStack, folder: Path) -> None:
        """Read the JMS journal back, if there is one."""
        settings = self.configuration
        journal: JmsJournal | MemoryBindings = MemoryBindings()
        if settings.persistence_enabled:
            is_own = folder != settings.directories(self._base).bindings
            journal = JmsJournal(
                folder,
                create_directory=settings.create_bindings_dir,
                is_direct=self._is_direct(request.JMS if is_own else request.BINDINGS),
                on_failed=self._on_failed,
                parts=self._ownership.bindings_parts,
            )
            await journal.open_existing()
            stack.push_async_callback(journal.close)
        objects = JmsObjects(journal, self.engine.registry, lock=asyncio.Lock())
        await objects.restore()
        self._jms = JmsAdministration(objects, self)

    def _is_direct(self, volume: str) -> bool:
        """Return whether direct I/O may be used on a volume."""
        return self.report is None or self.report.takes_direct_io(volume)

    def _is_in_memory(self, volume: str) -> bool:
        """Return whether a volume is memory, so that a flush survives no power cut."""
        return self.report is not None and self.report.is_in_memory(volume)

    async def _wait_for_folder(self, open_it: Callable[[], Awaitable[T]]) -> T:
        """Open a journal; wait as long as the settings say while another broker has its folder."""
        timeout_ms = self.configuration.journal_lock_acquisition_timeout
        reason = self._not_ready_reason
        opened = await wait_for_folder(
            open_it,
            timeout_s=None if timeout_ms < 0 else timeout_ms / 1000,
            stop=self._stop,
            on_wait=partial(setattr, self, "_not_ready_reason"),
        )
        if not self._stop.is_set():
            self._not_ready_reason = reason
        return opened

    def _users_file(self) -> UsersFile:
        name = self.configuration.security.users_file
        return UsersFile(self.data_directory / (name or "users"), self.data_directory / MARK_NAME)

    def _closed_reason(self) -> str:
        return closed_reason(
            self.configuration,
            have_existed=self._users.have_existed,
            has_rules=self.engine.registry.permissions.is_on,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None
        task = self._group.create_task(self._guard(work))
        # A task that is cancelled before its first step, as by a start that fails, leaves the work
        # unawaited, and Python warns of it.
        task.add_done_callback(lambda _: work.close())

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Run background work; its failure is logged and ends nothing else."""
        try:
            await work
        except VespiaryError as error:
            log.error("background work failed reason=%r", str(error))  # noqa: TRY400
        except Exception:
            log.exception("background work failed")

    def _begin_background(
        self, stack: AsyncExitStack, engine: Engine, cycle: Cycle, journal: Journal
    ) -> None:
        """Begin what is done every period, if it is wanted.

        Write rates are logged; pages are looked at for messages that have expired.
        """
        assert self._group is not None
        self._spawn(self.streams.settle_all())
        self._spawn(self.fences.finish())
        if self.configuration.log_journal_write_rate:
            rates = self._group.create_task(log_write_rates(journal.statistics))
            stack.callback(rates.cancel)
        period_s = self.configuration.message_expiry_scan_period / 1000
        if self._pager is None or not isinstance(journal, MessageJournal) or period_s <= 0:
            return
        expiry = PagedExpiry(engine, journal, self._pager, cycle.touch, period_s=period_s)
        task = self._group.create_task(run_paged_expiry(expiry), name="paged-expiry")
        stack.callback(task.cancel)

    def _load_slab(self, file_id: int, slab: int) -> None:
        assert self._journal is not None
        self._spawn(self._load(self._journal, file_id, slab))

    async def _load(self, journal: Journal, file_id: int, slab: int) -> None:
        """Read a slab back, then serve the queues that waited for it.

        A slab that does not verify is logged, and its queue waits: nothing behind it is delivered
        out of order, and nothing is lost.
        """
        if self._pager is not None and file_id & PAGE_BIT:
            await self._pager.wait_open(file_id & ~PAGE_BIT)
        try:
            is_loaded = await journal.load_slab(file_id, slab)
        except NativeError as error:
            # Clients may hold all descriptors: that says nothing of what stands there.
            log.error("a part of a queue was not read, and is tried again: %s", error)  # noqa: TRY400
            self.engine.fates.slab_not_read(file_id, slab)
            if self._cycle is not None:
                self._cycle.touch()
            await asyncio.sleep(_LOAD_FAILED_S)
        except (CorruptRecord, PageDamaged) as error:
            # It will not come: its queue waits there, and everybody else goes on.
            if self.engine.fates.slab_lost(file_id, slab):
                log.error("messages cannot be read, and stay where they are: %s", error)  # noqa: TRY400
                if self._pager is not None and file_id & PAGE_BIT:
                    self._pager.closed_pages.unreadable.add(file_id & ~PAGE_BIT)
                    self.engine.dispatcher.page_damaged(file_id, slab)
            if self._cycle is not None:
                self._cycle.touch()
            return
        else:
            if not is_loaded:  # it came by another way, or there is no memory for it now
                await asyncio.sleep(_LOAD_AGAIN_S)
        self.engine.dispatcher.slab_loaded(file_id, slab)
        self.engine.fates.slab_loaded(file_id, slab)
        if self._cycle is not None:
            self._cycle.touch()

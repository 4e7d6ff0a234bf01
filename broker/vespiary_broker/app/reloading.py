"""Taking a changed configuration, changed users and changed certificates without a restart.

Owns: when files are read again (they changed, SIGHUP, the API), what of them is taken, and what is
said about it. A file with anything wrong in it changes nothing. What needs a restart is named and
left alone. Must never hold a rule of the engine. Made by `broker`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from vespiary_broker.app.configuration_source import ConfigurationSource, digests_of
from vespiary_broker.app.counting_messages import CountingMessages
from vespiary_broker.app.duplicate_ids import sizes_of
from vespiary_broker.app.file_watch import FileWatch
from vespiary_broker.app.filters import compile_filters
from vespiary_broker.app.naming import naming_rules
from vespiary_broker.app.paging import pages_changed
from vespiary_broker.app.users_file import UsersFile
from vespiary_broker.engine import reconfiguration
from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.logins import LOCKOUT_CURE
from vespiary_broker.server.certificates import Certificate
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.removed_users import close_removed
from vespiary_broker.store.paging.pager import Pager
from vespiary_spec.changes import differences, merged
from vespiary_spec.errors import ConfigError, VespiaryError
from vespiary_spec.model import Change
from vespiary_spec.settings import Configuration

PERIOD_S: Final = 1.0
"""Seconds between two looks at the files."""
EXPIRY_WARNING_S: Final = 30 * 24 * 3600
"""A certificate that ends sooner is warned about when it is taken."""
_READ_TRIES: Final = 3

log = logging.getLogger(__name__)


class Certified(Protocol):
    """What shows a certificate to new connections, if it speaks TLS."""

    @property
    def name(self) -> str:
        """Name of the acceptor, or `http`."""

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The files that its TLS comes from; none for one that speaks in clear."""

    @property
    def certificate(self) -> Certificate | None:
        """What ends first of its certificates; None without TLS."""

    @property
    def certificate_refused(self) -> str:
        """Why the files as they are now were not taken; empty if they were."""

    async def reload_tls(self) -> bool:
        """Take the files as they are now; return whether they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateState:
    """The certificate of an acceptor.

    Attributes:
        acceptor: Name of the acceptor.
        subject: Whose it is.
        not_after_s: When it ends, in seconds since 1970.
        expires_in_s: Seconds until then; negative when it has ended.
        fingerprint: SHA-256 of it.
        refused: Why the files as they are now were not taken; empty if they were.
    """

    acceptor: str
    subject: str
    not_after_s: int
    expires_in_s: float
    fingerprint: str
    refused: str


@dataclass(slots=True)
class ReloadState:
    """What holds, and what became of the last reload.

    Attributes:
        digests: SHA-256 of the configuration files that are in effect, by path.
        loaded_at_ms: When they were taken, in milliseconds since 1970.
        taken: Reloads that were taken since the start.
        failed: Reloads that were refused since the start.
        refused: Why the files as they are now were not taken; empty if they were.
        waits_for_restart: Settings of the files that come into effect with the next start.
        kept: What is not configured any more and stays, such as `queue orders`.
    """

    digests: dict[str, str]
    loaded_at_ms: int
    taken: int = 0
    failed: int = 0
    refused: str = ""
    waits_for_restart: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The parts of a broker that take another configuration."""

    engine: Engine
    cycle: Cycle
    pager: Pager | None
    counters: CountingMessages
    certified: tuple[Certified, ...]
    users: UsersFile


class Reloading:
    """Takes what changed.

    Attributes:
        state: What holds now.
        configuration: The configuration in effect.

    Args:
        source: Where the configuration comes from.
        configuration: The configuration that the broker started with.
        running: The broker's parts.
        on_taken: Called with each configuration that is in effect from now on.
    """

    def __init__(
        self,
        source: ConfigurationSource,
        configuration: Configuration,
        running: Running,
        on_taken: Callable[[Configuration], None] = lambda _: None,
    ) -> None:
        self.configuration = configuration
        self.state = ReloadState(dict(source.digests), _now_ms())
        self._source = source
        self._running = running
        self._on_taken = on_taken
        self._lock = asyncio.Lock()
        tls = (path for listener in running.certified for path in listener.tls_files)
        self._watch = FileWatch({*source.files, *tls}, source.optional)
        self._is_first = True
        running.users.on_changed = self._users_changed
        self._warn_of_lockout()
        for listener in running.certified:
            _tell_certificate(listener)

    # --- when -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except Exception:
                log.exception("a look at changed files failed; it goes on with the next one")

    async def look(self) -> None:
        """Take what has changed since it was taken."""
        self._running.users.users()
        changed = self._watch.settled()
        if self._is_first:  # the files may have changed between their reading and the first look
            self._is_first = False
            changed |= frozenset(self._source.files)
        if not changed:
            return
        async with self._lock:
            for listener in self._running.certified:
                if not changed.isdisjoint(listener.tls_files):
                    await self._take_tls(listener)
            if not changed.isdisjoint(self._source.files):
                is_new = digests_of(self._source.files) != self.state.digests
                if is_new or self.state.refused:
                    await self._take_configuration()
        self._watch.take(changed)

    async def reload(self) -> None:
        """Read everything again, whether it seems to have changed or not.

        Raises:
            ConfigError: The configuration was refused, and nothing of it has changed; or a
                certificate or the users were.
        """
        async with self._lock:
            for listener in self._running.certified:
                if listener.tls_files:
                    await self._take_tls(listener)
            await self._take_configuration()
        self._running.users.users()
        refused = [self.state.refused, self._running.users.refused]
        refused += [listener.certificate_refused for listener in self._running.certified]
        if any(refused):
            raise ConfigError("; ".join(sentence for sentence in refused if sentence))

    # --- what is there --------------------------------------------------------------------------

    @property
    def users(self) -> UsersFile:
        """The users file."""
        return self._running.users

    def certificates(self) -> list[CertificateState]:
        """Return the certificates of all acceptors with TLS."""
        now_s = time.time()
        return [
            CertificateState(
                acceptor=listener.name,
                subject=found.subject,
                not_after_s=found.not_after_s,
                expires_in_s=round(found.not_after_s - now_s, 3),
                fingerprint=found.fingerprint,
                refused=listener.certificate_refused,
            )
            for listener in self._running.certified
            if (found := listener.certificate) is not None
        ]

    # --- how ------------------------------------------------------------------------------------

    def _users_changed(self) -> None:
        """Have changed users count for connections that are open, once whoever asked is done.

        A file without users may be one that is just being written: it has a second.
        """
        self._warn_of_lockout()
        is_empty = not self._running.users.users()
        self._running.cycle.loop.call_later(PERIOD_S if is_empty else 0.0, self._take_users)

    def _take_users(self) -> None:
        cycle = self._running.cycle
        if cycle.is_stopping:
            return
        close_removed(cycle)
        cycle.permissions_changed()

    def _warn_of_lockout(self) -> None:
        """Warn if nobody can log in."""
        if lockout := self._running.engine.logins.lockout:
            path = self._running.users.path
            log.warning("%s users=%s cure=%r", lockout, path, LOCKOUT_CURE)

    async def _take_tls(self, listener: Certified) -> None:
        if await listener.reload_tls():
            _tell_certificate(listener)
            return
        log.error(
            "certificate not taken, the one before stays acceptor=%s reason=%r",
            listener.name,
            listener.certificate_refused,
        )

    async def _take_configuration(self) -> None:
        """Read the files and take what can be; `state` says what became of it."""
        if self._source.read is None:
            return
        state = self.state
        try:
            wanted, digests = await self._read(self._source.read)
            effective = merged(self.configuration, wanted)
            turn_time = self._running.engine.turn_time
            compiled = [await compile_filters(each, turn_time) for each in (wanted, effective)]
            self._check(wanted, effective)
            kept = await reconfiguration.apply(self._running.engine, effective)
            del compiled  # until here nothing was compiled again
        except VespiaryError as error:
            state.failed += 1
            state.refused = str(error)
            log.error("configuration not taken reason=%r", state.refused)  # noqa: TRY400
            return
        self._take_others(effective)
        found = differences(effective, wanted)
        waits = tuple(each.path for each in found if each.change is Change.RESTART)
        changed = [each.path for each in differences(self.configuration, effective)]
        self.configuration = effective
        state.digests, state.loaded_at_ms, state.refused = digests, _now_ms(), ""
        state.taken += 1
        state.waits_for_restart, state.kept = waits, kept
        log.info(
            "configuration taken changed=%r waits_for_restart=%r",
            ", ".join(changed),
            ", ".join(waits),
        )
        self._on_taken(effective)

    async def _read(
        self, read: Callable[[], Configuration]
    ) -> tuple[Configuration, dict[str, str]]:
        """Read the files, and their digests; again if they change under the reading.

        Raises:
            ConfigError: They cannot be read, or something in them is wrong.
        """
        for _ in range(_READ_TRIES):
            before = digests_of(self._source.files)
            wanted = await asyncio.to_thread(read)
            if digests_of(self._source.files) == before:
                return wanted, before
        raise ConfigError("the configuration files change all the time", path="--config")

    def _check(self, wanted: Configuration, effective: Configuration) -> None:
        """Refuse what cannot be taken now, or never."""
        for found in differences(self.configuration, wanted):
            if found.change is Change.IMMUTABLE:
                raise ConfigError(
                    "this cannot change while the broker runs on its data",
                    path=found.path,
                    cure="put it back; to move data, stop the broker, move them, change this, and "
                    "start it again",
                )
        reconfiguration.check(self._running.engine, effective)

    def _take_others(self, configuration: Configuration) -> None:
        """Give the parts beside the engine's tables what they have of a configuration."""
        running = self._running
        running.engine.registry.limits.change(naming_rules(configuration))
        running.engine.duplicates.change_sizes(sizes_of(configuration))
        running.counters.change(configuration)
        pages_changed(running.pager, running.engine)
        running.cycle.settings_changed()
        running.cycle.permissions_changed()
        self._warn_of_lockout()
        if self._source.log_level is not None:
            logging.getLogger().setLevel(self._source.log_level(configuration).upper())


def _tell_certificate(listener: Certified) -> None:
    found = listener.certificate
    if found is None:
        return
    name = listener.name
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.not_after_s))
    log.info("certificate taken acceptor=%s subject=%r until=%s", name, found.subject, end)
    if found.not_after_s - time.time() < EXPIRY_WARNING_S:
        log.warning("certificate ends soon, or has ended acceptor=%s until=%s", name, end)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

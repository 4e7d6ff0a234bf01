"""One pass over one resource: observe, plan, apply, report.

Owns: the order of a pass, the periodic look at everything, and the log line of each decision. A
pass looks first at what the watches have seen. If that leaves anything to write, everything is read
live and planned anew, so what is written never follows from a cache.
Never: keeps anything between passes that a decision leans on, so a restart loses nothing.
Called by: `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from vespiary_operator import (
    announcements,
    apply,
    archive,
    archive_observation,
    archive_status,
    broker_calls,
    conditions,
    default_tuning,
    kinds,
    ledger,
    live_files,
    loose_pods,
    maintenance,
    pods,
    resync,
    scaling,
    size_status,
    status,
    storage_preflight,
    storage_status,
    tuning,
    tuning_observation,
    tuning_status,
    upgrade_refusal,
)
from vespiary_operator.admin_ports import AdminPort, admin_port
from vespiary_operator.announcements import Announcement
from vespiary_operator.apply import Outcome, Writer
from vespiary_operator.broker_calls import BrokerCall
from vespiary_operator.cache import Cache
from vespiary_operator.cached_reader import CachedReader, LiveReader, Shared
from vespiary_operator.failure_reasons import reason_of
from vespiary_operator.kinds import Kind
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerReader, Object, Observed, Reader
from vespiary_operator.observer import HashedUsers, Observer
from vespiary_operator.options import Options
from vespiary_operator.plan import Plan, plan
from vespiary_operator.resync import Lister
from vespiary_operator.secret_access import SecretAccess
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.errors import ConfigError, ReconcileError, TemporaryReconcileError
from vespiary_spec.resources import Broker, BrokerNodeTuning, JournalArchive
from vespiary_spec.status import BrokerStatus, ConditionStatus, ConditionType

log = logging.getLogger(__name__)

DRAIN_LOOK_S = 1.0
"""A Broker that a broker leaves is looked at this often: nothing else tells how far a drain is."""

SOON_S = 5.0
"""A Broker that is on its way is looked at this often, whatever events come."""


AT_ONCE_S = 1.0
"""Nodes are looked at again so soon after they got new orders."""


LOOKS_PER_S = 20.0
"""Of Brokers that are on their way, all together, not more are looked at without an event."""


class Api(tuning_observation.TuningReader, Writer, Lister, Protocol):
    """What a pass needs of the cluster."""

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        """Report a status."""


class Remote(BrokerReader, tuning_observation.TunerReader, Protocol):
    """What a pass asks of pods."""

    async def carry_out(self, call: BrokerCall, port: AdminPort, password: str) -> bool:
        """Ask something of a broker; return whether it was taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What was found about a Broker, and what follows from it.

    Attributes:
        document: The Broker as it was read.
        broker: The same, typed.
        observed: Everything that belongs to it.
        plan: What has to be done.
        status: What has to be reported, if all of it works.
    """

    document: dict[str, Any]
    broker: Broker
    observed: Observed
    plan: Plan
    status: BrokerStatus

    @property
    def has_work(self) -> bool:
        """Whether anything would be written, or asked of a broker."""
        has_calls = self.plan.drain is not None and bool(self.plan.drain.calls)
        is_told = _plain(self.status) == self.document.get("status")
        return bool(self.plan.actions) or has_calls or not is_told


class Reconciler:
    """Takes keys from the queue and brings their resources to what they should be.

    Owned by the main loop.

    Args:
        api: The API server.
        remote: Running pods.
        queue: The keys.
        options: What holds for the process.
        metrics: What is counted.
        cache: What the watches have seen; None for one that only the resync fills.
        now: Returns the time, RFC 3339 in UTC.
        secrets: What is told which Secrets each Broker names.
    """

    def __init__(
        self,
        api: Api,
        remote: Remote,
        queue: WorkQueue,
        options: Options,
        metrics: Metrics,
        cache: Cache | None = None,
        *,
        now: Callable[[], str] = lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        secrets: SecretAccess | None = None,
    ) -> None:
        self._api = api
        self._remote = remote
        self._queue = queue
        self._options = options
        self._metrics = metrics
        self._now = now
        cache = cache if cache is not None else Cache()
        self._cache = cache
        self._shared = Shared(api)
        self._live = LiveReader(api, cache, self._shared)
        self._cached = CachedReader(api, cache, self._shared)
        users = HashedUsers()
        self._observer = Observer(self._live, remote, users)
        self._first_look = Observer(self._cached, remote, users)
        self._is_cache_complete = False
        self._secrets = secrets or SecretAccess()
        self._moving: set[Key] = set()
        self._logged: dict[Key, str] = {}
        self.resynced_at = time.monotonic()

    async def work(self) -> None:
        """Take keys for ever."""
        while True:
            key = await self._queue.take()
            started = time.monotonic()
            result = "done"
            try:
                again_s = await self.reconcile(key)
            except ReconcileError as error:
                result = "failed"
                self._metrics.failed(key.kind, reason_of(error))
                delay_s = error.delay_s if isinstance(error, TemporaryReconcileError) else 0.0
                after_s = self._queue.failed(key, at_least_s=delay_s)
                log.warning("%s: tried again in %.0f s: %s", _shown(key), after_s, error)
            except Exception as error:
                result = "crashed"
                self._metrics.failed(key.kind, reason_of(error))
                after_s = self._queue.failed(key)
                log.exception("%s: a bug; tried again in %.0f s", _shown(key), after_s)
            else:
                self._queue.done(key)
                if again_s is not None:
                    self._queue.add(key, after_s=again_s)
            self._metrics.passed(key.kind, result, time.monotonic() - started)

    async def resync(self) -> None:
        """Look at every resource, now and then again and again."""
        spread_s = 0.0
        while True:
            pause_s = self._options.resync_s
            try:
                await self.enqueue_all(spread_s=spread_s)
                self.resynced_at = time.monotonic()
                spread_s = pause_s * 0.8
            except ReconcileError as error:
                log.warning("not every resource could be listed: %s", error)
                pause_s = min(pause_s, SOON_S)
            await asyncio.sleep(pause_s)

    async def enqueue_all(self, *, spread_s: float = 0.0) -> None:
        """List everything, let the cache agree with it, and put every resource into the queue.

        Args:
            spread_s: Seconds over which the resources are spread, so that many are no burst.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        for namespace in self._options.namespaces or ("",):
            for kind in kinds.WATCHED_CHILDREN:
                await resync.list_into(self._api, self._cache, kind, namespace)
            found = await resync.list_into(self._api, self._cache, kinds.BROKER, namespace)
            for number, (where, name) in enumerate(found.names):
                after_s = spread_s * number / len(found.names)
                self._queue.add(Key(kinds.BROKER.name, where, name), after_s=after_s)
            for document in await self._api.items(kinds.JOURNAL_ARCHIVE, namespace):
                self._queue.add(key_of(kinds.JOURNAL_ARCHIVE, document))
        self._is_cache_complete = True
        if self._options.is_cluster_wide:
            if self._options.default_tuning:
                self._queue.add(Key(kinds.NODE_TUNING.name, "", default_tuning.NAME))
            for document in await self._api.items(kinds.NODE_TUNING):
                self._queue.add(key_of(kinds.NODE_TUNING, document))

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass.

        Returns:
            Seconds until the next pass, or None to wait for an event or the next resync.

        Raises:
            ReconcileError: It did not reach its end.
        """
        if key.kind == kinds.NODE_TUNING.name:
            return await self._reconcile_tuning(key)
        if key.kind == kinds.JOURNAL_ARCHIVE.name:
            return await self._reconcile_archive(key)
        if self._is_cache_complete:
            look = await self._look(key, self._cached, self._first_look)
            if look is not None and not look.has_work:
                self._log(key, look.plan.reason)
                self._metrics.broker(look.broker, look.status)
                return self._next_look(key, look)
        look = await self._look(key, self._live, self._observer)
        if look is not None and storage_preflight.leans_on_lists(look.observed, look.plan.declared):
            # A volume may have been made with the Broker, or taken by another, since the lists.
            self._shared.forget()
            look = await self._look(key, self._live, self._observer)
        if look is None:
            return None
        if ledger.is_to_be_noted(look.broker.status, look.status):
            await self._note_restarts(look)
        versions = _versions(look.observed)
        outcomes, failure = await apply.carry_out(self._api, look.plan.actions, versions)
        if failure is None and look.plan.drain is not None:
            await self._call(look.observed, look.plan.drain.calls)
        changes = [outcome.action for outcome in outcomes if outcome.is_change]
        self._metrics.applied(changes)
        if changes:
            self._queue.progressed(key)
        self._log(key, look.plan.reason)
        found = look.status
        if failure is not None:
            found = status.compute(look.observed, look.plan, now=self._now(), failure=str(failure))
        await self._report(kinds.BROKER, look.broker, look.document, found, outcomes)
        self._metrics.broker(look.broker, found)
        if failure is not None:
            raise failure
        return self._next_look(key, look)

    async def _look(self, key: Key, reader: Reader, observer: Observer) -> Look | None:
        """Observe and plan, without a write.

        Args:
            key: The Broker.
            reader: Where the Broker is read.
            observer: Where everything that it has is read.

        Returns:
            What was found; None where there is nothing to plan: the Broker is gone, on its way out,
            or cannot be read, which is reported if the reader is the live one.
        """
        document = await reader.get(kinds.BROKER, key.name, key.namespace)
        if document is None or document["metadata"].get("deletionTimestamp"):
            # The garbage collector takes the children; the claims stay, unless asked otherwise.
            self._secrets.forget(key.namespace, key.name)
            self._logged.pop(key, None)
            self._moving.discard(key)
            self._metrics.forget(key.namespace, key.name)
            if document is None and reader is self._live:
                await self._end_loose_pods(key)
            return None
        self._secrets.learn(document)
        try:
            broker = Broker.from_dict(_without_server_fields(document))
        except ConfigError as error:
            if reader is self._live:
                await self._report_unreadable(key, document, error)
            return None
        now = self._now()
        observed = await observer.observe(broker, now=now)
        planned = plan(observed, self._options)
        found = status.compute(observed, planned, now=now, failure="")
        return Look(document=document, broker=broker, observed=observed, plan=planned, status=found)

    async def _end_loose_pods(self, key: Key) -> None:
        """End the pods that a Broker left behind which is gone; most leave none."""
        selector = loose_pods.selector(key.name)
        known = await self._cached.items(kinds.POD, key.namespace, selector)
        if not any(map(loose_pods.is_loose, known)):
            return
        found = await self._live.items(kinds.POD, key.namespace, selector)
        actions = tuple(loose_pods.ends(found))
        for action in actions:
            log.info("%s: %s", _shown(key), action.sentence)
        done = await apply.carry_out(self._api, actions, {})
        self._metrics.applied([outcome.action for outcome in done.outcomes])
        if done.failure is not None:
            raise done.failure

    def _next_look(self, key: Key, look: Look) -> float | None:
        """Return when to look again; with many on their way, less often at each."""
        again_s = _next_look_s(look.observed, look.plan)
        if again_s is None:
            self._moving.discard(key)
            return None
        self._moving.add(key)
        return max(again_s, len(self._moving) / LOOKS_PER_S)

    async def _note_restarts(self, look: Look) -> None:
        """Write down why a pod is deleted, before it is: nothing tells afterwards."""
        noted = msgspec.structs.replace(
            look.broker.status,
            restarts=look.status.restarts,
            known_pods=look.status.known_pods,
        )
        metadata = look.broker.metadata
        await self._api.apply_status(kinds.BROKER, metadata.name, metadata.namespace, _plain(noted))

    async def _call(self, observed: Observed, calls: Iterable[BrokerCall]) -> None:
        """Ask brokers for what the plan says; what is not taken is asked again in the next pass."""
        for call in calls:
            port = admin_port(observed.broker, call.pod, observed.tls_secrets)
            if port is not None:
                log.info("%s", broker_calls.described(call))
                await self._remote.carry_out(call, port, observed.credentials.admin_password)

    async def _report_unreadable(
        self, key: Key, document: dict[str, Any], error: ConfigError
    ) -> None:
        """Say that a Broker cannot be read; another version's API server may have let it in."""
        self._log(key, str(error))
        broker = Broker.from_dict(
            _without_server_fields({**document, "spec": {}, "status": document.get("status")})
        )
        findings = {
            ConditionType.READY: (ConditionStatus.FALSE, "InvalidSpec", str(error)),
            ConditionType.DEGRADED: (ConditionStatus.TRUE, "InvalidSpec", str(error)),
        }
        found = msgspec.structs.replace(
            broker.status,
            observed_generation=broker.metadata.generation,
            conditions=conditions.merged(
                broker.status.conditions,
                findings,
                generation=broker.metadata.generation,
                now=self._now(),
            ),
        )
        await self._report(kinds.BROKER, broker, document, found, [])

    async def _report(
        self,
        kind: Kind,
        resource: Broker | BrokerNodeTuning | JournalArchive,
        document: dict[str, Any],
        found: Any,
        outcomes: Iterable[Outcome],
    ) -> None:
        """Write the status if it is another one, and tell what was done."""
        said = [*announcements.of_outcomes(outcomes)]
        said += announcements.of_conditions(resource.status.conditions, found.conditions)
        if isinstance(resource, Broker):
            said += announcements.of_upgrade(resource.status, found)
            said += announcements.of_adoptions(resource.status, found)
        if isinstance(resource, JournalArchive):
            said += announcements.of_run(resource.status, found)
        plain = _plain(found)
        if plain != document.get("status"):
            await self._api.apply_status(
                kind, resource.metadata.name, resource.metadata.namespace, plain
            )
        for announcement in said:
            await self._tell(resource, announcement)

    async def _tell(
        self, resource: Broker | BrokerNodeTuning | JournalArchive, said: Announcement
    ) -> None:
        try:
            await self._api.create(announcements.event(resource, said, datetime.now(UTC)))
        except ReconcileError as error:
            # An Event is for reading; the status, which was written, has the same sentence.
            log.warning("%s: an Event was not taken: %s", resource.metadata.name, error)

    def _log(self, key: Key, reason: str) -> None:
        if self._logged.get(key) != reason:
            self._logged[key] = reason
            log.info("%s: %s", _shown(key), reason)

    # --- node tuning ----------------------------------------------------------------------------

    async def _reconcile_tuning(self, key: Key) -> float | None:
        document = await self._api.get(kinds.NODE_TUNING, key.name)
        outcomes, failure = await self._bring_to_values(key, document)
        if outcomes:
            document = await self._api.get(kinds.NODE_TUNING, key.name)
        elif failure is not None and document is None:
            raise failure
        if document is None or document["metadata"].get("deletionTimestamp"):
            self._logged.pop(key, None)
            self._metrics.nodes.forget(key.name)
            return None
        resource = BrokerNodeTuning.from_dict(_without_server_fields(document))
        observed = await tuning_observation.observe(
            self._api, self._remote, resource, self._options
        )
        versions = {
            (found["kind"], found["metadata"]["name"]): found["metadata"]["resourceVersion"]
            for found in (observed.daemon_set, observed.orders, observed.tuned)
            if found is not None
        }
        try:
            actions = tuning.plan(observed, self._options)
            done = await apply.carry_out(self._api, actions, versions)
            outcomes, failure = [*outcomes, *done.outcomes], failure or done.failure
        except ReconcileError as error:
            failure = failure or error
        found = tuning_status.compute(
            observed, self._options, now=self._now(), failure=str(failure) if failure else ""
        )
        self._log(key, found.conditions[0].message)
        await self._report(kinds.NODE_TUNING, resource, document, found, outcomes)
        self._metrics.nodes.show(key.name, found)
        if failure is not None:
            raise failure
        if any(outcome.is_change for outcome in outcomes):
            return AT_ONCE_S
        return SOON_S if found.conditions[0].status is not ConditionStatus.TRUE else None

    async def _bring_to_values(self, key: Key, document: dict[str, Any] | None) -> apply.Done:
        """Write what the chart's values ask for into the BrokerNodeTuning `default`."""
        values = self._options.default_tuning
        if key.name != default_tuning.NAME or not values:
            return apply.Done([])
        action = default_tuning.plan(values, document)
        done = await apply.carry_out(self._api, [action] if action else (), {})
        self._metrics.applied([outcome.action for outcome in done.outcomes])
        return done

    # --- archives -------------------------------------------------------------------------------

    async def _reconcile_archive(self, key: Key) -> float | None:
        document = await self._api.get(kinds.JOURNAL_ARCHIVE, key.name, key.namespace)
        if document is None or document["metadata"].get("deletionTimestamp"):
            self._logged.pop(key, None)
            self._metrics.archives.forget(key.namespace, key.name)
            return None  # the garbage collector takes its Jobs
        try:
            resource = JournalArchive.from_dict(_without_server_fields(document))
        except ConfigError as error:
            self._log(key, str(error))
            resource = archive_status.unreadable(document)
            found = archive_status.refused(resource, str(error), now=self._now())
            await self._report(kinds.JOURNAL_ARCHIVE, resource, document, found, [])
            return None
        observed = await archive_observation.observe(self._api, resource, now=self._now())
        planned = archive.plan(observed, self._options)
        versions = {
            (found["kind"], found["metadata"]["name"]): found["metadata"]["resourceVersion"]
            for found in (observed.cron_job,)
            if found is not None
        }
        done = await apply.carry_out(self._api, planned.actions, versions)
        self._metrics.applied([outcome.action for outcome in done.outcomes if outcome.is_change])
        failure = str(done.failure) if done.failure is not None else ""
        found = archive_status.compute(observed, planned, failure=failure)
        self._log(key, found.conditions[0].message)
        await self._report(kinds.JOURNAL_ARCHIVE, resource, document, found, done.outcomes)
        self._metrics.archives.show(key.namespace, key.name, found)
        if done.failure is not None:
            raise done.failure
        is_moving = archive_status.is_under_way(observed) or bool(planned.actions)
        return SOON_S if is_moving or planned.block is not None else None


def key_of(kind: Kind, document: Object) -> Key:
    """Return the key of a resource."""
    metadata = document["metadata"]
    return Key(kind.name, str(metadata.get("namespace") or ""), str(metadata["name"]))


def _shown(key: Key) -> str:
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"


def _plain(status_: Any) -> Any:
    """Return a status with lists where the API server has them."""
    return msgspec.json.decode(msgspec.json.encode(status_))


def _without_server_fields(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: document[name]
        for name in ("apiVersion", "kind", "metadata", "spec", "status")
        if name in document
    }


def _versions(observed: Observed) -> dict[tuple[str, str], str]:
    found = {
        key: str(child["metadata"].get("resourceVersion", ""))
        for key, child in observed.children.items()
    }
    for name, claim in observed.claims.items():
        found[kinds.CLAIM.name, name] = str(claim["metadata"].get("resourceVersion", ""))
    return found


def _next_look_s(observed: Observed, planned: Plan) -> float | None:
    """Return when to look again without an event: soon while something is on its way."""
    if maintenance.paused_by(observed.broker):
        return None
    if planned.drain is not None and planned.drain.operation is not None:
        return DRAIN_LOOK_S
    ready = [pod for pod in observed.pods if pods.is_ready(pod)]
    is_at_rest = (
        len(ready) == len(observed.pods) == scaling.pods_asked(observed.broker)
        and planned.rollout is not None
        and planned.rollout.is_complete
        and not planned.actions
        and not live_files.is_behind(observed)
        and planned.operation is None
        and not size_status.is_moving(planned.sizes)
        and storage_status.producers_wait(observed) is None
    )
    if not is_at_rest:
        return SOON_S
    upgrade = planned.upgrade
    if upgrade is None or not upgrade.next_check_at:
        return None
    return max(SOON_S, upgrade_refusal.wait_s(upgrade, observed.time))

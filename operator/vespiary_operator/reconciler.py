"""One pass over one resource: observe, plan, apply, report.

Owns: the order of a pass, the periodic look at everything, and the log line of each decision.
Never: keeps anything between passes but what was logged last, so a restart loses nothing.
Called by: `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from vespiary_operator import announcements, apply, kinds, names, pods, status, tuning
from vespiary_operator.announcements import Announcement
from vespiary_operator.apply import Outcome, Writer
from vespiary_operator.kinds import Kind
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerReader, Object, Observed, Observer, Reader
from vespiary_operator.options import Options
from vespiary_operator.plan import Plan, plan
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.errors import ConfigError, ReconcileError, TemporaryReconcileError
from vespiary_spec.resources import Broker, BrokerNodeTuning
from vespiary_spec.status import ConditionStatus, ConditionType

log = logging.getLogger(__name__)

SOON_S = 5.0
"""A Broker that is on its way is looked at this often, whatever events come."""


class Api(Reader, Writer, Protocol):
    """What a pass needs of the cluster."""

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        """Report a status."""


class Remote(BrokerReader, Protocol):
    """What a pass asks of pods."""

    async def node_report(self, pod: Object) -> tuning.NodeReport | None:
        """Return what a tuning pod says; None if it cannot be asked."""


class Reconciler:
    """Takes keys from the queue and brings their resources to what they should be.

    Owned by the main loop.

    Args:
        api: The API server.
        remote: Running pods.
        queue: The keys.
        options: What holds for the process.
        metrics: What is counted.
    """

    def __init__(
        self, api: Api, remote: Remote, queue: WorkQueue, options: Options, metrics: Metrics
    ) -> None:
        self._api = api
        self._remote = remote
        self._queue = queue
        self._options = options
        self._metrics = metrics
        self._observer = Observer(api, remote)
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
                delay_s = error.delay_s if isinstance(error, TemporaryReconcileError) else 0.0
                after_s = self._queue.failed(key, at_least_s=delay_s)
                log.warning("%s: tried again in %.0f s: %s", _shown(key), after_s, error)
            except Exception:
                result = "crashed"
                after_s = self._queue.failed(key)
                log.exception("%s: a bug; tried again in %.0f s", _shown(key), after_s)
            else:
                self._queue.done(key)
                if again_s is not None:
                    self._queue.add(key, after_s=again_s)
            self._metrics.passed(key.kind, result, time.monotonic() - started)

    async def resync(self) -> None:
        """Look at every resource, now and then again and again."""
        while True:
            pause_s = self._options.resync_s
            try:
                await self.enqueue_all()
                self.resynced_at = time.monotonic()
            except ReconcileError as error:
                log.warning("not every resource could be listed: %s", error)
                pause_s = min(pause_s, SOON_S)
            await asyncio.sleep(pause_s)

    async def enqueue_all(self) -> None:
        """Put every resource into the queue.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        for namespace in self._options.namespaces or ("",):
            for found in await self._api.items(kinds.BROKER, namespace):
                self._queue.add(key_of(kinds.BROKER, found))
        if self._options.is_cluster_wide:
            for found in await self._api.items(kinds.NODE_TUNING):
                self._queue.add(key_of(kinds.NODE_TUNING, found))

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass.

        Returns:
            Seconds until the next pass, or None to wait for an event or the next resync.

        Raises:
            ReconcileError: It did not reach its end.
        """
        if key.kind == kinds.NODE_TUNING.name:
            return await self._reconcile_tuning(key)
        document = await self._api.get(kinds.BROKER, key.name, key.namespace)
        if document is None or document["metadata"].get("deletionTimestamp"):
            # The garbage collector takes the children; the claims stay, unless asked otherwise.
            self._logged.pop(key, None)
            self._metrics.forget(key.namespace, key.name)
            return None
        try:
            broker = Broker.from_dict(_without_server_fields(document))
        except ConfigError as error:
            await self._report_unreadable(key, document, error)
            return None
        observed = await self._observer.observe(broker)
        planned = plan(observed, self._options)
        failure: ReconcileError | None = None
        outcomes: list[Outcome] = []
        try:
            outcomes = await apply.carry_out(self._api, planned.actions, _versions(observed))
        except ReconcileError as error:
            failure = error
        self._metrics.applied(outcome.action for outcome in outcomes if outcome.is_change)
        self._log(key, planned.reason)
        found = status.compute(
            observed, planned, now=_now(), failure=str(failure) if failure else ""
        )
        await self._report(kinds.BROKER, broker, document, found, outcomes)
        self._metrics.broker(broker, found)
        if failure is not None:
            raise failure
        return _next_look_s(observed, planned)

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
            conditions=status.merged(
                broker.status.conditions,
                findings,
                generation=broker.metadata.generation,
                now=_now(),
            ),
        )
        await self._report(kinds.BROKER, broker, document, found, [])

    async def _report(
        self,
        kind: Kind,
        resource: Broker | BrokerNodeTuning,
        document: dict[str, Any],
        found: Any,
        outcomes: Iterable[Outcome],
    ) -> None:
        """Write the status if it is another one, and tell what was done."""
        said = [*announcements.of_outcomes(outcomes)]
        said += announcements.of_conditions(resource.status.conditions, found.conditions)
        plain = msgspec.json.decode(msgspec.json.encode(found))  # lists, as the API server has them
        if plain != document.get("status"):
            await self._api.apply_status(
                kind, resource.metadata.name, resource.metadata.namespace, plain
            )
        for announcement in said:
            await self._tell(resource, announcement)

    async def _tell(self, resource: Broker | BrokerNodeTuning, said: Announcement) -> None:
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
        if document is None or document["metadata"].get("deletionTimestamp"):
            self._logged.pop(key, None)
            return None
        resource = BrokerNodeTuning.from_dict(_without_server_fields(document))
        observed = await self._observe_tuning(resource)
        failure: ReconcileError | None = None
        outcomes: list[Outcome] = []
        versions = {
            (found["kind"], found["metadata"]["name"]): found["metadata"]["resourceVersion"]
            for found in (observed.daemon_set, observed.orders)
            if found is not None
        }
        try:
            actions = tuning.plan(observed, self._options)
            outcomes = await apply.carry_out(self._api, actions, versions)
        except ReconcileError as error:
            failure = error
        found = tuning.compute_status(observed, now=_now(), failure=str(failure) if failure else "")
        self._log(key, found.conditions[0].message)
        await self._report(kinds.NODE_TUNING, resource, document, found, outcomes)
        if failure is not None:
            raise failure
        return SOON_S if found.conditions[0].status is not ConditionStatus.TRUE else None

    async def _observe_tuning(self, resource: BrokerNodeTuning) -> tuning.ObservedTuning:
        own = self._options.own_namespace
        name = names.tuning(resource.metadata.name)
        broker_pods = await self._api.items(
            kinds.POD,
            "",
            names.selector(
                {
                    names.LABEL_MANAGED_BY: names.MANAGER,
                    names.LABEL_COMPONENT: names.COMPONENT_BROKER,
                }
            ),
        )
        tuners = await self._api.items(
            kinds.POD, own, names.selector(names.tuning_labels(resource))
        )
        reports = {}
        waiting = {}
        for pod in tuners:
            if pods.is_terminating(pod):
                continue
            report = await self._remote.node_report(pod) if pods.is_ready(pod) else None
            if report is not None:
                reports[pods.node(pod)] = report
            elif pods.node(pod):
                waiting[pods.node(pod)] = f"{pods.name(pod)}: {pods.waits_for(pod)}"
        return tuning.ObservedTuning(
            tuning=resource,
            nodes=tuple(await self._api.items(kinds.NODE)),
            broker_pods=tuple(broker_pods),
            reports=reports,
            waiting=waiting,
            daemon_set=await self._api.get(kinds.DAEMON_SET, name, own),
            orders=await self._api.get(kinds.CONFIG_MAP, name, own),
        )


def key_of(kind: Kind, document: Object) -> Key:
    """Return the key of a resource."""
    metadata = document["metadata"]
    return Key(kind.name, str(metadata.get("namespace") or ""), str(metadata["name"]))


def _shown(key: Key) -> str:
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
    if observed.broker.spec.paused:
        return None
    ready = [pod for pod in observed.pods if pods.is_ready(pod)]
    is_at_rest = (
        len(ready) == observed.broker.spec.replicas
        and planned.rollout is not None
        and planned.rollout.is_complete
        and not planned.actions
    )
    return None if is_at_rest else SOON_S

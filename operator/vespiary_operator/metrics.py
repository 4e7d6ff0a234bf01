"""What the operator counts, for `/metrics`.

Owns: names and labels of the metrics. Never: decides anything.
Called by: `reconciler`, `http_endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vespiary_operator.actions import Action, Delete
from vespiary_operator.api_requests import ApiRequest
from vespiary_operator.archive_metrics import ArchiveMetrics
from vespiary_operator.failure_reasons import FailureReason
from vespiary_operator.freshness_metrics import FreshnessMetrics
from vespiary_operator.storage_metrics import StorageMetrics
from vespiary_operator.tuning_metrics import TuningMetrics
from vespiary_spec.resources import Broker
from vespiary_spec.status import BrokerStatus

TEMPLATE_PENDING = "TemplatePending"
"""Reason of UpToDate while a newer operator's template waits for a change by the user."""


class Metrics:
    """The metrics of one process, in a registry of their own.

    Attributes:
        nodes: Those of nodes.
        archives: Those of JournalArchives.
        freshness: Those of how far behind the operator is.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._passes = Counter(
            "vespiary_operator_reconciles",
            "Passes by kind of resource and result: done, failed, crashed.",
            ["kind", "result"],
            registry=self._registry,
        )
        self._failures = Counter(
            "vespiary_operator_reconcile_failures",
            "Passes that did not reach their end, by kind of resource and why.",
            ["kind", "reason"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "vespiary_operator_reconcile_seconds",
            "Duration of a pass.",
            ["kind"],
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=self._registry,
        )
        self._changes = Counter(
            "vespiary_operator_changes",
            "Writes that changed an object, by its kind and the reason.",
            ["kind", "reason"],
            registry=self._registry,
        )
        self._conditions = Gauge(
            "vespiary_operator_broker_condition",
            "1 if a Broker's condition is True, 0 if it is False, -1 if it is not known.",
            ["namespace", "broker", "condition"],
            registry=self._registry,
        )
        self._pending = Gauge(
            "vespiary_operator_template_pending",
            "1 while a Broker's pods have another template than this operator would write: they "
            "are restarted with it at the Broker's next change.",
            ["namespace", "broker"],
            registry=self._registry,
        )
        self._upgrades = Gauge(
            "vespiary_operator_broker_upgrade",
            "1 for the stage in which a Broker's upgrade is, or its last one ended.",
            ["namespace", "broker", "stage"],
            registry=self._registry,
        )
        self._stages: dict[tuple[str, str], str] = {}
        self._leader = Gauge(
            "vespiary_operator_leader",
            "1 if this operator acts; 0 while it stands by for the one that holds the Lease.",
            registry=self._registry,
        )
        self.nodes = TuningMetrics(self._registry)
        self.archives = ArchiveMetrics(self._registry)
        self._storage = StorageMetrics(self._registry)
        self.freshness = FreshnessMetrics(self._registry)
        self._requests = Counter(
            "vespiary_operator_api_requests",
            "Requests to the API server by verb, resource and HTTP status; 0 is no answer. The "
            "reason is that of a refusal (403).",
            ["verb", "resource", "subresource", "code", "reason"],
            registry=self._registry,
        )
        self._shown: dict[tuple[str, str], tuple[str, ...]] = {}

    def watch_leader(self, leads: Callable[[], bool]) -> None:
        """Ask at each scrape whether this operator acts."""
        self._leader.set_function(lambda: float(leads()))

    def passed(self, kind: str, result: str, duration_s: float) -> None:
        """Count a pass."""
        self._passes.labels(kind, result).inc()
        self._seconds.labels(kind).observe(duration_s)

    def failed(self, kind: str, reason: FailureReason) -> None:
        """Count why a pass did not reach its end."""
        self._failures.labels(kind, reason.value).inc()

    def applied(self, actions: Iterable[Action]) -> None:
        """Count the writes that changed something."""
        for action in actions:
            kind = action.kind.name if isinstance(action, Delete) else action.manifest["kind"]
            self._changes.labels(kind, action.reason).inc()

    def asked(self, request: ApiRequest, code: int, reason: str = "") -> None:
        """Count a request to the API server; from any thread."""
        self._requests.labels(*request, str(code), reason).inc()

    def broker(self, broker: Broker, status: BrokerStatus) -> None:
        """Show the conditions of a Broker, and whether its pods have an older template."""
        key = (broker.metadata.namespace, broker.metadata.name)
        self._pending.labels(*key).set(
            any(condition.reason == TEMPLATE_PENDING for condition in status.conditions)
        )
        values = {"True": 1, "False": 0, "Unknown": -1}
        for condition in status.conditions:
            self._conditions.labels(*key, condition.type).set(values[condition.status.value])
        self._storage.show(broker, status)
        self._show_stage(key, "" if status.upgrade is None else status.upgrade.stage.value)
        self._shown[key] = tuple(condition.type for condition in status.conditions)

    def forget(self, namespace: str, name: str) -> None:
        """Stop showing a Broker that is gone."""
        self._storage.forget(namespace, name)
        self._show_stage((namespace, name), "")
        known = self._shown.pop((namespace, name), ())
        for condition in known:
            self._conditions.remove(namespace, name, condition)
        if known:
            self._pending.remove(namespace, name)

    def _show_stage(self, key: tuple[str, str], stage: str) -> None:
        """Show the stage of an upgrade in the place of the one before; empty shows none."""
        before = self._stages.pop(key, "")
        if before and before != stage:
            self._upgrades.remove(*key, before)
        if stage:
            self._upgrades.labels(*key, stage).set(1)
            self._stages[key] = stage

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)

"""What the operator counts, for `/metrics`.

Owns: names and labels of the metrics. Never: decides anything.
Called by: `reconciler`, `http_endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vespiary_operator.plan import Action, Delete
from vespiary_spec.resources import Broker
from vespiary_spec.status import BrokerStatus


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._passes = Counter(
            "vespiary_operator_reconciles",
            "Passes by kind of resource and result: done, failed, crashed.",
            ["kind", "result"],
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
        self._waiting = Gauge(
            "vespiary_operator_queue_waiting",
            "Resources that wait to be looked at.",
            registry=self._registry,
        )
        self._shown: dict[tuple[str, str], tuple[str, ...]] = {}

    def watch_queue(self, count: Callable[[], int]) -> None:
        """Read the number of waiting resources from a function at each scrape."""
        self._waiting.set_function(lambda: float(count()))

    def passed(self, kind: str, result: str, duration_s: float) -> None:
        """Count a pass."""
        self._passes.labels(kind, result).inc()
        self._seconds.labels(kind).observe(duration_s)

    def applied(self, actions: Iterable[Action]) -> None:
        """Count the writes that changed something."""
        for action in actions:
            kind = action.kind.name if isinstance(action, Delete) else action.manifest["kind"]
            self._changes.labels(kind, action.reason).inc()

    def broker(self, broker: Broker, status: BrokerStatus) -> None:
        """Show the conditions of a Broker."""
        key = (broker.metadata.namespace, broker.metadata.name)
        values = {"True": 1, "False": 0, "Unknown": -1}
        for condition in status.conditions:
            self._conditions.labels(*key, condition.type).set(values[condition.status.value])
        self._shown[key] = tuple(condition.type for condition in status.conditions)

    def forget(self, namespace: str, name: str) -> None:
        """Stop showing a Broker that is gone."""
        for condition in self._shown.pop((namespace, name), ()):
            self._conditions.remove(namespace, name, condition)

    def text(self) -> bytes:
        """Return everything in the text format of Prometheus."""
        return generate_latest(self._registry)

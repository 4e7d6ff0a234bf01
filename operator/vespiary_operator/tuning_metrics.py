"""Metrics of nodes: what `fs.aio-max-nr` is, what of it is used, and what brokers ask for.

Owns: names and labels. Never: decides anything. Called by: `metrics`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from vespiary_spec.status import BrokerNodeTuningStatus


class TuningMetrics:
    """Gauges of nodes.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Gauge(
            "vespiary_operator_node_aio_requests",
            "Asynchronous I/O requests of a node: max (fs.aio-max-nr), used (fs.aio-nr), demand "
            "(what brokers ask for), target (what the maximum should be at least).",
            ["tuning", "node", "what"],
            registry=registry,
        )
        self._tuned = Gauge(
            "vespiary_operator_node_tuned",
            "1 if a node's fs.aio-max-nr is enough, 0 if it is not, -1 if it is not known.",
            ["tuning", "node"],
            registry=registry,
        )
        self._shown: dict[str, set[tuple[str, ...]]] = {}

    def show(self, name: str, status: BrokerNodeTuningStatus) -> None:
        """Show the nodes of a BrokerNodeTuning; those that it no longer has go."""
        shown: set[tuple[str, ...]] = set()
        for node in status.nodes:
            numbers = {
                "max": node.aio_max_nr,
                "used": node.aio_nr,
                "demand": node.demand,
                "target": node.target,
            }
            for what, number in numbers.items():
                if number is not None:
                    self._requests.labels(name, node.name, what).set(number)
                    shown.add((node.name, what))
            self._tuned.labels(name, node.name).set(
                -1 if node.satisfied is None else int(node.satisfied)
            )
            shown.add((node.name,))
        self._remove(name, self._shown.get(name, set()) - shown)
        self._shown[name] = shown

    def forget(self, name: str) -> None:
        """Stop showing a BrokerNodeTuning that is gone."""
        self._remove(name, self._shown.pop(name, set()))

    def _remove(self, name: str, gone: set[tuple[str, ...]]) -> None:
        for labels in gone:
            gauge = self._tuned if len(labels) == 1 else self._requests
            gauge.remove(name, *labels)

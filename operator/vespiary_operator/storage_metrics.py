"""Metrics about the volumes of Brokers that only the operator can tell.

Owns: the gauge of overridden filesystems: what a Broker's own policy takes although it is refused
by default stays visible for as long as it holds.
Never: decides anything. Called by: `metrics`.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from vespiary_spec import filesystems
from vespiary_spec.resources import Broker
from vespiary_spec.status import BrokerStatus


class StorageMetrics:
    """Gauges of volumes.

    Args:
        registry: Where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._overridden = Gauge(
            "vespiary_operator_broker_filesystem_overridden",
            "1 for each volume that is on a filesystem which is refused by default and which only "
            "the Broker's filesystemPolicy takes.",
            ["namespace", "broker", "pod", "volume", "filesystem"],
            registry=registry,
        )
        self._shown: dict[tuple[str, str], set[tuple[str, str, str]]] = {}

    def show(self, broker: Broker, status: BrokerStatus) -> None:
        """Show the volumes of a Broker; those that are no longer overridden go."""
        key = (broker.metadata.namespace, broker.metadata.name)
        policy = broker.spec.storage.filesystem_policy
        found = {
            (instance.name, volume.name, volume.filesystem)
            for instance in status.brokers
            for volume in instance.volumes
            if filesystems.is_overridden(volume.filesystem, policy)
        }
        for gone in self._shown.pop(key, set()) - found:
            self._overridden.remove(*key, *gone)
        for volume in found:
            self._overridden.labels(*key, *volume).set(1)
        if found:
            self._shown[key] = found

    def forget(self, namespace: str, name: str) -> None:
        """Stop showing a Broker that is gone."""
        for volume in self._shown.pop((namespace, name), ()):
            self._overridden.remove(namespace, name, *volume)

"""ServiceAccount, PodDisruptionBudget and NetworkPolicy of a Broker.

Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_operator.builders.services import acceptor_ports
from vespiary_spec.resources import Broker


def service_account(broker: Broker) -> dict[str, Any]:
    """Return the ServiceAccount; it has no rights, and no pod mounts its token."""
    metadata = names.metadata(broker, names.service_account(broker.metadata.name))
    if broker.spec.service_account.annotations:
        metadata["annotations"] = dict(broker.spec.service_account.annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def disruption_budget(broker: Broker) -> dict[str, Any]:
    """Return the PodDisruptionBudget: one broker at a time; a broken one may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(broker, names.stateful_set(broker.metadata.name)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.selector_labels(broker)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(broker: Broker) -> dict[str, Any]:
    """Return the NetworkPolicy: the acceptors and the HTTP listener are open, nothing else is."""
    ports = [port for _, port, _ in acceptor_ports(broker)] + [broker.spec.admin.port]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(broker, names.stateful_set(broker.metadata.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector_labels(broker)},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
        },
    }

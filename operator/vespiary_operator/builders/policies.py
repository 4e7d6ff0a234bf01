"""ServiceAccount, PodDisruptionBudget and NetworkPolicy of a Broker.

Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_operator.builders.services import acceptor_ports, http_ports
from vespiary_spec.resources import Broker

_DNS_PORT = 53


def service_account(broker: Broker) -> dict[str, Any]:
    """Return the ServiceAccount; it has no rights, and no pod mounts its token."""
    metadata = names.metadata(broker, names.service_account(broker.metadata.name))
    if broker.spec.service_account.annotations:
        metadata.setdefault("annotations", {}).update(broker.spec.service_account.annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def disruption_budget(broker: Broker) -> dict[str, Any]:
    """Return the PodDisruptionBudget; a broken broker may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(broker, names.stateful_set(broker.metadata.name)),
        "spec": {
            "maxUnavailable": broker.spec.disruption_budget.max_unavailable,
            "selector": {"matchLabels": names.selector_labels(broker)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(broker: Broker) -> dict[str, Any]:
    """Return the NetworkPolicy: in come clients and the HTTP API, out go names and its own brokers.

    A broker calls nobody but another one of the same Broker, so a stolen one cannot either.
    """
    ports = [port for _, port, _ in acceptor_ports(broker)] + [*http_ports(broker).values()]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(broker, names.stateful_set(broker.metadata.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector_labels(broker)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
            "egress": [
                {"ports": [{"protocol": name, "port": _DNS_PORT} for name in ("UDP", "TCP")]},
                {
                    "to": [{"podSelector": {"matchLabels": names.selector_labels(broker)}}],
                    "ports": [{"protocol": "TCP", "port": port} for port in ports],
                },
            ],
        },
    }

"""The headless Service, by which pods have names, and the Service for clients.

Never: reads the cluster. Called by: `plan`, `status` (for endpoints).
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_spec.resources import Broker, ServiceType
from vespiary_spec.settings import DEFAULT_ACCEPTORS, AcceptorBase

_ADMIN_PORT_NAMES = ("http", "admin", "admin-http", "http-admin")


def acceptor_ports(broker: Broker) -> tuple[tuple[str, int, AcceptorBase], ...]:
    """Return name, port and acceptor of every listening socket for clients."""
    acceptors: tuple[Any, ...] = broker.spec.acceptors or DEFAULT_ACCEPTORS
    return tuple((acceptor.name, acceptor.port, acceptor) for acceptor in acceptors)


def admin_port_name(broker: Broker) -> str:
    """Return the name of the HTTP listener's port; `http` unless an acceptor is called that."""
    taken = {name for name, _, _ in acceptor_ports(broker)}
    free = (name for name in _ADMIN_PORT_NAMES if name not in taken)
    return next(free, f"http-{broker.spec.admin.port}")


def _ports(broker: Broker) -> list[dict[str, Any]]:
    ports = [(name, port) for name, port, _ in acceptor_ports(broker)]
    ports.append((admin_port_name(broker), broker.spec.admin.port))
    return [
        {"name": name, "port": port, "protocol": "TCP", "targetPort": port} for name, port in ports
    ]


def headless(broker: Broker) -> dict[str, Any]:
    """Return the headless Service; a pod has its name before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.metadata(broker, names.headless_service(broker.metadata.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector_labels(broker),
            "ports": _ports(broker),
        },
    }


def client(broker: Broker) -> dict[str, Any]:
    """Return the Service for clients, which leads to ready pods."""
    metadata = names.metadata(broker, names.client_service(broker.metadata.name))
    if broker.spec.service.annotations:
        metadata["annotations"] = dict(broker.spec.service.annotations)
    ports = _ports(broker)
    if broker.spec.service.type is ServiceType.LOAD_BALANCER:
        # The HTTP listener is for people inside the cluster; a load balancer is for clients.
        ports = ports[:-1]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": broker.spec.service.type.value,
            "selector": names.selector_labels(broker),
            "ports": ports,
        },
    }

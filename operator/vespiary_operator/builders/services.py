"""The headless Service, by which pods have names, and the Services for clients.

Never: reads the cluster. Called by: `plan`, `status` (for endpoints).
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_spec import service_checks
from vespiary_spec.resources import Broker
from vespiary_spec.services import HeadlessService, ServiceOptions, ServiceType
from vespiary_spec.settings import DEFAULT_ACCEPTORS, AcceptorBase


def acceptor_ports(broker: Broker) -> tuple[tuple[str, int, AcceptorBase], ...]:
    """Return name, port and acceptor of every listening socket for clients."""
    acceptors: tuple[Any, ...] = broker.spec.acceptors or DEFAULT_ACCEPTORS
    return tuple((acceptor.name, acceptor.port, acceptor) for acceptor in acceptors)


def admin_port_name(broker: Broker) -> str:
    """Return the name of the HTTP listener's port; `http` unless an acceptor is called that."""
    return service_checks.admin_port_name(broker.spec)


def probe_port(broker: Broker) -> tuple[str, int]:
    """Return name and number of the port that answers probes and has the metrics."""
    return service_checks.probe_port(broker.spec)


def probe_scheme(broker: Broker) -> str:
    """Return what that port speaks, as a probe spells it; the kubelet takes any certificate."""
    admin = broker.spec.admin
    return "HTTP" if admin.tls is None or admin.probe_port is not None else "HTTPS"


def http_ports(broker: Broker) -> dict[str, int]:
    """Return the ports of the HTTP listener by name: its own, and that of probes if it has one."""
    return {
        admin_port_name(broker): broker.spec.admin.port,
        **dict([probe_port(broker)]),
    }


def client_port(broker: Broker, name: str) -> int:
    """Return the port under which the Service for clients has an acceptor, or the HTTP listener."""
    given = next((port.port for port in broker.spec.service.ports if port.name == name), None)
    return dict(_listeners(broker))[name] if given is None else given


def _listeners(broker: Broker) -> list[tuple[str, int]]:
    ports = [(name, port) for name, port, _ in acceptor_ports(broker)]
    return [*ports, (admin_port_name(broker), broker.spec.admin.port)]


def headless(broker: Broker) -> dict[str, Any]:
    """Return the headless Service; a pod has its name before it is ready."""
    wanted = broker.spec.headless_service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(broker, names.headless_service(broker.metadata.name), wanted),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector_labels(broker),
            "ports": [
                {"name": name, "port": port, "protocol": "TCP", "targetPort": port}
                for name, port in _listeners(broker)
            ],
            **_families(wanted),
        },
    }


def per_broker(broker: Broker, ordinal: int) -> dict[str, Any]:
    """Return the Service of one broker, by which clients reach it and no other.

    With topology Independent a client that left something in a broker has to come back to it.
    """
    name = names.broker_service(broker.metadata.name, ordinal)
    selector = {**names.selector_labels(broker), names.LABEL_ORDINAL: str(ordinal)}
    wanted = broker.spec.broker_services or broker.spec.service
    return _for_clients(broker, name, selector, wanted, has_node_ports=False)


def client(broker: Broker) -> dict[str, Any]:
    """Return the Service for clients, which leads to ready pods."""
    name = names.client_service(broker.metadata.name)
    selector = names.selector_labels(broker)
    return _for_clients(broker, name, selector, broker.spec.service, has_node_ports=True)


def _for_clients(
    broker: Broker,
    name: str,
    selector: dict[str, str],
    wanted: ServiceOptions,
    *,
    has_node_ports: bool,
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "type": wanted.type.value,
        "selector": selector,
        "ports": _client_ports(broker, wanted.type, has_node_ports=has_node_ports),
        **_families(wanted),
    }
    if wanted.external_traffic_policy is not None:
        spec["externalTrafficPolicy"] = wanted.external_traffic_policy.value
    if wanted.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(wanted.load_balancer_source_ranges)
    if wanted.load_balancer_class is not None:
        spec["loadBalancerClass"] = wanted.load_balancer_class
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(broker, name, wanted),
        "spec": spec,
    }


def _client_ports(
    broker: Broker, kind: ServiceType, *, has_node_ports: bool
) -> list[dict[str, Any]]:
    given = {port.name: port for port in broker.spec.service.ports}
    admin = admin_port_name(broker)
    ports = []
    for name, target in _listeners(broker):
        if name == admin and kind is ServiceType.LOAD_BALANCER and name not in given:
            # The HTTP listener is for people inside the cluster; a load balancer is for clients.
            continue
        port: dict[str, Any] = {
            "name": name,
            "port": client_port(broker, name),
            "protocol": "TCP",
            "targetPort": target,
        }
        own = given.get(name)
        if has_node_ports and own is not None and own.node_port is not None:
            port["nodePort"] = own.node_port
        ports.append(port)
    return ports


def _families(wanted: HeadlessService) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if wanted.ip_family_policy is not None:
        found["ipFamilyPolicy"] = wanted.ip_family_policy.value
    if wanted.ip_families:
        found["ipFamilies"] = [family.value for family in wanted.ip_families]
    return found


def _metadata(broker: Broker, name: str, wanted: HeadlessService) -> dict[str, Any]:
    found = names.metadata(broker, name)
    found["labels"] = {**(wanted.labels or {}), **found["labels"]}
    if wanted.annotations:
        found.setdefault("annotations", {}).update(wanted.annotations)
    return found

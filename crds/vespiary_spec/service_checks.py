"""What the CEL rules say about a Broker's Services, for a file that no API server has seen.

Owns: these checks in Python, and that no two ports of a Service are the same one.
Never: looks at a cluster.
Called by: `configuration.from_broker`, and so `vespiary apply` and the operator's plan.
"""

from __future__ import annotations

from vespiary_spec.errors import ConfigError
from vespiary_spec.object_metadata import check_metadata
from vespiary_spec.resources import BrokerSpec
from vespiary_spec.services import (
    BALANCED_TEXT,
    NODE_PORT_TEXT,
    OUTSIDE_TEXT,
    ServiceOptions,
    ServiceType,
)
from vespiary_spec.settings import DEFAULT_ACCEPTORS

_ADMIN_PORT_NAMES = ("http", "admin", "admin-http", "http-admin")
_PROBE_PORT_NAME = "probes"


def admin_port_name(spec: BrokerSpec) -> str:
    """Return the name of the HTTP listener's port; `http` unless an acceptor is called that."""
    taken = {acceptor.name for acceptor in spec.acceptors or DEFAULT_ACCEPTORS}
    free = (name for name in _ADMIN_PORT_NAMES if name not in taken)
    return next(free, f"http-{spec.admin.port}")


def probe_port(spec: BrokerSpec) -> tuple[str, int]:
    """Return name and number of the port that answers probes and has the metrics."""
    if spec.admin.probe_port is None:
        return admin_port_name(spec), spec.admin.port
    taken = {acceptor.name for acceptor in spec.acceptors or DEFAULT_ACCEPTORS}
    number = spec.admin.probe_port
    return (f"probes-{number}" if _PROBE_PORT_NAME in taken else _PROBE_PORT_NAME), number


def check_services(spec: BrokerSpec) -> None:
    """Check what spans several fields about a Broker's Services.

    Raises:
        ConfigError: With the path to one of the fields.
    """
    headless = spec.headless_service
    check_metadata(headless.labels, headless.annotations, "spec.headlessService")
    _check_options(spec.service, "spec.service")
    if spec.broker_services is not None:
        _check_options(spec.broker_services, "spec.brokerServices")
    _check_ports(spec)
    acceptors = {acceptor.name for acceptor in spec.acceptors or DEFAULT_ACCEPTORS}
    route = spec.tls_route
    if route is not None:
        check_metadata(route.labels, route.annotations, "spec.tlsRoute")
        if route.acceptor not in acceptors:
            raise ConfigError(
                "no acceptor has this name",
                path="spec.tlsRoute.acceptor",
                value=route.acceptor,
                allowed=", ".join(sorted(acceptors)),
            )
    monitor = spec.metrics.pod_monitor
    if monitor is not None:
        check_metadata(monitor.labels, None, "spec.metrics.podMonitor")
        if monitor.credentials_secret_name is None and spec.admin.probe_port is None:
            raise ConfigError(
                "Prometheus cannot read metrics without a login",
                path="spec.metrics.podMonitor.credentialsSecretName",
                cure="name a Secret with a user's name and password, or set spec.admin.probePort",
            )
        if spec.admin.tls is not None and spec.admin.probe_port is None:
            raise ConfigError(
                "Prometheus calls pods by their addresses, which are not in the certificate of "
                "spec.admin.tls",
                path="spec.metrics.podMonitor",
                cure="set spec.admin.probePort, which has the metrics in clear and nothing else",
            )


def _check_options(options: ServiceOptions, path: str) -> None:
    check_metadata(options.labels, options.annotations, path)
    if options.external_traffic_policy is not None and options.type is ServiceType.CLUSTER_IP:
        raise ConfigError(OUTSIDE_TEXT, path=f"{path}.externalTrafficPolicy")
    if (
        options.load_balancer_source_ranges or options.load_balancer_class
    ) and options.type is not ServiceType.LOAD_BALANCER:
        raise ConfigError(BALANCED_TEXT, path=path)


def _check_ports(spec: BrokerSpec) -> None:
    known = {acceptor.name: acceptor.port for acceptor in spec.acceptors or DEFAULT_ACCEPTORS}
    known[admin_port_name(spec)] = spec.admin.port
    for index, port in enumerate(spec.service.ports):
        path = f"spec.service.ports[{index}]"
        if port.name not in known:
            raise ConfigError(
                "no acceptor has this name",
                path=f"{path}.name",
                value=port.name,
                allowed=", ".join(sorted(known)),
            )
        if port.node_port is not None and spec.service.type is ServiceType.CLUSTER_IP:
            raise ConfigError(NODE_PORT_TEXT, path=f"{path}.nodePort", value=port.node_port)
        if port.port is not None:
            known[port.name] = port.port
    if not spec.service.ports:
        return  # that acceptors differ is checked for themselves
    owners: dict[int, str] = {}
    for name, number in known.items():
        if number in owners:
            raise ConfigError(
                f"two ports of the Service are {number}: {owners[number]} and {name}",
                path="spec.service.ports",
                cure="give one of them another port",
            )
        owners[number] = name

"""How clients and monitors reach a Broker: Services, a Gateway's route, a PodMonitor.

Owns: these parts of `spec`, and their CEL rules.
Never: opens a port that the Broker does not listen on.
Called by: `resources`; `service_checks`, which says the same where there is no API server.
"""

import enum
from typing import Annotated

from vespiary_spec.model import Unit, setting
from vespiary_spec.object_metadata import (
    ANNOTATION_KEY_RULES,
    LABEL_KEY_RULES,
    LABELS_MAX,
    Annotations,
    Labels,
)
from vespiary_spec.pod_extras import DNS_LABEL, OBJECT_NAME, OBJECT_NAME_MAX
from vespiary_spec.scheduling import Part

PORTS_MAX = 33
"""As many as there may be acceptors, and the HTTP listener."""

_CIDR = r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$"
_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


class ServiceType(enum.StrEnum):
    """Types of the client Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class TrafficPolicy(enum.StrEnum):
    """To which pods traffic from outside goes."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class IpFamilyPolicy(enum.StrEnum):
    """How many address families a Service has."""

    SINGLE_STACK = "SingleStack"
    PREFER_DUAL_STACK = "PreferDualStack"
    REQUIRE_DUAL_STACK = "RequireDualStack"


class IpFamily(enum.StrEnum):
    """Address families."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


class HeadlessService(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The Service that gives each pod a name."""

    annotations: Annotated[
        Annotations | None,
        setting("Annotations.", max_length=LABELS_MAX, rules=ANNOTATION_KEY_RULES),
    ] = None
    labels: Annotated[
        Labels | None, setting("Labels.", max_length=LABELS_MAX, rules=LABEL_KEY_RULES)
    ] = None
    ip_family_policy: Annotated[
        IpFamilyPolicy | None,
        setting("How many address families it has.", default_text="SingleStack"),
    ] = None
    ip_families: Annotated[
        tuple[IpFamily, ...],
        setting("Which, the first one first.", max_length=2, default_text="the cluster's"),
    ] = ()


class ServiceOptions(
    HeadlessService, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """A Service that clients use."""

    type: Annotated[ServiceType, setting("Type.")] = ServiceType.CLUSTER_IP
    external_traffic_policy: Annotated[
        TrafficPolicy | None,
        setting(
            "Local keeps clients' addresses and leads to pods of the same node alone.",
            default_text="Cluster",
        ),
    ] = None
    load_balancer_source_ranges: Annotated[
        tuple[Annotated[str, setting("Network.", pattern=_CIDR, max_length=49)], ...],
        setting("Networks of clients that the load balancer lets in.", max_length=64),
    ] = ()
    load_balancer_class: Annotated[
        str | None,
        setting(
            "Who provides the load balancer. Kubernetes lets it not change later.",
            max_length=OBJECT_NAME_MAX,
        ),
    ] = None


class ServicePort(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How one acceptor is seen from outside of its pod."""

    name: Annotated[
        str,
        setting("Name of an acceptor, or `http`.", pattern=DNS_LABEL, max_length=15),
    ]
    port: Annotated[
        int | None,
        setting(
            "Port of the Service.", minimum=1, maximum=65535, default_text="the acceptor's own"
        ),
    ] = None
    node_port: Annotated[
        int | None,
        setting("Port of the nodes.", minimum=1, maximum=65535, default_text="one that is free"),
    ] = None


class Service(ServiceOptions, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The Service for clients."""

    ports: Annotated[
        tuple[ServicePort, ...],
        setting(
            "Ports that differ from the acceptors'. A load balancer has no port for `http` unless "
            "it is named here.",
            key="name",
            max_length=PORTS_MAX,
        ),
    ] = ()


class ParentReference(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Gateway."""

    name: Annotated[
        str, setting("Name of the Gateway.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
    ]
    namespace: Annotated[
        str | None,
        setting(
            "Its namespace.",
            pattern=DNS_LABEL,
            max_length=63,
            default_text="the Broker's",
        ),
    ] = None
    section_name: Annotated[
        str | None,
        setting("One of its listeners.", max_length=OBJECT_NAME_MAX, default_text="all that fit"),
    ] = None


class TlsRoute(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A TLSRoute of the Gateway API: clients from outside, told apart by the name they ask for."""

    parent_refs: Annotated[
        tuple[ParentReference, ...], setting("Gateways.", min_items=1, max_length=16)
    ]
    hostnames: Annotated[
        tuple[Annotated[str, setting("Name.", pattern=_HOSTNAME, max_length=253)], ...],
        setting("Names that clients ask for (SNI).", min_items=1, max_length=16),
    ]
    acceptor: Annotated[
        str,
        setting(
            "Acceptor that they reach; it speaks TLS itself where the Gateway passes TLS on.",
            pattern=DNS_LABEL,
            max_length=15,
        ),
    ]
    labels: Annotated[
        Labels | None, setting("Labels.", max_length=LABELS_MAX, rules=LABEL_KEY_RULES)
    ] = None
    annotations: Annotated[
        Annotations | None,
        setting("Annotations.", max_length=LABELS_MAX, rules=ANNOTATION_KEY_RULES),
    ] = None


class PodMonitor(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A PodMonitor of the Prometheus operator."""

    credentials_secret_name: Annotated[
        str | None,
        setting(
            "Secret with `username` and `password` of a user of the broker (type "
            "kubernetes.io/basic-auth), which Prometheus logs in with. It has to be named unless "
            "there is a `spec.admin.probePort`, which needs no login.",
            pattern=OBJECT_NAME,
            max_length=OBJECT_NAME_MAX,
            default_text="no login",
        ),
    ] = None
    interval: Annotated[
        int | None,
        setting(
            "Time between two scrapes.",
            unit=Unit.SECONDS,
            minimum=1,
            maximum=3600,
            default_text="Prometheus' own",
        ),
    ] = None
    labels: Annotated[
        Labels | None,
        setting(
            "Labels, by which a Prometheus finds it.",
            max_length=LABELS_MAX,
            rules=LABEL_KEY_RULES,
        ),
    ] = None


class Metrics(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who scrapes the metrics."""

    pod_monitor: Annotated[
        PodMonitor | None, setting("A PodMonitor is made.", default_text="none")
    ] = None


# --- rules between fields -----------------------------------------------------------------------

_OUTSIDE = "has(self.type) && self.type != 'ClusterIP'"
_BALANCED = "has(self.type) && self.type == 'LoadBalancer'"

OUTSIDE_TEXT = "externalTrafficPolicy is for the types NodePort and LoadBalancer"
BALANCED_TEXT = "loadBalancerSourceRanges and loadBalancerClass are for the type LoadBalancer"
NODE_PORT_TEXT = "a nodePort is for the types NodePort and LoadBalancer"

OPTIONS_RULES = (
    (f"!has(self.externalTrafficPolicy) || ({_OUTSIDE})", OUTSIDE_TEXT),
    (
        f"!(has(self.loadBalancerSourceRanges) || has(self.loadBalancerClass)) || ({_BALANCED})",
        BALANCED_TEXT,
    ),
)
"""CEL rules on `spec.brokerServices`."""

SERVICE_RULES = (
    *OPTIONS_RULES,
    (
        f"!has(self.ports) || !self.ports.exists(p, has(p.nodePort)) || ({_OUTSIDE})",
        NODE_PORT_TEXT,
    ),
)
"""CEL rules on `spec.service`."""

PORT_RULES = (
    (
        "!has(self.service) || !has(self.service.ports) || self.service.ports.all(p, "
        "p.name.startsWith('http') || p.name == 'admin' || p.name == 'admin-http' || "
        "(has(self.acceptors) ? self.acceptors.exists(a, a.name == p.name) : "
        "p.name in ['all', 'amqp', 'mqtt', 'stomp']))",
        "a port of the Service has a name that no acceptor has",
    ),
    (
        "!has(self.tlsRoute) || (has(self.acceptors) ? "
        "self.acceptors.exists(a, a.name == self.tlsRoute.acceptor) : "
        "self.tlsRoute.acceptor in ['all', 'amqp', 'mqtt', 'stomp'])",
        "tlsRoute.acceptor names no acceptor",
    ),
)
"""CEL rules on `spec`, about names of acceptors."""

SERVICE_STRUCT_RULES: dict[type, tuple[tuple[str, str], ...]] = {
    ServiceOptions: OPTIONS_RULES,
    Service: SERVICE_RULES,
}
"""CEL rules by the Struct that they are about."""

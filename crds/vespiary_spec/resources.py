"""The resources that users write: Broker, BrokerNodeTuning and JournalArchive.

Owns: their fields and the rules between them. What does not work yet is not
here, so neither the API server nor `vespiary apply` takes it.
Never: talks to an API server; adds defaults to what the user wrote.
Called by: the operator, `vespiary apply`, the generator.
"""

import enum
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeVar

import msgspec

from vespiary_spec import limits
from vespiary_spec.addresses import ADDRESS_PATTERN
from vespiary_spec.archive_status import JournalArchiveStatus
from vespiary_spec.archives import (
    ARCHIVE_NAME_CHARACTERS_MAX,
    ARCHIVE_RULES,
    JournalArchiveSpec,
    check_archive,
)
from vespiary_spec.conversion import convert, to_plain
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, Unit, setting
from vespiary_spec.object_metadata import InheritedMetadata
from vespiary_spec.per_broker import BrokerOverrides, PerBroker
from vespiary_spec.pod_extras import ExtraVolume, ExtraVolumeMount, Variable, VariablesSource
from vespiary_spec.pod_template import (
    DisruptionBudget,
    PodTemplate,
    Probes,
    ServiceAccount,
)
from vespiary_spec.rules import NAME_CHARACTERS_MAX, NAME_PATTERN, ROOT_RULES
from vespiary_spec.scale_down import ScaleDown
from vespiary_spec.scaling import Topology
from vespiary_spec.scheduling import (
    Affinity,
    Part,
    ResourceRequirements,
    SecretReference,
    Toleration,
    TopologySpreadConstraint,
)
from vespiary_spec.security import Auth, SecuritySettingsEntry
from vespiary_spec.services import (
    HeadlessService,
    Metrics,
    Service,
    ServiceOptions,
    ServiceType,
    TlsRoute,
)
from vespiary_spec.settings import (
    AcceptorBase,
    Address,
    AddressSettings,
    BrokerSettings,
    CertificateUser,
)
from vespiary_spec.status import BrokerNodeTuningStatus, BrokerStatus
from vespiary_spec.upgrading import (
    AdoptOperatorTemplate,
    MaintenanceWindow,
    Upgrade,
    UpgradeStrategy,
    Weekday,
)
from vespiary_spec.volumes import (
    DEFAULT_VOLUME_BYTES,
    VOLUME_BYTES_MIN,
    AccessMode,
    AioShortage,
    FilesystemPolicy,
    Retention,
    RetentionPolicy,
    Storage,
    Volumes,
    VolumeSpec,
)

__all__ = [
    "API_VERSION",
    "DEFAULT_VOLUME_BYTES",
    "VOLUME_BYTES_MIN",
    "AccessMode",
    "AddressSettingsEntry",
    "AdoptOperatorTemplate",
    "AioShortage",
    "Auth",
    "Broker",
    "BrokerAcceptor",
    "BrokerAdmin",
    "BrokerNodeTuning",
    "BrokerNodeTuningSpec",
    "BrokerOverrides",
    "BrokerSpec",
    "FilesystemPolicy",
    "JournalArchive",
    "MaintenanceWindow",
    "Metadata",
    "NetworkPolicySwitch",
    "PerBroker",
    "PullPolicy",
    "Retention",
    "RetentionPolicy",
    "SecuritySettingsEntry",
    "Service",
    "ServiceAccount",
    "ServiceType",
    "Storage",
    "TlsSecret",
    "TuningMode",
    "Upgrade",
    "UpgradeStrategy",
    "VolumeSpec",
    "Volumes",
    "Weekday",
]

S = TypeVar("S", bound=msgspec.Struct)

API_VERSION = f"{limits.API_GROUP}/{limits.API_VERSION}"


class PullPolicy(enum.StrEnum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class TuningMode(enum.StrEnum):
    """What a BrokerNodeTuning does about `fs.aio-max-nr`."""

    VERIFY = "Verify"
    RAISE = "Raise"
    TUNED = "Tuned"
    OFF = "Off"


class TlsSecret(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Certificates from a Secret with `tls.crt`, `tls.key` and, for clients, `ca.crt`."""

    secret_name: Annotated[str, setting("Name of the Secret.", max_length=253)]
    require_client_certificate: Annotated[
        bool, setting("Turn clients away that show no certificate of an authority in `ca.crt`.")
    ] = False
    request_client_certificate: Annotated[
        bool, setting("Ask clients for such a certificate, and let those in that have none.")
    ] = False
    certificate_users: Annotated[
        tuple[CertificateUser, ...],
        setting(
            "Users whom client certificates stand for, by subject; one that is not listed stands "
            "for the user of its common name (CN).",
            max_length=100,
        ),
    ] = ()

    @property
    def needs_authorities(self) -> bool:
        """Whether the Secret has to have `ca.crt`."""
        return self.require_client_certificate or self.request_client_certificate


class BrokerAcceptor(AcceptorBase, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One listening socket of every broker pod, on all its addresses."""

    port: Annotated[int, setting("TCP port.", minimum=1, maximum=65535)]
    tls: Annotated[
        TlsSecret | None, setting("TLS of this acceptor.", default_text="`spec.tls`")
    ] = None


ADMIN_CLIENT_CERTIFICATE_TEXT = (
    "the operator has no client certificate to show at the HTTP port; set requestClientCertificate "
    "instead, which lets clients in that log in by password"
)


class BrokerAdmin(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The HTTP listener of every pod: API, metrics, probes."""

    port: Annotated[int, setting("TCP port.", minimum=1, maximum=65535)] = limits.PORT_HTTP
    probe_port: Annotated[
        int | None,
        setting(
            "TCP port that answers `/healthz`, `/readyz` and `/metrics` without a login, and "
            "nothing else; probes and Prometheus then ask it.",
            minimum=1,
            maximum=65535,
            default_text="no such port: they ask `port`",
        ),
    ] = None
    tls: Annotated[
        TlsSecret | None,
        setting(
            "TLS of `port`, which then speaks nothing else; `probePort` always speaks in clear. "
            "The operator and brokers that are drained look at the certificate before they log in "
            "there.",
            rules=(
                (
                    "!has(self.requireClientCertificate) || !self.requireClientCertificate",
                    ADMIN_CLIENT_CERTIFICATE_TEXT,
                ),
            ),
            default_text="none; `spec.tls` is for acceptors alone",
        ),
    ] = None


class AddressSettingsEntry(
    AddressSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Settings of the addresses that a match covers."""

    match: Annotated[
        str,
        setting(
            "Name or pattern: `*` for one word, `#` for any number of words between dots.",
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]


class NetworkPolicySwitch(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A NetworkPolicy that opens the acceptors and nothing else."""

    enabled: Annotated[bool, setting("Whether there is one.")] = False


class BrokerSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a Broker should be; all of it may be left out."""

    replicas: Annotated[
        int, setting("Broker pods, each with its own volumes and messages.", minimum=0, maximum=100)
    ] = 1
    topology: Annotated[
        Topology | None,
        setting(
            "What several replicas are to each other. Independent: each is a broker of its own, "
            "with its own queues, messages and Service. More than one replica needs it written "
            "out. Sharded comes later, and is refused.",
            default_text="none; enough for one replica",
        ),
    ] = None
    scale_down: Annotated[ScaleDown, setting("What becomes of brokers that are too many.")] = (
        ScaleDown()
    )
    hibernate: Annotated[
        bool,
        setting(
            "Stop all brokers and keep everything: claims, Services, Secrets, settings. They come "
            "back with all they had when it is taken out."
        ),
    ] = False
    version: Annotated[
        str | None,
        setting(
            "Version of the broker.",
            pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-+.][0-9A-Za-z.+-]*)?$",
            max_length=64,
            default_text="the operator's default, kept once the Broker exists",
        ),
    ] = None
    image: Annotated[
        str | None,
        setting("Image of the broker; wins over `version`.", max_length=512),
    ] = None
    image_pull_policy: Annotated[
        PullPolicy | None, setting("When the image is pulled.", default_text="IfNotPresent")
    ] = None
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...],
        setting("Secrets for pulling the image.", key="name", max_length=16),
    ] = ()
    storage: Annotated[Storage, setting("Where the data lie.")] = Storage()
    config: Annotated[BrokerSettings, setting("Settings of the broker.")] = BrokerSettings()
    per_broker: Annotated[
        tuple[PerBroker, ...],
        setting(
            "What single brokers have otherwise than the rest. A change of it restarts, if it has "
            "to, that broker alone.",
            key="ordinal",
            max_length=100,
        ),
    ] = ()
    address_settings: Annotated[
        tuple[AddressSettingsEntry, ...],
        setting("Settings by match of an address.", key="match", max_length=1000),
    ] = ()
    security_settings: Annotated[
        tuple[SecuritySettingsEntry, ...],
        setting(
            "Permissions by match of an address; the most specific one alone decides. Without "
            "any, whoever is logged in may do everything.",
            key="match",
            max_length=1000,
        ),
    ] = ()
    addresses: Annotated[
        tuple[Address, ...],
        setting("Addresses that exist from the start.", key="name", max_length=1000),
    ] = ()
    acceptors: Annotated[
        tuple[BrokerAcceptor, ...] | None,
        setting(
            "Listening sockets of the pods.",
            key="name",
            min_items=1,
            max_length=32,
            default_text="`all` on 61616, `amqp` on 5672, `mqtt` on 1883 and `stomp` on 61613",
            rules=(
                (
                    "self.all(a, self.exists_one(b, b.port == a.port))",
                    "two acceptors have the same port",
                ),
            ),
        ),
    ] = None
    admin: Annotated[BrokerAdmin, setting("The HTTP listener.")] = BrokerAdmin()
    auth: Annotated[Auth, setting("Users of the broker.")] = Auth()
    aio_shortage: Annotated[
        AioShortage,
        setting(
            "What a broker does while `fs.aio-max-nr` of its node has no room for its journal: "
            "wait, or start with the slower engine NIO, which config.journalTypeStrict refuses."
        ),
    ] = AioShortage.WAIT
    tls: Annotated[TlsSecret | None, setting("TLS of all acceptors that name no other.")] = None
    resources: Annotated[
        ResourceRequirements | None, setting("What a broker asks for and may use.")
    ] = None
    node_selector: Annotated[
        dict[str, str] | None, setting("Labels of the nodes.", max_length=64)
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...], setting("Taints that are tolerated.", max_length=64)
    ] = ()
    affinity: Annotated[
        Affinity | None,
        setting("Affinity.", default_text="brokers prefer nodes without another of their own"),
    ] = None
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...] | None,
        setting("How pods spread.", max_length=16, default_text="over zones, if they can"),
    ] = None
    priority_class_name: Annotated[
        str | None, setting("Priority class of the pods.", max_length=253)
    ] = None
    service: Annotated[Service, setting("The Service for clients.")] = Service()
    broker_services: Annotated[
        ServiceOptions | None,
        setting(
            "The Service that each broker has with `topology: Independent`.",
            default_text="as `service`, without its nodePorts",
        ),
    ] = None
    headless_service: Annotated[
        HeadlessService, setting("The Service that gives each pod a name.")
    ] = HeadlessService()
    tls_route: Annotated[
        TlsRoute | None, setting("A TLSRoute of the Gateway API is made.", default_text="none")
    ] = None
    metrics: Annotated[Metrics, setting("Who scrapes the metrics.")] = Metrics()
    service_account: Annotated[ServiceAccount, setting("The ServiceAccount of the pods.")] = (
        ServiceAccount()
    )
    pod_labels: Annotated[
        dict[str, str] | None, setting("More labels of the pods.", max_length=64)
    ] = None
    pod_annotations: Annotated[
        dict[str, str] | None, setting("More annotations of the pods.", max_length=64)
    ] = None
    pod_template: Annotated[PodTemplate, setting("More of the pods' template.")] = PodTemplate()
    env: Annotated[
        tuple[Variable, ...], setting("Variables of the broker.", key="name", max_length=64)
    ] = ()
    env_from: Annotated[
        tuple[VariablesSource, ...],
        setting("Objects whose keys become variables of the broker.", max_length=16),
    ] = ()
    extra_volumes: Annotated[
        tuple[ExtraVolume, ...], setting("More volumes.", key="name", max_length=32)
    ] = ()
    extra_volume_mounts: Annotated[
        tuple[ExtraVolumeMount, ...],
        setting("Where they are in the broker.", key="mountPath", max_length=64),
    ] = ()
    probes: Annotated[Probes, setting("How often brokers are asked how they are.")] = Probes()
    disruption_budget: Annotated[
        DisruptionBudget, setting("How many brokers a drain of nodes may take at a time.")
    ] = DisruptionBudget()
    inherited_metadata: Annotated[
        InheritedMetadata, setting("Labels and annotations of everything that belongs to it.")
    ] = InheritedMetadata()
    network_policy: Annotated[NetworkPolicySwitch, setting("NetworkPolicy.")] = (
        NetworkPolicySwitch()
    )
    shutdown_timeout: Annotated[
        int,
        setting(
            "Time that a broker has to stop cleanly; the pod's termination grace period.",
            unit=Unit.SECONDS,
            minimum=5,
            maximum=86400,
        ),
    ] = 60
    upgrade: Annotated[Upgrade, setting("How changes reach the pods.")] = Upgrade()
    maintenance_windows: Annotated[
        tuple[MaintenanceWindow, ...],
        setting(
            "Times in which the operator may restart brokers; taking back a version that failed "
            "does not wait for them.",
            max_length=16,
            default_text="any time",
        ),
    ] = ()
    paused: Annotated[
        bool, setting("Stop changing anything; the status goes on being reported.")
    ] = False


class BrokerNodeTuningSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What should be done about `fs.aio-max-nr`, and where."""

    mode: Annotated[
        TuningMode,
        setting(
            "Verify reports; Raise raises the value, and never lowers it; Tuned has OpenShift's "
            "Node Tuning Operator raise it; Off does nothing."
        ),
    ] = TuningMode.VERIFY
    floor: Annotated[
        int,
        setting("Lowest value to have on every selected node.", minimum=1, maximum=2**31 - 1),
    ] = 65536
    margin: Annotated[
        int,
        setting(
            "Requests kept free beyond what the brokers on the node and others use.",
            minimum=0,
            maximum=2**31 - 1,
        ),
    ] = 65536
    max: Annotated[
        int,
        setting("The value is never raised above this.", minimum=1, maximum=2**31 - 1),
    ] = 4194304
    node_selector: Annotated[
        dict[str, str] | None,
        setting(
            "Labels of the nodes. Of several BrokerNodeTunings that select a node, the one with "
            "most labels here looks after it, then the oldest.",
            max_length=64,
            default_text="every node",
        ),
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...], setting("Taints that are tolerated.", max_length=64)
    ] = ()


class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What Vespiary reads of an object's metadata; the rest is ignored."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int | None = None
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class _Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What all resources share."""

    metadata: Metadata

    @classmethod
    def _parts(cls, document: Mapping[str, Any]) -> tuple[Metadata, Any, Any]:
        """Take a document apart.

        Raises:
            ConfigError: It is another kind of resource, or has no name.
        """
        found = (document.get("apiVersion"), document.get("kind"))
        if found != (API_VERSION, cls.__name__):
            raise ConfigError(
                "the document is another kind of resource",
                path="apiVersion, kind",
                value=f"{found[0]}, {found[1]}",
                allowed=f"{API_VERSION}, {cls.__name__}",
            )
        for name in document:
            if name not in ("apiVersion", "kind", "metadata", "spec", "status"):
                raise ConfigError(
                    "a resource has no such field",
                    path=str(name),
                    allowed="apiVersion, kind, metadata, spec",
                )
        try:
            metadata = msgspec.convert(dict(document.get("metadata") or {}), Metadata)
        except msgspec.ValidationError as error:
            raise ConfigError(str(error), path="metadata") from error
        if not metadata.name:
            raise ConfigError("the resource has no name", path="metadata.name")
        return metadata, document.get("spec"), document.get("status")


class Broker(_Resource, frozen=True, kw_only=True, rename="camel"):
    """A broker as users write it and the operator reports on it."""

    spec: BrokerSpec = BrokerSpec()
    status: BrokerStatus = BrokerStatus()

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a Broker from a manifest or an API object.

        Args:
            document: The whole object. Its status is read leniently: what an older or newer
                operator wrote there is ignored if it is not understood.

        Raises:
            ConfigError: With the path to the field that is wrong.
        """
        metadata, spec, status = cls._parts(document)
        if len(metadata.name) > NAME_CHARACTERS_MAX or not re.fullmatch(
            NAME_PATTERN, metadata.name
        ):
            raise ConfigError(ROOT_RULES[0][1], path="metadata.name", value=metadata.name)
        return cls(
            metadata=metadata,
            spec=convert(spec, BrokerSpec, spelling=Spelling.CAMEL, path="spec"),
            status=_lenient(status, BrokerStatus),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest: metadata and spec with what differs from the defaults."""
        return _manifest(self)


class BrokerNodeTuning(_Resource, frozen=True, kw_only=True, rename="camel"):
    """`fs.aio-max-nr` of the nodes; one resource for the whole cluster or one per node pool."""

    spec: BrokerNodeTuningSpec = BrokerNodeTuningSpec()
    status: BrokerNodeTuningStatus = BrokerNodeTuningStatus()

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a BrokerNodeTuning from a manifest or an API object.

        Raises:
            ConfigError: With the path to the field that is wrong.
        """
        metadata, spec, status = cls._parts(document)
        converted = convert(spec, BrokerNodeTuningSpec, spelling=Spelling.CAMEL, path="spec")
        if converted.floor > converted.max:
            raise ConfigError(
                "the floor is above the maximum",
                path="spec.floor",
                value=converted.floor,
                allowed=f"at most spec.max = {converted.max}",
            )
        return cls(
            metadata=metadata,
            spec=converted,
            status=_lenient(status, BrokerNodeTuningStatus),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest: metadata and spec with what differs from the defaults."""
        return _manifest(self)


class JournalArchive(_Resource, frozen=True, kw_only=True, rename="camel"):
    """Runs of the pipeline over the files of a Broker, once or on a schedule."""

    spec: JournalArchiveSpec
    status: JournalArchiveStatus = JournalArchiveStatus()

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Read a JournalArchive from a manifest or an API object.

        Raises:
            ConfigError: With the path to the field that is wrong.
        """
        metadata, spec, status = cls._parts(document)
        if len(metadata.name) > ARCHIVE_NAME_CHARACTERS_MAX or not re.fullmatch(
            NAME_PATTERN, metadata.name
        ):
            raise ConfigError(ARCHIVE_RULES[0][1], path="metadata.name", value=metadata.name)
        converted = convert(spec, JournalArchiveSpec, spelling=Spelling.CAMEL, path="spec")
        check_archive(converted)
        return cls(metadata=metadata, spec=converted, status=_lenient(status, JournalArchiveStatus))

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest: metadata and spec with what differs from the defaults."""
        return _manifest(self)


def _lenient(status: Any, kind: type[S]) -> S:
    """Read a status that another version may have written; an unreadable one counts as none."""
    try:
        return msgspec.convert(status or {}, kind, strict=False)
    except msgspec.ValidationError:
        return kind()


def _manifest(resource: Broker | BrokerNodeTuning | JournalArchive) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": type(resource).__name__,
        "metadata": msgspec.to_builtins(resource.metadata),
        "spec": to_plain(resource.spec, spelling=Spelling.CAMEL),
    }

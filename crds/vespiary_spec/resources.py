"""The resources that users write: Broker and BrokerNodeTuning.

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
from vespiary_spec.conversion import convert, to_plain
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, Unit, setting
from vespiary_spec.scheduling import (
    Affinity,
    LabelSelector,
    Part,
    ResourceRequirements,
    SecretReference,
    Toleration,
    TopologySpreadConstraint,
)
from vespiary_spec.settings import (
    AcceptorBase,
    Address,
    AddressSettings,
    BrokerSettings,
)
from vespiary_spec.status import BrokerNodeTuningStatus, BrokerStatus

S = TypeVar("S", bound=msgspec.Struct)

API_VERSION = f"{limits.API_GROUP}/{limits.API_VERSION}"

KEPT = (("self == oldSelf", "cannot change once the Broker exists"),)
"""CEL rule on a field that cannot change."""

VOLUME_BYTES_MIN = 64 * 1024 * 1024
"""Smallest volume: the journal's first files and their journal of the filesystem fit."""

DEFAULT_VOLUME_BYTES: dict[str, int] = {
    "bindings": 1024**3,
    "journal": 10 * 1024**3,
    "paging": 10 * 1024**3,
    "large_messages": 10 * 1024**3,
}
"""Size of a volume whose claim names none."""


class PullPolicy(enum.StrEnum):
    """When the kubelet pulls an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class AccessMode(enum.StrEnum):
    """Access modes that suit a journal: one writer."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class RetentionPolicy(enum.StrEnum):
    """What becomes of a claim."""

    RETAIN = "Retain"
    DELETE = "Delete"


class ServiceType(enum.StrEnum):
    """Types of the client Service."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class UpgradeStrategy(enum.StrEnum):
    """How a new version reaches the pods."""

    ROLLING_UPDATE = "RollingUpdate"


class TuningMode(enum.StrEnum):
    """What a BrokerNodeTuning does about `fs.aio-max-nr`."""

    VERIFY = "Verify"
    RAISE = "Raise"
    OFF = "Off"


class FilesystemPolicy(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which filesystems the volumes may be on; what no list names is refused."""

    allow: Annotated[
        tuple[str, ...] | None,
        setting(
            "Types that are taken without a word, as in /proc/mounts.",
            max_length=64,
            default_text="xfs, ext4",
        ),
    ] = None
    warn: Annotated[
        tuple[str, ...] | None,
        setting(
            "Types that are taken with a warning in the status.",
            max_length=64,
            default_text="btrfs, zfs, f2fs, jfs, bcachefs",
        ),
    ] = None
    deny: Annotated[
        tuple[str, ...] | None,
        setting("Types that are refused even if another list names them.", max_length=64),
    ] = None


class VolumeSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The claim of one volume."""

    size: Annotated[
        int | None,
        setting(
            "Size of the volume.",
            unit=Unit.BYTES,
            minimum=VOLUME_BYTES_MIN,
            default_text="10Gi; 1Gi for bindings",
        ),
    ] = None
    storage_class_name: Annotated[
        str | None,
        setting(
            "Storage class. It cannot change later.",
            max_length=253,
            default_text="the cluster's default class",
            rules=KEPT,
        ),
    ] = None
    access_mode: Annotated[
        AccessMode | None,
        setting("Access mode. It cannot change later.", default_text="ReadWriteOnce", rules=KEPT),
    ] = None
    selector: Annotated[
        LabelSelector | None,
        setting("PersistentVolumes that may be bound. It cannot change later.", rules=KEPT),
    ] = None


class Volumes(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One volume for each kind of data; one that is not given has its defaults."""

    bindings: Annotated[VolumeSpec, setting("Addresses, queues, counters.")] = VolumeSpec()
    journal: Annotated[VolumeSpec, setting("The message journal.")] = VolumeSpec()
    paging: Annotated[VolumeSpec, setting("Page files.")] = VolumeSpec()
    large_messages: Annotated[VolumeSpec, setting("Bodies of large messages.")] = VolumeSpec()


class Retention(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What becomes of the claims."""

    when_deleted: Annotated[RetentionPolicy, setting("When the Broker is deleted.")] = (
        RetentionPolicy.RETAIN
    )
    when_scaled: Annotated[RetentionPolicy, setting("When there are fewer replicas.")] = (
        RetentionPolicy.RETAIN
    )


class Storage(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where the data lie."""

    filesystem_policy: Annotated[FilesystemPolicy, setting("Which filesystems are taken.")] = (
        FilesystemPolicy()
    )
    volumes: Annotated[Volumes, setting("The volumes.")] = Volumes()
    retention: Annotated[Retention, setting("What becomes of the claims.")] = Retention()
    ephemeral: Annotated[
        bool,
        setting(
            "Keep everything in volumes that go with the pod, for tests. It cannot change later."
        ),
    ] = False


class TlsSecret(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Certificates from a Secret with `tls.crt`, `tls.key` and, for clients, `ca.crt`."""

    secret_name: Annotated[str, setting("Name of the Secret.", max_length=253)]
    require_client_certificate: Annotated[
        bool, setting("Ask clients for a certificate of an authority in `ca.crt`.")
    ] = False


class BrokerAcceptor(AcceptorBase, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One listening socket of every broker pod, on all its addresses."""

    port: Annotated[int, setting("TCP port.", minimum=1, maximum=65535)]
    tls: Annotated[
        TlsSecret | None, setting("TLS of this acceptor.", default_text="`spec.tls`")
    ] = None


class BrokerAdmin(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The HTTP listener of every pod: API, metrics, probes."""

    port: Annotated[int, setting("TCP port.", minimum=1, maximum=65535)] = limits.PORT_HTTP


class AddressSettingsEntry(
    AddressSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Settings of the addresses that a match covers."""

    match: Annotated[
        str,
        setting(
            "Name or pattern: `*` for one word, `#` for any number of words between dots.",
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]


class Auth(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Users of the broker."""

    secret_name: Annotated[
        str | None,
        setting(
            "Secret whose keys are user names and values their passwords.",
            max_length=253,
            default_text="a Secret with a generated password of `admin`, made once",
        ),
    ] = None


class Service(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The Service for clients."""

    type: Annotated[ServiceType, setting("Type.")] = ServiceType.CLUSTER_IP
    annotations: Annotated[
        dict[str, str] | None, setting("Annotations, for the cloud's load balancer.", max_length=64)
    ] = None


class ServiceAccount(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The ServiceAccount of the pods; it has no token mounted."""

    annotations: Annotated[dict[str, str] | None, setting("Annotations.", max_length=64)] = None


class NetworkPolicySwitch(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A NetworkPolicy that opens the acceptors and nothing else."""

    enabled: Annotated[bool, setting("Whether there is one.")] = False


class Upgrade(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How new versions and settings reach the pods."""

    strategy: Annotated[
        UpgradeStrategy, setting("RollingUpdate restarts one pod after the other, by readiness.")
    ] = UpgradeStrategy.ROLLING_UPDATE


class BrokerSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a Broker should be; all of it may be left out."""

    replicas: Annotated[
        int, setting("Broker pods, each with its own volumes and messages.", minimum=0, maximum=100)
    ] = 1
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
    address_settings: Annotated[
        tuple[AddressSettingsEntry, ...],
        setting("Settings by match of an address.", key="match", max_length=1000),
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
            default_text="`all` on 61616 and `stomp` on 61613",
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
    service_account: Annotated[ServiceAccount, setting("The ServiceAccount of the pods.")] = (
        ServiceAccount()
    )
    pod_labels: Annotated[
        dict[str, str] | None, setting("More labels of the pods.", max_length=64)
    ] = None
    pod_annotations: Annotated[
        dict[str, str] | None, setting("More annotations of the pods.", max_length=64)
    ] = None
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
    paused: Annotated[
        bool, setting("Stop changing anything; the status goes on being reported.")
    ] = False


class BrokerNodeTuningSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What should be done about `fs.aio-max-nr`, and where."""

    mode: Annotated[
        TuningMode,
        setting("Verify reports; Raise raises the value, and never lowers it; Off does nothing."),
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
        setting("Labels of the nodes.", max_length=64, default_text="every node"),
    ] = None
    tolerations: Annotated[
        tuple[Toleration, ...], setting("Taints that are tolerated.", max_length=64)
    ] = ()


def _kept(*path: str) -> str:
    """Return a CEL rule: whether something is given there cannot change.

    That its value cannot change is a rule on the field itself (`KEPT`), because the cost of
    comparing values through optional fields is estimated without bound.
    """
    inside = ".?".join(("", *path))
    return f"self{inside}.hasValue() == oldSelf{inside}.hasValue()"


_VOLUMES = ("bindings", "journal", "paging", "largeMessages")
_VOLUME_CONSTANTS = ("storageClassName", "accessMode", "selector")

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_CHARACTERS_MAX = 48
"""Names of Brokers: pods, Services and labels are named after them with an ending."""

ROOT_RULES: tuple[tuple[str, str], ...] = (
    (
        f"self.metadata.name.size() <= {NAME_CHARACTERS_MAX} && "
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        f"the name has to be at most {NAME_CHARACTERS_MAX} characters: small letters, digits and "
        "-, a letter first",
    ),
    *(
        (
            " && ".join(
                _kept("spec", "storage", "volumes", volume, field) for field in _VOLUME_CONSTANTS
            ),
            f"storageClassName, accessMode and selector of the volume {volume} cannot change once "
            "the Broker exists, and the volume cannot be taken out",
        )
        for volume in _VOLUMES
    ),
    (
        "self.?spec.?storage.?ephemeral.orValue(false) == "
        "oldSelf.?spec.?storage.?ephemeral.orValue(false)",
        "spec.storage.ephemeral cannot change once the Broker exists",
    ),
    (
        _kept("spec", "config", "journalDeviceBlockSize"),
        "spec.config.journalDeviceBlockSize shapes the journal's files and cannot change once the "
        "Broker exists",
    ),
)
"""CEL rules on a whole Broker: (rule, message). Those that name `oldSelf` guard changes."""

CONFIG_RULES: tuple[tuple[str, str], ...] = (
    (
        "!(has(self.journalBufferSize) && has(self.journalFileSize)) || "
        "quantity(string(self.journalBufferSize)).compareTo("
        "quantity(string(self.journalFileSize))) <= 0",
        "journalBufferSize is larger than journalFileSize; one record has to fit into one file",
    ),
)
"""CEL rules on `spec.config`."""

TUNING_RULES: tuple[tuple[str, str], ...] = (
    (
        "!has(self.spec) || self.spec.?floor.orValue(65536) <= self.spec.?max.orValue(4194304)",
        "spec.floor is above spec.max",
    ),
)
"""CEL rules on a whole BrokerNodeTuning."""


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
    """What both resources share."""

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


def _lenient(status: Any, kind: type[S]) -> S:
    """Read a status that another version may have written; an unreadable one counts as none."""
    try:
        return msgspec.convert(status or {}, kind, strict=False)
    except msgspec.ValidationError:
        return kind()


def _manifest(resource: Broker | BrokerNodeTuning) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": type(resource).__name__,
        "metadata": msgspec.to_builtins(resource.metadata),
        "spec": to_plain(resource.spec, spelling=Spelling.CAMEL),
    }

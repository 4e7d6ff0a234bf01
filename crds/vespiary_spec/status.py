"""What the operator reports: the status of Broker and BrokerNodeTuning.

Owns: condition types and the shape of both statuses.
Never: decides anything; the operator fills these in.
Called by: `resources`, the operator, the CLI's `vespiary apply`.
"""

import enum
from typing import Annotated

from vespiary_spec.adoption_status import ADOPTIONS_MAX, AdoptionRecord
from vespiary_spec.certificate_status import CertificateStatus
from vespiary_spec.model import setting
from vespiary_spec.scale_down import SCALE_DOWNS_MAX, ScaleDownRecord
from vespiary_spec.scheduling import Part
from vespiary_spec.upgrade_status import RESTARTS_MAX, KnownPod, RestartRecord, UpgradeStatus
from vespiary_spec.volume_status import VOLUMES_MAX, VolumeSize


class ConditionStatus(enum.StrEnum):
    """Values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(enum.StrEnum):
    """Conditions of a Broker.

    All healthy is True for each but Progressing, Degraded, Paused, Draining.
    """

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    STORAGE_VERIFIED = "StorageVerified"
    VOLUMES_SIZED = "VolumesSized"
    JOURNAL_ENGINE = "JournalEngine"
    NODE_TUNED = "NodeTuned"
    CONFIG_APPLIED = "ConfigApplied"
    CERTIFICATE_VALID = "CertificateValid"
    UP_TO_DATE = "UpToDate"
    PAUSED = "Paused"
    DRAINING = "Draining"
    INTEGRATED = "Integrated"


class TuningConditionType(enum.StrEnum):
    """Conditions of a BrokerNodeTuning. All healthy is True for Ready, False for Overlapping."""

    READY = "Ready"
    OVERLAPPING = "Overlapping"


class VerdictLevel(enum.StrEnum):
    """What the filesystem policy says about a volume."""

    ALLOW = "allow"
    WARN = "warn"
    DENY = "deny"


class Condition(Part, frozen=True, kw_only=True, rename="camel"):
    """One condition in the shape that `kubectl wait` reads."""

    type: Annotated[str, setting("Type of the condition.", max_length=316)]
    status: Annotated[ConditionStatus, setting("Whether it holds.")]
    reason: Annotated[str, setting("Why, as one word.", max_length=1024)]
    message: Annotated[str, setting("Why, as one sentence.", max_length=32768)] = ""
    last_transition_time: Annotated[str, setting("When `status` last changed, RFC 3339.")] = ""
    observed_generation: Annotated[
        int | None, setting("Generation of the resource that this is about.", minimum=0)
    ] = None


class Endpoint(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where clients connect to."""

    name: Annotated[str, setting("Name of the acceptor.")]
    host: Annotated[str, setting("Name that resolves inside the cluster.")]
    port: Annotated[int, setting("TCP port.")]
    protocols: Annotated[tuple[str, ...], setting("Protocols spoken here.")] = ()
    tls: Annotated[bool, setting("Whether TLS is spoken.")] = False


class AioStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Asynchronous I/O on the node, as the broker's pod found it."""

    max_nr: Annotated[int | None, setting("`fs.aio-max-nr`.")] = None
    nr: Annotated[int | None, setting("`fs.aio-nr`, in use by everyone on the node.")] = None
    demand: Annotated[int | None, setting("What this broker asks for.")] = None


class VolumeStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One volume, as the verification found it from inside the pod, and how full it is."""

    name: Annotated[str, setting("bindings, journal, paging, large-messages or jms.")]
    path: Annotated[str, setting("Where it is mounted.")] = ""
    filesystem: Annotated[str, setting("Filesystem type.")] = ""
    source: Annotated[str, setting("What is mounted.")] = ""
    options: Annotated[str, setting("Mount options.")] = ""
    device: Annotated[str, setting("Block device, major:minor.")] = ""
    dedicated: Annotated[
        bool | None, setting("Whether no other volume of the broker shares its filesystem.")
    ] = None
    shares_with: Annotated[
        str, setting("Volume whose claim it shares, as `shareWith` asks; empty if none.")
    ] = ""
    direct_io: Annotated[bool | None, setting("Whether an O_DIRECT write worked.")] = None
    aio: Annotated[bool | None, setting("Whether an asynchronous write worked.")] = None
    flush_us_p50: Annotated[int | None, setting("Median time of a flushed write, in µs.")] = None
    flush_us_p99: Annotated[int | None, setting("99th percentile of the same, in µs.")] = None
    write_cache: Annotated[str, setting("`write back` or `write through`, if known.")] = ""
    size_bytes: Annotated[int | None, setting("Size.")] = None
    free_bytes: Annotated[
        int | None,
        setting(
            "Free space, as the broker last said. It is written anew when it has moved by a "
            "twentieth of the size, or the volume is nearly full or no longer is."
        ),
    ] = None
    inodes: Annotated[
        int | None, setting("Inodes; 0 where the filesystem has no fixed number.")
    ] = None
    free_inodes: Annotated[
        int | None, setting("Inodes left; written anew in the same steps as `freeBytes`.")
    ] = None
    verdict: Annotated[VerdictLevel | None, setting("What the policy says.")] = None
    reason: Annotated[str, setting("Why, as one sentence.")] = ""


class BrokerInstance(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One broker pod."""

    name: Annotated[str, setting("Name of the pod.")]
    ordinal: Annotated[int, setting("Its number in the StatefulSet.")]
    ready: Annotated[bool, setting("Whether it serves clients.")]
    node: Annotated[str, setting("Node that it runs on.")] = ""
    host: Annotated[
        str, setting("Name of its own Service, with topology Independent; resolves in the cluster.")
    ] = ""
    engine: Annotated[str, setting("Effective journal engine.")] = ""
    durability: Annotated[
        str, setting("D0 memory only, D1 survives kill -9, D2 survives power loss.")
    ] = ""
    message: Annotated[str, setting("What it waits for, if it is not ready.")] = ""
    aio: Annotated[AioStatus | None, setting("Asynchronous I/O on its node.")] = None
    volumes: Annotated[
        tuple[VolumeStatus, ...], setting("Its volumes.", key="name", max_length=8)
    ] = ()


class Operation(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A change of several steps that is under way; how the operator resumes it."""

    type: Annotated[str, setting("What is done.")]
    step: Annotated[str, setting("Which step comes next.")] = ""
    target: Annotated[str, setting("Object that it is about.")] = ""
    uid: Annotated[str, setting("UID of that object when it began.")] = ""
    started_at: Annotated[str, setting("When it began, RFC 3339.")] = ""
    message: Annotated[str, setting("Where it stands, as one sentence.")] = ""
    templates: Annotated[
        str,
        setting(
            "The annotation `vespiary.dev/templates` of a StatefulSet that is replaced, which the "
            "new one gets.",
            max_length=262144,
        ),
    ] = ""


class BrokerStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Status of a Broker."""

    observed_generation: Annotated[
        int | None, setting("Generation that this status is about.", minimum=0)
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], setting("Conditions.", key="type", max_length=32)
    ] = ()
    replicas: Annotated[int | None, setting("Broker pods that exist.")] = None
    ready_replicas: Annotated[int | None, setting("Broker pods that serve clients.")] = None
    summary: Annotated[str, setting("Ready and wanted brokers, such as `1/1`.")] = ""
    members: Annotated[
        int | None,
        setting("Brokers that have messages or may have, also while they are hibernated."),
    ] = None
    selector: Annotated[str, setting("Label selector of the pods, for the scale subresource.")] = ""
    version: Annotated[str, setting("Version that all pods run.")] = ""
    image: Annotated[
        str,
        setting("Image of the pods; kept while neither `spec.version` nor `spec.image` is given."),
    ] = ""
    engine: Annotated[
        str, setting("Effective journal engine; several, with commas, if they differ.")
    ] = ""
    storage: Annotated[
        str,
        setting("Filesystems in short, or the volume that was refused, such as `journal: nfs4`."),
    ] = ""
    endpoints: Annotated[
        tuple[Endpoint, ...], setting("Where clients connect to.", key="name", max_length=64)
    ] = ()
    brokers: Annotated[
        tuple[BrokerInstance, ...], setting("The pods, one by one.", key="name", max_length=100)
    ] = ()
    certificates: Annotated[
        tuple[CertificateStatus, ...],
        setting("Certificates of the acceptors with TLS.", key="acceptor", max_length=64),
    ] = ()
    volumes: Annotated[
        tuple[VolumeSize, ...],
        setting("Sizes of the volumes, over all brokers.", key="name", max_length=VOLUMES_MAX),
    ] = ()
    operation: Annotated[Operation | None, setting("A change that is under way.")] = None
    adoptions: Annotated[
        tuple[AdoptionRecord, ...],
        setting(
            "Volumes that the annotation `vespiary.dev/adopt-volume` names and that were adopted.",
            key="claim",
            max_length=ADOPTIONS_MAX,
        ),
    ] = ()
    scale_down: Annotated[Operation | None, setting("A broker that is leaving.")] = None
    scale_downs: Annotated[
        tuple[ScaleDownRecord, ...],
        setting("Brokers that left, the latest last.", max_length=SCALE_DOWNS_MAX),
    ] = ()
    upgrade: Annotated[
        UpgradeStatus | None, setting("The upgrade that is under way, or the last one.")
    ] = None
    restarts: Annotated[
        tuple[RestartRecord, ...],
        setting("The last restarts of brokers, the latest first.", max_length=RESTARTS_MAX),
    ] = ()
    known_pods: Annotated[
        tuple[KnownPod, ...],
        setting("Pods as they were at the last look.", key="name", max_length=100),
    ] = ()


class TunedNode(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`fs.aio-max-nr` of one node."""

    name: Annotated[str, setting("Name of the node.")]
    aio_max_nr: Annotated[int | None, setting("`fs.aio-max-nr` as last read.")] = None
    aio_nr: Annotated[int | None, setting("`fs.aio-nr` as last read.")] = None
    demand: Annotated[int | None, setting("What the brokers on the node ask for.")] = None
    target: Annotated[int | None, setting("What `fs.aio-max-nr` should be at least.")] = None
    raised_from: Annotated[int | None, setting("Lowest value that it was raised from.")] = None
    satisfied: Annotated[bool | None, setting("Whether the value is enough.")] = None
    message: Annotated[str, setting("What was done or is missing, as one sentence.")] = ""


class BrokerNodeTuningStatus(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Status of a BrokerNodeTuning."""

    observed_generation: Annotated[
        int | None, setting("Generation that this status is about.", minimum=0)
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], setting("Conditions.", key="type", max_length=32)
    ] = ()
    summary: Annotated[str, setting("Satisfied and selected nodes, such as `3/3`.")] = ""
    profile: Annotated[str, setting("Name of the Tuned object, in mode Tuned.", max_length=253)] = (
        ""
    )
    nodes: Annotated[
        tuple[TunedNode, ...], setting("The nodes, one by one.", key="name", max_length=5000)
    ] = ()

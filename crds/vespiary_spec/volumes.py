"""The volumes of a Broker: their claims, the filesystem policy, and what becomes of them.

Owns: sizes, classes and retention as users write them.
Never: judges a filesystem (that is `filesystems`).
Called by: `resources`, `filesystems`.
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
from vespiary_spec.scheduling import LabelSelector, Part

KEPT = (("self == oldSelf", "cannot change once the Broker exists"),)
"""CEL rule on a field that cannot change."""

VOLUME_BYTES_MIN = 64 * 1024 * 1024
"""Smallest volume: the journal's first files and their journal of the filesystem fit."""

DEFAULT_VOLUME_BYTES: dict[str, int] = {
    "bindings": 1024**3,
    "journal": 10 * 1024**3,
    "paging": 10 * 1024**3,
    "large_messages": 10 * 1024**3,
    "jms": 1024**3,
    "retention": 10 * 1024**3,
}
"""Size of a volume whose claim names none."""


class AccessMode(enum.StrEnum):
    """Access modes that suit a journal: one writer."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class RetentionPolicy(enum.StrEnum):
    """What becomes of a claim."""

    RETAIN = "Retain"
    DELETE = "Delete"


class AioShortage(enum.StrEnum):
    """What a broker does while its node has no room for its AIO requests."""

    WAIT = "Wait"
    DEGRADE_TO_NIO = "DegradeToNio"


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


class SharedVolume(enum.StrEnum):
    """Volumes whose claim others may share."""

    BINDINGS = "bindings"
    JOURNAL = "journal"
    PAGING = "paging"
    LARGE_MESSAGES = "largeMessages"


class ClaimMetadata(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a claim says about itself, for backups, cost reports and drivers."""

    labels: Annotated[
        Labels | None,
        setting("Labels.", max_length=LABELS_MAX, rules=LABEL_KEY_RULES),
    ] = None
    annotations: Annotated[
        Annotations | None,
        setting("Annotations.", max_length=LABELS_MAX, rules=ANNOTATION_KEY_RULES),
    ] = None


GROWTH_STEP_BYTES_MIN = 16 * 1024 * 1024
"""Smallest step of a growth: less than that is used up before the next look."""


class AutoGrow(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far, when and in which steps the claims of a volume grow by themselves."""

    max_size: Annotated[
        int,
        setting(
            "Size beyond which no claim grows by itself.",
            unit=Unit.BYTES,
            minimum=VOLUME_BYTES_MIN,
        ),
    ]
    min_free_percent: Annotated[
        int | None,
        setting(
            "Free share of the volume below which its claim grows. Where producers would have to "
            "wait it grows in any case.",
            unit=Unit.PERCENT,
            minimum=1,
            maximum=90,
            default_text="10 % of the volume before producers wait: 20, unless maxDiskUsage or "
            "minDiskFree are given",
        ),
    ] = None
    growth_step: Annotated[
        int | None,
        setting(
            "How much a claim grows at a time.",
            unit=Unit.BYTES,
            minimum=GROWTH_STEP_BYTES_MIN,
            default_text="a quarter of what it has, in whole Gi",
        ),
    ] = None


class VolumeSpec(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The claim of one volume."""

    size: Annotated[
        int | None,
        setting(
            "Size of the volume.",
            unit=Unit.BYTES,
            minimum=VOLUME_BYTES_MIN,
            default_text="10Gi; 1Gi for bindings and jms",
        ),
    ] = None
    auto_grow: Annotated[
        AutoGrow | None,
        setting(
            "Let each claim of the volume grow by itself as it fills up. `size` stays as it is.",
            default_text="claims grow when `size` does",
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
    volume_attributes_class_name: Annotated[
        str | None,
        setting(
            "VolumeAttributesClass, such as one with more operations a second. It may change, "
            "without a restart, but not be taken out.",
            max_length=253,
            default_text="as the storage class says",
        ),
    ] = None
    metadata: Annotated[ClaimMetadata, setting("Labels and annotations of the claims.")] = (
        ClaimMetadata()
    )
    share_with: Annotated[
        SharedVolume | None,
        setting(
            "Another volume, on whose claim this one has a folder of its own; it then has no claim "
            "and none of the other fields. It cannot change later.",
            default_text="a claim of its own",
            rules=KEPT,
        ),
    ] = None


class Volumes(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One volume for each kind of data; one that is not given has its defaults."""

    bindings: Annotated[VolumeSpec, setting("Addresses, queues, counters.")] = VolumeSpec()
    journal: Annotated[VolumeSpec, setting("The message journal.")] = VolumeSpec()
    paging: Annotated[VolumeSpec, setting("Page files.")] = VolumeSpec()
    large_messages: Annotated[VolumeSpec, setting("Bodies of large messages.")] = VolumeSpec()
    jms: Annotated[
        VolumeSpec | None,
        setting(
            "The JMS journal, when it is to have a volume of its own. It can neither be given nor "
            "taken out later.",
            default_text="on the volume of the bindings",
        ),
    ] = None
    retention: Annotated[
        VolumeSpec | None,
        setting(
            "Copies of full journal files, for `vespiary journal replay`. Its filesystem is not "
            "judged: NFS will do. It can neither be given nor taken out later.",
            default_text="no copies",
        ),
    ] = None


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


# --- rules between fields -----------------------------------------------------------------------

_CLAIM_FIELDS = (
    "size",
    "autoGrow",
    "storageClassName",
    "accessMode",
    "selector",
    "volumeAttributesClassName",
    "metadata",
)

SHARED_CLAIM_TEXT = "a volume that shares another one's claim has no other field than shareWith"

VOLUME_RULES = (
    (
        "!has(self.shareWith) || !("
        + " || ".join(f"has(self.{name})" for name in _CLAIM_FIELDS)
        + ")",
        SHARED_CLAIM_TEXT,
    ),
)
"""CEL rules on one volume."""

_ROLES = ("bindings", "journal", "paging", "largeMessages", "jms", "retention")


def _no_chain(target: str) -> tuple[str, str]:
    sharing = ", ".join(f"self.?{role}.?shareWith.orValue('')" for role in _ROLES)
    return (
        f"!has(self.{target}) || !has(self.{target}.shareWith) || "
        f"[{sharing}].all(other, other != '{target}')",
        f"a volume shares the claim of {target}, which has none of its own",
    )


SHARING_RULES = tuple(_no_chain(target.value) for target in SharedVolume)
"""CEL rules on all volumes."""

BELOW_SIZE_TEXT = "autoGrow.maxSize is below the size of the volume"


def _room_to_grow(role: str) -> tuple[str, str]:
    # Selected as they are declared: only then does the API server know how long they may be.
    volume, default = f"self.{role}", "1Gi" if role in ("bindings", "jms") else "10Gi"
    size = f"(has({volume}.size) ? quantity(string({volume}.size)) : quantity('{default}'))"
    return (
        f"!has({volume}) || !has({volume}.autoGrow) || "
        f"!{size}.isGreaterThan(quantity(string({volume}.autoGrow.maxSize)))",
        f"{BELOW_SIZE_TEXT} {role}",
    )


GROWTH_RULES = tuple(_room_to_grow(role) for role in _ROLES)
"""CEL rules on volumes that grow by themselves."""

VOLUME_STRUCT_RULES: dict[type, tuple[tuple[str, str], ...]] = {
    VolumeSpec: VOLUME_RULES,
    Volumes: (*SHARING_RULES, *GROWTH_RULES),
}
"""CEL rules by the Struct that they are about."""

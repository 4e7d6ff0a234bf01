"""Which filesystems may hold a journal, and why not.

Owns: the table of filesystem types, the default policy, and the sentence that a user
reads when a volume is refused.
Never: looks at a mount (that is `vespiary_broker.store`) or calls the API server.
Called by: `storage_drivers`, the broker's verification, `vespiary apply`, the operator, the CLI.

Three layers, cheapest first: the storage class and the PersistentVolume warn early
(`storage_drivers`); the mount as seen from inside the pod (`verdict`) decides.

Magic numbers are those of the kernel's linux/magic.h; lustre, gfs2, jfs, zfs and
bcachefs are not in it and come from their own sources.
"""

from __future__ import annotations

from typing import NamedTuple

from vespiary_spec.status import VerdictLevel
from vespiary_spec.volumes import FilesystemPolicy

ALLOWED = ("xfs", "ext4")
WARNED = ("btrfs", "zfs", "f2fs", "jfs", "bcachefs")
"""The default policy; every other type is refused."""

MAGIC_NUMBERS: dict[int, tuple[str, ...]] = {
    0xEF53: ("ext4", "ext3", "ext2"),
    0x58465342: ("xfs",),
    0x6969: ("nfs", "nfs4"),
    0xFF534D42: ("cifs",),
    0xFE534D42: ("cifs", "smb3"),
    0x517B: ("smbfs",),
    0x00C36400: ("ceph",),
    0x65735546: ("fuse", "fuseblk", "virtiofs"),
    0x0BD00BD0: ("lustre",),
    0x01161970: ("gfs2",),
    0x7461636F: ("ocfs2",),
    0x01021997: ("9p",),
    0x794C7630: ("overlay",),
    0x01021994: ("tmpfs",),
    0x858458F6: ("ramfs",),
    0x9123683E: ("btrfs",),
    0xF2F52010: ("f2fs",),
    0x3153464A: ("jfs",),
    0x2FC12FC1: ("zfs",),
    0xCA451A4E: ("bcachefs",),
}
"""statfs magic → the types in /proc/self/mountinfo that carry it."""

KNOWN_TYPES = tuple(sorted({kind for kinds in MAGIC_NUMBERS.values() for kind in kinds}))
"""Every type that a sentence can be said about."""

_NFS = "NFS answers late, hides stalls and cannot do asynchronous direct I/O safely"
_SMB = "SMB cannot keep the promises of a flush"
_FUSE = "a filesystem in user space may lose what it confirmed"
_CLUSTER = "a shared filesystem adds a network to every write and is not tested here"

REASONS: dict[str, str] = {
    "nfs": _NFS,
    "nfs4": _NFS,
    "cifs": _SMB,
    "smb3": _SMB,
    "smbfs": _SMB,
    "fuse": _FUSE,
    "fuseblk": _FUSE,
    "virtiofs": "a folder shared by the host cannot keep the promises of a flush",
    "9p": "a folder shared by the host cannot keep the promises of a flush",
    "ceph": "CephFS adds a network to every write (an RBD block volume is fine)",
    "lustre": _CLUSTER,
    "gfs2": _CLUSTER,
    "ocfs2": _CLUSTER,
    "ext2": "it has no journal of its own, so a crash may lose files",
    "ext3": "it serialises flushes and does not support what the journal needs",
    "tmpfs": "it is memory: everything is lost when the pod goes",
    "ramfs": "it is memory: everything is lost when the pod goes",
    "btrfs": "copy-on-write slows the journal; switch it off for the folder (chattr +C)",
    "zfs": "it takes asynchronous writes but does them one after the other",
    "f2fs": "it is made for flash without a controller and is seldom used for journals",
    "jfs": "it is seldom used any more",
    "bcachefs": "it is young",
}
"""Type → why it is warned of or refused."""


class Verdict(NamedTuple):
    """What the policy says, and the sentence for people."""

    level: VerdictLevel
    sentence: str

    @property
    def is_denied(self) -> bool:
        """Whether the broker must not start on it."""
        return self.level is VerdictLevel.DENY


class EffectivePolicy(NamedTuple):
    """Lists that hold, after the defaults; `deny` wins over the others."""

    allow: tuple[str, ...]
    warn: tuple[str, ...]
    deny: tuple[str, ...]


def effective(policy: FilesystemPolicy | None) -> EffectivePolicy:
    """Return the lists that hold for a policy; a list that is not given has its default.

    A type that the user's `allow` names is no longer warned of, and the other way round.
    """
    policy = policy or FilesystemPolicy()
    allow = ALLOWED if policy.allow is None else policy.allow
    warn = WARNED if policy.warn is None else policy.warn
    if policy.warn is not None and policy.allow is None:
        allow = tuple(kind for kind in allow if kind not in warn)
    warn = tuple(kind for kind in warn if kind not in allow)
    return EffectivePolicy(allow, warn, policy.deny or ())


def types_of_magic(magic: int) -> tuple[str, ...]:
    """Return the types that carry a statfs magic number; empty if it is unknown."""
    return MAGIC_NUMBERS.get(magic & 0xFFFFFFFF, ())


def is_overridden(kind: str, policy: FilesystemPolicy | None) -> bool:
    """Return whether a policy takes a type that is refused unless somebody insists.

    Args:
        kind: Type as in /proc/self/mountinfo.
        policy: The Broker's policy; None takes the default one.
    """
    lists = effective(policy)
    if not kind or _listed(kind, lists.deny) or _listed(kind, (*ALLOWED, *WARNED)):
        return False
    return _listed(kind, (*lists.allow, *lists.warn))


def _base(kind: str) -> str:
    """Return the type without its subtype: `fuse` for `fuse.gcsfuse`."""
    return kind.partition(".")[0]


def _listed(kind: str, types: tuple[str, ...]) -> bool:
    return kind in types or _base(kind) in types


def _cure(types: tuple[str, ...]) -> str:
    return f"Give it a volume with {' or '.join(types) or 'an allowed filesystem'}"


def verdict(
    kind: str,
    magic: int | None = None,
    policy: FilesystemPolicy | None = None,
    *,
    volume: str = "the data folder",
    is_ephemeral: bool = False,
) -> Verdict:
    """Judge one volume by what is mounted there.

    Args:
        kind: Type as in /proc/self/mountinfo, such as `ext4` or `fuse.gcsfuse`.
        magic: `f_type` of statfs as a cross-check; None if it is not known.
        policy: The Broker's policy; None takes the default one.
        volume: Name of the volume for the sentence.
        is_ephemeral: Whether losing the data with the pod was asked for.

    Returns:
        The level, and one sentence that names volume and filesystem and says what to do.
    """
    lists = effective(policy)
    cure = _cure(lists.allow)
    expected = types_of_magic(magic) if magic is not None else ()
    if expected and _base(kind) not in expected:
        return Verdict(
            VerdictLevel.DENY,
            f"The volume {volume} says it is {kind}, but the kernel answers for "
            f"{expected[0]} (0x{magic:X}). {cure}.",
        )
    refused = f"The volume {volume} is on {kind}, which is refused"
    if not _listed(kind, lists.deny):
        if is_ephemeral and kind in ("tmpfs", "ramfs", "overlay", *lists.allow, *lists.warn):
            return Verdict(
                VerdictLevel.WARN,
                f"The volume {volume} is on {kind} and goes with the pod, as `ephemeral` asks.",
            )
        if is_overridden(kind, policy):
            why = REASONS.get(_base(kind), "nobody has tested it")
            return Verdict(
                VerdictLevel.WARN,
                f"The volume {volume} is on {kind}, which is refused by default and taken only "
                f"because filesystemPolicy names it: {why}. {_cure(ALLOWED)}.",
            )
        if _listed(kind, lists.allow):
            return Verdict(VerdictLevel.ALLOW, f"The volume {volume} is on {kind}.")
        if _listed(kind, lists.warn):
            why = REASONS.get(_base(kind), "it is not one of the recommended ones")
            return Verdict(
                VerdictLevel.WARN,
                f"The volume {volume} is on {kind}, which is taken with a warning: {why}.",
            )
    if _base(kind) == "overlay":
        return Verdict(
            VerdictLevel.DENY,
            f"The volume {volume} is on overlay: the claim is not mounted there at all, and what "
            "is written goes with the container. Mount the claim at this path.",
        )
    why = REASONS.get(_base(kind), "the policy does not name it")
    return Verdict(VerdictLevel.DENY, f"{refused}: {why}. {cure}.")

"""Which filesystems may hold a journal, and why not.

Owns: the tables of filesystem types and storage drivers, the default policy, and
the sentence that a user reads when a volume is refused.
Never: looks at a mount (that is `vespiary_broker.store`) or calls the API server.
Called by: the broker's verification, `vespiary apply`, the operator, the CLI.

Three layers, cheapest first: the storage class (`verdict_from_provisioner`) and the
PersistentVolume (`verdict_from_persistent_volume`) warn early; the mount as seen
from inside the pod (`verdict`) decides.

Magic numbers are those of the kernel's linux/magic.h; lustre, gfs2, jfs, zfs and
bcachefs are not in it and come from their own sources.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any, NamedTuple

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


def _base(kind: str) -> str:
    """Return the type without its subtype: `fuse` for `fuse.gcsfuse`."""
    return kind.partition(".")[0]


def _listed(kind: str, types: tuple[str, ...]) -> bool:
    return kind in types or _base(kind) in types


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
    cure = f"Give it a volume with {' or '.join(lists.allow) or 'an allowed filesystem'}"
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


# --- storage classes and volumes ----------------------------------------------------------------


class Driver(NamedTuple):
    """What a storage driver mounts.

    Attributes:
        pattern: Name of the driver; `*` stands for anything.
        kind: Filesystem type that its volumes have; `block` if the class's fstype says it.
        kind_when_shared: Type of volumes with ReadWriteMany, if it differs.
        parameter: A parameter that decides, its value and the type that it means.
    """

    pattern: str
    kind: str
    kind_when_shared: str = ""
    parameter: tuple[str, str, str] = ("", "", "")


DRIVERS: tuple[Driver, ...] = (
    Driver("nfs.csi.k8s.io", "nfs4"),
    Driver("*nfs-subdir-external-provisioner", "nfs4"),
    Driver("*nfs-client-provisioner", "nfs4"),
    Driver("openebs.io/nfsrwx", "nfs4"),
    Driver("efs.csi.aws.com", "nfs4"),
    Driver("fsx.openzfs.csi.aws.com", "nfs4"),
    Driver("filestore.csi.storage.gke.io", "nfs"),
    Driver("file.csi.azure.com", "cifs", parameter=("protocol", "nfs", "nfs4")),
    Driver("kubernetes.io/azure-file", "cifs", parameter=("protocol", "nfs", "nfs4")),
    Driver("blob.csi.azure.com", "fuse", parameter=("protocol", "nfs", "nfs")),
    Driver("smb.csi.k8s.io", "cifs"),
    Driver("*cephfs.csi.ceph.com", "ceph"),
    Driver("*rbd.csi.ceph.com", "block"),
    Driver("driver.longhorn.io", "block", kind_when_shared="nfs4"),
    Driver("csi.trident.netapp.io", "block", parameter=("backendType", "ontap-nas", "nfs4")),
    Driver("csi.vsphere.vmware.com", "block", kind_when_shared="nfs4"),
    Driver("fsx.csi.aws.com", "lustre"),
    Driver("lustre.csi.storage.gke.io", "lustre"),
    Driver("azurelustre.csi.azure.com", "lustre"),
    Driver("gcsfuse.csi.storage.gke.io", "fuse"),
    Driver("s3.csi.aws.com", "fuse"),
    Driver("csi.juicefs.com", "fuse"),
    Driver("ebs.csi.aws.com", "block"),
    Driver("pd.csi.storage.gke.io", "block"),
    Driver("disk.csi.azure.com", "block"),
    Driver("topolvm.io", "block"),
    Driver("local.csi.openebs.io", "block"),
)
"""From the drivers' own documentation; a hint, never the only evidence. Extend it by argument."""

_FSTYPE_PARAMETERS = ("csi.storage.k8s.io/fstype", "csi.storage.k8s.io/fsType", "fstype", "fsType")

_IN_TREE = {"nfs": "nfs4", "cephfs": "ceph", "glusterfs": "fuse", "azureFile": "cifs"}


def _fstype(parameters: Mapping[str, str]) -> str:
    return next((parameters[name] for name in _FSTYPE_PARAMETERS if parameters.get(name)), "")


def _hinted(kind: str, policy: FilesystemPolicy | None, volume: str, source: str) -> Verdict | None:
    """Judge a type that something promises; an allowed one is no news until it is mounted."""
    found = verdict(kind, None, policy, volume=volume)
    if found.level is VerdictLevel.ALLOW:
        return None
    return Verdict(found.level, f"{found.sentence} ({source})")


def verdict_from_provisioner(
    provisioner: str,
    parameters: Mapping[str, str] | None = None,
    *,
    policy: FilesystemPolicy | None = None,
    volume: str = "the claim",
    is_shared: bool = False,
    more_drivers: tuple[Driver, ...] = (),
) -> Verdict | None:
    """Judge a storage class before anything is bound.

    Args:
        provisioner: `provisioner` of the StorageClass.
        parameters: Its `parameters`.
        policy: The Broker's policy; None takes the default one.
        volume: Name of the volume for the sentence.
        is_shared: Whether the claim asks for ReadWriteMany.
        more_drivers: Drivers to look at before the table.

    Returns:
        A warning or a refusal; None if nothing speaks against it or nothing is known.
    """
    parameters = parameters or {}
    for driver in (*more_drivers, *DRIVERS):
        if not fnmatch.fnmatchcase(provisioner, driver.pattern):
            continue
        name, value, kind_then = driver.parameter
        kind = driver.kind
        if name and parameters.get(name, "").lower().startswith(value):
            kind = kind_then
        elif is_shared and driver.kind_when_shared:
            kind = driver.kind_when_shared
        if kind == "block":
            kind = _fstype(parameters)
        return _hinted(kind, policy, volume, f"provisioner {provisioner}") if kind else None
    return None


def verdict_from_persistent_volume(
    persistent_volume: Mapping[str, Any],
    *,
    policy: FilesystemPolicy | None = None,
    volume: str = "the claim",
    more_drivers: tuple[Driver, ...] = (),
) -> Verdict | None:
    """Judge a bound PersistentVolume before its pod runs.

    Args:
        persistent_volume: The object as the API server gives it.
        policy: The Broker's policy; None takes the default one.
        volume: Name of the volume for the sentence.
        more_drivers: Drivers to look at before the table.

    Returns:
        A warning or a refusal; None if nothing speaks against it or nothing is known.
    """
    spec = persistent_volume.get("spec") or {}
    name = (persistent_volume.get("metadata") or {}).get("name", "")
    source = f"PersistentVolume {name}"
    if spec.get("volumeMode") == "Block":
        return Verdict(
            VerdictLevel.DENY,
            f"The volume {volume} is a raw block device ({source}); a journal needs a "
            "filesystem. Use volumeMode Filesystem.",
        )
    for field, kind in _IN_TREE.items():
        if spec.get(field):
            return _hinted(kind, policy, volume, source)
    csi = spec.get("csi") or {}
    kind = csi.get("fsType") or (spec.get("local") or {}).get("fsType") or ""
    is_shared = "ReadWriteMany" in (spec.get("accessModes") or ())
    driver = csi.get("driver", "")
    if driver:
        attributes = dict(csi.get("volumeAttributes") or {})
        found = verdict_from_provisioner(
            driver,
            attributes | ({"fsType": kind} if kind else {}),
            policy=policy,
            volume=volume,
            is_shared=is_shared,
            more_drivers=more_drivers,
        )
        if found is not None or any(
            fnmatch.fnmatchcase(driver, known.pattern) for known in (*more_drivers, *DRIVERS)
        ):
            return found
    return _hinted(kind, policy, volume, source) if kind else None

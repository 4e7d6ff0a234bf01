"""What storage drivers mount: a table, which users extend, and what follows from it.

Owns: the table of provisioners and CSI drivers, and the verdicts on a StorageClass and on a
PersistentVolume before any pod runs.
Never: looks at a mount; calls the API server. It is a hint, never the only evidence: what is
mounted in the pod decides (`filesystems.verdict`).
Called by: the operator, `chart_values`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Annotated, Any

from vespiary_spec.conversion import convert
from vespiary_spec.errors import ConfigError
from vespiary_spec.filesystems import KNOWN_TYPES, Verdict, verdict
from vespiary_spec.model import Spelling, setting
from vespiary_spec.scheduling import Part
from vespiary_spec.status import VerdictLevel
from vespiary_spec.volumes import FilesystemPolicy

BLOCK = "block"
"""In place of a filesystem: a disk of its own, and the class's fstype says what is on it."""

DRIVERS_MAX = 200


class DriverParameter(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A parameter of a class, or an attribute of a volume, that changes what is mounted."""

    name: Annotated[str, setting("Name of the parameter.", max_length=253)]
    starts_with: Annotated[str, setting("How its value begins, in lower case.", max_length=253)]
    filesystem: Annotated[str, setting("Filesystem type that is mounted then.", max_length=64)]


class StorageDriver(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One driver, and what its volumes are."""

    driver: Annotated[
        str,
        setting("Provisioner or CSI driver; `*` stands for anything.", max_length=253),
    ]
    filesystem: Annotated[
        str,
        setting(
            "Filesystem type that it mounts; `block` where the class's fstype says it.",
            max_length=64,
        ),
    ]
    shared_filesystem: Annotated[
        str,
        setting(
            "Type of volumes with ReadWriteMany.", max_length=64, default_text="as `filesystem`"
        ),
    ] = ""
    parameters: Annotated[
        tuple[DriverParameter, ...],
        setting("Parameters that change what is mounted; the first that fits.", max_length=16),
    ] = ()
    verdict: Annotated[
        VerdictLevel | None,
        setting(
            "What is said of its volumes before they are mounted: nothing, a warning, a refusal.",
            default_text="what the Broker's filesystemPolicy says of the type",
        ),
    ] = None
    note: Annotated[
        str, setting("Why, for people, as a clause; goes with `verdict`.", max_length=300)
    ] = ""


def _nfs(driver: str) -> StorageDriver:
    return StorageDriver(driver=driver, filesystem="nfs4")


def _block(driver: str, shared: str = "") -> StorageDriver:
    return StorageDriver(driver=driver, filesystem=BLOCK, shared_filesystem=shared)


def _node_folder(driver: str) -> StorageDriver:
    return StorageDriver(
        driver=driver,
        filesystem=BLOCK,
        verdict=VerdictLevel.WARN,
        note="its volumes are folders of the node's own filesystem: all of them share one disk "
        "with the node, and none is kept to its size",
    )


def _when(name: str, starts_with: str, filesystem: str) -> tuple[DriverParameter, ...]:
    return (DriverParameter(name=name, starts_with=starts_with, filesystem=filesystem),)


_NFS_BY_PROTOCOL = _when("protocol", "nfs", "nfs4")

DRIVERS: tuple[StorageDriver, ...] = (
    _nfs("nfs.csi.k8s.io"),
    _nfs("*nfs-subdir-external-provisioner"),
    _nfs("*nfs-client-provisioner"),
    _nfs("openebs.io/nfsrwx"),
    _nfs("efs.csi.aws.com"),
    _nfs("fsx.openzfs.csi.aws.com"),
    _nfs("filestore.csi.storage.gke.io"),
    StorageDriver(driver="file.csi.azure.com", filesystem="cifs", parameters=_NFS_BY_PROTOCOL),
    StorageDriver(
        driver="kubernetes.io/azure-file", filesystem="cifs", parameters=_NFS_BY_PROTOCOL
    ),
    StorageDriver(driver="blob.csi.azure.com", filesystem="fuse", parameters=_NFS_BY_PROTOCOL),
    StorageDriver(driver="smb.csi.k8s.io", filesystem="cifs"),
    StorageDriver(driver="*cephfs.csi.ceph.com", filesystem="ceph"),
    _block("*rbd.csi.ceph.com"),
    _block("driver.longhorn.io", shared="nfs4"),
    StorageDriver(
        driver="csi.trident.netapp.io",
        filesystem=BLOCK,
        parameters=_when("backendType", "ontap-nas", "nfs4") + _when("protocol", "file", "nfs4"),
    ),
    StorageDriver(
        driver="csi.vsphere.vmware.com",
        filesystem=BLOCK,
        shared_filesystem="nfs4",
        parameters=_when("type", "vsphere cns file", "nfs4"),
    ),
    StorageDriver(driver="fsx.csi.aws.com", filesystem="lustre"),
    StorageDriver(driver="lustre.csi.storage.gke.io", filesystem="lustre"),
    StorageDriver(driver="azurelustre.csi.azure.com", filesystem="lustre"),
    StorageDriver(driver="gcsfuse.csi.storage.gke.io", filesystem="fuse"),
    StorageDriver(driver="s3.csi.aws.com", filesystem="fuse"),
    StorageDriver(driver="csi.juicefs.com", filesystem="fuse"),
    StorageDriver(driver="kubernetes.io/glusterfs", filesystem="fuse"),
    _block("ebs.csi.aws.com"),
    _block("pd.csi.storage.gke.io"),
    _block("disk.csi.azure.com"),
    _block("topolvm.io"),
    _block("local.csi.openebs.io"),
    _node_folder("rancher.io/local-path"),
    _node_folder("hostpath.csi.k8s.io"),
    _node_folder("microk8s.io/hostpath"),
    _node_folder("k8s.io/minikube-hostpath"),
    _node_folder("docker.io/hostpath"),
)
"""From the drivers' own documentation. The chart's value `storageDrivers` goes before it."""

_FSTYPE_PARAMETERS = ("csi.storage.k8s.io/fstype", "csi.storage.k8s.io/fsType", "fstype", "fsType")

_IN_TREE = {"nfs": "nfs4", "cephfs": "ceph", "glusterfs": "fuse", "azureFile": "cifs"}

_NODE_FOLDER = _node_folder("hostPath")


def drivers_of(items: Any, *, source: str) -> tuple[StorageDriver, ...]:
    """Read drivers that a user adds to the table.

    Args:
        items: A list of mappings, as the chart's value `storageDrivers` has them.
        source: Where it stands, for messages.

    Raises:
        ConfigError: With the place and what is allowed there.
    """
    if not isinstance(items, list):
        raise ConfigError("a list of storage drivers is expected", path=source, value=items)
    if len(items) > DRIVERS_MAX:
        raise ConfigError(
            "the list is too long", path=source, value=len(items), allowed=f"at most {DRIVERS_MAX}"
        )
    found = tuple(
        convert(item, StorageDriver, spelling=Spelling.CAMEL, path=f"{source}[{place}]")
        for place, item in enumerate(items)
    )
    for place, driver in enumerate(found):
        where = f"{source}[{place}]"
        types = [("filesystem", driver.filesystem), ("sharedFilesystem", driver.shared_filesystem)]
        types += [
            (f"parameters[{number}].filesystem", parameter.filesystem)
            for number, parameter in enumerate(driver.parameters)
        ]
        for field, kind in types:
            if not kind and field == "sharedFilesystem":
                continue
            if kind != BLOCK and kind.partition(".")[0] not in KNOWN_TYPES:
                raise ConfigError(
                    "this is no filesystem type that is known here",
                    path=f"{where}.{field}",
                    value=kind,
                    allowed=f"{BLOCK}, {', '.join(KNOWN_TYPES)}",
                )
        if not driver.driver.strip("*"):
            raise ConfigError(
                "this would stand for every driver",
                path=f"{where}.driver",
                value=driver.driver,
                cure="name the driver",
            )
        if driver.note and driver.verdict is None:
            raise ConfigError(
                "a note goes with a verdict",
                path=f"{where}.note",
                value=driver.note,
                cure="say `verdict: warn` or `deny` as well",
            )
    return found


def driver_of(name: str, more_drivers: tuple[StorageDriver, ...] = ()) -> StorageDriver | None:
    """Return what is known of a driver; the user's table goes before the own one.

    Args:
        name: Provisioner of a class, or CSI driver of a volume.
        more_drivers: What the user adds.
    """
    for driver in (*more_drivers, *DRIVERS):
        if fnmatch.fnmatchcase(name, driver.driver):
            return driver
    return None


def _fstype(parameters: Mapping[str, str]) -> str:
    return next((parameters[name] for name in _FSTYPE_PARAMETERS if parameters.get(name)), "")


def _hinted(kind: str, policy: FilesystemPolicy | None, volume: str, source: str) -> Verdict | None:
    """Judge a type that something promises; an allowed one is no news until it is mounted."""
    found = verdict(kind, None, policy, volume=volume)
    if found.level is VerdictLevel.ALLOW:
        return None
    return Verdict(found.level, f"{found.sentence} ({source})")


def _marked(driver: StorageDriver, volume: str, source: str) -> Verdict | None:
    """Return the verdict that stands in the table itself."""
    assert driver.verdict is not None
    if driver.verdict is VerdictLevel.ALLOW:
        return None
    is_denied = driver.verdict is VerdictLevel.DENY
    word = "is refused" if is_denied else "is taken with a warning"
    why = driver.note.rstrip(".") or "the operator's table of storage drivers says so"
    cure = " Name another storage class." if is_denied else ""
    return Verdict(driver.verdict, f"The volume {volume} {word}: {why}.{cure} ({source})")


def verdict_from_provisioner(
    provisioner: str,
    parameters: Mapping[str, str] | None = None,
    *,
    policy: FilesystemPolicy | None = None,
    volume: str = "the claim",
    is_shared: bool = False,
    more_drivers: tuple[StorageDriver, ...] = (),
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
    driver = driver_of(provisioner, more_drivers)
    if driver is None:
        return None
    source = f"provisioner {provisioner}"
    if driver.verdict is not None:
        return _marked(driver, volume, source)
    kind = driver.filesystem
    told = next(
        (
            parameter.filesystem
            for parameter in driver.parameters
            if parameters.get(parameter.name, "").lower().startswith(parameter.starts_with)
        ),
        "",
    )
    if told:
        kind = told
    elif is_shared and driver.shared_filesystem:
        kind = driver.shared_filesystem
    if kind == BLOCK:
        kind = _fstype(parameters)
    return _hinted(kind, policy, volume, source) if kind else None


def verdict_from_persistent_volume(
    persistent_volume: Mapping[str, Any],
    *,
    policy: FilesystemPolicy | None = None,
    volume: str = "the claim",
    more_drivers: tuple[StorageDriver, ...] = (),
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
        if found is not None or driver_of(driver, more_drivers) is not None:
            return found
    if spec.get("hostPath"):
        return _marked(_NODE_FOLDER, volume, source)
    return _hinted(kind, policy, volume, source) if kind else None

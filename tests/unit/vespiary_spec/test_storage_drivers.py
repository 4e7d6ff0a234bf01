"""What drivers mount: the own table, the user's, and the verdicts on classes and volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vespiary_spec.errors import ConfigError
from vespiary_spec.filesystems import Verdict
from vespiary_spec.status import VerdictLevel
from vespiary_spec.storage_drivers import (
    DRIVERS,
    drivers_of,
    verdict_from_persistent_volume,
    verdict_from_provisioner,
)

ALLOW, WARN, DENY = VerdictLevel.ALLOW, VerdictLevel.WARN, VerdictLevel.DENY


@pytest.mark.parametrize(
    ("provisioner", "parameters", "is_shared", "level"),
    [
        ("nfs.csi.k8s.io", {}, False, DENY),
        ("cluster.local/nfs-subdir-external-provisioner", {}, False, DENY),
        ("efs.csi.aws.com", {}, False, DENY),
        ("file.csi.azure.com", {"protocol": "nfs"}, False, DENY),
        ("rook-ceph.cephfs.csi.ceph.com", {}, False, DENY),
        ("rook-ceph.rbd.csi.ceph.com", {"csi.storage.k8s.io/fstype": "ext4"}, False, None),
        ("driver.longhorn.io", {}, False, None),
        ("driver.longhorn.io", {}, True, DENY),
        ("csi.trident.netapp.io", {"backendType": "ontap-nas-economy"}, False, DENY),
        ("csi.trident.netapp.io", {"backendType": "ontap-san"}, False, None),
        ("ebs.csi.aws.com", {"csi.storage.k8s.io/fstype": "btrfs"}, False, WARN),
        ("ebs.csi.aws.com", {"fsType": "ext3"}, False, DENY),
        ("ebs.csi.aws.com", {}, False, None),
        ("rancher.io/local-path", {}, False, WARN),
        ("csi.trident.netapp.io", {"protocol": "file"}, False, DENY),
        ("csi.vsphere.vmware.com", {"type": "vSphere CNS File Volume"}, False, DENY),
        ("example.com/unknown", {}, False, None),
    ],
)
def test_hints_of_a_storage_class(
    provisioner: str, parameters: dict[str, str], is_shared: bool, level: VerdictLevel | None
) -> None:
    found = verdict_from_provisioner(provisioner, parameters, volume="journal", is_shared=is_shared)
    assert (found.level if found else None) is level
    if found:
        assert f"provisioner {provisioner}" in found.sentence


def test_users_can_add_drivers() -> None:
    own = drivers_of(
        [
            {"driver": "files.example.com", "filesystem": "nfs4"},
            {"driver": "ebs.csi.aws.com", "filesystem": "cifs"},
            {
                "driver": "*.lvm.example.com",
                "filesystem": "block",
                "verdict": "warn",
                "note": "its flushes are held back by the array",
            },
            {"driver": "archive.example.com", "filesystem": "block", "verdict": "deny"},
            {"driver": "rancher.io/local-path", "filesystem": "block", "verdict": "allow"},
            {
                "driver": "mixed.example.com",
                "filesystem": "block",
                "sharedFilesystem": "ceph",
                "parameters": [{"name": "kind", "startsWith": "nas", "filesystem": "nfs"}],
            },
        ],
        source="storageDrivers",
    )

    def said(name: str, parameters: dict[str, str] | None = None, **more: Any) -> Verdict | None:
        return verdict_from_provisioner(
            name, parameters, volume="journal", more_drivers=own, **more
        )

    found = said("files.example.com")
    assert found is not None
    assert found.is_denied
    found = said("ebs.csi.aws.com")
    assert found is not None
    assert "cifs" in found.sentence, "the user's table goes before the own one"
    assert said("a.lvm.example.com") == Verdict(
        WARN,
        "The volume journal is taken with a warning: its flushes are held back by the array. "
        "(provisioner a.lvm.example.com)",
    )
    found = said("archive.example.com")
    assert found is not None
    assert found.is_denied
    assert "Name another storage class." in found.sentence
    assert said("rancher.io/local-path") is None
    assert said("mixed.example.com") is None
    found = said("mixed.example.com", {"kind": "NAS-2"})
    assert found is not None
    assert "is on nfs," in found.sentence
    found = said("mixed.example.com", is_shared=True)
    assert found is not None
    assert "is on ceph," in found.sentence


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({}, "storageDrivers: a list of storage drivers is expected"),
        ([{"driver": "*", "filesystem": "nfs4"}], "storageDrivers[0].driver: this would stand for"),
        ([{"driver": "a", "filesystem": "NFS"}], "storageDrivers[0].filesystem: this is no file"),
        ([{"drver": "a"}], "storageDrivers[0].drver: no setting has this name"),
        ([{"driver": "a"}], "`filesystem` is missing here"),
        ([{"driver": "a", "filesystem": "block", "verdict": "no"}], "allow, warn, deny"),
        ([{"driver": "a", "filesystem": "block", "note": "x"}], "a note goes with a verdict"),
        ([{"driver": "a", "filesystem": "block"}] * 201, "at most 200"),
    ],
)
def test_a_wrong_table_is_refused_in_words(items: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        drivers_of(items, source="storageDrivers")
    assert words in str(raised.value)


def test_the_table_itself_is_sound() -> None:
    plain = [msgspec.to_builtins(driver) for driver in DRIVERS]
    assert drivers_of(plain, source="x") == DRIVERS
    assert len({driver.driver for driver in DRIVERS}) == len(DRIVERS)


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        ({"nfs": {"server": "a", "path": "/"}}, DENY),
        ({"cephfs": {"monitors": []}}, DENY),
        ({"glusterfs": {"path": "v"}}, DENY),
        ({"hostPath": {"path": "/data"}}, WARN),
        (
            {"csi": {"driver": "csi.trident.netapp.io", "volumeAttributes": {"protocol": "file"}}},
            DENY,
        ),
        ({"azureFile": {"shareName": "a"}}, DENY),
        ({"csi": {"driver": "nfs.csi.k8s.io"}}, DENY),
        ({"csi": {"driver": "ebs.csi.aws.com", "fsType": "ext4"}}, None),
        ({"csi": {"driver": "ebs.csi.aws.com", "fsType": "btrfs"}}, WARN),
        ({"csi": {"driver": "example.com", "fsType": "nfs"}}, DENY),
        ({"csi": {"driver": "example.com"}}, None),
        ({"csi": {"driver": "driver.longhorn.io"}, "accessModes": ["ReadWriteMany"]}, DENY),
        ({"local": {"path": "/mnt", "fsType": "xfs"}}, None),
        ({"local": {"path": "/mnt", "fsType": "tmpfs"}}, DENY),
        ({"volumeMode": "Block", "local": {"path": "/dev/sdb"}}, DENY),
        ({}, None),
    ],
)
def test_hints_of_a_bound_volume(spec: dict[str, Any], level: VerdictLevel | None) -> None:
    volume = {"metadata": {"name": "pv-1"}, "spec": spec}
    found = verdict_from_persistent_volume(volume, volume="journal")
    assert (found.level if found else None) is level
    if found:
        assert "pv-1" in found.sentence or "provisioner" in found.sentence

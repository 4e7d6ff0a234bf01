"""Verdicts on filesystems: the default policy, the user's, and the early hints."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_spec import filesystems
from vespiary_spec.filesystems import (
    Driver,
    effective,
    types_of_magic,
    verdict,
    verdict_from_persistent_volume,
    verdict_from_provisioner,
)
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.status import VerdictLevel

ALLOW, WARN, DENY = VerdictLevel.ALLOW, VerdictLevel.WARN, VerdictLevel.DENY


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("xfs", ALLOW),
        ("ext4", ALLOW),
        ("btrfs", WARN),
        ("zfs", WARN),
        ("f2fs", WARN),
        ("jfs", WARN),
        ("bcachefs", WARN),
        ("nfs", DENY),
        ("nfs4", DENY),
        ("ext2", DENY),
        ("ext3", DENY),
        ("cifs", DENY),
        ("ceph", DENY),
        ("fuse.gcsfuse", DENY),
        ("virtiofs", DENY),
        ("9p", DENY),
        ("tmpfs", DENY),
        ("overlay", DENY),
        ("minix", DENY),
    ],
)
def test_the_default_policy(kind: str, level: VerdictLevel) -> None:
    found = verdict(kind, volume="journal")
    assert found.level is level
    assert found.is_denied is (level is DENY)
    assert "journal" in found.sentence
    assert kind in found.sentence
    assert found.sentence.endswith(".")


def test_a_refusal_says_what_to_do() -> None:
    assert verdict("nfs4", volume="journal").sentence == (
        "The volume journal is on nfs4, which is refused: NFS answers late, hides stalls and "
        "cannot do asynchronous direct I/O safely. Give it a volume with xfs or ext4."
    )
    assert "not mounted there at all" in verdict("overlay").sentence


def test_memory_is_taken_only_when_it_was_asked_for() -> None:
    assert verdict("tmpfs", is_ephemeral=True).level is WARN
    assert verdict("overlay", is_ephemeral=True).level is WARN
    assert verdict("nfs4", is_ephemeral=True).level is DENY


@pytest.mark.parametrize(
    ("policy", "kind", "level"),
    [
        (FilesystemPolicy(allow=("xfs",)), "ext4", DENY),
        (FilesystemPolicy(allow=("xfs", "nfs4")), "nfs4", ALLOW),
        (FilesystemPolicy(warn=("nfs4",)), "nfs4", WARN),
        (FilesystemPolicy(warn=("nfs4",)), "btrfs", DENY),
        (FilesystemPolicy(warn=("ext4",)), "ext4", WARN),
        (FilesystemPolicy(allow=("btrfs",)), "btrfs", ALLOW),
        (FilesystemPolicy(deny=("xfs",)), "xfs", DENY),
        (FilesystemPolicy(allow=("fuse",)), "fuse.juicefs", ALLOW),
        (FilesystemPolicy(allow=("fuse.juicefs",)), "fuse.s3fs", DENY),
        (FilesystemPolicy(deny=("tmpfs",)), "tmpfs", DENY),
    ],
)
def test_the_users_policy(policy: FilesystemPolicy, kind: str, level: VerdictLevel) -> None:
    assert verdict(kind, None, policy).level is level


def test_deny_wins_even_over_ephemeral() -> None:
    assert verdict("tmpfs", None, FilesystemPolicy(deny=("tmpfs",)), is_ephemeral=True).is_denied


def test_no_type_is_both_allowed_and_warned_of() -> None:
    for policy in (None, FilesystemPolicy(allow=("btrfs",)), FilesystemPolicy(warn=("ext4",))):
        lists = effective(policy)
        assert not set(lists.allow) & set(lists.warn)


def test_mount_table_and_kernel_have_to_agree() -> None:
    assert verdict("ext4", 0xEF53).level is ALLOW
    assert verdict("xfs", 0x58465342).level is ALLOW
    found = verdict("ext4", 0x6969, volume="journal")
    assert found.is_denied
    assert "nfs" in found.sentence
    assert verdict("minix", 0x137F, FilesystemPolicy(allow=("minix",))).level is ALLOW


def test_magic_numbers() -> None:
    assert types_of_magic(0xEF53) == ("ext4", "ext3", "ext2")
    assert types_of_magic(0xFF534D42) == types_of_magic(-0xACB2BE) == ("cifs",)
    assert types_of_magic(1) == ()
    for magic, types in filesystems.MAGIC_NUMBERS.items():
        assert 0 < magic < 2**32
        assert types


def test_every_type_that_is_not_allowed_has_a_reason() -> None:
    for types in filesystems.MAGIC_NUMBERS.values():
        for kind in types:
            assert kind in (*filesystems.ALLOWED, "overlay") or kind in filesystems.REASONS


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
        ("rancher.io/local-path", {}, False, None),
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
    own = (Driver("files.example.com", "nfs4"), Driver("ebs.csi.aws.com", "cifs"))
    found = verdict_from_provisioner("files.example.com", more_drivers=own)
    assert found is not None
    assert found.is_denied
    found = verdict_from_provisioner("ebs.csi.aws.com", more_drivers=own)
    assert found is not None
    assert "cifs" in found.sentence


@pytest.mark.parametrize(
    ("spec", "level"),
    [
        ({"nfs": {"server": "a", "path": "/"}}, DENY),
        ({"cephfs": {"monitors": []}}, DENY),
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

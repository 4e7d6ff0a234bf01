"""Verdicts on filesystems: the default policy, and the user's."""

from __future__ import annotations

import pytest

from vespiary_spec import filesystems
from vespiary_spec.filesystems import (
    effective,
    is_overridden,
    types_of_magic,
    verdict,
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
        (FilesystemPolicy(allow=("xfs", "nfs4")), "nfs4", WARN),
        (FilesystemPolicy(warn=("nfs4",)), "nfs4", WARN),
        (FilesystemPolicy(warn=("nfs4",)), "btrfs", DENY),
        (FilesystemPolicy(warn=("ext4",)), "ext4", WARN),
        (FilesystemPolicy(allow=("btrfs",)), "btrfs", ALLOW),
        (FilesystemPolicy(deny=("xfs",)), "xfs", DENY),
        (FilesystemPolicy(allow=("fuse",)), "fuse.juicefs", WARN),
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
    assert verdict("minix", 0x137F, FilesystemPolicy(allow=("minix",))).level is WARN


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


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "fuse.gcsfuse", "ceph", "ext3", "minix"])
def test_an_override_is_a_warning_for_ever(kind: str) -> None:
    policy = FilesystemPolicy(allow=("ext4", kind))
    found = verdict(kind, None, policy, volume="journal")
    assert found.level is WARN
    assert "refused by default and taken only because filesystemPolicy names it" in found.sentence
    assert "Give it a volume with xfs or ext4." in found.sentence
    assert is_overridden(kind, policy)
    assert not is_overridden(kind, None)
    assert not is_overridden(kind, FilesystemPolicy(allow=(kind,), deny=(kind,)))


def test_what_is_warned_of_may_be_taken_without_a_word() -> None:
    policy = FilesystemPolicy(allow=("btrfs",))
    assert verdict("btrfs", None, policy).level is ALLOW
    assert not is_overridden("btrfs", policy)
    assert not is_overridden("", policy)

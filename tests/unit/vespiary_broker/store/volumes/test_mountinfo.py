"""Lines recorded from real mounts: this kind of machine, and a guest with NFS."""

import os
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import mountinfo
from vespiary_broker.store.volumes.mountinfo import MountinfoError

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,resuid=65534\n"
EXT4 = "74 27 7:0 / /data/m\\040ext4 rw,relatime - ext4 /dev/loop0 rw\n"
XFS = "75 27 7:1 / /data/xfs rw,relatime - xfs /dev/loop1 rw,inode64,logbufs=8,noquota\n"
BTRFS = (
    "77 27 0:41 / /data/btrfs rw,relatime - btrfs /dev/loop2 "
    "rw,discard=async,space_cache=v2,subvolid=5,subvol=/\n"
    "83 27 0:41 /sub /data/subvolume rw,relatime - btrfs /dev/loop2 "
    "rw,discard=async,space_cache=v2,subvolid=256,subvol=/sub\n"
)
TMPFS = "76 27 0:43 / /data/tmpfs rw,relatime - tmpfs vesp rw,size=16384k\n"
OVERLAY = (
    "80 27 0:44 / /data/overlay rw,relatime - overlay overlay "
    "rw,lowerdir=/l,upperdir=/u,workdir=/w,uuid=on\n"
)
BINDFS = (
    "81 27 0:46 / /data/fuse rw,nosuid,nodev,relatime - fuse /data/u "
    "rw,user_id=0,group_id=0,default_permissions,allow_other\n"
)
GCSFUSE = "84 27 0:47 / /data/gcs rw,nosuid,nodev - fuse.gcsfuse bucket rw,user_id=0,group_id=0\n"
BIND_READ_ONLY = "82 27 7:0 /inner /data/bind ro,relatime - ext4 /dev/loop0 rw\n"
NFS3 = (
    "35 27 0:30 / /data/nfs3 rw,relatime - nfs 127.0.0.1:/export rw,vers=3,rsize=131072,"
    "wsize=131072,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=127.0.0.1,"
    "mountvers=3,mountport=33018,mountproto=udp,local_lock=none,addr=127.0.0.1\n"
)
NFS42 = (
    "37 27 0:31 / /data/nfs4.2 rw,relatime shared:12 master:3 - nfs4 127.0.0.1:/ rw,vers=4.2,"
    "rsize=131072,hard,proto=tcp,clientaddr=127.0.0.1,local_lock=none,addr=127.0.0.1\n"
)
ALL = ROOT + EXT4 + XFS + BTRFS + TMPFS + OVERLAY + BINDFS + GCSFUSE + BIND_READ_ONLY + NFS3 + NFS42


@pytest.mark.parametrize(
    ("path", "filesystem", "source"),
    [
        ("/data/m ext4", "ext4", "/dev/loop0"),
        ("/data/m ext4/deep/er", "ext4", "/dev/loop0"),
        ("/data/xfs", "xfs", "/dev/loop1"),
        ("/data/xfs2", "ext4", "/dev/vda"),
        ("/data/btrfs", "btrfs", "/dev/loop2"),
        ("/data/subvolume/x", "btrfs", "/dev/loop2"),
        ("/data/tmpfs", "tmpfs", "vesp"),
        ("/data/overlay", "overlay", "overlay"),
        ("/data/fuse", "fuse", "/data/u"),
        ("/data/gcs", "fuse.gcsfuse", "bucket"),
        ("/data/bind", "ext4", "/dev/loop0"),
        ("/data/nfs3/orders", "nfs", "127.0.0.1:/export"),
        ("/data/nfs4.2", "nfs4", "127.0.0.1:/"),
        ("/", "ext4", "/dev/vda"),
        ("/nowhere", "ext4", "/dev/vda"),
    ],
)
def test_the_covering_mount_tells_type_and_source(path: str, filesystem: str, source: str) -> None:
    mount = mountinfo.covering(mountinfo.parse(ALL), path)
    assert (mount.filesystem, mount.source) == (filesystem, source)


def test_all_fields_of_a_line() -> None:
    (mount,) = mountinfo.parse(NFS42)
    assert mount.mount_id == 37
    assert mount.parent_id == 27
    assert mount.device_number == (0, 31)
    assert mount.root == "/"
    assert mount.mount_point == "/data/nfs4.2"
    assert mount.mount_options == ("rw", "relatime")
    assert mount.optional_fields == ("shared:12", "master:3")
    assert mount.super_options[:2] == ("rw", "vers=4.2")
    assert mount.options[:3] == ("rw", "relatime", "vers=4.2")


def test_subvolumes_have_one_device_number() -> None:
    whole, sub = mountinfo.parse(BTRFS)
    assert whole.device_number == sub.device_number
    assert (whole.root, sub.root) == ("/", "/sub")


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        ("/a\\040b", "/a b"),
        ("/a\\011b", "/a\tb"),
        ("/a\\012b", "/a\nb"),
        ("/a\\134040b", "/a\\040b"),
        ("/a\\043b", "/a#b"),
        ("/\\303\\244", "/ä"),
        ("/ä\\040", "/ä "),
        ("/not\\89", "/not\\89"),
    ],
)
def test_octal_escapes(escaped: str, plain: str) -> None:
    (mount,) = mountinfo.parse(f"9 1 0:9 / {escaped} rw - tmpfs none rw\n")
    assert mount.mount_point == plain


def test_bytes_that_are_not_utf8_survive() -> None:
    text = os.fsdecode(b"9 1 0:9 / /a\xff\\040b rw - tmpfs none rw\n")
    (mount,) = mountinfo.parse(text)
    assert os.fsencode(mount.mount_point) == b"/a\xff b"


def test_an_empty_source_is_no_error() -> None:
    (mount,) = mountinfo.parse("9 1 0:9 / /a rw -  tmpfs  rw\n".replace("-  t", "- t"))
    assert (mount.filesystem, mount.source, mount.super_options) == ("tmpfs", "", ("rw",))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (BIND_READ_ONLY, True),
        ("9 1 7:0 / /a rw - ext4 /dev/x ro\n", True),
        ("9 1 7:0 / /a rw - ext4 /dev/x rw,errors=remount-ro\n", False),
    ],
)
def test_read_only_by_the_mount_or_by_the_filesystem(line: str, expected: bool) -> None:
    (mount,) = mountinfo.parse(line)
    assert mount.is_read_only is expected
    assert ("rw" in mount.options) is not expected


def test_a_mount_over_the_same_folder_hides_the_earlier_one() -> None:
    text = ROOT + "40 27 7:0 / /data rw - ext4 /dev/a rw\n41 40 0:50 / /data rw - nfs4 s:/ rw\n"
    assert mountinfo.covering(mountinfo.parse(text), "/data/x").filesystem == "nfs4"


def test_a_mount_under_a_folder_that_was_mounted_over_later_is_hidden() -> None:
    # The longest prefix alone would give the ext4 that nobody can reach any more.
    text = (
        ROOT
        + "40 27 7:0 / /data/journal rw - ext4 /dev/a rw\n"
        + "41 27 0:50 / /data rw - tmpfs none rw\n"
    )
    assert mountinfo.covering(mountinfo.parse(text), "/data/journal").filesystem == "tmpfs"


def test_the_last_root_mount_counts() -> None:
    text = "1 1 0:2 / / rw - rootfs rootfs rw\n27 1 254:0 / / rw - ext4 /dev/vda rw\n"
    assert mountinfo.covering(mountinfo.parse(text), "/x").filesystem == "ext4"


def test_without_a_listed_root_the_longest_prefix_and_then_the_last_counts() -> None:
    text = (
        "40 9 7:0 / /data rw - ext4 /dev/a rw\n"
        "41 9 7:1 / /data/journal rw - xfs /dev/b rw\n"
        "42 9 7:2 / /data/journal rw - btrfs /dev/c rw\n"
    )
    mounts = mountinfo.parse(text)
    assert mountinfo.covering(mounts, "/data/journal/x").filesystem == "btrfs"
    assert mountinfo.covering(mounts, "/data/other").filesystem == "ext4"
    with pytest.raises(MountinfoError, match=r"no mount .* covers /elsewhere"):
        mountinfo.covering(mounts, "/elsewhere")


@pytest.mark.parametrize(
    "line",
    [
        "27 1 254:0 / / rw,relatime ext4 /dev/vda rw",
        "27 1 254 / / rw - ext4 /dev/vda rw",
        "27 1 a:b / / rw - ext4 /dev/vda rw",
        "x 1 254:0 / / rw - ext4 /dev/vda rw",
        "27 1 254:0 / - ext4 /dev/vda rw",
        "27 1 254:0 / / rw - ext4",
        "garbage",
    ],
)
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(MountinfoError, match="line 2"):
        mountinfo.parse(ROOT + line + "\n")


def test_symbolic_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    resolved = mountinfo.resolve(f"{tmp_path}/link/missing")
    assert resolved == f"{tmp_path.resolve()}/real/missing"


def test_the_kernels_own_file_is_read() -> None:
    mounts = mountinfo.read()
    assert mountinfo.covering(mounts, "/proc").filesystem == "proc"

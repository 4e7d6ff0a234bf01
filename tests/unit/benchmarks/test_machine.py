"""Which mount holds a folder, and what is said of the machine."""

from pathlib import Path

from benchmarks import machine

_MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:25 / /var/lib rw,nosuid - tmpfs tmpfs rw,size=1k
31 22 254:17 / /var/lib/my\\040data rw,noatime - xfs /dev/vdb1 rw,attr2
32 22 254:18 / /var/library rw - btrfs /dev/vdc rw
33 31 254:19 / /var/lib/my\\040data ro shared:3 master:1 - ext4 /dev/vdd ro
"""


def test_the_deepest_and_latest_mount_holds_a_folder() -> None:
    found = machine.find_mount(Path("/var/lib/my data/store"), _MOUNTINFO)
    assert found == ("ext4", "/dev/vdd", "ro", "254:19")
    found = machine.find_mount(Path("/var/lib/other"), _MOUNTINFO)
    assert found == ("tmpfs", "tmpfs", "rw,nosuid,size=1k", "0:25")
    found = machine.find_mount(Path("/srv"), _MOUNTINFO)
    assert found == ("ext4", "/dev/vda", "rw,relatime,discard", "254:0")


def test_a_description_leaves_nothing_empty(tmp_path: Path) -> None:
    described = machine.describe(tmp_path)
    assert described.cores >= 1
    assert described.memory_bytes > 1 << 28
    assert all(
        getattr(described, name)
        for name in ("cpu", "kernel", "python", "filesystem", "device", "write_cache", "commit")
    )

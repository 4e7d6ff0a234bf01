"""Against folders laid out like sysfs; the real one is looked at in the integration tests."""

import os
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import block_device
from vespiary_broker.store.volumes.block_device import UNKNOWN


class Sysfs:
    """A folder laid out like `/sys`, with the devices that a test asks for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev" / "block").mkdir(parents=True)
        (root / "class" / "block").mkdir(parents=True)

    def add(self, name: str, number: str, *, parent: Path | None = None, **queue: str) -> Path:
        node = (parent or self.root / "devices") / name
        node.mkdir(parents=True)
        if parent:
            (node / "partition").write_text("1\n")
        if queue:
            (node / "queue").mkdir()
            for attribute, value in queue.items():
                (node / "queue" / attribute).write_text(value + "\n")
        (self.root / "dev" / "block" / number).symlink_to(node)
        (self.root / "class" / "block" / name).symlink_to(node)
        return node

    def lay(self, upper: Path, *lower: Path) -> None:
        (upper / "slaves").mkdir(exist_ok=True)
        for node in lower:
            (upper / "slaves" / node.name).symlink_to(node)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def nvme(sysfs: Sysfs, number: str = "259:0", name: str = "nvme0n1", **changes: str) -> Path:
    queue = {
        "scheduler": "[none] mq-deadline kyber bfq",
        "rotational": "0",
        "write_cache": "write through",
        "fua": "1",
        "logical_block_size": "4096",
    }
    return sysfs.add(name, number, **(queue | changes))


def test_a_whole_disk(sysfs: Sysfs) -> None:
    nvme(sysfs)
    device = block_device.find(259, 0, sysfs=sysfs.root)
    assert device.name == "nvme0n1"
    assert device.disks == ("nvme0n1",)
    assert device.scheduler == "none"
    assert device.is_rotational is False
    assert device.write_cache == "write through"
    assert device.has_fua is True
    assert device.logical_block_bytes == 4096


def test_a_partition_has_its_disks_queue(sysfs: Sysfs) -> None:
    sysfs.add("nvme0n1p2", "259:2", parent=nvme(sysfs))
    device = block_device.find(259, 2, sysfs=sysfs.root)
    assert (device.name, device.disks) == ("nvme0n1p2", ("nvme0n1",))
    assert device.logical_block_bytes == 4096


def test_device_mapper_over_md_over_partitions(sysfs: Sysfs) -> None:
    first = nvme(sysfs)
    second = sysfs.add(
        "sda", "8:0", scheduler="mq-deadline [bfq]", rotational="1", write_cache="write back"
    )
    raid = sysfs.add("md0", "9:0", write_cache="write through", logical_block_size="512")
    sysfs.lay(
        raid,
        sysfs.add("nvme0n1p1", "259:1", parent=first),
        sysfs.add("sda1", "8:1", parent=second),
    )
    mapped = sysfs.add("dm-0", "253:0", write_cache="write through", logical_block_size="4096")
    sysfs.lay(mapped, raid)
    device = block_device.find(253, 0, sysfs=sysfs.root)
    assert device.name == "dm-0"
    assert device.disks == ("nvme0n1", "sda")
    # One volatile cache, or one spinning disk, anywhere on the way down decides.
    assert device.write_cache == "write back"
    assert device.is_rotational is True
    assert device.logical_block_bytes == 4096
    assert device.scheduler == "bfq"


def test_a_loop_device_leads_to_the_disk_of_its_file(sysfs: Sysfs, tmp_path: Path) -> None:
    backing = tmp_path / "image"
    backing.touch()
    number = backing.stat().st_dev
    nvme(sysfs, number=f"{os.major(number)}:{os.minor(number)}")
    # 7:0 would be the machine's own, if the tests write to a loop device.
    loop = sysfs.add("loop0", "240:9", write_cache="write back", scheduler="[none]")
    (loop / "loop").mkdir()
    (loop / "loop" / "backing_file").write_text(f"{backing}\n")
    assert block_device.find(240, 9, sysfs=sysfs.root).disks == ("nvme0n1",)
    backing.unlink()
    assert block_device.find(240, 9, sysfs=sysfs.root).disks == ("loop0",)


def test_btrfs_is_found_by_its_source(sysfs: Sysfs) -> None:
    nvme(sysfs)
    assert block_device.find(0, 41, source="/dev/nvme0n1", sysfs=sysfs.root).name == "nvme0n1"


@pytest.mark.parametrize("source", ["", "overlay", "127.0.0.1:/export", "/dev/gone", "/dev/../.."])
def test_no_block_device_is_unknown(sysfs: Sysfs, source: str) -> None:
    assert block_device.find(0, 30, source=source, sysfs=sysfs.root) == UNKNOWN
    assert block_device.find(8, 99, source=source, sysfs=sysfs.root) == UNKNOWN


def test_without_sysfs_everything_is_unknown(tmp_path: Path) -> None:
    assert block_device.find(8, 0, sysfs=tmp_path / "none") == UNKNOWN


def test_a_disk_without_a_queue_keeps_its_name(sysfs: Sysfs) -> None:
    sysfs.add("pmem0", "259:9")
    device = block_device.find(259, 9, sysfs=sysfs.root)
    assert (device.name, device.disks) == ("pmem0", ("pmem0",))
    assert (device.scheduler, device.write_cache, device.is_rotational) == (None, None, None)


def test_unreadable_numbers_are_unknown(sysfs: Sysfs) -> None:
    nvme(sysfs, logical_block_size="", scheduler="")
    device = block_device.find(259, 0, sysfs=sysfs.root)
    assert (device.logical_block_bytes, device.scheduler) == (None, None)


def test_a_circle_of_slaves_ends(sysfs: Sysfs) -> None:
    one, two = sysfs.add("dm-0", "253:0"), sysfs.add("dm-1", "253:1")
    sysfs.lay(one, two)
    sysfs.lay(two, one)
    assert block_device.find(253, 0, sysfs=sysfs.root).name == "dm-0"

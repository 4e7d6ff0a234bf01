"""Disks with other units than the journal's, and settings below what the disk needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store import alignment
from vespiary_broker.store.alignment import check_alignment, direct_alignment_bytes
from vespiary_spec.errors import StorageError


@pytest.mark.parametrize("device", [None, 0, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("asked", [None, 4096])
def test_every_unit_that_divides_a_block_is_taken(tmp_path: Path, device, asked):
    check_alignment(tmp_path / "f", asked_bytes=asked, is_direct=True, ask=lambda _: device)


@pytest.mark.parametrize(("device", "asked"), [(4096, 512), (4096, 2048), (1024, 512)])
def test_a_value_below_the_disks_unit_is_refused(tmp_path: Path, device: int, asked: int):
    with pytest.raises(StorageError, match="smaller than the unit") as caught:
        check_alignment(tmp_path / "f", asked_bytes=asked, is_direct=True, ask=lambda _: device)
    assert caught.value.measured == f"{asked} bytes"
    assert str(device) in caught.value.allowed
    check_alignment(tmp_path / "f", asked_bytes=asked, is_direct=False, ask=lambda _: device)


@pytest.mark.parametrize("device", [8192, 16384, 65536, 520])
def test_a_larger_or_odd_unit_is_refused_by_name(tmp_path: Path, device: int):
    with pytest.raises(StorageError, match=f"units of {device} bytes, which is not supported"):
        check_alignment(tmp_path / "f", asked_bytes=None, is_direct=True, ask=lambda _: device)
    check_alignment(tmp_path / "f", asked_bytes=None, is_direct=False, ask=lambda _: device)


@pytest.mark.parametrize("asked", [513, 1536, 8192])
def test_a_value_that_does_not_divide_a_block_is_refused(tmp_path: Path, asked: int):
    with pytest.raises(StorageError, match="512, 1024, 2048 or 4096"):
        check_alignment(tmp_path / "f", asked_bytes=asked, is_direct=False)


def test_the_kernel_is_asked(tmp_path: Path):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    told = direct_alignment_bytes(path)
    if told is None:
        pytest.skip("this kernel or file system does not tell (STATX_DIOALIGN)")
    assert told in (0, 512, 1024, 2048, 4096)
    # What it tells is true: a write at that unit works.
    if told:
        from vespiary_broker.store.disk import Disk
        from vespiary_native.memory import AlignedBuffer

        file = Disk().create(tmp_path / "g", is_direct=True)
        file.write(AlignedBuffer(told).memoryview[:told], told)
        file.close()
    assert alignment.device_block_bytes(path) == told


def test_where_nothing_is_told_the_disk_is_looked_up(tmp_path: Path):
    found = alignment.device_block_bytes(Path("/proc/version"))  # no disk, and no direct writes
    assert found is None

"""What the system tells of a disk, and of being a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_broker.store.disk_benchmark import disk_facts


@pytest.mark.parametrize(
    ("flags", "vendor", "found"),
    [
        ("flags\t: fpu vme hypervisor lahf", "QEMU\n", "QEMU"),
        ("flags\t: fpu vme hypervisor lahf", None, "yes"),
        ("flags\t: fpu vme hypervisor lahf", "\n", "yes"),
        ("flags\t: fpu vme lahf", "Dell Inc.\n", ""),
        ("model name : a hypervisor", "QEMU", ""),
    ],
)
def test_a_guest_knows_its_host(tmp_path: Path, flags: str, vendor: str | None, found: str):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    if vendor is not None:
        (tmp_path / "class/dmi/id").mkdir(parents=True)
        (tmp_path / "class/dmi/id/sys_vendor").write_text(vendor)
    assert disk_facts.hypervisor(tmp_path, tmp_path / "cpuinfo") == found


def test_nothing_readable_is_nothing_known(tmp_path: Path):
    assert disk_facts.hypervisor(tmp_path, tmp_path / "missing") == ""


def test_this_folder_can_be_described(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"")
    facts = disk_facts.of(tmp_path, tmp_path / "f", is_direct=True)
    assert facts.filesystem
    assert facts.cores >= 1
    assert facts.folder == str(tmp_path)

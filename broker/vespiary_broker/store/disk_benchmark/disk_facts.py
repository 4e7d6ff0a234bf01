"""What the system tells of the disk under a folder.

Owns: the questions to /proc and /sys. Must never write, and says "unknown" (None) for what it can't
read. Called by `benchmark`.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from vespiary_broker.store import alignment
from vespiary_broker.store.disk_benchmark.results import DiskFacts
from vespiary_broker.store.volumes import block_device, mountinfo


def of(folder: Path, file: Path, *, is_direct: bool, sysfs: Path = Path("/sys")) -> DiskFacts:
    """Describe the disk under a folder.

    Args:
        folder: The folder.
        file: A file on the same filesystem; the kernel tells the alignment of files only.
        is_direct: Whether direct I/O works there.
        sysfs: Where sysfs is mounted.
    """
    mount = mountinfo.covering(mountinfo.read(), mountinfo.resolve(str(folder)))
    device = block_device.find(mount.major, mount.minor, source=mount.source, sysfs=sysfs)
    return DiskFacts(
        folder=str(folder),
        filesystem=mount.filesystem,
        mount_options=tuple(dict.fromkeys((*mount.mount_options, *mount.super_options))),
        device=device.name,
        disks=device.disks,
        is_rotational=device.is_rotational,
        write_cache=device.write_cache,
        has_fua=device.has_fua,
        scheduler=device.scheduler,
        alignment_bytes=alignment.direct_alignment_bytes(file),
        is_direct=is_direct,
        hypervisor=hypervisor(sysfs),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
    )


def hypervisor(sysfs: Path = Path("/sys"), cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the hypervisor's name, `yes` when only its presence is known, or nothing.

    Args:
        sysfs: Where sysfs is mounted.
        cpuinfo: The processors, as the kernel tells them.
    """
    try:
        flags = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    is_guest = any(
        line.startswith("flags") and " hypervisor" in line for line in flags.splitlines()
    )
    if not is_guest:
        return ""
    try:
        name = (sysfs / "class/dmi/id/sys_vendor").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "yes"
    return name.strip() or "yes"

"""Which volumes lie on one filesystem, and so share its space, its inodes and its flushes.

Pure: works on what mountinfo told. Called by `verification`.
"""

from __future__ import annotations

from collections.abc import Mapping

from vespiary_broker.store.volumes.mountinfo import Mount

# Their subvolumes or datasets are mounts of their own, over one set of disks.
_POOLED = frozenset({"btrfs", "bcachefs"})


def companions(mounts: Mapping[str, Mount]) -> dict[str, tuple[str, ...]]:
    """Tell for each volume which others lie on its filesystem.

    Args:
        mounts: The covering mount of each volume, by the volume's name.

    Returns:
        Names of the other volumes on the same filesystem, sorted; empty for a volume that is alone.
    """
    return {
        name: tuple(
            sorted(other for other in mounts if other != name and _is_one(mount, mounts[other]))
        )
        for name, mount in mounts.items()
    }


def _is_one(left: Mount, right: Mount) -> bool:
    # mountinfo's number is the superblock's, st_dev is not: btrfs gives each subvolume its own
    # st_dev.
    if left.device_number == right.device_number:
        return True
    if left.filesystem != right.filesystem or not left.source or not right.source:
        return False
    if left.filesystem == "zfs":
        return left.source.split("/")[0] == right.source.split("/")[0]
    return left.filesystem in _POOLED and left.source == right.source

"""What lives in memory alone: the budget of the journal's image, and bindings without a disk.

Owns how `global-max-size: -1` becomes a number, and the bindings of `persistence-enabled: false`.
Called by `broker`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

_CGROUP: Final = Path("/sys/fs/cgroup")
_LIMIT_FILES: Final = ("memory.max", "memory/memory.limit_in_bytes")  # cgroup version 2, version 1
_LEAST_BYTES: Final = 32 * 1024 * 1024


def memory_limit_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory that this process may use: of its container, or of the machine.

    Args:
        cgroup: Where the control groups are mounted.
    """
    limit_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in _LIMIT_FILES:
        try:
            text = (cgroup / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # else "max"
            limit_bytes = min(limit_bytes, int(text))
    return limit_bytes


def image_bytes(global_max_size: int) -> int:
    """Return the memory for the journal's image.

    Args:
        global_max_size: The setting, in bytes; -1 takes half of the memory limit.
    """
    size_bytes = memory_limit_bytes() // 2 if global_max_size < 0 else global_max_size
    return max(size_bytes, _LEAST_BYTES)


class MemoryBindings:
    """Bindings that end with the process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, Any]] = {}

    async def put(self, key: str, value: dict[str, Any]) -> None:
        """Set the value of a key.

        Durability: none; the process has no disk.
        """
        self._values[key] = value

    async def remove(self, key: str) -> None:
        """Remove a key.

        Durability: none; the process has no disk.
        """
        self._values.pop(key, None)

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return all keys and their values."""
        return dict(self._values)

    async def close(self) -> None:
        """Forget everything."""
        self._values.clear()

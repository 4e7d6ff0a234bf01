"""What lives in memory alone: the budget of the journal's image, and bindings without a disk.

Owns how `global-max-size: -1` becomes a number, and the bindings of `persistence-enabled: false`.
Called by `broker`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vespiary_broker.engine.address_memory import MemoryLimits
from vespiary_spec.settings import Configuration

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_LIMIT_FILES: Final = ("memory.max", "memory.limit_in_bytes")  # cgroup version 2, version 1
_LEAST_BYTES: Final = 32 * 1024 * 1024


def memory_limit_bytes(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Return the memory that this process may use: of its container, or of the machine.

    The limits of the process's group and of all groups above it count, as far as they are to be
    seen: in a container its own group often stands where the machine has its root.

    Args:
        cgroups: Where the control groups are mounted.
        own: The process's groups, as the kernel lists them.
    """
    limit_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _memory_groups(cgroups, own):
        for name in _LIMIT_FILES:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # else "max"
                limit_bytes = min(limit_bytes, int(text))
    return limit_bytes


def _memory_groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups for memory, and of those above them."""
    yield from (cgroups, cgroups / "memory")
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        parts = Path(path).parts[1:]
        for length in range(1, len(parts) + 1):
            yield root.joinpath(*parts[:length])


def messages_bytes(global_max_size: int) -> int:
    """Return the memory that the messages of all addresses may take.

    Args:
        global_max_size: The setting, in bytes; -1 takes half of the memory limit.
    """
    return memory_limit_bytes() // 2 if global_max_size < 0 else global_max_size


def memory_limits(settings: Configuration) -> MemoryLimits:
    """Return what the messages of all addresses may take, by the settings."""
    count = settings.global_max_messages
    return MemoryLimits(messages_bytes(settings.global_max_size), count if count >= 0 else None)


def image_bytes(global_max_size: int) -> int:
    """Return the memory for the journal's image.

    Args:
        global_max_size: The setting, in bytes; -1 takes half of the memory limit.
    """
    return max(messages_bytes(global_max_size), _LEAST_BYTES)


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

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
_SHARE: Final = 8
_LEAST_COUNT: Final = 10_000
QUEUE_BYTES: Final = 6144
"""What a queue takes with an address, a consumer and a message of its own: 5 KiB measured."""
PROCESS_BYTES: Final = 96 * 1024 * 1024
"""What the process takes beside messages and queues, with a margin: 80 MiB measured while it pages,
with 10 000 queues."""


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


def bound(wanted: int, memory_bytes: int, each_bytes: int) -> int:
    """Return how many of something there may be; -1 is as many as a share of the memory holds.

    Args:
        wanted: The setting.
        memory_bytes: Memory that the process may use.
        each_bytes: What one takes.
    """
    if wanted >= 0:
        return wanted
    return max(_LEAST_COUNT, memory_bytes // _SHARE // each_bytes)


def messages_bytes(settings: Configuration, memory_bytes: int | None = None) -> int:
    """Return the memory that the messages of all addresses may take.

    By default it is half of the memory limit. In a small container it is less: as many queues as
    there may be have to fit beside the messages.

    Args:
        settings: The configuration.
        memory_bytes: Memory that the process may use; None asks the system.
    """
    if settings.global_max_size >= 0:
        return settings.global_max_size
    memory_bytes = memory_limit_bytes() if memory_bytes is None else memory_bytes
    others = PROCESS_BYTES + bound(settings.max_queues, memory_bytes, QUEUE_BYTES) * QUEUE_BYTES
    return max(min(memory_bytes // 2, memory_bytes - others), memory_bytes // 4)


def memory_limits(settings: Configuration) -> MemoryLimits:
    """Return what the messages of all addresses may take, by the settings."""
    count = settings.global_max_messages
    return MemoryLimits(messages_bytes(settings), count if count >= 0 else None)


def image_bytes(settings: Configuration) -> int:
    """Return the memory for the journal's image."""
    return max(messages_bytes(settings), _LEAST_BYTES)


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

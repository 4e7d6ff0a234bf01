"""A control group with a memory limit, for one broker process: cgroup version 1 or 2.

Owns the group's folder: made below the group of the test run, and removed again. Used by fault
tests; where no group can be made, they are skipped with the reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_NAME = "vespiary-test-"


class MemoryGroup:
    """A group of processes that may take so much memory, and no swap.

    Args:
        folder: The group's folder, made.
        is_v1: Whether it is one of version 1.
    """

    def __init__(self, folder: Path, *, is_v1: bool) -> None:
        self.folder = folder
        self._is_v1 = is_v1

    @property
    def under(self) -> list[str]:
        """The command in front of one that is to run in the group; it keeps its number."""
        enter = f'echo $$ > {self.folder}/cgroup.procs && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh"]

    def limit(self, size_bytes: int) -> None:
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if not self._is_v1:
            names = ("memory.max", "memory.swap.max")
        (self.folder / names[0]).write_text(str(size_bytes))
        with contextlib.suppress(OSError):  # a kernel that does not count swap has no such file
            (self.folder / names[1]).write_text(str(size_bytes if self._is_v1 else 0))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel killed for memory."""
        name = "memory.oom_control" if self._is_v1 else "memory.events"
        lines = (self.folder / name).read_text().splitlines()
        counts = dict(line.split() for line in lines)
        return int(counts["oom_kill"])


def _remove_leftovers(base: Path) -> None:
    """Remove groups of test runs that were killed; one with processes in it stays."""
    for folder in base.glob(f"{_NAME}*"):
        if not Path("/proc", folder.name.removeprefix(_NAME)).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def memory_group(size_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group with a limit; skip the test where that cannot be done."""
    is_v1 = (_ROOT / "memory").is_dir()
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = (
        path for _, names, path in lines if ("memory" in names.split(",") if is_v1 else not names)
    )
    wanted = next(paths, None)
    if wanted is None:
        pytest.skip("the machine has no control groups for memory")
    base = (_ROOT / "memory" if is_v1 else _ROOT) / wanted.lstrip("/")
    _remove_leftovers(base)
    folder = base / f"{_NAME}{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        group = MemoryGroup(folder, is_v1=is_v1)
        try:
            group.limit(size_bytes)
        except OSError as error:
            pytest.skip(f"no control group can have a memory limit: {error}")
        yield group
    finally:
        folder.rmdir()

"""What a test has mounted goes with the test run, however that ends, and loop devices with it.

A run that is killed (a time limit of CI) runs no `finally`. So a process of its own waits for the
run's end on a pipe, which the kernel closes in any case, and takes back whatever is still mounted
below the run's folder. Must never touch another mount. tests/conftest.py starts it.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

_GUARD = r"""
trap '' PIPE
echo ready
read -r _
while read -r _ _ _ _ place _; do
    case "$place" in "$1"/*) echo "$place" ;; esac
done < /proc/self/mountinfo | sort -r | while read -r place; do
    echo "$place"
    fsfreeze --unfreeze "$place" 2>/dev/null
    umount "$place" || umount --lazy "$place"
done 2>/dev/null
"""
"""Nested mounts first. A frozen file system would keep its device, so it is thawed. Who would read
what it says may be gone: that must not end it (SIGPIPE)."""


class MountsLeftError(AssertionError):
    """Tests that ended by themselves have left mounts behind; they are gone now."""


@contextlib.contextmanager
def mounts_end_with(folder: Path) -> Iterator[None]:
    """Take back what is mounted below a folder at the end of the block or of this process.

    Args:
        folder: Absolute, without blanks.

    Raises:
        MountsLeftError: At the end of the block something was still mounted.
    """
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a time limit ends the group of the run, and not this one
    )
    assert guard.stdout is not None
    assert guard.stdout.readline() == "ready\n"
    try:
        yield
    finally:
        left = guard.communicate()[0].split()
    if left:
        raise MountsLeftError(f"left mounted by a test: {', '.join(left)}")

"""Small file systems of a test's own, on loop devices: to fill them, and to let them hang.

Each is mounted by root alone; where that is not possible the test is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.waiting import POLL_S, WAIT_S

MIB = 1024 * 1024
_EXT4_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN of the kernel's ext4.h."""


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"{command[0]} does not work here: {ran.stderr.strip()}")


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a fresh ext4 of that size; yield its mount point.

    Args:
        folder: Where image and mount point are made.
        size_bytes: Size of the image, sparse.
    """
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    image, mount = folder / "image", folder / "mount"
    mount.mkdir(parents=True)
    image.touch()
    os.truncate(image, size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    with mounted_again(folder):
        yield mount


@contextlib.contextmanager
def mounted_again(folder: Path) -> Iterator[Path]:
    """Mount the file system of a `small_disk` that has ended; yield its mount point."""
    image, mount = folder / "image", folder / "mount"
    _run("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount
    finally:
        unmount(mount)


def unmount(mount: Path) -> None:
    """Unmount a file system; one that a device lay on is busy until the kernel has let that go.

    Raises:
        subprocess.CalledProcessError: It is not mounted, or stays in use.
    """
    end_s = time.monotonic() + WAIT_S
    while True:
        ran = subprocess.run(["umount", str(mount)], capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return
        if not mount.is_mount() or time.monotonic() > end_s:
            raise subprocess.CalledProcessError(ran.returncode, ran.args, stderr=ran.stderr)
        time.sleep(POLL_S)


def break_down(mount: Path) -> None:
    """Have a file system keep what was flushed, and answer everything from now on with EIO.

    What lies on it is as broken as a device of its own would be. It is sound after the next mount.
    """
    folder = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, _EXT4_SHUTDOWN, (0).to_bytes(4, "little"))
    except OSError as error:
        pytest.skip(f"this kernel can't shut ext4 down: {error}")
    finally:
        os.close(folder)


def settle(mount: Path) -> None:
    """Write out all of a file system; on return no commit of its own journal is under way."""
    subprocess.run(["sync", "--file-system", str(mount)], check=True)


@contextlib.contextmanager
def hanging(mount: Path) -> Iterator[None]:
    """Let every write to a file system wait until the end of the `with` block."""
    _run("fsfreeze", "--freeze", str(mount))
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(mount)], check=True)

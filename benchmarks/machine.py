"""Describes the machine that a figure was measured on.

Owns nothing. Must never: change a setting, or guess what it can't read (it says "unknown").
Called by `benchmarks.measurement`.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import msgspec

_REPOSITORY = Path(__file__).resolve().parent.parent


class Machine(msgspec.Struct, frozen=True):
    """Everything about the machine that the figures lean on."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    filesystem: str
    device: str
    mount_options: str
    write_cache: str
    fua: str
    commit: str


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip().splitlines()[0]
    except (OSError, IndexError):
        return "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def find_mount(folder: Path, mountinfo: str) -> tuple[str, str, str, str]:
    """Return (filesystem, device, mount options, device number) of the mount that holds a folder.

    Args:
        folder: An absolute path without symbolic links.
        mountinfo: Text of `/proc/self/mountinfo` (proc(5)); later lines hide earlier ones.
    """
    best, found = -1, ("unknown",) * 4
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        point = Path(fields[4].replace("\\040", " "))
        if (folder == point or point in folder.parents) and len(point.parts) >= best:
            options = ",".join(dict.fromkeys(f"{fields[5]},{tail[2]}".split(",")))
            best, found = len(point.parts), (tail[0], tail[1], options, fields[2])
    return found[0], found[1], found[2], found[3]


def _queue_setting(device_number: str, name: str) -> str:
    device = Path("/sys/dev/block") / device_number
    if not device.exists():
        return "unknown"
    device = device.resolve()
    # A partition has no queue of its own: its disk is the folder above.
    holder = device if (device / "queue").exists() else device.parent
    return _first_line(holder / "queue" / name)


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def ask(*arguments: str) -> str:
        done = subprocess.run(
            [git, "-C", str(_REPOSITORY), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    commit = ask("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown"
    return commit + ("+changes" if ask("status", "--porcelain", "--untracked-files=no") else "")


def describe(folder: Path) -> Machine:
    """Describe this machine and the filesystem that holds `folder`."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    filesystem, device, options, number = find_mount(folder.resolve(), mountinfo)
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        filesystem=filesystem,
        device=device,
        mount_options=options,
        write_cache=_queue_setting(number, "write_cache"),
        fua=_queue_setting(number, "fua"),
        commit=_commit(),
    )

"""Places that results go to: looked at before anything is computed for them, and what fails there.

Owns the sentences about a target that can't be used. Must never make or change anything. Called by
the command line, the jobs and `imports`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from vespiary_pipeline.options import local_path
from vespiary_spec.errors import DiskFull, ExportRefused, NativeError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_CURE_WRITE: Final = "name a folder in which this user may write"
_CURE_LOOK: Final = "look at the disk and at how it is mounted, or name another folder"


@contextmanager
def disk_errors(what: str, path: Path, job: str = "import") -> Iterator[None]:
    """Say in a sentence why a call on files failed.

    Args:
        what: What was attempted.
        path: With what.
        job: What it was done for.

    Raises:
        DiskFull: There is no room.
        NativeError: Another reason.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, NativeError):
            raise
        number = error.errno or 0
        if number in NO_ROOM:
            raise DiskFull(
                f"there is no room for the {job}", where=str(path),
                cure=f"free space, or {job} to another volume; nothing is to be seen of it",
            ) from error  # fmt: skip
        cure = _CURE_WRITE if number in _NOT_ALLOWED else _CURE_LOOK
        raise NativeError(what, number, where=str(path), cure=cure) from error


def new_folder(text: str) -> Path:
    """Return a folder that is not there and can be made.

    Args:
        text: Its path, as users write it.

    Raises:
        ConfigError: It is no path of a file system.
        ExportRefused: Something is there.
        NativeError: It can't be made.
    """
    path = Path(local_path(text))
    with disk_errors("the folder can't be made", path, "write"):
        if path.exists():
            raise ExportRefused(
                "something is there already", where=str(path), cure="name a new folder"
            )
        _check_parent(path)
    return path


def folder(text: str) -> Path:
    """Return a folder that is there and may be written, or can be made.

    Args:
        text: Its path, as users write it.

    Raises:
        ConfigError: It is no path of a file system.
        NativeError: It can't be written or made.
    """
    path = Path(local_path(text))
    with disk_errors("this folder can't be written", path, "write"):
        _check_parent(path / "any")
    return path


def file(text: str) -> Path:
    """Return a file that can be written or replaced.

    Args:
        text: Its path, as users write it.

    Raises:
        ConfigError: It is no path of a file system.
        NativeError: It can't be written.
    """
    path = Path(local_path(text))
    with disk_errors("this file can't be written", path, "write"):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder")
        _check_parent(path)
    return path


def _check_parent(path: Path) -> None:
    """Refuse a path whose nearest folder that is there may not be written."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

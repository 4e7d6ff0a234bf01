"""Opening files whose names others may have put there: regular files only, and never for long.

Owns the way in which the broker opens files. What it opens has to be a regular file, since opening
a pipe waits for another program that may never come, and a device has no end.

Files that people or other programs provide (configuration, users, certificates) may be symbolic
links: Kubernetes mounts Secrets and ConfigMaps as links into a folder that it swaps. Files that the
broker itself makes in its own folders are never links: whoever may write there could have the
broker overwrite any file that it has access to.
Never: writes anything.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

SIZE_MAX_BYTES: Final = 64 << 20


class NotRegular(OSError):  # noqa: N818 (as FileNotFoundError's kin are read)
    """What was opened is a pipe, a device or a socket."""


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file, or a link to it.

    Raises:
        NotRegular: It is a pipe, a device or a socket.
        OSError: It cannot be read, or has more than 64 MiB (EFBIG).
    """
    with open(open_regular(path, os.O_RDONLY, follows_links=True), "rb") as file:
        data = file.read(SIZE_MAX_BYTES + 1)
    if len(data) > SIZE_MAX_BYTES:
        raise OSError(errno.EFBIG, f"the file has more than {SIZE_MAX_BYTES} bytes", str(path))
    return data


def open_regular(path: Path, flags: int, mode: int = 0o600, *, follows_links: bool = False) -> int:
    """Open a regular file, or make one, and return its descriptor.

    Args:
        path: The file.
        flags: How it is opened, as of open(2); O_CLOEXEC goes without saying.
        mode: Permissions of a file that is made.
        follows_links: Whether the name may be a symbolic link; the folders above it may in any
            case.

    Raises:
        NotRegular: It is a pipe, a device or a socket.
        OSError: It cannot be opened, is a folder (EISDIR), or is a symbolic link and must not be
            (ELOOP).
    """
    # O_NONBLOCK: else opening a pipe waits for whoever is at its other end.
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follows_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise NotRegular(errno.ENXIO, "this is not a regular file", str(path)) from error
        raise
    try:
        check_regular(descriptor, path)
        os.set_blocking(descriptor, True)  # rings answer EAGAIN otherwise, for regular files too
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(descriptor: int, path: Path) -> None:
    """Reject what is no regular file.

    Args:
        descriptor: The open file.
        path: Where it lies, for the message.

    Raises:
        NotRegular: It is a pipe, a device or a socket.
        OSError: It is a folder (EISDIR).
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise NotRegular(errno.EINVAL, "this is not a regular file", str(path))

"""Reading files that people or other programs provide: regular files only, and never for long.

Owns the way in which the broker opens configuration, users and certificates. Symbolic links are
followed: Kubernetes mounts Secrets and ConfigMaps as links into a folder that it swaps. What they
lead to has to be a regular file, since opening a pipe waits for a writer that may never come, and a
device has no end. Files that the broker itself makes in its own folders are never links; whoever
opens those passes O_NOFOLLOW.
Never: writes anything.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

SIZE_MAX_BYTES: Final = 64 << 20


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file, or a link to it.

    Raises:
        OSError: It cannot be read, is no regular file (EINVAL), or has more than 64 MiB (EFBIG).
    """
    # O_NONBLOCK: else opening a pipe waits for whoever writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        check_regular(file.fileno(), path)
        data = file.read(SIZE_MAX_BYTES + 1)
    if len(data) > SIZE_MAX_BYTES:
        raise OSError(errno.EFBIG, f"the file has more than {SIZE_MAX_BYTES} bytes", str(path))
    return data


def check_regular(descriptor: int, path: Path) -> None:
    """Reject what is no regular file.

    Args:
        descriptor: The open file.
        path: Where it lies, for the message.

    Raises:
        OSError: It is a folder (EISDIR), or a pipe, a device or a socket (EINVAL).
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "this is not a regular file", str(path))

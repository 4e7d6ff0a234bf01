"""The lock of a journal's folder: one broker writes there, and a second one is told who does.

Owns: the file `server.lock` in the folder, an flock(2) on it, and the JSON inside that names the
owner. The flock alone decides; the text is for people. The kernel drops the flock when the owner
dies, however it dies, so nothing is ever stale and the file is never removed (removing it would let
two brokers lock two different files of one name). Called by the journals, before they look at
anything else in the folder.

`wait_for_folder` waits for it, on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from vespiary_spec.errors import JournalLocked, NativeError
from vespiary_spec.regular_files import NotRegular, open_regular

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_NAME = "server.lock"
WAIT_POLL_S = 0.1
"""Time between two tries while another broker holds a folder: the kernel can't be asked to wait
without a thread that nothing could stop."""
# The group may write: on Kubernetes the pod's user can change between two starts, its fsGroup not.
LOCK_MODE = 0o660
_TEXT_BYTES_MAX = 4096


class FolderLock:
    """The held lock of one folder. Owner: whoever opened the journal; close it last."""

    def __init__(self, folder: Path, *, name: str = LOCK_NAME) -> None:
        """Take the lock, or say who has it; never waits.

        Args:
            folder: An existing folder.
            name: Name of the lock's file.

        Raises:
            JournalLocked: Another broker holds it; the message names its process and host.
            NativeError: The lock's file can be neither opened nor made.
        """
        self.path = folder / name
        self.owner_id = str(uuid.uuid4())
        self._fd, is_writable = _open(self.path)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = read_owner(self._fd)
            self._close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise NativeError(
                    "cannot lock the journal's folder", error.errno or 0, where=str(self.path)
                ) from error
            raise JournalLocked(
                f"the folder is in use by {describe_owner(owner)}",
                where=str(self.path),
                cure="stop that broker, or give this one a folder of its own",
            ) from error
        if is_writable:
            self._write_owner()

    def _write_owner(self) -> None:
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "id": self.owner_id,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        text = json.dumps(owner).encode() + b"\n"
        try:
            os.ftruncate(self._fd, 0)
            written = os.pwrite(self._fd, text, 0)
            if written != len(text):
                raise OSError(errno.EIO, f"{written} of {len(text)} bytes were written")
        except OSError as error:
            # A full disk must not keep a broker from starting: consuming is what empties it.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._close()
                raise NativeError(
                    "cannot write the owner into the lock's file",
                    error.errno or 0,
                    where=str(self.path),
                ) from error

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    @property
    def is_held(self) -> bool:
        """Whether this object still holds the lock."""
        return self._fd >= 0

    def close(self) -> None:
        """Let go of the lock; a second call does nothing."""
        if self._fd >= 0:
            self._close()


class LentLock:
    """A held lock that somebody else closes; whoever opens a journal under it leaves it alone."""

    def __init__(self, lock: FolderLock) -> None:
        self.path = lock.path

    def close(self) -> None:
        """Leave the lock to its owner."""


async def wait_for_folder(
    open_folder: Callable[[], Awaitable[T]],
    *,
    timeout_s: float | None,
    stop: asyncio.Event | None = None,
    on_wait: Callable[[str], None] = lambda _: None,
) -> T:
    """Open what needs a folder's lock, and wait while another broker has it.

    Args:
        open_folder: Opens it, or raises JournalLocked before it has changed anything.
        timeout_s: Seconds to wait; 0 tries once, None waits for good.
        stop: Set when the waiting is to end.
        on_wait: Called once with a sentence when the waiting begins.

    Returns:
        What `open_folder` returned.

    Raises:
        JournalLocked: It still has it when the time is over or `stop` is set; names it.
    """
    begin_s = time.monotonic()
    is_told = False
    while True:
        try:
            return await open_folder()
        except JournalLocked as error:
            waited_s = time.monotonic() - begin_s
            if timeout_s is not None and waited_s >= timeout_s:
                if not timeout_s:
                    raise
                raise JournalLocked(
                    error.what,
                    where=error.where,
                    measured=f"{waited_s:.1f} s waited",
                    allowed=f"{timeout_s:g} s (journal-lock-acquisition-timeout)",
                    cure=error.cure,
                ) from error
            if not is_told:
                bound = "for good" if timeout_s is None else f"{timeout_s:g} s"
                sentence = f"waiting {bound} (journal-lock-acquisition-timeout): {error}"
                logger.warning("%s", sentence)
                on_wait(sentence)
                is_told = True
            if stop is None:
                await asyncio.sleep(WAIT_POLL_S)
                continue
            try:
                await asyncio.wait_for(stop.wait(), WAIT_POLL_S)
            except TimeoutError:
                continue
            raise


def _open(path: Path) -> tuple[int, bool]:
    """Open the lock's file: (descriptor, whether it may be written).

    Its content is overwritten, so it must not be a link to another file.
    """
    try:
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, LOCK_MODE)
    except PermissionError:
        # Another user made it. flock needs no write permission, so reading it is enough.
        try:
            return open_regular(path, os.O_RDONLY), False
        except OSError as error:
            raise _not_opened(error, path) from error
    except OSError as error:
        raise _not_opened(error, path) from error
    if os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, LOCK_MODE)  # whatever the umask was
    return fd, True


def _not_opened(error: OSError, path: Path) -> NativeError:
    cure = ""
    if isinstance(error, NotRegular) or error.errno in (errno.ELOOP, errno.EISDIR):
        cure = "this is not the broker's lock file, which is a regular file: remove it"
    elif isinstance(error, PermissionError):
        cure = "give the broker's user access to the folder and this file"
    return NativeError("cannot open the lock's file", error.errno or 0, where=str(path), cure=cure)


def read_owner(fd: int) -> dict[str, Any]:
    """Return what the lock's file says of its owner; empty if it says nothing readable."""
    try:
        owner = json.loads(os.pread(fd, _TEXT_BYTES_MAX, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def describe_owner(owner: dict[str, Any]) -> str:
    """Return a clause that names the owner of a lock."""
    if "pid" not in owner:
        return "another process (its lock file does not say which)"
    return (
        f"the broker with process id {owner['pid']} on host {owner.get('host', 'unknown')}, "
        f"started {owner.get('started', 'at an unknown time')}"
    )

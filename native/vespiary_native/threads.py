"""`ThreadRing`: the ring over one thread that writes and flushes with plain system calls.

Owns: one daemon thread, its queue of requests, and the eventfd that tells of results.
Never: needs the native part, drops a result, or leaves a request unanswered when the thread dies.
Called by: `ring.open_ring`, where AIO is not wanted or not to be had.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import NamedTuple, Self

from vespiary_native.abc_ring import (
    BytesLike,
    Completion,
    check_depth,
    check_request,
    duplicate_token,
    foreign_ring,
    ring_closed,
    ring_full,
)
from vespiary_spec.errors import NativeError

logger = logging.getLogger(__name__)


class RequestKind(Enum):
    """What the thread does for a request."""

    READ = "read"
    WRITE = "write"
    DURABLE_WRITE = "durable write"
    SYNC = "sync"


class Request(NamedTuple):
    """One request on its way to the thread; `view` is empty for a sync."""

    kind: RequestKind
    fd: int
    view: memoryview
    offset: int
    token: int


def perform(
    request: Request, *, pwritev: Callable[[int, list[memoryview], int], int] = os.pwritev
) -> int:
    """Do what a request asks for and return the bytes moved; blocks.

    A short write is continued; a short read means the end of the file.

    Args:
        request: What to do.
        pwritev: The system call of a write; tests hand in one that falls short.

    Raises:
        OSError: A system call failed. After a failed fdatasync the file's state is unknown and a
            second one proves nothing.

    Durability: a durable write returns after its fdatasync.
    """
    if request.kind is RequestKind.SYNC:
        os.fdatasync(request.fd)
        return 0
    if request.kind is RequestKind.READ:
        return os.preadv(request.fd, [request.view], request.offset)
    length = len(request.view)
    written = 0
    while written < length:
        count = pwritev(request.fd, [request.view[written:]], request.offset + written)
        if count == 0:  # no file does this for a length above 0; without it this could spin
            raise OSError(errno.EIO, "pwritev wrote nothing")
        written += count
    if request.kind is RequestKind.DURABLE_WRITE:
        os.fdatasync(request.fd)
    return written


class _Worker:
    """The thread's half: apart from the ring, so that a forgotten ring can be collected.

    Owner of `finished`: the thread appends, the ring's thread pops. `lock` orders submission
    against death, so that no request is put into a queue that nobody reads any more.
    """

    def __init__(self, event_fd: int, perform_request: Callable[[Request], int]) -> None:
        self.requests: SimpleQueue[Request | None] = SimpleQueue()
        self.finished: deque[Completion] = deque()
        self.lock = threading.Lock()
        self.is_dead = False
        self._event_fd = event_fd
        self._perform = perform_request

    def run(self) -> None:
        """Serve requests until None comes. Whatever ends it, every request is answered."""
        request: Request | None = None
        try:
            while (request := self.requests.get()) is not None:
                token, result = request.token, self._outcome(request)
                request = None  # whoever takes the completion may close the request's buffer
                self._finish(token, result)
        except BaseException:  # the thread's end is reported through completions, of all places
            logger.exception("the thread of a journal ring died; all its requests fail with EIO")
            with self.lock:
                self.is_dead = True
                if request is not None:
                    self._finish(request.token, -errno.EIO)
                with suppress(Empty):
                    while True:
                        left = self.requests.get_nowait()
                        if left is not None:
                            self._finish(left.token, -errno.EIO)

    def submit(self, request: Request) -> None:
        """Queue a request; if the thread is dead, answer it at once."""
        with self.lock:
            if self.is_dead:
                self._finish(request.token, -errno.EIO)
            else:
                self.requests.put(request)

    def _outcome(self, request: Request) -> int:
        """Return the result of a request: bytes, or -errno; EAGAIN is kept for other rings' use."""
        try:
            return self._perform(request)
        except OSError as error:
            number = error.errno or errno.EIO
            return -(errno.EIO if number == errno.EAGAIN else number)

    def _finish(self, token: int, result: int) -> None:
        """Make a result known: first the entry, then the signal."""
        self.finished.append(Completion(token, result))
        os.eventfd_write(self._event_fd, 1)


class ThreadRing:
    """A ring on one thread with pwritev and fdatasync; `abc_ring.Ring` is its contract.

    Requests run one after the other, in order. Owner: the thread that uses it, in the process that
    made it.
    """

    name = "NIO"

    def __init__(self, depth: int, *, perform_request: Callable[[Request], int] = perform) -> None:
        """Start the thread.

        Args:
            depth: Requests outstanding at once, 1 to DEPTH_MAX.
            perform_request: Does the I/O of one request, in the thread. An OSError is the request's
                result; any other exception ends the thread.

        Raises:
            ValueError: `depth` is out of range.
            NativeError: No eventfd or no thread could be made.
        """
        self._event_fd = -1
        check_depth(depth)
        self._depth = depth
        self._owner_pid = os.getpid()
        self._outstanding = 0
        self._kept: set[int] = set()
        try:
            self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise NativeError("no eventfd for a journal ring", error.errno or 0) from error
        self._worker = _Worker(self._event_fd, perform_request)
        self._thread = threading.Thread(target=self._worker.run, name="vespiary-ring", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            os.close(self._event_fd)
            self._event_fd = -1
            raise NativeError("no thread for a journal ring", errno.EAGAIN) from error

    @property
    def depth(self) -> int:
        """Requests that may be outstanding at once."""
        return self._depth

    @property
    def outstanding(self) -> int:
        """Requests accepted whose completions were not yet taken."""
        return self._outstanding

    def fileno(self) -> int:
        """Return the eventfd, readable while completions wait."""
        if self._event_fd < 0:
            raise ring_closed()
        return self._event_fd

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        *,
        durable: bool = True,
    ) -> None:
        """Start a write: see `abc_ring.Ring.submit_write`.

        Durability: `durable` completes after an fdatasync.
        """
        check_request(fd, length, offset, token)
        self._submit(_write_kind(durable), fd, _view(buffer_address, length), offset, token)

    def submit_write_buffer(
        self, fd: int, buf: BytesLike, offset: int, token: int, *, durable: bool = True
    ) -> None:
        """Start a write of a whole object: see `abc_ring.Ring.submit_write_buffer`.

        Durability: as for `submit_write`.
        """
        if token in self._kept:
            raise duplicate_token(token)
        view = memoryview(buf)
        check_request(fd, view.nbytes, offset, token)
        # The request holds the view until the thread is done with it, and the view its object.
        self._submit(_write_kind(durable), fd, view.cast("B"), offset, token)
        self._kept.add(token)

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        """Start a read: see `abc_ring.Ring.submit_read`."""
        check_request(fd, length, offset, token)
        self._submit(RequestKind.READ, fd, _view(buffer_address, length), offset, token)

    def submit_sync(self, fd: int, token: int) -> None:
        """Start an fdatasync: see `abc_ring.Ring.submit_sync`.

        Durability: covers the writes whose completions were taken before this call.
        """
        check_request(fd, 1, 0, token)
        self._submit(RequestKind.SYNC, fd, memoryview(b""), 0, token)

    def completions(self) -> list[tuple[int, int]]:
        """Take all completions that wait: see `abc_ring.Ring.completions`."""
        self._check_usable()
        with suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        finished = self._worker.finished
        taken: list[tuple[int, int]] = []
        while finished:
            taken.append(finished.popleft())
        self._outstanding -= len(taken)
        if self._kept:
            self._kept.difference_update(token for token, _ in taken)
        return taken

    def close(self) -> None:
        """Wait for everything outstanding, then end the thread: see `abc_ring.Ring.close`."""
        if self._event_fd < 0:
            return
        if self._owner_pid == os.getpid():  # a forked child has no thread to wait for
            self._worker.requests.put(None)
            self._thread.join()
        os.close(self._event_fd)
        self._event_fd = -1
        self._outstanding = 0
        self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._event_fd >= 0:
            # No join: at the interpreter's end the thread may be frozen. It ends by itself, and the
            # eventfd stays open because it still writes to it.
            self._worker.requests.put(None)
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def _submit(
        self, kind: RequestKind, fd: int, view: memoryview, offset: int, token: int
    ) -> None:
        """Hand one request to the thread; raise for a refusal."""
        self._check_usable()
        if self._outstanding >= self._depth:
            raise ring_full(self._depth)
        self._outstanding += 1
        self._worker.submit(Request(kind, fd, view, offset, token))

    def _check_usable(self) -> None:
        """Refuse use after `close` and in a forked child."""
        if self._event_fd < 0:
            raise ring_closed()
        if self._owner_pid != os.getpid():
            raise foreign_ring(self._owner_pid)


def _write_kind(durable: bool) -> RequestKind:
    """Return the kind of a write."""
    return RequestKind.DURABLE_WRITE if durable else RequestKind.WRITE


def _view(address: int, length: int) -> memoryview:
    """Return the memory at an address as a view; the caller keeps it in place."""
    return memoryview((ctypes.c_char * length).from_address(address)).cast("B")

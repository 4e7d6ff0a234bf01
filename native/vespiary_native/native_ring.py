"""`NativeRing`: what the rings in C have in common, whichever system calls are below.

Owns: one ring of C and its eventfd, and references to buffers under way.
Never: blocks, interprets a result, or retries one.
Base of `aio.AioRing` and `uring.UringRing`, which make the ring and name it. Needs the native part.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

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
from vespiary_native.loader import ffi, lib
from vespiary_spec.errors import NativeError

_EVENTS_PER_CALL = 256


class RingCalls(NamedTuple):
    """The functions of one kind of ring in C; the headers are their contract."""

    type_name: str
    create: Callable[..., int]
    destroy: Callable[..., None]
    eventfd: Callable[..., int]
    outstanding: Callable[..., int]
    submit_one: Callable[..., int]
    completions: Callable[..., int]


class NativeRing:
    """A ring in C; `abc_ring.Ring` is its contract.

    Owner: the thread that uses it, in the process that made it.

    Attributes:
        name: Engine as users write it.
        write_then_sync: As asked for at creation.
    """

    name = ""

    def __init__(
        self,
        calls: RingCalls,
        depth: int,
        *,
        write_then_sync: bool,
        refusal: Callable[[int, int], NativeError],
    ) -> None:
        """Make the ring.

        Args:
            calls: Its functions.
            depth: Requests outstanding at once, 1 to DEPTH_MAX.
            write_then_sync: Durable writes are a write and an fdatasync instead of one write with
                RWF_DSYNC (docs/decisions/0001-durable-write.md). Where RWF_DSYNC is refused that
                happens by itself.
            refusal: Makes the error of a depth and an errno.

        Raises:
            ValueError: `depth` is out of range.
            NativeError: The kernel refused.
        """
        self._ring: Any = ffi.NULL
        self._calls = calls
        check_depth(depth)
        ring_out = ffi.new(f"{calls.type_name} **")
        flags = lib.VESPIARY_RING_WRITE_THEN_SYNC if write_then_sync else 0
        result = calls.create(depth, flags, ring_out)
        if result < 0:
            raise refusal(depth, -result)
        self._ring = ring_out[0]
        self._depth = depth
        self.write_then_sync = write_then_sync
        self._owner_pid = os.getpid()
        self._kept: dict[int, Any] = {}
        # One more than can come, where that is affordable: a full array costs another call.
        self._events = ffi.new("vespiary_completion[]", min(depth + 1, _EVENTS_PER_CALL))
        self._count = ffi.new("uint32_t *")

    @property
    def depth(self) -> int:
        """Requests that may be outstanding at once."""
        return self._depth

    @property
    def outstanding(self) -> int:
        """Requests accepted whose completions were not yet taken."""
        return int(self._calls.outstanding(self._ring)) if self._ring else 0

    def fileno(self) -> int:
        """Return the eventfd, readable while completions wait."""
        if not self._ring:
            raise ring_closed()
        return int(self._calls.eventfd(self._ring))

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

        Durability: `durable` completes after RWF_DSYNC, or after a write and an fdatasync.
        """
        check_request(fd, length, offset, token)
        kind = lib.VESPIARY_RING_DURABLE_WRITE if durable else lib.VESPIARY_RING_WRITE
        self._submit(kind, fd, buffer_address, length, offset, token)

    def submit_write_buffer(
        self, fd: int, buf: BytesLike, offset: int, token: int, *, durable: bool = True
    ) -> None:
        """Start a write of a whole object: see `abc_ring.Ring.submit_write_buffer`.

        Durability: as for `submit_write`.
        """
        if token in self._kept:
            raise duplicate_token(token)
        view = ffi.from_buffer(buf)  # holds a reference to buf and its memory in place
        address = int(ffi.cast("uintptr_t", view))
        self.submit_write(fd, address, len(view), offset, token, durable=durable)
        self._kept[token] = view

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        """Start a read: see `abc_ring.Ring.submit_read`."""
        check_request(fd, length, offset, token)
        self._submit(lib.VESPIARY_RING_READ, fd, buffer_address, length, offset, token)

    def submit_sync(self, fd: int, token: int) -> None:
        """Start an fdatasync: see `abc_ring.Ring.submit_sync`.

        Durability: covers the writes whose completions were taken before this call.
        """
        check_request(fd, 1, 0, token)
        self._submit(lib.VESPIARY_RING_SYNC, fd, 0, 0, 0, token)

    def completions(self) -> list[tuple[int, int]]:
        """Take all completions that wait: see `abc_ring.Ring.completions`."""
        if not self._ring:
            raise ring_closed()
        taken: list[tuple[int, int]] = []
        capacity = len(self._events)
        while True:
            result = self._calls.completions(self._ring, self._events, capacity, self._count)
            count = self._count[0]
            events = self._events
            for n in range(count):
                event = events[n]
                taken.append(Completion(event.token, event.result))
            if count < capacity:
                break
        if self._kept:
            for token, _ in taken:
                self._kept.pop(token, None)
        if result < 0 and not taken:  # else at the next call: what was taken goes first
            if result == -errno.ECHILD:
                raise foreign_ring(self._owner_pid)
            raise NativeError("the kernel refused to hand out completions", -result)
        return taken

    def close(self) -> None:
        """Wait for everything outstanding, then free the ring: see `abc_ring.Ring.close`."""
        ring, self._ring = self._ring, ffi.NULL
        self._calls.destroy(ring)
        if ring:
            self._kept.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._ring:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def _submit(
        self, kind: int, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        """Hand one request to C; raise for a refusal."""
        if not self._ring:
            raise ring_closed()
        result = self._calls.submit_one(self._ring, kind, fd, buffer_address, length, offset, token)
        if result < 0:
            if result == -errno.EAGAIN:
                raise ring_full(self._depth)
            if result == -errno.ECHILD:
                raise foreign_ring(self._owner_pid)
            raise NativeError("the ring refused a request", -result)

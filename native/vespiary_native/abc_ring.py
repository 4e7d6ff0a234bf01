"""The contract of a ring: reads, writes and flushes that finish without blocking the event loop.

Three implementations keep it: `aio.AioRing` (the kernel's AIO, "ASYNCIO"), `uring.UringRing`
("IO_URING") and `threads.ThreadRing` (one thread, "NIO"). `ring.open_ring` chooses. Owns what all
must agree on: the types, and the refusals of arguments and of misuse.
Never: does I/O.
Called by: the journal and page writers of `vespiary_broker.store`, from the event loop's thread.

What holds for every ring
    - Each accepted request yields exactly one completion, never an exception: bytes, or -errno.
      What is refused before it is accepted (bad arguments, a full ring) raises at the call.
    - The result NOT_TAKEN (-EAGAIN) has one meaning: the kernel had no room for the request and did
      nothing of it, so the same request may be submitted again. All other failures are final.
    - The caller keeps the descriptor open and the memory in place until the completion was taken.
    - Requests run in any order. A sync covers the writes whose completions were taken before it.
    - With O_DIRECT, address, length and offset are multiples of 4096, or the result is -EINVAL.
    - A ring belongs to one thread, and to the process that made it: after a fork it refuses.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Literal, NamedTuple, Protocol

from vespiary_spec.errors import NativeError

RingKind = Literal["ASYNCIO", "IO_URING", "NIO"]
BytesLike = bytes | bytearray | memoryview | mmap.mmap

DEPTH_MAX = 4_194_304  # VESPIARY_RING_DEPTH_MAX
LENGTH_MAX = 2_147_479_552  # VESPIARY_RING_LENGTH_MAX: what Linux moves in one call
TOKEN_MAX = 2**64 - 1
OFFSET_MAX = 2**63 - 1
NOT_TAKEN = -errno.EAGAIN


class Completion(NamedTuple):
    """The end of one request.

    Attributes:
        token: The number that the request was submitted with.
        result: Bytes moved, 0 for a sync, or -errno. Fewer bytes than asked for is the caller's to
            judge; anything negative on the write path is final.
    """

    token: int
    result: int


class Ring(Protocol):
    """A bounded set of requests under way, with an eventfd that tells of their completions."""

    @property
    def name(self) -> str:
        """Engine as users write it: "ASYNCIO", "IO_URING" or "NIO"."""

    @property
    def depth(self) -> int:
        """Requests that may be outstanding at once."""

    @property
    def outstanding(self) -> int:
        """Requests accepted whose completions were not yet taken, 0 to `depth`."""

    def fileno(self) -> int:
        """Return the eventfd to watch with `loop.add_reader`: readable while completions wait.

        Raises:
            NativeError: The ring is closed (EBADF).
        """

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
        """Start to write `length` bytes of memory at `offset` of the file.

        Args:
            fd: Open descriptor; a bad one completes with -EBADF.
            buffer_address: Address of the first byte.
            length: Bytes, 1 to LENGTH_MAX.
            offset: Bytes from the start of the file, >= 0.
            token: Comes back with the completion, 0 to 2**64 - 1; need not be unique.
            durable: False completes once the device has the data, not once it keeps it.

        Raises:
            ValueError: A number is out of range; nothing was submitted.
            NativeError: The ring is full (EAGAIN), closed (EBADF) or of another process (ECHILD).

        Durability: with `durable`, a completion equal to `length` says that the data survives a
            power loss of the node; until then, and after any other result, nothing is promised.
        """

    def submit_write_buffer(
        self, fd: int, buf: BytesLike, offset: int, token: int, *, durable: bool = True
    ) -> None:
        """Start to write a whole bytes-like object; it is kept alive until its completion.

        Args:
            fd: As for `submit_write`.
            buf: Contiguous, not empty; not to be changed before the completion.
            offset: As for `submit_write`.
            token: As for `submit_write`, but unique among outstanding buffers.
            durable: As for `submit_write`.

        Raises:
            ValueError: Also when another buffer is outstanding under the same token.
            NativeError: As for `submit_write`.

        Durability: as for `submit_write`.
        """

    def submit_read(
        self, fd: int, buffer_address: int, length: int, offset: int, token: int
    ) -> None:
        """Start to read up to `length` bytes from `offset` into memory; arguments as for a write.

        The result is smaller than `length` only at the end of the file.
        """

    def submit_sync(self, fd: int, token: int) -> None:
        """Start an fdatasync of the file; its result is 0 or -errno.

        Durability: covers the writes whose completions were taken before this call.
        """

    def completions(self) -> list[tuple[int, int]]:
        """Take all `Completion`s that wait, oldest first, and reset the eventfd; never blocks.

        Raises:
            NativeError: The ring is closed (EBADF), of another process (ECHILD), or the kernel no
                longer hands out completions.
        """

    def close(self) -> None:
        """Wait for everything outstanding, then free the ring; completions not taken are lost.

        May be called again. In a forked child it frees the child's copy and waits for nothing.
        """


# --- refusals that every implementation shares ----------------------------------------------------


def check_depth(depth: int) -> None:
    """Refuse a depth out of range.

    Raises:
        ValueError: `depth` is not within 1 to DEPTH_MAX.
    """
    if not 1 <= depth <= DEPTH_MAX:
        raise ValueError(f"ring depth {depth} is out of range: allowed are 1 to {DEPTH_MAX}")


def check_request(fd: int, length: int, offset: int, token: int) -> None:
    """Refuse numbers that no request can have.

    Raises:
        ValueError: One of them is out of range; the message names it.
    """
    if not -(2**31) <= fd < 2**31:
        raise ValueError(f"descriptor {fd} is out of range: allowed are 32-bit numbers")
    if not 1 <= length <= LENGTH_MAX:
        raise ValueError(f"length {length} is out of range: allowed are 1 to {LENGTH_MAX} bytes")
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"offset {offset} is out of range: allowed are 0 to 2**63 - 1 bytes")
    if not 0 <= token <= TOKEN_MAX:
        raise ValueError(f"token {token} is out of range: allowed are 0 to 2**64 - 1")


def duplicate_token(token: int) -> ValueError:
    """Return the refusal of a second buffer under one token."""
    return ValueError(f"token {token} has a buffer outstanding: take its completion first")


def ring_full(depth: int) -> NativeError:
    """Return the refusal of a request beyond the depth."""
    return NativeError(
        f"the ring is full ({depth} of {depth} requests outstanding)",
        errno.EAGAIN,
        cure="take completions before submitting more",
    )


def ring_closed() -> NativeError:
    """Return the refusal of any use after `close`."""
    return NativeError("the ring is closed", errno.EBADF)


def foreign_ring(owner_pid: int) -> NativeError:
    """Return the refusal of use in another process than the one that made the ring."""
    return NativeError(
        f"the ring belongs to process {owner_pid}, this is process {os.getpid()}",
        errno.ECHILD,
        cure="make rings after forking",
    )

"""Who may write to a journal: the folder's lock for this kernel, the ownership block for others.

Owns: the file `.vespiary-owner` in the journal's folder (format §8), read and written with O_DIRECT
so that another kernel's write is seen, and the course of a claim. `lease` watches over it from then
on. Must never change anything else, and never take a block away from an owner whose lease may
still run without waiting it out (docs/decisions/0024-ownership-of-a-journal.md). Every function
blocks. Called by `app`, before anything of the store is opened.

The block is written in its place and never renamed once it is there: the kernel of an owner that
was ousted would look at the old file for ever.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.lock import FolderLock
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.owner_block import (
    OWNER_BLOCK_BYTES,
    OwnerBlock,
    OwnerState,
    decode_owner_block,
    encode_owner_block,
)
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import CorruptRecord, JournalLocked, OwnershipLost

OWNER_NAME: Final = ".vespiary-owner"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_WAIT_FACTOR: Final = 1.1
"""The clocks of two machines do not run at one speed; a tenth is far more than they differ."""


def boot_id() -> bytes:
    """Return the 16 bytes by which this kernel knows its boot; random ones if it has no such."""
    try:
        return uuid.UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return secrets.token_bytes(16)  # nobody's: every start waits


def clock_boot_s() -> float:
    """Return seconds by a clock that also runs while the process or the machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """How a journal is owned.

    Attributes:
        directory: The journal's folder.
        lease_s: Seconds for which confirms leave after the block was last read.
        is_direct: Read and write it with O_DIRECT.
        disk: The file system.
        boot_id: Which boot of which kernel this is.
        clock_s: Seconds, by a clock that never stops.
    """

    directory: Path
    lease_s: float
    is_direct: bool = True
    disk: DiskLike = field(default_factory=Disk)
    boot_id: bytes = field(default_factory=lambda: boot_id())
    clock_s: Callable[[], float] = clock_boot_s


class OwnerFile:
    """The open file with the block. Owner: one thread at a time."""

    def __init__(self, options: OwnerOptions) -> None:
        """Open the file, if there is one.

        Raises:
            NativeError: It is there and can't be opened.
        """
        self.path = options.directory / OWNER_NAME
        self._disk, self._is_direct = options.disk, options.is_direct
        self._buffer = AlignedBuffer(OWNER_BLOCK_BYTES)
        self._file = None
        if OWNER_NAME in self._disk.names(options.directory):
            self._file = self._disk.open(self.path, is_direct=self._is_direct, is_readonly=False)

    def read(self) -> bytes:
        """Return what the block says now on the disk; nothing if there is no file yet.

        Raises:
            NativeError: The disk can't be read.
        """
        if self._file is None:
            return b""
        if not self._is_direct:
            # Without O_DIRECT the kernel would answer from its memory.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        view = self._buffer.memoryview
        return bytes(view[: self._file.read_into(view, 0)])

    def write(self, block: OwnerBlock) -> bytes:
        """Write the block, in its place.

        Raises:
            NativeError: A call failed.

        Durability: on return the block survives a power cut.
        """
        data = encode_owner_block(block)
        if self._file is None:
            self._make(data)
            return data
        self._buffer.memoryview[:] = data
        self._file.write(self._buffer.memoryview, 0)
        self._file.flush()
        return data

    def _make(self, data: bytes) -> None:
        """Make the file with its first block: it is there whole or not at all."""
        unfinished = self.path.with_name(OWNER_NAME + ".tmp")
        made = self._disk.create(unfinished, is_direct=self._is_direct)
        try:
            self._buffer.memoryview[:] = data
            made.write(self._buffer.memoryview, 0)
            made.flush()
        finally:
            made.close()
        self._disk.rename(unfinished, self.path)
        self._disk.flush_folder(self.path.parent)
        self._file = self._disk.open(self.path, is_direct=self._is_direct, is_readonly=False)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(slots=True, kw_only=True)
class Claim:
    """A claim on a journal; it holds once `wait_s` has gone by and `finish` has returned.

    Attributes:
        options: See there.
        lock: The folder's lock, held.
        file: The open block.
        block: What was written.
        data: The bytes of that.
        checked_s: When the look began that found these bytes on the disk.
        wait_s: Seconds until nobody else can confirm any more; 0: nobody can.
        reason: Why it is waited, as a sentence; empty if it is not.
    """

    options: OwnerOptions
    lock: FolderLock
    file: OwnerFile
    block: OwnerBlock
    data: bytes
    checked_s: float
    wait_s: float = 0.0
    reason: str = ""

    def finish(self) -> None:
        """Take the journal when the wait is over.

        Raises:
            JournalLocked: Another broker has claimed it meanwhile.
            NativeError: The block can't be read or written.

        Durability: on return the block says durably that this broker holds the journal.
        """
        if self.block.state is OwnerState.HELD:
            return
        self.verify()
        lease_ms = round(self.options.lease_s * 1000)
        self.write(replace(self.block, state=OwnerState.HELD, lease_ms=lease_ms))

    def write(self, block: OwnerBlock) -> None:
        """Write the block and see that it stands there.

        Raises:
            JournalLocked: What stands there is another broker's.
            NativeError: It can't be written or read.
        """
        self.block, self.data = block, self.file.write(block)
        self.verify()

    def verify(self) -> None:
        """See that the block is still ours.

        Raises:
            JournalLocked: It is another broker's.
            NativeError: It can't be read.
        """
        begun_s = self.options.clock_s()
        found = self.file.read()
        if found != self.data:
            raise JournalLocked(
                f"{describe_bytes(found)} has claimed the journal in the same moment",
                where=str(self.file.path),
                cure="see to it that one broker alone is started on this volume",
            )
        self.checked_s = begun_s

    def close(self) -> None:
        """Let go of file and lock; what the block says stays."""
        self.file.close()
        self.lock.close()


def begin_claim(options: OwnerOptions) -> Claim:
    """Lock the folder and claim its journal.

    Args:
        options: The folder, which exists, and the lease.

    Returns:
        The claim: to be waited for, and finished.

    Raises:
        JournalLocked: Another process of this kernel has the folder, or another claim came first.
        CorruptRecord: The block can't be understood.
        NativeError: The block can't be read or written: words of the disk.

    Durability: on return the claim survives a power cut.
    """
    lock = FolderLock(options.directory)
    try:
        file = OwnerFile(options)
        try:
            found = _decoded(file)
            block, reason = _next_block(found, options)
            claim = Claim(
                options=options, lock=lock, file=file, block=block, data=b"", checked_s=0.0
            )
            claim.write(block)
        except BaseException:
            file.close()
            raise
    except BaseException:
        lock.close()
        raise
    if block.state is OwnerState.CLAIMING:
        claim.wait_s = block.lease_ms / 1000 * _WAIT_FACTOR
        claim.reason = f"{reason}; waiting {claim.wait_s:.1f} s until it can confirm nothing more"
    return claim


def _next_block(found: OwnerBlock | None, options: OwnerOptions) -> tuple[OwnerBlock, str]:
    """Return the block to write, and why it is only a claim; empty if nobody has to wait.

    | found                              | written            |
    |------------------------------------|--------------------|
    | no file                            | held, epoch 1      |
    | released                           | held, next epoch   |
    | held, by a boot of this kernel     | held, next epoch: the lock proves that it has ended |
    | held, by another kernel or boot    | a claim            |
    | a claim                            | a claim: whom it waited for may still be there |
    """
    block = OwnerBlock(
        state=OwnerState.HELD,
        epoch=1 if found is None else found.epoch + 1,
        owner_id=secrets.token_bytes(16),
        boot_id=options.boot_id,
        lease_ms=round(options.lease_s * 1000),
        time_ms=time.time_ns() // 1_000_000,
        host=socket.gethostname(),
    )
    if found is None or found.state is OwnerState.RELEASED:
        return block, ""
    if found.state is OwnerState.HELD and found.boot_id == options.boot_id:
        return replace(block, ousted_boot_id=found.ousted_boot_id), ""
    is_claim = found.state is OwnerState.CLAIMING
    claim = replace(
        block,
        state=OwnerState.CLAIMING,
        lease_ms=max(block.lease_ms, found.lease_ms),
        ousted_boot_id=found.ousted_boot_id if is_claim else found.boot_id,
    )
    return claim, f"{describe(found)} had the journal and has not let go of it"


def _decoded(file: OwnerFile) -> OwnerBlock | None:
    data = file.read()
    if not data:
        return None
    try:
        return decode_owner_block(data)
    except JournalFormatError as error:
        raise CorruptRecord(
            error.what,
            where=f"{file.path}:{error.offset}",
            measured=error.found,
            allowed=str(error.expected),
            cure="see to it that no machine runs a broker on this volume, then delete the file",
        ) from error


def describe(block: OwnerBlock) -> str:
    """Return a clause that names an owner."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(block.time_ms // 1000))
    host = block.host or "an unknown host"
    return f"the broker on host {host} (epoch {block.epoch}, since {since})"


def describe_bytes(data: bytes) -> str:
    """Return a clause that names the owner in a block, whatever it says."""
    try:
        return describe(decode_owner_block(data))
    except JournalFormatError as error:
        return f"somebody else ({error.what})"


def lost(path: Path, found: bytes) -> OwnershipLost:
    """Return the error of an owner that was ousted."""
    return OwnershipLost(
        f"the journal belongs to another broker now: {describe_bytes(found)}",
        where=str(path),
        cure="let that broker work; this one confirms nothing more and ends. Start it again only "
        "when the other has stopped",
    )


def release(claim: Claim) -> None:
    """Say that the journal is free, last of all; the lock stays.

    Raises:
        JournalLocked: It is not ours any more.
        NativeError: The block can't be read or written; then the next owner may have to wait.

    Durability: on return the next owner need not wait.
    """
    claim.verify()
    released = replace(claim.block, state=OwnerState.RELEASED, time_ms=time.time_ns() // 1_000_000)
    claim.file.write(released)

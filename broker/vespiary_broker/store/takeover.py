"""What a recovery changes on the disk: flush, header watermarks, the seal, leftovers.

Owns: the steps between the verdict of `recovery` and the first new block, in an order that a power
cut may end anywhere (docs/internals/recovery.md). Must never run after a verdict of corruption, and
never decide anything. Called by the journals while they open, in the worker thread; it blocks.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import replace

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FilePool, StoredFile
from vespiary_broker.store.recovery import Recovered
from vespiary_broker.store.survey import FolderSurvey, SurveyedFile
from vespiary_codec.journal.block import CRC_AT, FLAG_SEAL, BlockHeader, encode_block
from vespiary_codec.journal.file_header import encode_file_header
from vespiary_codec.journal.record import SealRecord, encode_record
from vespiary_native.memory import AlignedBuffer

logger = logging.getLogger(__name__)


def seal_tail(found: Recovered, disk: DiskLike, *, is_direct: bool, now_ms: int) -> tuple[int, int]:
    """Make everything that was taken durable and end the newest file with a seal.

    What was read back need not be on the disk yet: after a killed process it may stand in the
    drive's cache, or without O_DIRECT in the kernel's. So it is flushed before anything says that
    it is durable. The seal goes where the hole is, over whatever was torn there.

    Args:
        found: What the recovery found.
        disk: The file system.
        is_direct: Files are written with O_DIRECT, so that one flush covers all of them.
        now_ms: Time for the seal, milliseconds since 1970.

    Returns:
        Sequence and checksum of the journal's last block.

    Raises:
        NativeError: A write or a flush failed; the journal must not be opened.

    Durability: on return every block up to the returned sequence survives a power cut.
    """
    for file in found.used if not is_direct else found.used[-1:]:
        handle = disk.open(file.path, is_direct=is_direct, is_readonly=False)
        try:
            handle.flush()
        finally:
            handle.close()
    _lower_watermarks(found, disk, is_direct=is_direct)
    if found.tail is None:
        return found.sequence, found.crc
    file, offset = found.tail.file, found.tail.offset
    payload = encode_record(SealRecord())
    header = BlockHeader(
        sequence=found.sequence + 1,
        file_id=file.file_id,
        watermark=found.sequence,
        payload_bytes=len(payload),
        records=1,
        previous_crc=found.crc,
        time_ms=now_ms,
        flags=FLAG_SEAL,
    )
    seal = encode_block(header, payload, salt=file.salt, offset=offset)
    (crc,) = struct.unpack_from("<I", seal, CRC_AT)
    buffer = AlignedBuffer(len(seal))
    buffer.memoryview[:] = seal
    handle = disk.open(file.path, is_direct=is_direct, is_readonly=False)
    try:
        handle.write(buffer.memoryview, offset)
        handle.flush()
    finally:
        handle.close()
    return header.sequence, crc


def _lower_watermarks(found: Recovered, disk: DiskLike, *, is_direct: bool) -> None:
    """Take back what headers say of blocks that were lost under D1.

    The numbers of those blocks are given again, and a header that still spoke of the old ones would
    accuse the next torn tail. Before the seal: from then on nothing else tells of the loss.

    Durability: on return no header says more than what was taken, and that survives a power cut.
    """
    for file in (*found.used, *found.ahead):
        if file.header is None or file.watermark <= found.sequence:
            continue
        header = encode_file_header(replace(file.header, watermark=found.sequence))
        buffer = AlignedBuffer(len(header))
        buffer.memoryview[:] = header
        handle = disk.open(file.path, is_direct=is_direct, is_readonly=False)
        try:
            handle.write(buffer.memoryview, 0)
            handle.flush()
        finally:
            handle.close()
        logger.warning("%s: its watermark is lowered to %d", file.path, found.sequence)


def take_over(pool: FilePool, survey: FolderSurvey, found: Recovered) -> None:
    """Give the folder's files to the pool; free leftovers, and move unfinished files away.

    Args:
        pool: An empty pool of that folder.
        survey: The folder's headers.
        found: What the recovery found; its tail is sealed already.

    Raises:
        NativeError: A header can't be written or a file can't be moved.
    """
    active = [_stored(file, found.sequence) for file in survey.active]
    free = [_stored(file, found.sequence) for file in survey.free]
    pool.adopt(active, free, survey.highest_id + 1)
    for file in found.leftovers:
        pool.release(file.file_id)
    for path in survey.unfinished:
        pool.clear_unfinished(path)


def _stored(file: SurveyedFile, taken: int) -> StoredFile:
    return StoredFile(
        file.path,
        file.number,
        file.file_id,
        file.salt,
        file.size_bytes,
        is_growing=file.is_growing,
        watermark=min(file.watermark, taken),
    )

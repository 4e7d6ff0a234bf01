"""Reading a journal back: what is taken, where it ends, and what stops it.

Owns: the course of a recovery (docs/internals/recovery.md); `verdicts` owns its decisions. First
the newest file with blocks and the newest FILES record are found, then all files in use are read
once in order and handed to a sink. Until all of it is judged nothing on the disk is changed, and
after a verdict of corruption nothing ever is. Called by the journals while they open (worker
thread), and by `reader`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.read_ahead import ReadAhead, windows_of
from vespiary_broker.store.survey import WINDOW_BYTES, BlockReader, FolderSurvey, SurveyedFile
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.record import (
    FilesRecord,
    RecordType,
    decode_record,
    walk_records,
)
from vespiary_codec.journal.verdicts import (
    PlaceFacts,
    PlaceVerdict,
    Role,
    RoleFacts,
    assign_role,
    judge_place,
)
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import CorruptRecord

logger = logging.getLogger(__name__)

_BLOCK_HEADER_BYTES = 64
_CURE = "keep a copy of the folder, run `vespiary journal verify`, then restore the volume"


class Sink(Protocol):
    """Who takes the records: the core, or a table of names."""

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """Register a file that holds blocks, before its first one."""

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Apply the records of one valid block; ValueError if one is malformed."""


class Progress(NamedTuple):
    """How far a recovery is, for the log and the readiness probe."""

    files_done: int
    files_total: int
    bytes_done: int


@dataclass(frozen=True, slots=True)
class Tail:
    """The place where a file ends without a seal.

    Attributes:
        file: The file.
        offset: Where the next block would begin.
        is_torn: The header of a block of this life of the file stands there, and the block is not
            whole. False is no proof of a clean end: a torn write may lack its first sector.
    """

    file: SurveyedFile
    offset: int
    is_torn: bool


class _Hole(NamedTuple):
    """A place without its block that may be the journal's end.

    Attributes:
        tail: The place.
        dropped_blocks: Valid blocks behind it.
        lost_blocks: Blocks that were confirmed under D1 and are gone.
    """

    tail: Tail
    dropped_blocks: int
    lost_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a recovery found.

    Attributes:
        used: Files with blocks, by id.
        ahead: Active files behind those, not begun.
        leftovers: Files that an interrupted reclaim left: to be freed.
        sequence: Of the last block taken, 0 if there is none.
        crc: Its checksum, 0 if there is none.
        tail: Where the seal has to go; None if the last file is sealed or none has blocks.
        blocks: Blocks taken.
        records: Records in them.
        bytes_read: Bytes of them.
        seconds: Time that it took.
        watermark: Highest sequence that a block taken proves to be durable.
        unproven_blocks: Blocks taken above that: the zone that cannot be judged, since a flip of
        bits
            there looks like the torn tail.
        unproven_records: Records in them.
        dropped_blocks: Valid blocks behind the hole, never confirmed.
        lost_blocks: Blocks that were confirmed under D1 and are gone; 0 under D2.
    """

    used: list[SurveyedFile]
    ahead: list[SurveyedFile]
    leftovers: list[SurveyedFile]
    sequence: int
    crc: int
    tail: Tail | None
    blocks: int
    records: int
    bytes_read: int
    seconds: float
    watermark: int
    unproven_blocks: int
    unproven_records: int
    dropped_blocks: int
    lost_blocks: int


class Recovery:
    """One recovery of one journal. Owner: the thread that runs it; used once."""

    def __init__(
        self,
        survey: FolderSurvey,
        disk: DiskLike,
        verify: BlockVerifier,
        *,
        is_flushed: bool = True,
        is_direct: bool = True,
        ahead_bytes_min: int = 2 * WINDOW_BYTES,
        progress: Callable[[Progress], None] = lambda _: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            survey: The folder's headers.
            disk: The file system.
            verify: The walk over valid blocks.
            is_flushed: The journal runs in class D2, so a watermark is the disk's promise.
            is_direct: Read with O_DIRECT.
            ahead_bytes_min: Size of a journal, from which on its windows are read ahead.
            progress: Called after each file, in this thread.
            clock_s: Seconds, for the statistics.
        """
        self._survey = survey
        self._disk = disk
        self._verify = verify
        self._is_flushed = is_flushed
        self._is_direct = is_direct
        self._ahead_bytes_min = ahead_bytes_min
        self._progress = progress
        self._clock_s = clock_s
        self._buffer = AlignedBuffer(
            min(WINDOW_BYTES, max((file.size_bytes for file in survey.active), default=4096))
        )
        self._ahead: ReadAhead | None = None
        self._sequence = 0
        self._crc = 0
        self._blocks = 0
        self._records = 0
        self._bytes = 0
        self._watermark = 0
        self._witness = max(survey.active, key=lambda file: file.watermark, default=None)
        self._unproven: list[tuple[int, int]] = []  # (sequence, records) above the watermark
        self._dropped = 0
        self._lost = 0

    def run(self, sink: Sink) -> Recovered:
        """Read the journal and hand its records to the sink; change nothing on the disk.

        Raises:
            CorruptRecord: Confirmed data is damaged or a file is missing: file, offset, sequence.
            NativeError: A file cannot be read.
        """
        begun_s = self._clock_s()
        active = self._survey.active
        newest = self._newest_with_blocks(active)
        listed, checkpoint_id = self._find_checkpoint(active, newest)
        leftovers = self._assign_roles(active, listed, checkpoint_id)
        used = [file for file in active[: newest + 1] if file not in leftovers]
        tail = None
        with self._reading_ahead(used):
            for index, file in enumerate(used):
                sink.restore_file(file.file_id, file.salt, file.size_bytes)
                before = used[index - 1] if index else None
                tail = self._replay(file, before, sink, is_older=index < len(used) - 1)
                self._progress(Progress(index + 1, len(used), self._bytes))
        # No header speaks of more than was taken, or it was judged above.
        watermark = max(self._watermark, min(self._witnessed, self._sequence))
        unproven = [records for sequence, records in self._unproven if sequence > watermark]
        return Recovered(
            used=used,
            ahead=active[newest + 1 :],
            leftovers=leftovers,
            sequence=self._sequence,
            crc=self._crc,
            tail=tail,
            blocks=self._blocks,
            records=self._records,
            bytes_read=self._bytes,
            seconds=self._clock_s() - begun_s,
            watermark=watermark,
            unproven_blocks=len(unproven),
            unproven_records=sum(unproven),
            dropped_blocks=self._dropped,
            lost_blocks=self._lost,
        )

    # --- which files count ------------------------------------------------------------------------

    def _newest_with_blocks(self, active: list[SurveyedFile]) -> int:
        """Return the index of the newest file with any valid block, -1 if there is none."""
        for index in range(len(active) - 1, -1, -1):
            with self._opened(active[index]) as reader:
                if next(reader.later_blocks(FIRST_OFFSET), None) is not None:
                    return index
        return -1

    def _find_checkpoint(self, active: list[SurveyedFile], end: int) -> tuple[FilesRecord, int]:
        """Return the newest FILES record that counts and the id of the file that holds it.

        It counts only in a run of blocks that begins with its file: a record behind a hole was
        never durable, and a reclaim that it announces never happened.

        Raises:
            CorruptRecord: On the way to it confirmed data is damaged. Said here, because without
            the
                record that stands there files would seem to be missing.
        """
        files, ahead = active[: end + 1], active[end + 1 :]
        if not files and ahead and ahead[0].file_id == 1:
            self._judge_end(ahead[0], 0)
        for index in range(end, -1, -1):
            newest = None
            last: BlockFacts | None = None
            with self._opened(files[index]) as reader:
                for facts, block in reader.walk(FIRST_OFFSET):
                    if last and not _follows(facts, last.sequence, last.crc):
                        break
                    last = facts
                    newest = self._files_record(files[index], facts, block) or newest
                if last is None or not last.is_seal:
                    self._judge_unsealed(files, index, last, reader)
            if index == end and last is not None and last.is_seal:
                after = ahead[0] if ahead else files[end]
                if after.file_id <= files[end].file_id + 1:  # else a file is missing: roles say so
                    self._judge_end(after, last.sequence)
            if newest is not None:
                return newest, files[index].file_id
        return FilesRecord(()), 0

    def _judge_unsealed(
        self, files: list[SurveyedFile], index: int, last: BlockFacts | None, reader: BlockReader
    ) -> None:
        """Refuse a hole that can't be the end of the journal, before anything is read in order."""
        file = files[index]
        is_older = index < len(files) - 1
        if last is not None:
            self._judge_hole(
                file, last.offset + last.length, last.sequence + 1, reader, is_older=is_older
            )
            return
        if file.file_id == 1:
            self._judge_hole(file, FIRST_OFFSET, 1, reader, is_older=is_older)
            return
        before = files[index - 1] if index else None
        if before is None or before.file_id + 1 != file.file_id:
            # Whatever made the file before this one go was durable in this one.
            self._judge_hole(file, FIRST_OFFSET, None, reader, is_older=True)
            return
        expected = 1
        with self._opened(before) as other:
            for facts, _ in other.walk(FIRST_OFFSET):
                expected = facts.sequence + 1
        self._judge_hole(file, FIRST_OFFSET, expected, reader, is_older=is_older)

    def _files_record(
        self, file: SurveyedFile, facts: BlockFacts, block: memoryview
    ) -> FilesRecord | None:
        """Return the last FILES record of a block, if it has one."""
        newest = None
        offset = facts.offset + _BLOCK_HEADER_BYTES
        try:
            for raw in walk_records(block[_BLOCK_HEADER_BYTES:], facts.records, offset=offset):
                if raw.type == RecordType.FILES:
                    record = decode_record(raw)
                    newest = record if isinstance(record, FilesRecord) else newest
        except ValueError as error:
            raise self._malformed(file, facts, error) from error
        return newest

    def _assign_roles(
        self, active: list[SurveyedFile], listed: FilesRecord, checkpoint_id: int
    ) -> list[SurveyedFile]:
        """Return the leftovers; refuse a journal of which a file is missing."""
        by_id = {file.file_id: file for file in active}
        highest = max(by_id, default=0)
        leftovers = []
        candidates = set(by_id)
        # A run, and the ids up to the highest, may be more than anybody has files: of those that
        # are missing the lowest one decides.
        for first, last in ((checkpoint_id + 1, highest), *listed.runs):
            at = first
            while at in by_id:
                at += 1
            if at <= last:
                candidates.add(at)
        for file_id in sorted(candidates):
            facts = RoleFacts(
                is_active=file_id in by_id,
                is_listed=any(first <= file_id <= last for first, last in listed.runs),
                is_above_checkpoint=file_id >= checkpoint_id,
            )
            role = assign_role(facts)
            if role is Role.LEFTOVER:
                leftovers.append(by_id[file_id])
            elif role is Role.MISSING:
                raise CorruptRecord(
                    f"file {file_id} of the journal is missing",
                    where=str(self._survey.folder),
                    measured=f"files {', '.join(map(str, sorted(by_id))) or 'none'}",
                    allowed=f"with {file_id}, which the FILES record in file {checkpoint_id} lists"
                    if facts.is_listed
                    else f"without a gap from {checkpoint_id + 1} to {highest}",
                    cure="put the file back or restore the volume; nothing was changed",
                )
        return leftovers

    # --- reading in order -------------------------------------------------------------------------

    def _replay(
        self, file: SurveyedFile, before: SurveyedFile | None, sink: Sink, *, is_older: bool
    ) -> Tail | None:
        """Apply the blocks of one file; return where it ends if no seal does that."""
        offset = FIRST_OFFSET
        with self._opened(file, self._ahead) as reader:
            for facts, block in reader.walk(FIRST_OFFSET):
                if not self._is_expected(facts, file, before):
                    break
                self._take(file, facts, block, sink)
                offset = facts.offset + facts.length
                if facts.is_seal:
                    return None
            hole = self._judge_hole(file, offset, self._sequence + 1, reader, is_older=is_older)
            self._dropped = hole.dropped_blocks
            self._lost = hole.lost_blocks
            return hole.tail

    def _judge_end(self, file: SurveyedFile, sequence: int) -> None:
        """Refuse a journal that ends with a seal, or has no blocks, if a header knows of more.

        Files ahead look as if they were never begun, also when their blocks read as zeros now.

        Args:
            file: The first active file behind the newest one with blocks; without any that one.
            sequence: Of the seal, 0 without blocks.

        Raises:
            CorruptRecord: The first block of that file was confirmed.
        """
        if self._witnessed <= sequence:
            return
        with self._opened(file) as reader:
            hole = self._judge_hole(file, FIRST_OFFSET, sequence + 1, reader, is_older=False)
        self._lost = hole.lost_blocks

    @property
    def _witnessed(self) -> int:
        """Highest watermark in the header of any active file, 0 if there is none."""
        return self._witness.watermark if self._witness else 0

    def _is_expected(
        self, facts: BlockFacts, file: SurveyedFile, before: SurveyedFile | None
    ) -> bool:
        """Whether a valid block is the one that has to stand here."""
        if facts.offset == FIRST_OFFSET:
            if before is None and file.file_id > 1:
                return facts.sequence >= 1  # older files were reclaimed: the journal starts here
            if before is not None and before.file_id + 1 != file.file_id:
                return facts.sequence > self._sequence
        return _follows(facts, self._sequence, self._crc)

    def _take(self, file: SurveyedFile, facts: BlockFacts, block: memoryview, sink: Sink) -> None:
        try:
            sink.restore_block(file.file_id, facts.offset, block)
        except ValueError as error:
            raise self._malformed(file, facts, error) from error
        self._sequence = facts.sequence
        self._crc = facts.crc
        self._blocks += 1
        self._records += facts.records
        self._bytes += facts.length
        if facts.watermark > self._watermark:
            self._watermark = facts.watermark
            self._unproven.clear()
        self._unproven.append((facts.sequence, facts.records))

    def _judge_hole(
        self,
        file: SurveyedFile,
        offset: int,
        expected: int | None,
        reader: BlockReader,
        *,
        is_older: bool,
    ) -> _Hole:
        """Decide what it means that a block is not there (journal-format §4).

        Args:
            file: The file.
            offset: The place.
            expected: Sequence of the block that ought to stand there; None: the journal's first.
            reader: Of that file.
            is_older: The place cannot be the journal's end.

        Raises:
            CorruptRecord: It was confirmed.
        """
        later = list(reader.later_blocks(offset))
        covered = max((facts.watermark for facts in later), default=0)
        seen = max(covered, self._witnessed)
        verdict = judge_place(
            PlaceFacts(
                is_expected_block=False,
                is_older_file=is_older,
                is_covered=expected is not None and covered >= expected,
                is_witnessed=expected is not None and self._witnessed >= expected,
                is_flushed=self._is_flushed,
            )
        )
        if verdict is PlaceVerdict.CORRUPT:
            wanted = f"block {expected}" if expected else "the journal's first block"
            proof = "the journal goes on behind it"
            if expected and covered >= expected:
                proof = f"blocks up to {covered} are known to be durable"
            elif expected and self._witness and self._witnessed >= expected:
                proof = (
                    f"the header of {self._witness.path.name} says that blocks up to"
                    f" {self._witnessed} were durable"
                )
            raise CorruptRecord(
                f"confirmed data is damaged: {wanted} is not there and {proof}",
                where=f"{file.path}:{offset}",
                measured=reader.describe(offset),
                allowed=wanted,
                cure=_CURE,
            )
        lost = seen - expected + 1 if verdict is PlaceVerdict.LOST and expected else 0
        return _Hole(Tail(file, offset, reader.has_header(offset)), len(later), lost)

    def _malformed(self, file: SurveyedFile, facts: BlockFacts, error: ValueError) -> CorruptRecord:
        return CorruptRecord(
            f"block {facts.sequence} has a good checksum and a bad record ({error})",
            where=f"{file.path}:{facts.offset}",
            cure="this is a defect of the writer or a newer format: " + _CURE,
        )

    @contextmanager
    def _reading_ahead(self, files: list[SurveyedFile]) -> Iterator[None]:
        """Read the files' windows ahead until the end of the `with` block, if it is worth it."""
        size = self._buffer.size_bytes
        if sum(file.size_bytes for file in files) < self._ahead_bytes_min:
            yield
            return
        places = ((file.path, file.size_bytes) for file in files)
        windows = list(windows_of(places, FIRST_OFFSET, size))
        with ReadAhead(self._disk, windows, is_direct=self._is_direct).running() as ahead:
            self._ahead = ahead
            yield
        self._ahead = None

    @contextmanager
    def _opened(self, file: SurveyedFile, ahead: ReadAhead | None = None) -> Iterator[BlockReader]:
        handle = self._disk.open(file.path, is_direct=self._is_direct, is_readonly=True)
        try:
            yield BlockReader(
                handle,
                file_id=file.file_id,
                salt=file.salt,
                size_bytes=file.size_bytes,
                verify=self._verify,
                buffer=self._buffer,
                ahead=ahead,
            )
        finally:
            handle.close()


def _follows(facts: BlockFacts, sequence: int, crc: int) -> bool:
    return facts.sequence == sequence + 1 and facts.previous_crc == crc


# --- what is said of it ------------------------------------------------------------------------


def log_outcome(found: Recovered, folder: Path) -> None:
    """Say what was found in the log: one line, and one more for each zone that is uncertain."""
    logger.info(
        "recovered %s: %s, %s, %s, %s in %.3f s",
        folder,
        _counted(len(found.used), "file"),
        _counted(found.blocks, "block"),
        _counted(found.records, "record"),
        _counted(found.bytes_read, "byte"),
        found.seconds,
    )
    if found.unproven_blocks:
        logger.info(
            "%s: the end of the journal, %s (%s), is above the durable watermark %d: "
            "written, but never proven confirmed",
            folder,
            _counted(found.unproven_blocks, "block"),
            _counted(found.unproven_records, "record"),
            found.watermark,
        )
    if found.dropped_blocks:
        logger.warning(
            "%s: dropped after the torn end of the journal: %s, never confirmed",
            folder,
            _counted(found.dropped_blocks, "block"),
        )
    if found.lost_blocks:
        logger.error(
            "%s: lost after they were confirmed: %s: flushes are switched off "
            "(journal-datasync or journal-sync-*), and this is what a power cut does then",
            folder,
            _counted(found.lost_blocks, "block"),
        )
    if found.leftovers:
        logger.info(
            "%s: freed after an interrupted reclaim: %s",
            folder,
            _counted(len(found.leftovers), "file"),
        )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

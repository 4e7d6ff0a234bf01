"""What is read of a journal, decided on the driver before any record is: one part for each file.

Owns the course of a recovery as far as it concerns which files and which of their blocks count; the
decisions are the tables of `vespiary_codec.journal.verdicts`. Reads headers, the newest file with
blocks, and of the others nothing but where they begin. Must never write, nor take a lock for longer
than a look. Called by `source`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

from vespiary_codec.journal.block import ALIGNMENT, FIRST_OFFSET, BlockHeader
from vespiary_codec.journal.file_forms import FORMS, copy_parts
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import FileRun
from vespiary_codec.journal.verdicts import (
    PlaceFacts,
    PlaceVerdict,
    Role,
    RoleFacts,
    assign_role,
    judge_place,
)
from vespiary_pipeline.files import (
    WINDOW_BYTES,
    BlockFile,
    JournalFile,
    Valid,
    Walk,
    is_locked,
    read_journal_file,
)
from vespiary_pipeline.layout import Place
from vespiary_spec.errors import CorruptRecord, JournalError, NativeError

_LIVE_TRIES = 5
_MISSING_MAX = 1000
_CURE = "keep a copy of the folder, run `vespiary journal verify`, then restore the volume"


@dataclass(frozen=True)
class Part:
    """Blocks of one file, as an executor reads them, which sees no other file.

    Attributes:
        path: The file.
        journal: message, bindings, jms or page.
        file_id: Id in the blocks' headers.
        shown_id: Id in the rows: of a page the page's.
        salt: Of this life of the file; another one later: it was used again.
        begin: Offset of the first block.
        end: Offset behind the last block that counts; None: the file's seal is the end.
        previous: Sequence and checksum of the block before the first; None: not known.
        follows: Sequence and checksum that the last block must have, where another file says so.
        gaps: Places up to here where blocks are missing, since files were reclaimed.
        is_after_gap: Blocks are missing right before the first.
        state: As in the table of files.
        size_bytes: Of the file.
        torn_at: Where a torn tail begins; -1: there is none.
        error: What is wrong with the whole file; it is not read then.
        bindings: Folder that names the queues; None: nobody does.
        large_messages: Folders of large bodies; the first that has one counts.
    """

    path: str
    journal: str
    file_id: int
    shown_id: int
    salt: int
    begin: int = FIRST_OFFSET
    end: int | None = None
    previous: tuple[int, int] | None = None
    follows: tuple[int, int] | None = None
    gaps: int = 0
    is_after_gap: bool = False
    state: str = "used"
    size_bytes: int = 0
    torn_at: int = -1
    error: str = ""
    bindings: str | None = None
    large_messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class _End:
    """Where a journal ends.

    Attributes:
        index: Of the newest file with blocks; -1: none has any.
        offset: Behind the last block that counts; where there is damage, and its reader is to say
            so, behind what is damaged.
        torn_at: Where a torn tail begins; -1: there is none.
    """

    index: int
    offset: int
    torn_at: int = -1


def plan_journal(place: Place, *, is_strict: bool = True) -> list[Part]:
    """Return the parts of a journal, in its order, then files without records.

    If nobody has the journal open, what a broker would recover is read. If a broker runs on it, it
    ends at the durable watermark: nothing is shown that a power cut could take back. Such a broker
    frees and renames files at any time, so what looks wrong is looked at again before it is said.

    Args:
        place: A folder of a journal.
        is_strict: Damage is an error; else it becomes a part that says so.

    Raises:
        CorruptRecord: A header is damaged, a file is missing, or confirmed data is not there.
        ForeignJournal: A file is of another journal, or of a newer version.
        NativeError: A file can't be read.
    """
    is_live = is_locked(place.path, place.journal)
    for _ in range(_LIVE_TRIES if is_live else 0):
        with suppress(JournalError, NativeError):
            return _planned(place, is_live=True, is_strict=True)
    return _planned(place, is_live=is_live, is_strict=is_strict)


def _planned(place: Place, *, is_live: bool, is_strict: bool) -> list[Part]:
    files, damaged = survey(place, is_strict=is_strict)
    active = [file for file in files if file.state == "active"]
    end = _find_end(active, is_live=is_live, is_strict=is_strict)
    runs, checkpoint = _find_checkpoint(active[: end.index + 1])
    leftovers, missing = _roles(place, active, runs, checkpoint)
    if missing and is_strict and not damaged:
        raise missing[0][1]
    used = [file for file in active[: end.index + 1] if file.header.file_id not in leftovers]
    parts = _parts(place, used, end)
    for file in files:
        if file.state != "active" or file not in used:
            state = "leftover" if file.header.file_id in leftovers else file.state
            parts.append(_part(place, file, state="ahead" if state == "active" else state))
    known = {id_ for id_, _ in missing} if not damaged else set()
    parts += [
        Part(str(place.path), place.journal, id_, id_, 0, state="missing", error=str(error))
        for id_, error in missing
        if id_ in known
    ]
    return parts + damaged


def plan_copies(place: Place, *, is_strict: bool = True) -> list[Part]:
    """Return the parts of a folder of kept copies, by file id; some may be missing.

    Its broker removes old ones at any time, so where one goes meanwhile it looks again.

    Args:
        place: The folder.
        is_strict: Damage is an error; else it becomes a part that says so.

    Raises:
        CorruptRecord: A header is damaged.
        ForeignJournal: A copy is of another journal than the first, or of a newer version.
        NativeError: A file can't be read.
    """
    for _ in range(_LIVE_TRIES):
        with suppress(NativeError):
            return _planned_copies(place, is_strict=is_strict)
    return _planned_copies(place, is_strict=is_strict)


def _planned_copies(place: Place, *, is_strict: bool) -> list[Part]:
    files, damaged = survey_copies(place, is_strict=is_strict)
    return _parts(place, files, None) + damaged


def survey_copies(place: Place, *, is_strict: bool = True) -> tuple[list[JournalFile], list[Part]]:
    """Return the kept copies of a folder, by file id, and parts for damaged ones.

    Args:
        place: The folder.
        is_strict: Damage is an error; else it becomes a part that says so.

    Raises:
        CorruptRecord: A header is damaged.
        ForeignJournal: A copy is of another journal than the first, or of a newer version.
        NativeError: A file can't be read.
    """
    named = [(copy_parts(entry.name), entry) for entry in place.path.iterdir()]
    files: dict[int, JournalFile] = {}
    damaged: list[Part] = []
    first: JournalFile | None = None
    for _, path in sorted((parts[::-1], entry) for parts, entry in named if parts):
        file = _judged(place, path, JournalKind.MESSAGE, first, damaged, is_strict=is_strict)
        if file is not None and file.state == "active":
            files.setdefault(file.header.file_id, file)
            first = first or file
    return [files[id_] for id_ in sorted(files)], damaged


# --- the folder -----------------------------------------------------------------------------------


def survey(place: Place, *, is_strict: bool = True) -> tuple[list[JournalFile], list[Part]]:
    """Return the files of a journal, those in use first and by id, and parts for damaged ones.

    Args:
        place: Its folder.
        is_strict: Damage is an error; else it becomes a part that says so.

    Raises:
        CorruptRecord: A header is damaged, a file was cut off, or two files have one id.
        ForeignJournal: A file is of another journal, or of a newer version.
        NativeError: A file can't be read.
    """
    form = FORMS[place.journal]
    found: list[JournalFile] = []
    damaged: list[Part] = []
    first: JournalFile | None = None
    for entry in sorted(place.path.iterdir()):
        if form.number(entry.name) is None:
            continue
        file = _judged(place, entry, form.kind, first, damaged, is_strict=is_strict)
        if file is None:
            continue
        found.append(file)
        if first is None and file.has_header:
            first = file
    found.sort(key=lambda file: (file.state != "active", file.header.file_id, file.path.name))
    for older, newer in pairwise(file for file in found if file.state == "active"):
        if older.header.file_id == newer.header.file_id:
            raise CorruptRecord(
                f"this file and {older.path.name} both say that they are file"
                f" {newer.header.file_id}",
                where=f"{newer.path}:0",
                cure="one of them is a copy: move the copy elsewhere",
            )
    return found, damaged


def _judged(
    place: Place,
    path: Path,
    kind: JournalKind,
    first: JournalFile | None,
    damaged: list[Part],
    *,
    is_strict: bool,
) -> JournalFile | None:
    """Return a file by its header; None if it is damaged and that is only to be told."""
    try:
        return read_journal_file(path, kind, first)
    except JournalError as error:
        if is_strict:
            raise
        damaged.append(Part(str(path), place.journal, 0, 0, 0, state="damaged", error=str(error)))
        return None


# --- where it ends --------------------------------------------------------------------------------


def _find_end(active: list[JournalFile], *, is_live: bool, is_strict: bool) -> _End:
    """Return where the journal ends (docs/internals/recovery.md, table 3)."""
    covered = max((file.header.watermark for file in active), default=0)
    for index in range(len(active) - 1, -1, -1):
        with BlockFile.of(active[index]) as blocks:
            if blocks.next_valid(FIRST_OFFSET) is None:
                continue
            walk = blocks.walk()
            covered = max(covered, walk.watermark)
            if is_live:
                end = _live_end(active, index, blocks, walk, covered, is_strict=is_strict)
                if end.offset == FIRST_OFFSET and index:
                    continue  # nothing of this file is known to be durable yet
                return end
            return _judged_end(active, index, blocks, walk, covered, is_strict=is_strict)
    if active and covered and not is_live:
        error = _not_there(f"{active[0].path}:{FIRST_OFFSET}", 1, covered)
        if is_strict:
            raise error
        return _End(0, FIRST_OFFSET + ALIGNMENT)
    return _End(-1, FIRST_OFFSET)


def _live_end(
    active: list[JournalFile],
    index: int,
    blocks: BlockFile,
    walk: Walk,
    covered: int,
    *,
    is_strict: bool,
) -> _End:
    """Return where a journal ends whose broker runs: behind what is known to be durable.

    A hole is damage if blocks behind it are known to be durable and it is still there when it is
    looked at after them: writes may end in another order than they began.
    """
    while True:
        behind = _valid_behind(blocks, walk)
        covered = max([covered, walk.watermark, *(one.header.watermark for one in behind)])
        expected = walk.sequence + 1 if walk.blocks else _expected_first(active, index)
        if walk.is_sealed or expected is None or covered < expected:
            return _End(index, _durable_end(blocks, walk, covered))
        again = blocks.walk()
        if again.offset == walk.offset:
            break
        walk = again
    if is_strict:
        raise _not_there(f"{blocks.path}:{walk.offset}", expected, covered, walk.found)
    durable = [one for one in behind if one.header.sequence <= covered]
    return _End(index, _behind_hole(walk, durable))


def _valid_behind(blocks: BlockFile, walk: Walk) -> list[Valid]:
    """Return the valid blocks behind the place where a walk ended."""
    found: list[Valid] = []
    behind = None if walk.is_sealed else blocks.next_valid(walk.offset)
    while behind is not None:
        found.append(behind)
        behind = blocks.next_valid(behind.offset + behind.header.length)
    return found


def _behind_hole(walk: Walk, behind: list[Valid]) -> int:
    """Return where a file with a hole ends: behind its last block, at least behind the hole."""
    last = behind[-1] if behind else None
    return last.offset + last.header.length if last else walk.offset + ALIGNMENT


def _durable_end(blocks: BlockFile, walk: Walk, covered: int) -> int:
    """Return the offset behind the last block that is known to be durable."""
    offset = FIRST_OFFSET
    for place, header in blocks.headers(FIRST_OFFSET, walk.offset):
        if header.sequence > covered:
            break
        offset = place + header.length
    return offset


def _judged_end(
    active: list[JournalFile],
    index: int,
    blocks: BlockFile,
    walk: Walk,
    covered: int,
    *,
    is_strict: bool,
) -> _End:
    file = active[index]
    expected = walk.sequence + 1 if walk.blocks else _expected_first(active, index)
    behind = _valid_behind(blocks, walk)
    covered = max([covered, *(one.header.watermark for one in behind)])
    facts = PlaceFacts(
        is_expected_block=False,
        is_older_file=expected is None,
        is_covered=expected is not None and covered >= expected,
        is_witnessed=False,  # `covered` has the headers' watermarks in it
        is_flushed=True,
    )
    if judge_place(facts) is PlaceVerdict.CORRUPT:
        if is_strict:
            raise _not_there(f"{file.path}:{walk.offset}", expected or 0, covered, walk.found)
        return _End(index, _behind_hole(walk, behind))
    is_torn = not walk.is_sealed and blocks.header_at(walk.offset) is not None
    return _End(index, walk.offset, walk.offset if is_torn else -1)


def _expected_first(active: list[JournalFile], index: int) -> int | None:
    """Return the sequence that a file's first block ought to have; None if nobody can tell."""
    file = active[index]
    if file.header.file_id == 1:
        return 1
    before = active[index - 1] if index else None
    if before is None or before.header.file_id + 1 != file.header.file_id:
        return None
    with BlockFile.of(before) as blocks:
        return blocks.walk().sequence + 1


def _not_there(where: str, expected: int, covered: int, found: str = "zeros") -> CorruptRecord:
    return CorruptRecord(
        f"confirmed data is damaged: block {expected or 'at the begin of this file'} is not there"
        f" and blocks up to {covered} are known to be durable",
        where=where,
        measured=found,
        cure=_CURE,
    )


# --- which files count ----------------------------------------------------------------------------


def _find_checkpoint(files: list[JournalFile]) -> tuple[tuple[FileRun, ...], int]:
    """Return what the newest FILES record lists, and the id of the file that holds it."""
    room = bytearray(WINDOW_BYTES)
    for file in reversed(files):
        with BlockFile.of(file) as blocks:
            runs = blocks.walk(room=room).runs
        if runs is not None:
            return runs, file.header.file_id
    return (), 0


def _roles(
    place: Place, active: list[JournalFile], runs: tuple[FileRun, ...], checkpoint: int
) -> tuple[set[int], list[tuple[int, CorruptRecord]]]:
    """Return ids of leftovers, and missing files with what to say of them."""
    ids = {file.header.file_id for file in active}
    highest = max(ids, default=0)
    candidates = set(ids)
    for first, last in ((checkpoint + 1, highest), *runs):
        # A run may name more ids than anybody has files; those beyond the highest are missing. So
        # may the ids up to a distant file's: what is missing is told of so many.
        absent = (one for one in range(first, min(last, highest + 1) + 1) if one not in ids)
        candidates.update(islice(absent, _MISSING_MAX))
    leftovers: set[int] = set()
    missing: list[tuple[int, CorruptRecord]] = []
    for file_id in sorted(candidates):
        is_listed = any(first <= file_id <= last for first, last in runs)
        role = assign_role(RoleFacts(file_id in ids, is_listed, file_id >= checkpoint))
        if role is Role.LEFTOVER:
            leftovers.add(file_id)
        elif role is Role.MISSING:
            why = f"with {file_id}, which the FILES record in file {checkpoint} lists"
            if not is_listed:
                why = f"without a gap from {checkpoint + 1} to {highest}"
            error = CorruptRecord(
                f"file {file_id} of the journal is missing",
                where=str(place.path),
                measured=f"files {', '.join(map(str, sorted(ids))) or 'none'}",
                allowed=why,
                cure="put the file back or restore the volume",
            )
            missing.append((file_id, error))
    return leftovers, missing


# --- parts ----------------------------------------------------------------------------------------


def _part(place: Place, file: JournalFile, state: str) -> Part:
    return Part(
        path=str(file.path),
        journal=place.journal,
        file_id=file.header.file_id,
        shown_id=file.header.file_id,
        salt=file.header.salt,
        state=state,
        size_bytes=file.size_bytes,
        bindings=str(place.bindings) if place.bindings else None,
        large_messages=tuple(map(str, place.large_messages)),
    )


def _parts(place: Place, files: list[JournalFile], end: _End | None) -> list[Part]:
    """Return a part for each file, with what it has to know of its neighbours.

    Args:
        place: Where they lie.
        files: Files with blocks, by id.
        end: Where the last one ends; None: with its seal.
    """
    parts: list[Part] = []
    gaps = 0
    for index, file in enumerate(files):
        first = _first_header(file)
        before = files[index - 1] if index else None
        is_next = before is not None and before.header.file_id + 1 == file.header.file_id
        is_gap = False
        if is_next and first is not None:
            follows = (first.sequence - 1, first.previous_crc)
            parts[-1] = replace(parts[-1], follows=follows)
        elif first is not None:
            is_gap = first.sequence != (_last_sequence(before) if before else 0) + 1
        gaps += is_gap
        part = _part(place, file, "used")
        parts.append(replace(part, gaps=gaps, is_after_gap=is_gap))
    if parts and end is not None:
        parts[-1] = replace(parts[-1], end=end.offset, torn_at=end.torn_at)
    return parts


def _first_header(file: JournalFile) -> BlockHeader | None:
    with BlockFile.of(file) as blocks:
        return blocks.header_at(FIRST_OFFSET)


def _last_sequence(file: JournalFile) -> int:
    sequence = 0
    with BlockFile.of(file) as blocks:
        for _, header in blocks.headers(FIRST_OFFSET, file.size_bytes):
            sequence = header.sequence
    return sequence


def split(part: Part, part_bytes: int) -> list[Part]:
    """Return a large part cut at blocks into parts of about so many bytes.

    Args:
        part: A part that is used.
        part_bytes: Bytes of one, at least.

    Raises:
        NativeError: The file can't be read.
    """
    end = part.end or part.size_bytes
    if end - part.begin <= 2 * part_bytes:
        return [part]
    cuts: list[tuple[int, BlockHeader]] = []
    with BlockFile(Path(part.path), part.file_id, part.salt) as blocks:
        limit = part.begin + part_bytes
        for offset, header in blocks.headers(part.begin, end):
            if offset >= limit:
                cuts.append((offset, header))
                limit = offset + part_bytes
    pieces = [part]
    for offset, header in cuts:
        pieces[-1] = replace(
            pieces[-1], end=offset, follows=(header.sequence - 1, header.previous_crc), torn_at=-1
        )
        before = (header.sequence - 1, header.previous_crc)
        pieces.append(replace(part, begin=offset, previous=before, is_after_gap=False))
    return pieces

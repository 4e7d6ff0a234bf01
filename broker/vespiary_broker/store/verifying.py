"""`vespiary journal verify`: every block of every file, and every problem with its place.

Owns: the list of problems and what each of them means. Whether a broker would start is `recovery`'s
decision, asked through `reader`; here are added the blocks that recovery does not come to, the
bytes that it never looks at (padding), and the bodies of large messages. Must never write. Called
by the CLI.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from vespiary_broker.store.body_files import LostBody, check_bodies
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.reader import Finding, JournalReport, read_journal
from vespiary_broker.store.scanning import (
    Block,
    Hole,
    first_nonzero,
    scan_file,
    scan_folder,
    stray_header_bytes,
)
from vespiary_broker.store.survey import SurveyedFile
from vespiary_codec.journal.large_reference import body_name
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_spec.errors import ForeignJournal


class ProblemKind(StrEnum):
    """What a problem is."""

    CORRUPT = "corrupt"
    """Confirmed data is damaged, or a file is not what it ought to be: no broker starts."""
    FOREIGN = "foreign"
    """A file bears a journal file's name and is none of this journal's: no broker starts."""
    STRAY = "stray"
    """Bytes that hold nothing are not zero: no data is lost, but the disk changed something."""
    TORN = "torn"
    """Above the watermark: work that was never confirmed, cut off by a crash, or damaged."""
    BODY = "body"
    """A large message's body is missing or another: it is not delivered; the broker starts."""


_MEANING = {
    ProblemKind.CORRUPT: "confirmed data is damaged; the broker refuses to start and cuts nothing "
    "off",
    ProblemKind.FOREIGN: "a stray file, another journal's, a newer version's, or one of this "
    "journal whose header is destroyed; the broker refuses to start and does not touch it",
    ProblemKind.STRAY: "no message is damaged, but bytes that nobody wrote say that the disk or its"
    " path is not to be trusted",
    ProblemKind.TORN: "no later block says that this one was durable: a crash cut unconfirmed work "
    "off, or a block that was just confirmed is damaged; the broker's start drops it",
    ProblemKind.BODY: "the broker starts, and keeps the message in its queue, undelivered",
}
_CURE = {
    ProblemKind.CORRUPT: "keep a copy of the folder, then restore the volume, or save what can be "
    "saved with `vespiary journal recover`",
    ProblemKind.FOREIGN: "if it does not belong here, move it out of the folder; else do as with "
    "damaged data: restore the volume, or `vespiary journal recover`",
    ProblemKind.STRAY: "look at the kernel log and the disk; `vespiary journal export` and `import`"
    " make a clean copy",
    ProblemKind.TORN: "nothing to do after a crash or while the broker runs; else look at the disk",
    ProblemKind.BODY: "if the bodies lie elsewhere, say so with --large-messages; else put the "
    "file back from a backup and restart the broker, or purge the queue",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One place that is not as it ought to be.

    Attributes:
        kind: Corrupt, foreign, stray or torn.
        file: Name of the file.
        offset: Place in it; 0 for a body.
        sequence: Sequence of the block that ought to stand there; 0 if it cannot be told.
        what: What was found.
        meaning: What it means.
        cure: What to do.
    """

    kind: ProblemKind
    file: str
    offset: int
    sequence: int
    what: str
    meaning: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found in one journal.

    Attributes:
        report: What a broker's start would find.
        finding: Bad with any problem that is not torn, else torn, else good.
        problems: All problems, by file and offset; bodies last.
        blocks: Valid blocks.
        bodies: Bodies of large messages that the journal refers to.
    """

    report: JournalReport
    finding: Finding
    problems: tuple[Problem, ...]
    blocks: int
    bodies: int = 0


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """Where the bodies of a journal's large messages are.

    Attributes:
        folder: Their folder.
        queue_ids: Returns the queues that exist, whose messages alone count; None: all do.
    """

    folder: Path
    queue_ids: Callable[[], frozenset[int] | None] = lambda: None


def verify_journal(
    folder: Path,
    form: FileForm,
    disk: DiskLike,
    verify: BlockVerifier,
    bodies: BodyPlace | None = None,
) -> Verification:
    """Check every block of every file of a journal.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        disk: The file system.
        verify: The walk over valid blocks.
        bodies: Where the bodies of large messages are; None does not look at them.

    Raises:
        StorageError: The folder does not exist.
        NativeError: A file cannot be read.
    """
    live = LiveSet()
    report = read_journal(folder, form=form, disk=disk, verify=verify, live=live)
    scan = _Scan(folder, form, disk, verify, report)
    problems = scan.run()
    wanted = live.bodies(bodies.queue_ids()) if bodies else []
    lost = check_bodies(wanted, bodies.folder, disk) if bodies else []
    if bodies and lost:  # of a running broker some may have gone meanwhile, with their messages
        again = LiveSet()
        read_journal(folder, form=form, disk=disk, verify=verify, live=again)
        names = {body_name(b.reference.large_id) for b in again.bodies(bodies.queue_ids())}
        lost = [each for each in lost if each.file in names]
    problems += [_body_problem(each) for each in lost]
    kinds = {problem.kind for problem in problems}
    finding = Finding.GOOD
    if ProblemKind.TORN in kinds or report.finding is Finding.TORN:
        finding = Finding.TORN
    if report.finding is Finding.BAD or kinds - {ProblemKind.TORN}:
        finding = Finding.BAD
    return Verification(
        report=report,
        finding=finding,
        problems=tuple(problems),
        blocks=scan.blocks,
        bodies=len(wanted),
    )


def _body_problem(lost: LostBody) -> Problem:
    kind = ProblemKind.BODY
    message = f"message {lost.sequence} of queue {lost.queue_id}"
    return Problem(
        kind=kind,
        file=lost.file,
        offset=0,
        sequence=0,
        what=f"the body of {message}: {lost.what}",
        meaning=_MEANING[kind],
        cure=_CURE[kind],
    )


class _Scan:
    """One look at all files; used once."""

    def __init__(
        self,
        folder: Path,
        form: FileForm,
        disk: DiskLike,
        verify: BlockVerifier,
        report: JournalReport,
    ) -> None:
        self._files = scan_folder(folder, form, disk)
        self._disk = disk
        self._verify = verify
        self._report = report
        self._problems: list[Problem] = []
        self._watermark = max((file.watermark for file in self._files.active), default=0)
        self._missed: set[int] = set()
        self._last: BlockFacts | None = None
        self._newest_id = 0
        self.blocks = 0

    def run(self) -> list[Problem]:
        for path, error in self._files.refused:
            offset = int(error.where.rpartition(":")[2] or 0)
            is_foreign = isinstance(error, ForeignJournal)
            kind = ProblemKind.FOREIGN if is_foreign else ProblemKind.CORRUPT
            self._add(kind, path, offset, 0, error.what)
        for file in (*self._files.active, *self._files.free):
            if file.header is not None and (offset := stray_header_bytes(file, self._disk)):
                self._stray(file.path, offset, 0, "the rest of the file header")
        leftovers = {file.name for file in self._report.files if file.state == "leftover"}
        holes = []
        for file in self._files.active:
            if file.path.name not in leftovers:
                holes += self._scan_file(file)
        for hole, expected in holes:
            self._judge(hole, expected)
        self._take_report()
        return sorted(self._problems, key=lambda problem: (problem.file, problem.offset))

    def _scan_file(self, file: SurveyedFile) -> list[tuple[Hole, int]]:
        """Walk a file; return the holes, which are judged when all watermarks are known."""
        holes = []
        for item in scan_file(file, self._disk, self._verify, self._last):
            if isinstance(item, Hole):
                before = item.before or self._last
                is_first = before is None and file.file_id == 1
                holes.append((item, before.sequence + 1 if before else int(is_first)))
            else:
                self._look_at(item)
        return holes

    def _look_at(self, block: Block) -> None:
        facts = block.facts
        self.blocks += 1
        self._watermark = max(self._watermark, facts.watermark)
        if offset := first_nonzero(block.padding, facts.offset + len(block.data)):
            self._stray(block.file.path, offset, facts.sequence, "the padding behind a block")
        self._last = facts
        self._newest_id = block.file.file_id

    def _judge(self, hole: Hole, expected: int) -> None:
        """Say what a hole is; the end of a file that is not full is no problem."""
        is_older = hole.file.file_id < self._newest_id
        is_proved = 0 < expected <= self._watermark
        # Of the files that look as if they were not begun, the first one misses the block.
        is_missed = is_proved and expected not in self._missed
        if hole.after is None and not hole.is_ours and not is_older and not is_missed:
            return
        self._missed.add(expected)
        is_corrupt = is_older or is_proved
        kind = ProblemKind.CORRUPT if is_corrupt else ProblemKind.TORN
        self._add(kind, hole.file.path, hole.offset, expected, hole.found)

    def _take_report(self) -> None:
        """Add what stops a broker's start, unless the scan has it already."""
        error = self._report.error
        if error is None:
            return
        path, _, offset = str(error["where"]).rpartition(":")
        place = (Path(path).name, int(offset)) if offset.isdecimal() else (str(error["where"]), 0)
        for index, problem in enumerate(self._problems):
            if (problem.file, problem.offset) == place:
                if problem.kind in (ProblemKind.CORRUPT, ProblemKind.FOREIGN):
                    return
                del self._problems[index]
                break
        self._add(ProblemKind.CORRUPT, Path(place[0]), place[1], 0, str(error["what"]))

    def _stray(self, path: Path, offset: int, sequence: int, what: str) -> None:
        self._add(ProblemKind.STRAY, path, offset, sequence, f"{what} is not zero")

    def _add(self, kind: ProblemKind, path: Path, offset: int, sequence: int, what: str) -> None:
        self._problems.append(
            Problem(
                kind=kind,
                file=path.name,
                offset=offset,
                sequence=sequence,
                what=what,
                meaning=_MEANING[kind],
                cure=_CURE[kind],
            )
        )

"""The decisions of recovery, as tables: facts in, verdict out, no I/O.

Owns: what is done with a file by its header (`judge_file`), what a file is to the journal by the
newest FILES record (`assign_role`), and what stands at the place where a block ought to be
(`judge_place`, docs/internals/journal-format.md §4). docs/internals/recovery.md prints the tables
with their reasons; the tests go through every combination of the facts.
Must never read a file, and never be asked twice for one place with different facts. Called by
the store's recovery, and by the pipeline where it plans what to read.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

# --- one file by its header ----------------------------------------------------------------------


class FileFacts(NamedTuple):
    """What one file's name and first block tell.

    Attributes:
        is_unfinished: Its name ends in `.tmp`: it was being made.
        is_zero: The first 512 bytes are zero.
        has_magic: It starts with the journal's magic.
        is_intact: The header's checksum holds.
        is_readable_version: Format and software version are not newer than ours.
        is_own: Kind and journal id are this journal's.
        is_whole: The size is the header's, a multiple of 4096 (without header: at least one block).
        is_active: The header says active.
    """

    is_unfinished: bool
    is_zero: bool
    has_magic: bool
    is_intact: bool
    is_readable_version: bool
    is_own: bool
    is_whole: bool
    is_active: bool


class FileVerdict(enum.Enum):
    """What is done with one file."""

    ATTIC = "holds nothing, moved out of the way"
    FREE = "holds nothing, kept for use"
    ACTIVE = "holds blocks, or was made ready for them"
    FOREIGN = "not of this journal or of a newer version: stop"
    CORRUPT = "damaged: stop"


def judge_file(facts: FileFacts) -> FileVerdict:
    """Return what is done with a file; the first line of the table that applies decides.

    1. `.tmp`: never used, since use begins with its final name. 2. All zero: made, never activated
    (§1.1). 3. No magic: somebody else's file. 4. Checksum: a header is one sector and is written
    whole or not at all, so a bad one is damage. 5. Newer version or other journal: not ours to
    touch. 6. Wrong size: cut off or grown. 7. The state.
    """
    if facts.is_unfinished:
        return FileVerdict.ATTIC
    if facts.is_zero:
        return FileVerdict.FREE if facts.is_whole else FileVerdict.CORRUPT
    if not facts.has_magic:
        return FileVerdict.FOREIGN
    if not facts.is_intact:
        return FileVerdict.CORRUPT
    if not facts.is_readable_version or not facts.is_own:
        return FileVerdict.FOREIGN
    if not facts.is_whole:
        return FileVerdict.CORRUPT
    return FileVerdict.ACTIVE if facts.is_active else FileVerdict.FREE


# --- one file id by the newest FILES record ------------------------------------------------------


class RoleFacts(NamedTuple):
    """What is known of one file id from 1 to the highest active one.

    Attributes:
        is_active: A file with an active header of this id is there.
        is_listed: The newest valid FILES record lists it.
        is_above_checkpoint: Its id is that of the file which holds that record, or above (all are
            when there is no such record).
    """

    is_active: bool
    is_listed: bool
    is_above_checkpoint: bool


class Role(enum.Enum):
    """What a file id is to the journal."""

    IN_USE = "read it"
    LEFTOVER = "of a reclaim that was cut off: free it"
    MISSING = "it ought to be there: stop"
    GONE = "reclaimed"


def assign_role(facts: RoleFacts) -> Role:
    """Return what a file id is to the journal.

    Ids are given without gaps and a file is freed only after a FILES record without it is durable
    in a newer file. So an id above that record's file that is not there was lost, not reclaimed.
    """
    if facts.is_active:
        is_used = facts.is_listed or facts.is_above_checkpoint
        return Role.IN_USE if is_used else Role.LEFTOVER
    return Role.MISSING if facts.is_listed or facts.is_above_checkpoint else Role.GONE


# --- one place where a block ought to be ---------------------------------------------------------


class PlaceFacts(NamedTuple):
    """What is known of the place where the block with the expected sequence ought to stand.

    Attributes:
        is_expected_block: A valid block stands there, with the expected sequence and chain.
        is_older_file: A newer file of the journal holds valid blocks.
        is_covered: A valid block says that the expected sequence is durable (its watermark).
        is_witnessed: The header of an active file says so (its watermark).
        is_flushed: The journal was run with flushes (class D2), so a watermark is a promise of
            the disk and not only of the kernel.
    """

    is_expected_block: bool
    is_older_file: bool
    is_covered: bool
    is_witnessed: bool
    is_flushed: bool


class PlaceVerdict(enum.Enum):
    """What is done at one place."""

    TAKE = "apply the block and go on behind it"
    END = "the journal ends here: what follows was never confirmed"
    LOST = "the journal ends here: what follows was confirmed under D1 and lost in a power cut"
    CORRUPT = "confirmed data is damaged: stop and change nothing"


def judge_place(facts: PlaceFacts) -> PlaceVerdict:
    """Return what is done at a place (journal-format §4, step 4, and the case of D1)."""
    if facts.is_expected_block:
        return PlaceVerdict.TAKE
    if facts.is_older_file:
        return PlaceVerdict.CORRUPT
    if facts.is_covered or facts.is_witnessed:
        return PlaceVerdict.CORRUPT if facts.is_flushed else PlaceVerdict.LOST
    return PlaceVerdict.END

"""The tables of recovery, on every combination of their facts."""

from __future__ import annotations

import itertools

import pytest

from vespiary_codec.journal.verdicts import (
    FileFacts,
    FileVerdict,
    PlaceFacts,
    PlaceVerdict,
    Role,
    RoleFacts,
    assign_role,
    judge_file,
    judge_place,
)


def combinations(count: int) -> list[tuple[bool, ...]]:
    return list(itertools.product((False, True), repeat=count))


# The expected verdicts are written the other way round than in the code: for each verdict the
# condition under which it is given; exactly one must hold.


@pytest.mark.parametrize("values", combinations(8))
def test_files(values: tuple[bool, ...]):
    facts = FileFacts(*values)
    is_written = not facts.is_unfinished and not facts.is_zero
    is_header = is_written and facts.has_magic and facts.is_intact
    is_ours = is_header and facts.is_readable_version and facts.is_own
    conditions = {
        FileVerdict.ATTIC: facts.is_unfinished,
        FileVerdict.FOREIGN: (is_written and not facts.has_magic) or (is_header and not is_ours),
        FileVerdict.CORRUPT: (is_written and facts.has_magic and not facts.is_intact)
        or (is_ours and not facts.is_whole)
        or (not facts.is_unfinished and facts.is_zero and not facts.is_whole),
        FileVerdict.FREE: (is_ours and facts.is_whole and not facts.is_active)
        or (not facts.is_unfinished and facts.is_zero and facts.is_whole),
        FileVerdict.ACTIVE: is_ours and facts.is_whole and facts.is_active,
    }
    assert [verdict for verdict, holds in conditions.items() if holds] == [judge_file(facts)]


def test_only_a_file_that_never_was_used_goes_to_the_attic():
    moved = [v for v in combinations(8) if judge_file(FileFacts(*v)) is FileVerdict.ATTIC]
    assert all(FileFacts(*values).is_unfinished for values in moved)


@pytest.mark.parametrize(
    ("is_active", "is_listed", "is_above", "role"),
    [
        (False, False, False, Role.GONE),
        (False, False, True, Role.MISSING),
        (False, True, False, Role.MISSING),
        (False, True, True, Role.MISSING),
        (True, False, False, Role.LEFTOVER),
        (True, False, True, Role.IN_USE),
        (True, True, False, Role.IN_USE),
        (True, True, True, Role.IN_USE),
    ],
)
def test_roles(is_active: bool, is_listed: bool, is_above: bool, role: Role):
    assert assign_role(RoleFacts(is_active, is_listed, is_above)) is role


@pytest.mark.parametrize("values", combinations(5))
def test_places(values: tuple[bool, ...]):
    facts = PlaceFacts(*values)
    is_hole = not facts.is_expected_block
    is_proved = facts.is_covered or facts.is_witnessed
    conditions = {
        PlaceVerdict.TAKE: facts.is_expected_block,
        PlaceVerdict.CORRUPT: is_hole and (facts.is_older_file or (is_proved and facts.is_flushed)),
        PlaceVerdict.LOST: is_hole
        and not facts.is_older_file
        and is_proved
        and not facts.is_flushed,
        PlaceVerdict.END: is_hole and not facts.is_older_file and not is_proved,
    }
    assert [verdict for verdict, holds in conditions.items() if holds] == [judge_place(facts)]


def test_a_confirmed_block_of_class_d2_is_never_cut_off():
    for values in combinations(5):
        facts = PlaceFacts(*values)
        is_proved = facts.is_covered or facts.is_witnessed
        if is_proved and facts.is_flushed and not facts.is_expected_block:
            assert judge_place(facts) is PlaceVerdict.CORRUPT

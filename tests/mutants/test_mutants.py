"""Seeded faults of the durability path, each killed by the test that the catalogue names for it.

`make verify` tries all of them, `.ci/run` a fifth that depends on the commit
(`VESPIARY_MUTANTS=5`); `VESPIARY_MUTANTS=NAME` tries one. The table is docs/internals/mutants.md;
tests/repo/test_mutant_catalogue.py compares it with the catalogue.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_testkit import mutant_runner
from vespiary_testkit.mutant import Mutant
from vespiary_testkit.mutant_catalogue import MUTANTS
from vespiary_testkit.mutant_runner import ALL_KILLERS_S, Workshop
from vespiary_testkit.seeds import run_seed

pytestmark = pytest.mark.ci


def _wanted() -> list[Mutant]:
    asked = os.environ.get("VESPIARY_MUTANTS", "all")
    if asked == "all":
        return list(MUTANTS)
    if asked.isdigit():
        parts = max(int(asked), 1)
        return list(MUTANTS[run_seed() % parts :: parts])
    return [mutant for mutant in MUTANTS if mutant.name == asked]


def _is_first(factory: pytest.TempPathFactory) -> bool:
    """Whether no other process of this run has begun to try the killers without a mutant."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return True
    try:
        (factory.getbasetemp().parent / "killers-are-tried").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("mutants"))
    if not _is_first(tmp_path_factory):
        return made
    # A red killer proves nothing if it is red without the mutant.
    nodes = dict.fromkeys(m.killer for m in _wanted() if not m.killer.startswith("C:"))
    sound = made.run_pytest(list(nodes), ALL_KILLERS_S)
    assert sound.is_sound, sound.text
    assert not sound.is_red, f"a killer fails without a mutant:\n{sound.text}"
    return made


@pytest.mark.parametrize("mutant", _wanted(), ids=lambda mutant: mutant.name)
def test_a_seeded_fault_is_noticed(workshop: Workshop, mutant: Mutant) -> None:
    outcome = workshop.try_mutant(mutant)
    assert outcome.is_sound, f"the mutant did not run:\n{outcome.text}"
    assert outcome.is_red, f"{mutant.fault} Nothing noticed:\n{outcome.text}"


def test_a_mutant_that_changes_nothing_survives(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner itself must be able to report that nothing noticed, with all seeds it tries."""
    monkeypatch.setattr(mutant_runner, "SEEDS_MAX", 2)
    harmless = MUTANTS[0]._replace(new=MUTANTS[0].old + "  # the same")
    outcome = workshop.try_mutant(harmless)
    assert outcome.is_sound
    assert not outcome.is_red


def test_a_mutant_that_does_not_apply_is_an_error(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not apply"):
        workshop.try_mutant(MUTANTS[0]._replace(old="this text stands nowhere"))

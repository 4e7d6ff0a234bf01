"""The list of seeded faults keeps up with the source, and the page with the list."""

from __future__ import annotations

import os

from vespiary_testkit.mutant_catalogue import MUTANTS
from vespiary_testkit.mutant_runner import ROOT, applies, killers, table

_PAGE = ROOT / "docs/internals/mutants.md"
_BEGIN, _END = "<!-- table -->\n", "<!-- end -->\n"


def test_every_mutant_applies_to_the_source() -> None:
    stale = [m.name for m in MUTANTS if not applies(m, (ROOT / m.path).read_text())]
    assert not stale, f"the source has changed under {stale}: bring mutant_catalogue along"
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


def test_every_killer_exists() -> None:
    for killer in killers():
        if killer.startswith("C:"):
            assert (ROOT / "native/tests" / f"{killer[2:]}.c").exists(), killer
            continue
        path, _, test = killer.partition("::")
        name = test.partition("[")[0]
        assert not name or f"def {name}(" in (ROOT / path).read_text(), killer


def test_the_table_is_that_of_the_page() -> None:
    text = _PAGE.read_text()
    start, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    if os.environ.get("VESPIARY_WRITE_TABLE"):
        _PAGE.write_text(text[:start] + table() + text[end:])
        return
    assert text[start:end] == table(), "run this test with VESPIARY_WRITE_TABLE=1"

"""The scan benchmark: a walk that loses records gives no figure, and floors are held."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.pipeline import scanning
from benchmarks.pipeline.__main__ import scan_figures

PASSES = scanning.Passes(scan=9e8, properties=5e8, bodies=4e8, records_per_s=1e6)


def test_a_journal_is_walked_whole_over_the_bounds_of_windows(tmp_path: Path) -> None:
    journal = scanning.make_journal(tmp_path / "journal", 1000, 5 * 1024 * 1024)
    assert journal.path.stat().st_size == journal.end > scanning.WINDOW_BYTES
    seen: list[int] = []
    scanning.walk(journal, lambda _, found: seen.append(found.columns.rows))
    assert sum(seen) == journal.records
    assert len(seen) == 2


def test_lost_records_and_damage_are_no_figure(tmp_path: Path) -> None:
    journal = scanning.make_journal(tmp_path / "journal", 1000, 300_000)
    more = msgspec.structs.replace(journal, records=journal.records + 1)
    with pytest.raises(scanning.ScanError, match="were seen"):
        scanning.measure(more)
    with journal.path.open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    with pytest.raises(scanning.ScanError, match="invalid"):
        scanning.measure(journal)


def test_the_scan_of_larger_bodies_has_a_floor() -> None:
    missed = scan_figures([PASSES], has_floor=True)
    assert [figure.verdict for figure in missed] == ["MISSED", "", "", ""]
    kept = scan_figures([msgspec.structs.replace(PASSES, scan=1.1e9)], has_floor=True)
    assert kept[0].verdict == "kept"
    assert scan_figures([PASSES], has_floor=False)[0].verdict == ""

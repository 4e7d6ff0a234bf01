"""The benchmark of preallocation: every way really is measured, and nothing stays behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_preallocation


def test_every_way_with_both_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code = bench_preallocation.main(["--directory", str(tmp_path), "--seconds", "0.01", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [one["way"] for one in report["samples"]] == 2 * list(bench_preallocation.WAYS)
    assert all(one["appends"] > 0 and one["files_made"] > 0 for one in report["samples"])
    assert list(tmp_path.iterdir()) == []

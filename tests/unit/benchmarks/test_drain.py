"""The measurement of a drain moves what it was given, and knows how much that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_drain import Load, measure


@pytest.mark.verify
def test_a_small_load_is_drained_and_counted(tmp_path: Path) -> None:
    state = measure(tmp_path, Load("small", 30, 100, queues=3))
    assert (state["phase"], state["moved"], state["messagesLeft"]) == ("drained", 30, 0)
    assert state["movedBytes"] > 30 * 100

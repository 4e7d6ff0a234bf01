"""What is told while a journal is read: a sentence after each file, a line every few seconds."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.app.recovery_progress import RecoveryProgress
from vespiary_broker.store.recovery import Progress


def test_each_file_is_told_and_some_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    now_s = 100.0
    progress = RecoveryProgress(told.append, lambda: now_s)
    with caplog.at_level(logging.INFO):
        for number in range(1, 9):
            now_s += 0.5
            progress.report(Progress(number, 8, number << 20))
    assert told[2] == "the broker is reading its journal: 3 of 8 files, 3 MiB"
    assert len(told) == 8
    assert [record.args for record in caplog.records] == [(4, 8, 4 << 20), (8, 8, 8 << 20)]

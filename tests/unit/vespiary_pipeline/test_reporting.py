"""What a report says of a file: what keeps it, and what is dead in it."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_pipeline.jobs import reporting
from vespiary_pipeline.report.tables import Pin

FILE = {"path": "/data/journal/1.journal", "file_id": 1, "state": "used"} | {
    "size_bytes": 65536,
    "used_bytes": 8192,
}
NOTHING = {
    "live_places": 0,
    "live_bytes": 0,
    "branches": 0,
    "pages": 0,
    "ended_bytes": 100,
    "superseded_bytes": 0,
    "paged_bytes": 0,
    "void_bytes": 0,
}


@pytest.mark.parametrize(
    ("use", "pins"),
    [
        ({}, ()),
        (NOTHING, ()),
        (NOTHING | {"branches": 2}, (Pin(why="prepared transactions", messages=2),)),
        (NOTHING | {"pages": 3}, (Pin(why="pages", messages=3),)),
    ],
)
def test_what_keeps_a_file(use: dict[str, Any], pins: tuple[Pin, ...]) -> None:
    found = reporting._file(FILE, use)
    assert found.pins.rows == pins
    assert found.dead.get("acknowledged", 0) == use.get("ended_bytes", 0)

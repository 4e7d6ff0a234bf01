"""Holds the tests that the run on NIO leaves out to opening no ring."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
WITH_RINGS = ("app", "cli", "store/volumes")
"""Folders whose tests may open rings of the kernel; the Makefile's ON_NIO has the same."""


@pytest.fixture(autouse=True)
def no_ring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `open_ring` fail, in this process and in those that it begins."""
    if not any(request.path.is_relative_to(_HERE / folder) for folder in WITH_RINGS):
        monkeypatch.setenv("VESPIARY_RING", "none; whoever opens rings is in WITH_RINGS")

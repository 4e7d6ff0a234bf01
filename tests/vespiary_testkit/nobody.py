"""Somebody else, for tests of permissions: root reads and writes everything."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


def become_nobody() -> None:
    """Be a user who owns nothing, for the rest of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that everybody can look into; pytest's own are closed to others.

    The test is skipped where nobody can become somebody else.
    """
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")
    folder = Path(tempfile.mkdtemp(prefix="vespiary-open-"))
    try:
        folder.chmod(0o755)
        if not all(parent.stat().st_mode & 0o001 for parent in folder.parents):
            pytest.skip(f"nobody may not look into {folder.parent}")
        yield folder
    finally:
        shutil.rmtree(folder)

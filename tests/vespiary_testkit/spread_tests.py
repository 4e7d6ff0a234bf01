"""Tests of one module that pytest-xdist has spread over processes, none of which saw all of them.

Called by modules whose last test looks back on all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_alone(module: Path, root: Path) -> None:
    """Run a module again in a process of its own, and fail with what it prints.

    Args:
        module: The module.
        root: Folder of the configuration.
    """
    assert os.environ.get("PYTEST_XDIST_WORKER"), "tests of this module did not run before this one"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(module)],
        cwd=root,
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

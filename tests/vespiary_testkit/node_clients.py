"""Stock JavaScript clients, run by Node.js from their packages.

Owns their installation: `npm ci` by the lock file in `tests/clients/node`, once for each change of
it, however many processes of a test run ask for it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.waiting import WAIT_S

FOLDER = Path(__file__).resolve().parents[1] / "clients" / "node"
_INSTALL_S = 300.0


def need_node() -> None:
    """Install the packages; skip the test where there is no Node.js."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed, which the JavaScript clients need")
    wanted = (FOLDER / "package-lock.json").read_bytes()
    with (FOLDER / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed = FOLDER / "node_modules" / ".installed"
        if not installed.exists() or installed.read_bytes() != wanted:
            subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund"],
                cwd=FOLDER,
                check=True,
                timeout=_INSTALL_S,
                capture_output=True,
            )
            installed.write_bytes(wanted)


def run_node(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a script of the folder; return the line of JSON that it writes.

    Args:
        script: Its file.
        arguments: What it is given.
        environment: Further variables.
    """
    done = subprocess.run(
        ["node", script, *arguments],
        cwd=FOLDER,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}: {done.returncode}\n{done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found

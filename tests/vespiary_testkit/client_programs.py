"""Stock clients of other languages: programs under tests/clients, made from their packages.

Owns how they are installed or built, once for each run, in a folder of the run. Package managers
check what they download by the lock files beside the programs. A test that needs a tool chain which
is not there, or packages that cannot be had, is skipped and says why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.waiting import WAIT_S

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
_BUILD_S = 300.0


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _make(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_S, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def node_program(name: str, folder: Path) -> list[str]:
    """Install a program of tests/clients/node; return the command that runs it.

    Args:
        name: Its folder; it has package.json, package-lock.json and client.js.
        folder: Where it is installed.
    """
    _need("node", "npm")
    target = folder / name
    shutil.copytree(CLIENTS / "node" / name, target, ignore=shutil.ignore_patterns("node_modules"))
    _make(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund"], target)
    return ["node", str(target / "client.js")]


def go_programs(name: str, folder: Path) -> Path:
    """Build the programs of a module of tests/clients/go; return the folder that has them.

    Args:
        name: Its folder; it has go.mod and go.sum.
        folder: Where they are built.
    """
    _need("go")
    target = folder / name
    target.mkdir(parents=True)
    _make(["go", "build", "-trimpath", "-o", f"{target}/", "./..."], CLIENTS / "go" / name)
    return target


def said_by(*command: str) -> dict[str, Any]:
    """Run a program; return the line of JSON that it writes."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.returncode}\n{done.stdout}{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found

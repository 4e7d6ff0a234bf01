"""The gates run to their end: a failure at the front hides none behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MAKEFLAGS": ""} | changes,
        capture_output=True,
        text=True,
        timeout=180,
    )


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


@pytest.mark.parametrize("failing", ["check", "test", "e2e", "", "tools"])
def test_ci_runs_every_step_and_fails_for_any(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(_ROOT / ".ci/run", tmp_path / ".ci/run")
    _program(tmp_path / "bin/make", f'echo "made ${{@: -1}}"; [ "${{@: -1}}" != "{failing}" ]\n')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = _run(tmp_path, ".ci/run", PATH=path)
    made = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("made ")]
    assert made == ["tools", "check", "test", "e2e"]
    is_bad = failing not in ("", "tools")  # tests without their tool are skipped, and say so
    assert done.returncode == (1 if is_bad else 0)
    assert (f"failed: {failing}" in done.stderr) == is_bad


@pytest.mark.parametrize("failing", ["first", "threads", "0", ""])
def test_make_test_runs_every_suite_and_fails_for_any(tmp_path: Path, failing: str) -> None:
    shutil.copy(_ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py", "native/build_native.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv").mkdir()
    suite = 'kind="${VESPIARY_RING-}${VESPIARY_NATIVE-}"; kind="${kind:-first}"\n'
    _program(tmp_path / "suite", f'{suite}echo "ran $kind"; [ "$kind" != "{failing}" ]\n')
    clean = {"VESPIARY_RING": "", "VESPIARY_NATIVE": ""}
    done = _run(tmp_path, "make", "-o", ".venv/.dev", "test", "PYTEST=./suite", **clean)
    ran = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["first", "threads", "0"], done.stderr
    assert (done.returncode != 0) == bool(failing)
    assert ("make test: failed:" in done.stderr) == bool(failing)

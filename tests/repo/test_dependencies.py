"""`make test` runs with the `test` extra alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ("pyspark", "pandas", "deltalake", "pyiceberg", "atheris")
"""What the `dev` extra adds that a test could import by mistake."""
PLUGIN = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())

import importlib.util

found = importlib.util.find_spec

def find_spec(name, package=None):
    return None if name.partition(".")[0] in {blocked} else found(name, package)

importlib.util.find_spec = find_spec
"""


@pytest.mark.ci
def test_every_test_of_make_test_can_be_imported_without_spark(tmp_path: Path) -> None:
    (tmp_path / "without_spark.py").write_text(PLUGIN.format(blocked=set(LEFT_OUT)))
    command = [sys.executable, "-m", "pytest", "-p", "without_spark", "-p", "no:cacheprovider"]
    command += ["--collect-only", "-q", "-m", "not ci and not verify", "tests"]
    outside = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env=outside | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr

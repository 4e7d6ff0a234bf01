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
BLOCKED = f"""
import importlib.util
import sys

LEFT_OUT = {LEFT_OUT!r}
found = importlib.util.find_spec

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def find_spec(name, package=None):
    return None if name.partition(".")[0] in LEFT_OUT else found(name, package)

sys.meta_path.insert(0, Blocked())
importlib.util.find_spec = find_spec
"""
"""Python runs it at each start, as `sitecustomize`: also in programs that a test starts."""


@pytest.mark.ci
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--collect-only", "tests"), id="all can be imported"),
        # Code of the pipeline imports these libraries when it needs them.
        pytest.param(("tests/unit/vespiary_pipeline",), id="those of the pipeline pass"),
    ],
)
def test_without_spark_and_lake_libraries(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
    outside = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, "-m", "not ci and not verify", *arguments],
        cwd=_ROOT,
        env=outside | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr

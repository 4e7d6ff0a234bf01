"""The folders are where they have to be, and `operator/` never hides the standard library.

`operator/` is a plain folder that holds a package: with an `__init__.py` it would be
imported instead of the standard library's `operator` wherever the repository's root is
on the path, and not even `collections` would import any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "broker": ("vespiary_broker", "vespiary_codec"),
    "native": ("vespiary_native",),
    "crds": ("vespiary_spec",),
    "operator": ("vespiary_operator",),
    "pipeline": ("vespiary_pipeline",),
}

CHECK = (
    "import operator, sysconfig, pathlib; "
    "from collections import namedtuple; "
    "home = pathlib.Path(sysconfig.get_paths()['stdlib']).resolve(); "
    "found = getattr(operator, '__file__', None); "
    "assert found and pathlib.Path(found).resolve().parent == home, found; "
    "assert operator.add(1, 2) == 3; "
    "print('standard library')"
)


@pytest.mark.parametrize("folder", PACKAGES)
def test_the_folders_are_no_packages_but_hold_them(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()
    for package in PACKAGES[folder]:
        assert (ROOT / folder / package / "__init__.py").is_file(), f"{folder}/{package}"
        assert (ROOT / folder / package / "py.typed").is_file(), f"{folder}/{package}"


def test_test_folders_are_no_packages() -> None:
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")]
    assert [path for path in found if not path.startswith("tests/vespiary_testkit")] == []


@pytest.mark.parametrize(
    "flags",
    [["-c"], ["-S", "-c"], ["-I", "-c"], ["-P", "-c"], ["-s", "-E", "-c"]],
    ids=["plain", "no-site", "isolated", "safe-path", "no-environment"],
)
@pytest.mark.parametrize("python_path", ["", ".", "root"])
def test_the_standard_library_wins(flags: list[str], python_path: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python_path:
        environment["PYTHONPATH"] = str(ROOT) if python_path == "root" else python_path
    done = subprocess.run(
        [sys.executable, *flags, CHECK],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "standard library\n"), done.stderr


def test_the_standard_library_wins_for_a_module_run_from_the_root() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "timeit", "-n", "1", "-r", "1", "-s", CHECK, "pass"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("standard library\n")


def test_the_check_would_notice(tmp_path: Path) -> None:
    """With an `__init__.py` in a folder `operator`, the same check fails."""
    folder = tmp_path / "operator"
    folder.mkdir()
    (folder / "__init__.py").touch()
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", CHECK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0

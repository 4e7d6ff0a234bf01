"""The loader: what happens when the extension is there, off, absent, broken or stale."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vespiary_native
from vespiary_native import loader

PACKAGE = Path(vespiary_native.__file__).parent
SOURCES = [str(PACKAGE.parents[1] / folder) for folder in ("crds", "broker")]


def run(script: str, switch: str | None, *, package: Path = PACKAGE) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "VESPIARY_NATIVE"}
    if switch is not None:
        environment["VESPIARY_NATIVE"] = switch
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path[:0] = {[str(package.parent), *SOURCES, *sys.path]!r}\n"
            "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]\n" + script,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def package_without_extension(tmp_path: Path) -> Path:
    folder = tmp_path / "vespiary_native"
    folder.mkdir()
    for module in PACKAGE.glob("*.py"):
        (folder / module.name).write_bytes(module.read_bytes())
    return folder


def test_off_means_never_imported():
    done = run(
        "from vespiary_native import loader\n"
        "import vespiary_native.crc32c, vespiary_native.ring\n"
        "print(loader.is_native(), 'vespiary_native._native' in sys.modules)\n"
        "loader.ffi\n",
        "0",
    )
    assert done.stdout.split() == ["False", "False"]
    assert "switched off by VESPIARY_NATIVE=0" in done.stderr


@pytest.mark.skipif(not loader.is_wanted(), reason="VESPIARY_NATIVE=0")
@pytest.mark.parametrize("switch", [None, "", "1"])
def test_on_is_the_default(switch: str | None):
    done = run(
        "from vespiary_native import loader\n"
        "print('vespiary_native._native' in sys.modules, loader.is_native())\n"
        "print(loader.lib.vespiary_abi() == loader.ABI, loader.ffi.sizeof('uint32_t'))\n",
        switch,
    )
    assert done.stdout.split() == ["False", "True", "True", "4"], done.stderr


@pytest.mark.parametrize("switch", [None, "1"])
def test_an_absent_extension_is_an_error_with_a_cure(
    package_without_extension: Path, switch: str | None
):
    done = run("import vespiary_native.crc32c", switch, package=package_without_extension)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "NativeError: the native part is not built. Run `make native`" in last


def test_an_absent_extension_does_no_harm_when_off(package_without_extension: Path):
    done = run(
        "from vespiary_native.crc32c import crc32c; print(crc32c(b'123456789') == 0xE3069283)",
        "0",
        package=package_without_extension,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_a_broken_extension_is_an_error_with_a_cure(package_without_extension: Path):
    (package_without_extension / "_native.abi3.so").write_bytes(b"not a library")
    done = run("import vespiary_native.crc32c", "1", package=package_without_extension)
    assert "NativeError: the native part does not load" in done.stderr
    assert "make native" in done.stderr


def test_a_stale_extension_is_an_error_with_a_cure(package_without_extension: Path):
    (package_without_extension / "_native.py").write_text(
        "class lib:\n    vespiary_abi = staticmethod(lambda: 0)\nffi = None\n"
    )
    done = run("import vespiary_native.crc32c", "1", package=package_without_extension)
    assert f"was built for ABI 0, this version needs {loader.ABI}" in done.stderr
    assert "make native" in done.stderr


def test_an_unknown_switch_is_refused():
    done = run("import vespiary_native.crc32c", "no")
    assert "ConfigError: environment variable VESPIARY_NATIVE" in done.stderr


def test_the_abi_is_that_of_the_header():
    header = Path(__file__).parents[3] / "native" / "src" / "abi.h"
    number = re.search(r"#define VESPIARY_ABI (\d+)u", header.read_text())
    assert number is not None
    assert int(number[1]) == loader.ABI


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        loader.nothing  # noqa: B018

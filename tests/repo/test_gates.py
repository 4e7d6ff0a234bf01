"""The gates run to their end: a failure at the front hides none behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path, *command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name != "E2E_WORKERS"}
    return subprocess.run(
        command,
        cwd=folder,
        env={**outside, "MAKEFLAGS": ""} | changes,
        capture_output=True,
        text=True,
        timeout=180,
    )


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}")
    path.chmod(0o755)


@pytest.mark.parametrize(
    "failing", ["check", "test", "fuzz", "e2e", "", "tools", "java", "maven", "clang"]
)
def test_ci_runs_every_step_and_fails_for_any(tmp_path: Path, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(_ROOT / ".ci/run", tmp_path / ".ci/run")
    _program(tmp_path / "bin/make", f'echo "made ${{@: -1}}"; [ "${{@: -1}}" != "{failing}" ]\n')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = _run(tmp_path, ".ci/run", PATH=path)
    made = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("made ")]
    assert made == ["tools", "java", "maven", "clang", "check", "test", "fuzz", "e2e"]
    is_bad = failing not in (
        "",
        "tools",
        "java",
        "maven",
        "clang",
    )  # such tests are skipped, and say so
    assert done.returncode == (1 if is_bad else 0)
    assert (f"failed: {failing}" in done.stderr) == is_bad


@pytest.mark.parametrize("failing", ["beside", "alone", ""])
def test_both_halves_of_the_e2e_run_with_one_record(tmp_path: Path, failing: str) -> None:
    suite = 'kind=beside; [[ $* == *"e2e and alone"* ]] && kind=alone\n'
    suite += 'echo "ran $kind $VESPIARY_E2E_RECORD"; [ -e "$VESPIARY_E2E_RECORD" ]\n'
    done = _make(tmp_path, "e2e", f'{suite}[ "$kind" != "{failing}" ]\n', E2E_WORKERS="3")
    ran = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert [kind for kind, _ in ran] == ["beside", "alone"], done.stderr
    (record,) = {record for _, record in ran}
    assert not Path(record).exists(), "it goes with the run"
    assert (done.returncode != 0) == bool(failing)
    assert ("make e2e: failed:" in done.stderr) == bool(failing)


@pytest.mark.parametrize("code", [0, 1])
def test_the_e2e_are_one_session_unless_more_are_asked_for(tmp_path: Path, code: int) -> None:
    done = _make(tmp_path, "e2e", f'echo "ran $*"; exit {code}\n')
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == [
        "ran tests/e2e -m e2e"
    ]
    assert (done.returncode != 0) == bool(code)


def _make(folder: Path, target: str, suite: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile where there is an environment, and a program in the place of pytest."""
    shutil.copy(_ROOT / "Makefile", folder)
    for name in ("pyproject.toml", "setup.py", "native/build_native.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / ".venv").mkdir()
    _program(folder / "suite", suite)
    clean = {"VESPIARY_RING": "", "VESPIARY_NATIVE": ""}
    return _run(folder, "make", "-o", ".venv/.dev", target, "PYTEST=./suite", **clean, **more)


@pytest.mark.parametrize("failing", ["first", "spark", "jms", "threads", "0", ""])
def test_make_test_runs_every_suite_and_fails_for_any(tmp_path: Path, failing: str) -> None:
    suite = 'kind="${VESPIARY_RING-}${VESPIARY_NATIVE-}"; kind="${kind:-first}"\n'
    suite += '[[ $* == *"-m spark"* ]] && kind=spark\n'
    suite += '[[ $* == *"-m jms"* ]] && kind=jms\n'
    done = _make(tmp_path, "test", f'{suite}echo "ran $kind"; [ "$kind" != "{failing}" ]\n')
    ran = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ran ")]
    assert ran == ["first", "spark", "jms", "threads", "0"], done.stderr
    assert (done.returncode != 0) == bool(failing)
    assert ("make test: failed:" in done.stderr) == bool(failing)


_JAVA = """echo 'openjdk version "{}"' >&2\n"""
_APT = """echo "$*" >>apt.log; [[ $* != *install*{}* ]] || mv later java\n"""


def _java(folder: Path, *, version: str = "", package: str = "", user: int = 0) -> str:
    """Run the script with a PATH of few programs; return its end, and what apt-get was told."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(_ROOT / ".ci/java", folder / ".ci/java")
    for name in ("bash", "env", "sed", "mv"):
        (folder / name).symlink_to(shutil.which(name) or "")
    _program(folder / "id", f"echo {user}\n")
    _program(folder / "later", _JAVA.format("17.0.15"))
    if version:
        _program(folder / "java", _JAVA.format(version))
    if package:
        _program(folder / "apt-get", _APT.format(package))
    done = _run(folder, ".ci/java", PATH=str(folder), JAVA_HOME="")
    log = folder / "apt.log"
    assert ("Spark needs a Java runtime" in done.stderr) == bool(done.returncode), done.stderr
    return f"{done.returncode} {log.read_text() if log.exists() else ''}"


def test_a_good_java_is_left_alone(tmp_path: Path) -> None:
    assert _java(tmp_path, version="17.0.15", package="openjdk-17") == "0 "


def test_a_java_that_is_too_old_is_followed_by_a_new_one(tmp_path: Path) -> None:
    told = _java(tmp_path, version="1.8.0_402", package="openjdk-17")
    assert told.startswith("0 -q update")
    assert "install -y --no-install-recommends openjdk-17-jre-headless" in told


def test_another_java_is_taken_where_the_first_cannot_be_had(tmp_path: Path) -> None:
    told = _java(tmp_path, package="openjdk-21")
    assert told.startswith("0 ")
    assert "openjdk-17" in told
    assert "default" not in told


@pytest.mark.parametrize("given", [{"user": 1000, "package": "openjdk-17"}, {}])
def test_where_java_cannot_be_installed_one_is_told_how(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    assert _java(tmp_path, **given) == "1 "


def test_an_install_that_brings_no_java_fails(tmp_path: Path) -> None:
    assert _java(tmp_path, package="nothing").startswith("1 -q update")


_MAVEN_APT = (
    """echo "$*" >>apt.log; [[ $* != *install*{}* ]] || {{ mv later javac; mv maven mvn; }}\n"""
)


def _maven(folder: Path, *, version: str = "", package: str = "", user: int = 0) -> str:
    """Run the script with a PATH of few programs; return its end, and what apt-get was told."""
    (folder / ".ci").mkdir(exist_ok=True)
    shutil.copy(_ROOT / ".ci/maven", folder / ".ci/maven")
    for name in ("bash", "env", "sed", "mv"):
        (folder / name).symlink_to(shutil.which(name) or "")
    _program(folder / "id", f"echo {user}\n")
    _program(folder / "later", "echo javac 17.0.15\n")
    _program(folder / "maven", "")
    if version:
        _program(folder / "javac", f"echo javac {version}\n")
        _program(folder / "mvn", "")
    if package:
        _program(folder / "apt-get", _MAVEN_APT.format(package))
    done = _run(folder, ".ci/maven", PATH=str(folder))
    log = folder / "apt.log"
    assert ("JMS need Maven and a JDK" in done.stderr) == bool(done.returncode), done.stderr
    return f"{done.returncode} {log.read_text() if log.exists() else ''}"


def test_maven_with_a_good_jdk_is_left_alone(tmp_path: Path) -> None:
    assert _maven(tmp_path, version="17.0.15", package="openjdk-17") == "0 "


@pytest.mark.parametrize("version", ["", "11.0.2"])
def test_maven_and_a_jdk_are_installed(tmp_path: Path, version: str) -> None:
    told = _maven(tmp_path, version=version, package="openjdk-21")
    assert told.startswith("0 -q update")
    assert "install -y --no-install-recommends maven openjdk-17-jdk-headless" in told
    assert "default" not in told


@pytest.mark.parametrize("given", [{"user": 1000, "package": "openjdk-17"}, {}])
def test_where_maven_cannot_be_installed_one_is_told_how(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    assert _maven(tmp_path, **given) == "1 "

"""The tiers of tests: every part runs, only chance is rerun, and `verify` resumes."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit import tiers
from vespiary_testkit.tiers import Outcome, Part, may_rerun, often_rerun, run_part, run_tier

pytestmark = pytest.mark.verify

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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a few tests, which `tiers` takes for its own."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in TESTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    monkeypatch.setattr(tiers, "RECORD", tmp_path / "build/verify.json")
    monkeypatch.setattr(tiers, "HISTORY", tmp_path / "reruns.jsonl")
    monkeypatch.setenv("PYTHONPATH", str(_ROOT / "tests"))
    for name in ("PYTEST_XDIST_WORKER", "VESPIARY_TIER", "VESPIARY_RUN_REPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VESPIARY_SEED", "7")
    return tmp_path


CONFTEST = """
import os
from pathlib import Path
from vespiary_testkit.run_report import RunReport

def pytest_configure(config):
    config.pluginmanager.register(RunReport(Path(os.environ["VESPIARY_RUN_REPORT"])))
"""
FIRST_TIME = """
from pathlib import Path

def test_by_chance():
    seen = Path(__file__).with_suffix(".seen")
    is_first = not seen.exists()
    seen.touch()
    assert not is_first

def test_good():
    pass
"""
TESTS = {
    "tests/unit/test_by_chance.py": FIRST_TIME,
    "tests/integration/test_by_chance.py": FIRST_TIME,
    "tests/integration/test_bad.py": "def test_bad():\n    assert False\n",
    "tests/integration/test_broken.py": "import nowhere\n",
    "tests/integration/test_good.py": "def test_good():\n    pass\n",
}


def _part(*tests: str) -> Part:
    return Part("some", "a few tests", tests, workers=1)


def test_a_test_with_real_processes_is_rerun_alone_and_reported(root: Path) -> None:
    outcome = run_part(_part("tests/integration/test_by_chance.py"))
    assert outcome.is_good
    assert outcome.reruns == ("tests/integration/test_by_chance.py::test_by_chance",)
    assert outcome.counts == {"passed": 2, "failed": 0}


@pytest.mark.parametrize(
    "tests",
    [
        ["tests/unit/test_by_chance.py"],
        ["tests/integration/test_bad.py"],
        ["tests/integration/test_broken.py"],
        ["tests/integration/test_by_chance.py", "tests/unit/test_by_chance.py"],
        ["tests/integration/test_by_chance.py", "tests/integration/test_bad.py"],
        ["tests/integration/test_missing.py"],
    ],
)
def test_other_failures_are_final(root: Path, tests: list[str]) -> None:
    outcome = run_part(_part(*tests))
    assert not outcome.is_good
    assert outcome.reruns == ()


def test_many_failures_are_no_chance() -> None:
    files = [f"tests/integration/test_{number}.py::test_a" for number in range(6)]
    assert may_rerun(files[:5])
    assert not may_rerun(files)
    assert not may_rerun([])
    one_file = [f"tests/integration/test_x.py::test_{number}" for number in range(60)]
    assert may_rerun(one_file[:59])
    assert not may_rerun(one_file), "the run was stopped: some tests did not run"


def test_every_part_runs_whichever_fails(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good = Part("good", "", ("tests/integration/test_good.py",), workers=1)
    bad = Part("bad", "", ("tests/integration/test_bad.py",), workers=1)
    command = Part("command", "", ("false",))
    assert run_tier("ci", [bad, command, good]) == 1
    shown = capfd.readouterr()
    assert "ci: failed: bad command" in shown.err
    assert shown.out.endswith("1 passed, 1 failed, 0 skipped\n")
    assert run_tier("ci", [good]) == 0


def test_verify_resumes_on_the_same_commit_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = {"rev-parse": "abc", "status": ""}
    monkeypatch.setattr(tiers, "_git", lambda *asked: state[asked[0]])
    good = Part("good", "", ("tests/integration/test_good.py",), workers=1)
    bad = Part("bad", "", ("tests/integration/test_bad.py",), workers=1)
    assert run_tier("verify", [good, bad]) == 1
    record = json.loads(tiers.RECORD.read_text())
    assert record["commit"] == "abc"
    assert record["seed"] == 7
    assert record["parts"]["good"]["counts"] == {"passed": 1, "failed": 0}
    capfd.readouterr()

    monkeypatch.delenv("VESPIARY_SEED")
    (root / "tests/integration/test_bad.py").write_text("def test_mended():\n    pass\n")
    assert run_tier("verify", [good, bad]) == 0
    assert "good: has passed" in capfd.readouterr().out
    assert json.loads(tiers.RECORD.read_text())["seed"] == 7, "a resumed run keeps its seed"
    monkeypatch.setenv("VESPIARY_SEED", "8")
    assert run_tier("verify", [good]) == 0
    assert "has passed" not in capfd.readouterr().out, "another seed begins a new record"
    assert json.loads(tiers.RECORD.read_text())["seed"] == 8
    for changed in ({"rev-parse": "def"}, {"status": " M file"}):
        state |= changed
        assert run_tier("verify", [good]) == 0
        assert "has passed" not in capfd.readouterr().out


def test_two_runs_of_verify_at_a_time_lose_no_part_of_each_other(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_git", lambda *asked: {"rev-parse": "abc", "status": ""}[asked[0]])
    good = ("tests/integration/test_good.py",)
    record = tiers.start_record()
    assert run_tier("verify", [Part("other", "", good, workers=1)]) == 0
    tiers.add_to_record(record, Part("one", "", good), Outcome(True, {}, 1.0, 1.0, ()))
    assert set(json.loads(tiers.RECORD.read_text())["parts"]) == {"one", "other"}
    assert run_tier("verify", [Part("third", "", good, workers=1)]) == 0
    assert set(json.loads(tiers.RECORD.read_text())["parts"]) == {"one", "other", "third"}


def test_a_rerun_counts_once_however_often_the_run_is_resumed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_git", lambda *asked: {"rev-parse": "abc", "status": ""}[asked[0]])
    part = _part("tests/integration/test_by_chance.py")
    assert run_tier("verify", [part]) == 0
    assert run_tier("verify", [part]) == 0
    runs = [json.loads(line) for line in tiers.HISTORY.read_text().splitlines()]
    assert runs == [["tests/integration/test_by_chance.py::test_by_chance"], []]


def test_a_test_that_is_rerun_twice_is_named(tmp_path: Path) -> None:
    history = tmp_path / "reruns.jsonl"
    assert often_rerun(["a", "b"], history) == []
    assert often_rerun(["a"], history) == ["a"]
    for _ in range(18):
        often_rerun([], history)
    assert often_rerun(["b"], history) == [], "the first run is more than twenty runs ago"


def test_make_test_fails_over_its_budget(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    part = Part("core", "", (), workers=3)
    monkeypatch.setattr(tiers, "parts_of", lambda tier: [part])
    for summed_s, code in ((1400.0, 0), (1500.0, 1)):
        outcome = Outcome(is_good=True, counts={}, seconds=1.0, summed_s=summed_s, reruns=())
        monkeypatch.setattr(tiers, "run_part", lambda part, outcome=outcome: outcome)
        assert run_tier("test", [part]) == code
        assert ("exceeds its limit" in capfd.readouterr().out) == bool(code)


@pytest.mark.parametrize("tier", ["test", "ci", "verify"])
def test_the_parts_of_a_tier_have_names_of_their_own(tier: str) -> None:
    names = [part.name for part in tiers.parts_of(tier)]
    assert len(names) == len(set(names))


def test_quarantined_tests_have_a_reason_and_an_end() -> None:
    """This fails once a date has passed: then the test is repaired, or removed."""
    entries = tomllib.loads((_ROOT / "tests/quarantine.toml").read_text()).get("test", [])
    today = datetime.datetime.now(tz=datetime.UTC).date()
    for entry in entries:
        assert set(entry) == {"node", "expires", "reason"}
        assert today <= entry["expires"] <= today + datetime.timedelta(weeks=4), entry["node"]


def test_a_quarantined_test_runs_in_verify_alone(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = ci: x\n")
    shutil.copy(_ROOT / "tests/conftest.py", tmp_path / "tests")
    (tmp_path / "tests/test_one.py").write_text(
        "def test_bad():\n    assert False\n\ndef test_good():\n    pass\n"
    )
    (tmp_path / "tests/quarantine.toml").write_text(
        "[[test]]\nnode = 'tests/test_one.py::test_bad'\n"
    )
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests")
    path = str(_ROOT / "tests")
    shown = {
        tier: _run(tmp_path, *command, VESPIARY_TIER=tier, PYTHONPATH=path).stdout
        for tier in ("test", "ci", "verify")
    }
    assert "1 passed, 1 deselected" in shown["test"]
    assert "1 passed, 1 deselected" in shown["ci"]
    assert "1 passed, 1 xfailed" in shown["verify"]


@pytest.mark.parametrize(
    "failing", [".venv/.dev", "java", "maven", "mosquitto", "clang", "tools", ""]
)
@pytest.mark.parametrize("tier", ["ci", "verify"])
def test_a_tier_begins_with_what_it_needs(tmp_path: Path, tier: str, failing: str) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(_ROOT / ".ci/run", tmp_path / ".ci/run")
    _program(tmp_path / "bin/make", f'echo "made ${{@: -1}}"; [ "${{@: -1}}" != "{failing}" ]\n')
    _program(tmp_path / ".venv/bin/python", 'echo "ran $*"; exit 3\n')
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = _run(tmp_path, ".ci/run", tier, "--part", "c", PATH=path)
    made = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("made ")]
    expected = [".venv/.dev", "java", "maven", "mosquitto", "clang"]
    expected += ["tools"] if tier == "verify" else []
    if failing == ".venv/.dev":
        assert made == expected[:1]
        assert done.returncode == 1
        return
    assert made == expected
    assert f"ran -m vespiary_testkit.tiers {tier} --part c" in done.stdout
    assert done.returncode == 3
    assert bool(done.stderr) == (failing in expected), "what is missing is reported"


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

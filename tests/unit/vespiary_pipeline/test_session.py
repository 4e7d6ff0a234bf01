"""Which Spark and Java are taken, how much memory, and that no session leaves a folder behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_pipeline.session import (
    SCRATCH_PREFIX,
    check_java,
    check_spark,
    defaults,
    driver_memory,
    java_release,
    memory_bytes,
    scratch_folder,
)
from vespiary_spec.errors import SparkUnusable

GIB = 1024**3


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0", "4.10.0.dev1"])
def test_a_good_spark_is_taken(version: str) -> None:
    check_spark(version)


@pytest.mark.parametrize("version", ["3.5.1", "4.0.0", "4.1.4", "5.0.0", "5.0.0.dev2", "10.1"])
def test_another_spark_is_refused_in_a_sentence(version: str) -> None:
    with pytest.raises(SparkUnusable) as caught:
        check_spark(version)
    text = str(caught.value)
    assert f"Spark {version}" in text
    assert "4.2" in text
    assert "pip install" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("bash: java: not found", 0),
    ],
)
def test_the_release_of_a_java(text: str, release: int) -> None:
    assert java_release(text) == release


def _java(folder: Path, version: str) -> Path:
    path = folder / "bin/java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    return path


def test_java_is_looked_for_where_spark_does(tmp_path: Path) -> None:
    good, old = _java(tmp_path / "good", "17.0.15"), _java(tmp_path / "old", "11.0.2")
    check_java({"PATH": str(good.parent)})
    check_java({"JAVA_HOME": str(tmp_path / "good"), "PATH": str(old.parent)})
    with pytest.raises(SparkUnusable, match=r'old/bin/java.*version "11\.0\.2".*17 or newer'):
        check_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(good.parent)})
    with pytest.raises(SparkUnusable, match="apt-get install openjdk-17"):
        check_java({"PATH": str(old.parent)})


@pytest.mark.parametrize("variables", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere"}])
def test_no_java_is_said_with_its_cure(variables: dict[str, str]) -> None:
    with pytest.raises(SparkUnusable, match=r"needs Java, and there is none.*apt-get install"):
        check_java(variables)


@pytest.mark.parametrize(
    ("size", "memory"), [(GIB, "1024m"), (12 * GIB, "4096m"), (512 * GIB, "8192m")]
)
def test_the_driver_gets_a_share_of_the_machine(size: int, memory: str) -> None:
    assert driver_memory(size) == memory


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = memory_bytes(limit)
    assert machine > 0
    limit.write_text("max\n")
    assert memory_bytes(limit) == machine
    limit.write_text("1073741824\n")
    assert memory_bytes(limit) == min(machine, GIB)
    older = tmp_path / "memory.limit_in_bytes"
    older.write_text("536870912\n")
    assert memory_bytes(tmp_path / "none", older) == min(machine, GIB // 2)
    assert memory_bytes(limit, older) == min(machine, GIB // 2)


def test_workers_get_this_python_and_nothing_listens_outside(tmp_path: Path) -> None:
    settings = defaults(tmp_path, 4 * GIB)
    assert settings["spark.pyspark.python"] == sys.executable
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.local.dir"].startswith(str(tmp_path))


def test_a_scratch_folder_may_be_named_from_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "scratch")
    with scratch_folder() as folder:
        assert folder.parent == tmp_path / "scratch"
        assert defaults(folder, 2**30)["spark.local.dir"] == f"{folder}/local"


def test_a_scratch_folder_goes_at_the_end(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "local").mkdir()
        assert folder.parent == tmp_path
        assert folder.name.startswith(SCRATCH_PREFIX)
    assert list(tmp_path.iterdir()) == []


def test_spark_local_dirs_say_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    with scratch_folder() as folder:
        assert folder.parent == tmp_path


def test_what_a_killed_session_left_goes_with_the_next_one(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "from vespiary_pipeline.session import scratch_folder\n"
        "with scratch_folder(pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    (left,) = tmp_path.iterdir()
    with scratch_folder(tmp_path) as running:
        assert not left.exists()
        with scratch_folder(tmp_path) as other:
            assert running.exists()  # it is of a session that lives
            assert other != running
    (tmp_path / f"{SCRATCH_PREFIX}unlocked").mkdir()  # being made: it has no lock file yet
    with scratch_folder(tmp_path):
        assert os.listdir(tmp_path / f"{SCRATCH_PREFIX}unlocked") == []  # noqa: PTH208

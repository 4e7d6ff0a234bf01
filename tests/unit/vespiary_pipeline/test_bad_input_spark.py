"""Spark that is missing, old, does not start, or ends by itself; and what nobody expected."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError, Py4JNetworkError

from vespiary_pipeline import cli_common
from vespiary_pipeline.brief import brief
from vespiary_pipeline.jobs.failures import failure_of, spark_failures
from vespiary_pipeline.session import local_session
from vespiary_spec.errors import ForeignJournal, JobFailed, SparkUnusable
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.written_files import JournalWriter, message

COMMANDS = (
    ("depth", "{data}"),
    ("report", "{data}"),
    ("verify", "{data}"),
    ("diff", "{data}", "{data}"),
    ("import", "{data}", "--to", "{data}/new"),
    ("export", "{data}", "--to", "{data}/new"),
    ("replay", "{data}", "--dry-run"),
)


def pretended_pyspark(folder: Path, source: str) -> dict[str, str]:
    """Put a PySpark of the test's before the real one; return the environment for it."""
    (folder / "pyspark").mkdir(parents=True)
    (folder / "pyspark/__init__.py").write_text(source)
    return os.environ | {"PYTHONPATH": str(folder)}


_PROGRAM = """
import sys
from vespiary_pipeline.cli import main
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit as end:
        print(end.code)
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "raise ImportError('no such module')",
            "PySpark is not installed. Install it: pip install",
        ),
        ("__version__ = '4.1.3'", "this Spark cannot be used (got Spark 4.1.3, allowed:"),
        ("__version__ = '5.0.0'", "this Spark cannot be used (got Spark 5.0.0, allowed:"),
    ],
)
def test_each_command_tells_of_a_pyspark_that_is_missing_or_another(
    source: str, said: str, tmp_path: Path
) -> None:
    JournalWriter(tmp_path / "data/journal").file(1, [message(1)])
    lines = [" ".join(words).format(data=tmp_path / "data") for words in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input="\n".join(lines), text=True, capture_output=True,
        env=pretended_pyspark(tmp_path / "first", source), timeout=WAIT_S, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["1"] * len(COMMANDS)
    told = done.stderr.splitlines()
    assert len(told) == len(COMMANDS)
    assert all(said in line and "[VSP-D101]" in line for line in told)


def test_a_program_with_an_old_pyspark_is_told_at_once(tmp_path: Path) -> None:
    program = (
        "import vespiary_pipeline\n"
        "from vespiary_spec.errors import SparkUnusable\n"
        "try: vespiary_pipeline.register(None)\n"
        "except SparkUnusable as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=WAIT_S, check=True,
        env=pretended_pyspark(tmp_path, "__version__ = '3.5.6'"),
    )  # fmt: skip
    assert done.stdout.startswith("this Spark cannot be used (got Spark 3.5.6")


def test_a_java_that_does_not_start_spark_is_told_in_its_words(tmp_path: Path) -> None:
    JournalWriter(tmp_path / "data/journal").file(1, [message(1)])
    java = tmp_path / "jre/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-version*) echo \'openjdk version "17.0.2"\' >&2; exit;; esac\n'
        "echo 'Error: Could not create the Java Virtual Machine.' >&2\n"
        "exit 1\n"
    )
    java.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=f"depth {tmp_path}/data", text=True,
        capture_output=True, timeout=WAIT_S, check=True,
        env=os.environ
        | {"JAVA_HOME": str(tmp_path / "jre"), "SPARK_LOCAL_DIRS": str(tmp_path / "scratch")},
    )  # fmt: skip
    assert done.stdout.split() == ["1"]
    (line,) = done.stderr.splitlines()
    assert "Spark does not start: Error: Could not create the Java Virtual Machine. Set" in line
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_place_for_temporary_files_that_is_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "none"))
    with (
        pytest.raises(SparkUnusable, match=r"/none: Spark's temporary files.*SPARK_LOCAL_DIRS"),
        local_session(),
    ):
        raise AssertionError("it started")


# --- Spark ends by itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Py4JError("An error occurred while calling o93.parquet"),
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError(111, "Connection refused"),
    ],
)
def test_a_java_that_was_killed_is_told_with_a_cure(error: Exception) -> None:
    ended = r"/data: Spark's Java process has ended.*driver\.memory"
    with pytest.raises(JobFailed, match=ended), spark_failures("/data"):
        raise error


@pytest.mark.parametrize(
    "kind",
    ["java.lang.OutOfMemoryError: Java heap space", "io.netty.util.internal.OutOfDirectMemoryError",
     "MemoryError"],
)  # fmt: skip
def test_too_little_memory_is_told_with_a_cure(kind: str) -> None:
    said = str(failure_of(f"Job aborted due to stage failure\nCaused by: {kind}\n", "/data"))
    assert said.startswith("/data: Spark had too little memory for the job. Give it more (--conf")


# --- what nobody expected -------------------------------------------------------------------------


@click.command()
@click.option("--json", "is_json", is_flag=True)
@cli_common.told
def broken(is_json: bool) -> None:
    """Do what no command should."""
    raise KeyError("place", is_json)


def test_a_defect_is_a_sentence_that_asks_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VESPIARY_DEBUG", raising=False)
    found = CliRunner().invoke(broken, ["--json"])
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("vespiary-pipeline: this is a defect of Vespiary: KeyError: ('place',")
    assert '"event": "error"' in found.stdout
    monkeypatch.setenv("VESPIARY_DEBUG", "1")
    assert "Traceback (most recent call last)" in CliRunner().invoke(broken).stderr


# --- what Spark shows of an error -----------------------------------------------------------------


@brief
class Calls:
    """What Spark calls, and what fails in it."""

    def plan(self) -> None:
        """Fail for a reason."""
        try:
            self._read()
        except OSError as error:
            raise ForeignJournal("no journal", where="/data") from error

    def rows(self) -> Iterator[int]:
        """Fail behind the first row."""
        yield 1
        self.plan()

    def defect(self) -> None:
        """Fail as nobody expected."""
        self._read()

    def _read(self) -> None:
        raise OSError("the reason")


@contextmanager
def shown() -> Iterator[list[int]]:
    """Count the frames of a traceback, as Spark would show it, with those of causes."""
    frames: list[int] = []
    with pytest.raises((ForeignJournal, OSError)) as caught:
        yield frames
    error: BaseException | None = caught.value
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace.tb_lineno)
            trace = trace.tb_next
        error = error.__cause__


def test_an_error_that_crosses_into_spark_comes_without_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VESPIARY_DEBUG", raising=False)
    with shown() as plan:
        Calls().plan()
    with shown() as rows:
        list(Calls().rows())
    assert (len(plan), len(rows)) == (3, 3)  # the test, `shown` and the wrapper
    with shown() as defect:
        Calls().defect()
    assert len(defect) > 3  # whoever reports it needs all
    monkeypatch.setenv("VESPIARY_DEBUG", "1")
    with shown() as everything:
        Calls().plan()
    assert len(everything) > 5

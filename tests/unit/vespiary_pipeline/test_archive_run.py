"""One run of a JournalArchive: the command line that it stands for, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from vespiary_pipeline import archive_run, cli
from vespiary_pipeline.archive_run import has_copies, result_of
from vespiary_spec import archive_status
from vespiary_spec.archive_status import RunResult
from vespiary_spec.archives import ArchiveJob

COPY = "activemq-data-20261124012345-7.hq"
DONE = {"to": "t", "export": "t/export=1", "messages": 7, "files": 2, "size_bytes": 99}


def run(tmp_path: Path, *arguments: str) -> tuple[int, RunResult]:
    answer = tmp_path / "termination-log"
    done = CliRunner().invoke(
        archive_run.main, [*arguments, "--data", str(tmp_path), "--result-file", str(answer)]
    )
    return done.exit_code, archive_status.decode(answer.read_bytes())


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the command lines that are run from now on; each is a good export."""
    found: list[list[str]] = []

    def run_command(arguments: Sequence[str]) -> tuple[int, str]:
        found.append(list(arguments))
        return 0, json.dumps(DONE)

    monkeypatch.setattr(archive_run, "run_command", run_command)
    return found


def test_copies_are_exported(tmp_path: Path, commands: list[list[str]]) -> None:
    copies = tmp_path / "retention"
    copies.mkdir()
    (copies / COPY).touch()
    settings = ("--conf", "spark.a=1", "--conf", "spark.b=x=y")
    code, answer = run(tmp_path, "export", "--retention", str(copies), "--to", "/t", *settings)
    assert (code, answer.is_good, answer.rows, answer.size_bytes) == (0, True, 7, 99)
    assert answer.message == "7 messages were written in 2 files (99 B)."
    assert commands == [[*settings, "export", str(copies), "--json", "--to", "/t"]]


def test_a_snapshot_is_one_of_the_whole_data_folder(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    run(tmp_path, "export", "--snapshot", "before", "--to", "/t")
    assert commands == [["export", str(tmp_path), "--json", "--snapshot", "before", "--to", "/t"]]


def test_a_broker_without_a_copy_yet_is_no_failure(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    (tmp_path / "large-messages").mkdir()
    code, answer = run(tmp_path, "export", "--retention", str(tmp_path), "--to", "/t")
    assert (code, answer.is_good, answer.rows) == (0, True, 0)
    assert "No journal file was full yet" in answer.message
    assert commands == [], "Spark is not started for nothing"


def test_a_retention_folder_that_is_missing_is_told_by_the_job(tmp_path: Path) -> None:
    assert has_copies(tmp_path / "gone")
    code, answer = run(tmp_path, "export", "--retention", str(tmp_path / "gone"), "--to", "/t")
    assert (code, answer.is_good) == (1, False)
    assert "there is no such folder" in answer.message


def test_a_folder_that_is_no_journal_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    code, answer = run(tmp_path, "export", "--to", "/t")
    assert (code, answer.is_good) == (1, False)
    assert "nothing of a broker lies here" in answer.message


def test_a_wrong_setting_is_usage(tmp_path: Path) -> None:
    code, answer = run(tmp_path, "export", "--to", "/t", "--conf", "master=local")
    assert (code, answer.is_good) == (1, False)
    assert "exit code 2" in answer.message


def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def shown() -> None:
        click.echo("on its way")
        click.echo('{"a":', nl=False)
        click.echo(" 1}")
        raise SystemExit(3)

    monkeypatch.setattr(cli, "main", shown)
    assert archive_run.run_command([]) == (3, '{"a": 1}')


@pytest.mark.parametrize(
    ("code", "line", "is_good", "message"),
    [
        (0, json.dumps(DONE | {"export": None, "messages": 0}), True, "Nothing was new."),
        (1, json.dumps({"event": "error", "message": "no room. [VSP]"}), False, "no room. [VSP]"),
        (1, "Killed", False, "export ended with exit code 1."),
        (2, "", False, "export ended with exit code 2."),
        (1, "[1]", False, "export ended with exit code 1."),
    ],
)
def test_what_a_command_said_becomes_a_sentence(
    code: int, line: str, is_good: bool, message: str
) -> None:
    found = result_of(ArchiveJob.EXPORT, code, line)
    assert (found.is_good, found.message) == (is_good, message)

"""One run of a JournalArchive: the command line that it stands for, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def test_a_verification_of_no_copy_found_no_damage(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    code, answer = run(tmp_path, "verify", "--retention", str(tmp_path))
    assert (code, answer.is_good, answer.files, answer.damages) == (0, True, 0, 0)
    assert commands == []


def test_a_verification_that_cannot_look_found_no_damage(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for named in (("--retention", gone), ("--snapshot", "before")):
        code, answer = run(tmp_path, "verify", *named)
        assert (code, answer.is_good, answer.damages) == (1, False, None)
    assert "there is no snapshot of this name (got before)" in answer.message
    assert "`vespiary journal snapshots`" in answer.message


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


# --- verifications --------------------------------------------------------------------------------

COUNTS = {"files": 3, "blocks": 9, "records": 40, "size_bytes": 36864}
HOLE = {"path": f"/r/{COPY}", "offset": 4096, "what": "confirmed data is damaged: a bad checksum"}


def verified(verdict: str, *damage: dict[str, Any], is_snapshot: bool = False) -> RunResult:
    said = {"folder": "/r", "verdict": verdict, "damage": damage, "message": "m", **COUNTS}
    code = 0 if verdict in ("good", "torn") else 1
    return result_of(ArchiveJob.VERIFY, code, json.dumps(said), is_snapshot=is_snapshot)


def test_a_good_verification_says_what_it_looked_at() -> None:
    found = verified("good")
    assert found == RunResult(
        is_good=True,
        message="40 records in 3 files (36864 B) were looked at, and nothing is damaged.",
        rows=40,
        size_bytes=36864,
        files=3,
        damages=0,
    )
    torn = verified("torn")
    assert (torn.is_good, torn.damages) == (True, 0)
    assert "never confirmed" in torn.message


def test_damage_is_said_with_its_first_place_how_many_there_are_and_what_to_do() -> None:
    found = verified("damaged", HOLE, HOLE | {"offset": None})
    assert (found.is_good, found.damages, found.rows, found.files) == (False, 2, 40, 3)
    assert found.message.startswith(f"2 damages were found, the first at /r/{COPY}:4096: confirmed")
    assert "move it out of the folder" in found.message
    assert "40 records in 3 files (36864 B)" in found.message
    of_snapshot = verified("damaged", HOLE, is_snapshot=True).message
    assert of_snapshot.startswith("1 damage was found")
    assert "take another" in of_snapshot


def test_a_long_sentence_leaves_room_for_what_to_do() -> None:
    long = HOLE | {"path": "/var/lib/vespiary/journal/" + "f" * 60, "what": "w" * 5000}
    message = archive_status.decode(archive_status.encode(verified("damaged", long))).message
    assert "www…" in message
    assert message.endswith("were looked at.")


def test_what_keeps_it_from_looking_is_no_damage() -> None:
    why = {"path": "/r", "offset": None, "what": "the folder can't be read: Permission denied."}
    found = verified("unread", why)
    assert (found.is_good, found.damages, found.rows) == (False, None, None)
    assert found.message == "It could not look: the folder can't be read: Permission denied."

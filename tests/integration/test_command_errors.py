"""Every command rejects invalid input: with a sentence, and never with exit code 0."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from vespiary_broker.cli.program import program, run_program
from vespiary_testkit.broker_calls import address
from vespiary_testkit.broker_process import BrokerProcess

WITHOUT_INPUT = {
    *("queue list", "address list", "task list", "divert list", "stream list", "fence list"),
    *("transaction list", "jms queue list", "jms topic list", "jms factory list", "jms names"),
    *("connection list", "status", "configuration show", "configuration reload", "jms properties"),
    *("configuration changes", "crd", "version", "compatibility"),
}
"""Commands whose only input is the broker's URL; the commands in LOCAL take no input."""
LOCAL = {"configuration changes", "crd", "version", "compatibility"}

NO_QUEUE = "no queue"
NO_ADDRESS = "no address"
OF_BROKER = [
    ("send --url stomp://127.0.0.1:1 orders x", "cannot connect"),
    ("receive --url stomp://127.0.0.1:1 orders", "cannot connect"),
    ("browse nosuch", NO_QUEUE),
    ("browse orders --filter (", "selector"),
    ("queue show nosuch", NO_QUEUE),
    ("queue create a\x01b", "control character"),
    ("queue delete nosuch --yes", NO_QUEUE),
    ("queue update nosuch --max-consumers 3", NO_QUEUE),
    ("queue pause nosuch", NO_QUEUE),
    ("queue resume nosuch", NO_QUEUE),
    ("queue purge nosuch --yes", NO_QUEUE),
    ("queue stat --fields nosuch", "nosuch"),
    ("queue stat --field messages --operation GREATER_THAN --value many", "many"),
    ("queue groups nosuch", NO_QUEUE),
    ("queue groups nosuch --release --yes", NO_QUEUE),
    ("queue move nosuch orders --yes", NO_QUEUE),
    ("queue move orders nosuch --yes", NO_QUEUE),
    ("queue copy nosuch orders", NO_QUEUE),
    ("queue copy orders nosuch", NO_QUEUE),
    ("queue change-expiry nosuch --in 1h --yes", NO_QUEUE),
    ("queue change-expiry orders --in soon", "soon"),
    ("queue change-priority nosuch 3", NO_QUEUE),
    ("queue remove nosuch --limit 1 --yes", NO_QUEUE),
    ("queue remove orders --id nosuch --yes", "nosuch"),
    ("queue remove orders --filter ( --yes", "selector"),
    ("queue retry nosuch", NO_QUEUE),
    ("queue send-to-dead-letter nosuch --yes", NO_QUEUE),
    ("queue expire nosuch --yes", NO_QUEUE),
    ("queue deliver-scheduled nosuch", NO_QUEUE),
    ("queue count nosuch", NO_QUEUE),
    ("queue count orders --filter (", "selector"),
    ("queue counter nosuch", NO_QUEUE),
    ("queue reset-counter nosuch", NO_QUEUE),
    ("address show nosuch", NO_ADDRESS),
    ("address create a\x01b --routing-type ANYCAST", "control character"),
    ("address update nosuch --routing-type ANYCAST", NO_ADDRESS),
    ("address pause nosuch", NO_ADDRESS),
    ("address resume nosuch", NO_ADDRESS),
    ("address duplicate-ids nosuch", NO_ADDRESS),
    ("address duplicate-ids nosuch --clear --yes", NO_ADDRESS),
    ("address delete nosuch --yes", NO_ADDRESS),
    ("address counter nosuch", NO_ADDRESS),
    ("address reset-counter nosuch", NO_ADDRESS),
    ("connection close 4711 --yes", "4711"),
    ("connection close --queue nosuch --yes", NO_QUEUE),
    ("consumer list --queue nosuch", NO_QUEUE),
    ("task show 4711", "4711"),
    ("task cancel 4711", "4711"),
    ("drain --to nosuch --yes", "no URL"),
    ("divert create d --address a\x01b --forwarding-address b", "control character"),
    ("divert delete nosuch --yes", "nosuch"),
    ("jms queue create a\x01b", "control character"),
    ("jms queue delete nosuch --yes", "nosuch"),
    ("jms topic create a\x01b", "control character"),
    ("jms topic delete nosuch --yes", "nosuch"),
    ("jms factory create f --url nosuch", "nosuch"),
    ("jms factory delete nosuch --yes", "nosuch"),
    ("jms unbind nosuch", "nosuch"),
    ("stream claim s nosuch --owner o", NO_QUEUE),
    ("stream delete nosuch --yes", "nosuch"),
    ("fence delete nosuch --yes", "nosuch"),
    ("transaction commit nosuch --yes", "nosuch"),
    ("transaction rollback nosuch --yes", "nosuch"),
    ("transaction forget nosuch --yes", "nosuch"),
]
"""Arguments, and what the error has to name. `--api` is added."""

OF_FILES = [
    ("run --data FILE", "FILE"),
    ("run -c NOSUCH", "NOSUCH"),
    ("run --set nosuch=1", "nosuch"),
    ("apply -f NOSUCH", "NOSUCH"),
    ("apply -f FILE", "FILE"),
    ("create DATA", "DATA"),
    ("check -c NOSUCH", "NOSUCH"),
    ("check --data FILE", "FILE"),
    ("user add bob --data NOSUCH", "NOSUCH"),
    ("user add bob --file NOSUCH/users", "NOSUCH"),
    ("user remove bob --data NOSUCH", "NOSUCH"),
    ("user remove nosuch --data DATA", "nosuch"),
    ("user password bob --data NOSUCH", "NOSUCH"),
    ("user roles bob --data NOSUCH", "NOSUCH"),
    ("user roles nosuch --data DATA", "nosuch"),
    ("user list --data NOSUCH", "NOSUCH"),
    ("journal compact NOSUCH", "NOSUCH"),
    ("journal compact OTHER", "OTHER"),
    ("journal export NOSUCH -", "NOSUCH"),
    ("journal export OTHER -", "OTHER"),
    ("journal import NOSUCH NOSUCH", "NOSUCH"),
    ("journal info NOSUCH", "NOSUCH"),
    ("journal info OTHER", "OTHER"),
    ("journal print NOSUCH", "NOSUCH"),
    ("journal print OTHER", "OTHER"),
    ("journal recover NOSUCH TARGET", "NOSUCH"),
    ("journal recover OTHER TARGET", "OTHER"),
    ("journal replay NOSUCH --dry-run", "NOSUCH"),
    ("journal replay OTHER --dry-run", "OTHER"),
    ("journal verify NOSUCH", "NOSUCH"),
    ("journal verify OTHER", "OTHER"),
    ("journal snapshot --name a --data NOSUCH", "NOSUCH"),
    ("journal snapshot --name a --data OTHER", "OTHER"),
    ("journal snapshot --name taken --data DATA", "taken"),
    ("journal snapshots --data NOSUCH", "NOSUCH"),
    ("journal snapshots --data OTHER", "OTHER"),
    ("journal restore-snapshot a --data NOSUCH --yes", "NOSUCH"),
    ("journal restore-snapshot nosuch --data DATA --yes", "nosuch"),
    ("journal remove-snapshot a --data NOSUCH --yes", "NOSUCH"),
    ("journal remove-snapshot nosuch --data DATA --yes", "nosuch"),
    ("page verify NOSUCH", "NOSUCH"),
    ("page verify OTHER", "OTHER"),
    ("page verify DATA", "DATA"),
    ("page verify FILE", "FILE"),
    ("page print NOSUCH", "NOSUCH"),
    ("page print OTHER", "OTHER"),
    ("page print FILE", "REFUSED"),
    ("export-journal NOSUCH activemq-data hq 1MiB -", "NOSUCH"),
    ("export-journal OTHER activemq-data hq 1MiB -", "OTHER"),
    ("import-journal NOSUCH activemq-data hq 1MiB NOSUCH", "NOSUCH"),
    ("disk-benchmark NOSUCH/deeper", "NOSUCH"),
]
"""Arguments, with names of files and folders that `folders` makes or does not make."""

ASKING = [
    "drain --to http://127.0.0.1:1",
    "queue delete orders",
    "queue purge orders",
    "queue move orders other",
    "queue remove orders --limit 1",
    "queue send-to-dead-letter orders",
    "queue expire orders",
    "queue change-expiry orders --in 1h",
    "queue change-expiry orders --at 1",
    "queue update orders --ring-size 1",
    "queue update orders --last-value",
    "queue update orders --last-value-key share",
    "queue groups orders --release",
    "address delete orders",
    "address duplicate-ids orders --clear",
    "connection close 1",
    "divert delete d",
    "jms queue delete orders",
    "jms topic delete prices",
    "jms factory delete f",
    "stream delete s",
    "fence delete f",
    "transaction commit x",
    "transaction rollback x",
    "transaction forget x",
]
"""What takes something away that a second command does not bring back."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    counters = "message-counter-enabled=true"
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", counters) as broker:
        for name in ("orders", "other"):
            run_program(["queue", "create", name, "--api", address(broker)])
        yield broker


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("folders")
    found = {name: base / name for name in ("NOSUCH", "OTHER", "DATA", "FILE", "TARGET")}
    found["OTHER"].mkdir()
    (found["OTHER"] / "letter.txt").write_text("Dear Sir,\n")
    found["FILE"].write_text("Dear Sir,\n")
    with BrokerProcess(found["DATA"], "journal-file-size=1MiB"):
        pass
    (found["DATA"] / "broker.yaml").write_text("{}\n")
    taken = ["journal", "snapshot", "--name", "taken", "--data", str(found["DATA"])]
    assert run_program(taken) == 0
    return found


def rejected(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command in this process; return its error after checking its form."""
    capsys.readouterr()
    code = run_program(arguments)
    said = capsys.readouterr()
    assert code in (1, 2), said
    assert named in said.err + said.out, said
    assert "defect" not in said.err, said
    return said.err


@pytest.mark.parametrize(("line", "named"), OF_BROKER)
def test_a_command_rejects_what_the_broker_does_not_know(
    broker: BrokerProcess, line: str, named: str, capsys: pytest.CaptureFixture[str]
):
    arguments = line.split(" ")
    if "--url stomp" not in line:
        arguments += ["--api", address(broker)]
    assert rejected(arguments, named, capsys) != ""


@pytest.mark.parametrize(("line", "named"), OF_FILES)
def test_a_command_rejects_files_and_folders_of_others(
    folders: dict[str, Path],
    line: str,
    named: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("VESPIARY_PASSWORD", "a long password")
    for name, path in folders.items():
        line = line.replace(name, str(path))
    for name, path in folders.items():
        named = named.replace(name, str(path))
    rejected(line.split(" "), named, capsys)
    assert not folders["NOSUCH"].exists(), "a typing error makes no folder"
    assert sorted(path.name for path in folders["OTHER"].iterdir()) == ["letter.txt"]


@pytest.mark.parametrize("line", sorted(WITHOUT_INPUT - LOCAL))
def test_a_command_rejects_a_url_without_a_broker(line: str, capsys: pytest.CaptureFixture[str]):
    error = rejected([*line.split(" "), "--api", "http://127.0.0.1:1"], "", capsys)
    assert "cannot reach" in error


@pytest.mark.parametrize("line", ASKING)
def test_a_command_asks_before_something_is_lost(line: str, capsys: pytest.CaptureFixture[str]):
    error = rejected([*line.split(" "), "--api", "http://127.0.0.1:1"], "", capsys)
    assert "Pass --yes to confirm" in error
    assert "cannot reach" not in error, "it asks first"


@pytest.mark.parametrize(
    "line",
    [
        "queue change-expiry orders --never",
        "queue update orders --ring-size -1",
        "queue update orders --no-last-value",
        "queue update orders --max-consumers 3",
    ],
)
def test_a_command_does_not_ask_where_nothing_is_lost(
    line: str, capsys: pytest.CaptureFixture[str]
):
    error = rejected([*line.split(" "), "--api", "http://127.0.0.1:1"], "", capsys)
    assert "cannot reach" in error


@pytest.mark.parametrize("act", ["restore-snapshot", "remove-snapshot"])
def test_a_snapshot_is_not_touched_without_a_question(
    folders: dict[str, Path], act: str, capsys: pytest.CaptureFixture[str]
):
    arguments = ["journal", act, "taken", "--data", str(folders["DATA"])]
    assert "Pass --yes to confirm" in rejected(arguments, "taken", capsys)
    assert run_program(["journal", "snapshots", "--data", str(folders["DATA"])]) == 0
    assert "taken" in capsys.readouterr().out


@pytest.mark.parametrize("act", ["verify", "print"])
def test_the_paging_folder_of_a_broker_without_pages_is_one(
    folders: dict[str, Path], act: str, capsys: pytest.CaptureFixture[str]
):
    paging = folders["DATA"] / "paging"
    assert (paging / "server.lock").exists()
    assert run_program(["page", act, str(paging)]) == 0, capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "said"), [([], "0 connections closed\n"), (["--yes", "--json"], "[]\n")]
)
def test_a_user_without_connections_is_no_error(
    broker: BrokerProcess, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    capsys.readouterr()
    arguments = ["connection", "close", "--user", "bob", "--api", address(broker), *options]
    assert run_program(arguments) == 0
    assert capsys.readouterr().out == said


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield all commands that are not groups."""
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*words, name))


def test_no_command_is_missing_here():
    tested = [line for line, _ in (*OF_BROKER, *OF_FILES)]
    missing = [
        name
        for name in commands(program)
        if name not in WITHOUT_INPUT
        and not any(f"{line} ".startswith(f"{name} ") for line in tested)
    ]
    assert missing == [], "add a line with invalid input"


def test_an_answer_of_no_changes_nothing(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    answer = io.StringIO("n\n")
    monkeypatch.setattr(answer, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", answer)
    arguments = ["queue", "delete", "other", "--api", address(broker)]
    code = run_program(arguments)
    said = capsys.readouterr()
    assert code == 1, said
    assert "nothing was changed" in said.err
    assert run_program(["queue", "list", "--json", "--api", address(broker)]) == 0
    assert "other" in [each["name"] for each in json.loads(capsys.readouterr().out)]

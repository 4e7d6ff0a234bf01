"""The table of commands, the help, and how errors end the program."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from vespiary_broker.cli import reference, running
from vespiary_broker.cli.program import COMMANDS, CommandEntry, program, run_program
from vespiary_spec.errors import ConfigError


def command(name: str) -> click.Command:
    found = program.get_command(click.Context(program), name)
    assert found is not None
    return found


def commands(group: click.Command) -> list[click.Command]:
    if not isinstance(group, click.Group):
        return [group]
    return [command for child in group.commands.values() for command in commands(child)]


ALL = [leaf for entry in COMMANDS for leaf in commands(command(entry.name))]


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_table_says_what_the_command_says(entry: CommandEntry):
    assert command(entry.name).short_help == entry.summary
    assert command(entry.name).name == entry.name


@pytest.mark.parametrize("leaf", ALL, ids=lambda leaf: leaf.name)
def test_every_command_and_option_explains_itself(leaf: click.Command):
    assert leaf.help
    for parameter in leaf.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith((".", ")")), parameter.help


def test_no_command_takes_a_password_as_an_argument():
    for leaf in ALL:
        for parameter in leaf.params:
            assert not {"--password", "--passcode"} & set(parameter.opts), leaf.name


def test_the_help_groups_all_commands(capsys: pytest.CaptureFixture[str]):
    assert run_program(["--help"]) == 0
    text = capsys.readouterr().out
    for entry in COMMANDS:
        assert re.search(rf"^  {entry.name} +{re.escape(entry.summary)}$", text, re.MULTILINE)
    assert text.index("Broker:") < text.index("Messages:") < text.index("Administration:")


def test_the_help_imports_no_command():
    code = (
        "import sys; from vespiary_broker.cli.program import run_program; run_program(['--help']);"
        "loaded = [m for m in sys.modules if m.startswith('vespiary_broker.cli.')];"
        "print('LOADED', sorted(loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED ['vespiary_broker.cli.program', 'vespiary_broker.cli.terminal']" in done.stdout


def test_a_broker_starts_without_what_only_tables_and_http_need():
    code = (
        "import sys, vespiary_broker.cli.running, vespiary_broker.app.broker;"
        "heavy = {'aiohttp', 'prometheus_client', 'rich', 'kubernetes', 'kopf'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    assert run_program(["nonsense"]) == 2
    assert "No such command 'nonsense'" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]):
    assert run_program(["--version"]) == 0
    assert run_program(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert re.fullmatch(r"vespiary \d+\.\d+\.\d+\S*", first)


class Failing:
    """Stands for `run`; raises what it was given."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, *_: object, **__: object) -> int:
        raise self.error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    def install(error: BaseException) -> None:
        monkeypatch.setattr(running.run, "callback", Failing(error))

    return install


def test_a_known_error_is_a_sentence_with_its_code(failing, capsys: pytest.CaptureFixture[str]):
    failing(ConfigError("no such choice", path="journal-type", value="FOO", allowed="NIO"))
    assert run_program(["run"]) == 1
    captured = capsys.readouterr()
    sentence = "journal-type: no such choice (got FOO, allowed: NIO). [VSP-C101]"
    assert captured.err == f"vespiary: {sentence}\n"
    assert captured.out == ""


def test_with_json_the_error_is_an_object_besides(failing, capsys: pytest.CaptureFixture[str]):
    failing(ConfigError("no such choice", path="journal-type"))
    assert run_program(["run", "--json"]) == 1
    captured = capsys.readouterr()
    assert '"event":"error","code":"VSP-C101"' in captured.out
    assert captured.err.startswith("vespiary: journal-type")


def test_a_defect_says_how_to_report_it(
    failing, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    failing(KeyError("inner"))
    assert run_program(["run"]) == 1
    captured = capsys.readouterr()
    assert "defect of Vespiary: KeyError: 'inner'. Please report it" in captured.err
    assert "Traceback" not in captured.err
    (details,) = tmp_path.iterdir()
    assert str(details) in captured.err
    assert "Traceback" in details.read_text()


def test_a_defect_without_a_place_for_details(
    failing, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    failing(KeyError("inner"))
    assert run_program(["run"]) == 1
    assert "VESPIARY_DEBUG=1" in capsys.readouterr().err
    monkeypatch.setenv("VESPIARY_DEBUG", "1")
    assert run_program(["run"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interruption_has_its_own_exit_code(failing, capsys: pytest.CaptureFixture[str]):
    failing(KeyboardInterrupt())
    assert run_program(["run"]) == 130
    assert capsys.readouterr().err.strip() == "vespiary: interrupted"


@pytest.mark.ci
def test_a_reader_that_has_gone_is_no_defect():
    done = subprocess.run(
        f"{sys.executable} -m vespiary_broker crd | head -1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


@pytest.mark.ci
@pytest.mark.parametrize("arguments", ["crd", "version --json"])
def test_an_output_that_is_full_is_no_defect(arguments: str):
    done = subprocess.run(
        f"{sys.executable} -m vespiary_broker {arguments} > /dev/full",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "vespiary: standard output cannot be written: No space left on device. What is there is "
        "not whole.\n",
    )


def test_the_reference_has_every_command_and_option():
    page = reference.page()
    for leaf in ALL:
        for parameter in leaf.params:
            if isinstance(parameter, click.Option):
                assert f"`{parameter.opts[-1]}`" in page
    assert page.count("### vespiary ") >= len(ALL)


def test_the_definitions_are_those_of_the_repository(capsys: pytest.CaptureFixture[str]):
    assert run_program(["crd"]) == 0
    text = capsys.readouterr().out
    for path in (Path(__file__).resolve().parents[4] / "crds").glob("*.yaml"):
        body = path.read_text("utf-8").partition("\n")[2].strip()
        assert body in text


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("sned", "send"), ("recieve", "receive"), ("quue list", "queue"), ("queue lst", "list")],
)
def test_a_typing_error_gets_a_suggestion(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
):
    assert run_program(typed.split()) == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


def test_nothing_is_suggested_for_what_is_far_from_all(capsys: pytest.CaptureFixture[str]):
    assert run_program(["xyzzy"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("closed", "line", "code"),
    [
        (">&-", "version", 0),
        (">&-", "version --json", 0),
        (">&-", "journal info nosuch --json", 1),
        ("2>&-", "journal info nosuch", 1),
        ("<&-", "queue purge q", 1),
        ("<&- >&- 2>&-", "version", 0),
    ],
)
def test_a_standard_stream_that_is_closed_is_no_defect(closed: str, line: str, code: int):
    shell = ["sh", "-c", f'"$0" -m vespiary_broker {line} {closed}', sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done
    assert "defect" not in done.stderr

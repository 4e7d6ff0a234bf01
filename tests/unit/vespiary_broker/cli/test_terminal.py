"""Tables, progress, and names that look like markup."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from typing import NamedTuple

import msgspec
import pytest

from vespiary_broker.cli import terminal
from vespiary_spec.errors import ConfigError


class Place(NamedTuple):
    """A record of one kind."""

    block_offset: int


class Part(msgspec.Struct):
    """A record of another kind."""

    size_bytes: int


@dataclasses.dataclass
class Found:
    """A record with others in it."""

    is_good: bool
    places: tuple[Place, ...]
    messages_by_queue: dict[str, Part]


class Terminal(io.StringIO):
    """Text output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_columns_for_scripts(capsys: pytest.CaptureFixture[str]):
    terminal.show_table(("name", "size#"), [("a", 5), ("bb", None)])
    assert capsys.readouterr().out == "name  size\na        5\nbb       -\n"


def test_a_table_on_a_terminal_takes_no_name_as_markup(monkeypatch: pytest.MonkeyPatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    terminal.show_table(("queue", "messages#"), [("[red]orders[/red]", 5)])
    assert "[red]orders[/red]" in screen.getvalue()


def test_progress_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with terminal.progress("sending [bold]", 10) as advance:
        advance(10)
    assert "sending [bold]" in screen.getvalue()
    quiet = io.StringIO()
    monkeypatch.setattr(sys, "stderr", quiet)
    with terminal.progress("sending", 10) as advance:
        advance(10)
    assert quiet.getvalue() == ""


CONTROLS = "a\x1b]0;x\x07\x9b2J\x7f\u202e."
ESCAPED = r"a\u001b]0;x\u0007\u009b2J\u007f\u202e."


def test_control_characters_are_escaped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
):
    def show() -> None:
        terminal.echo(f"one\ntwo\t{CONTROLS}")
        terminal.echo_line(f"one\n{CONTROLS}")
        terminal.show_headers([("name", CONTROLS)], is_raw=False)
        terminal.show_json({"name": CONTROLS})
        terminal.show_table(("name",), [(CONTROLS,)])
        terminal.show_body(f"{CONTROLS}\r\n".encode() + b"\xff", is_raw=False, ends_line=True)

    show()
    assert capsysbinary.readouterr().out.count("\u202e.".encode()) == 6
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    show()
    text = capsysbinary.readouterr().out.decode()
    assert text.count(ESCAPED) == 6
    assert "\x1b" not in text
    assert f"one\ntwo\t{ESCAPED}\none\\u000a{ESCAPED}\n" in text
    assert f"{ESCAPED}\r\n\\xff\n" in text
    terminal.show_body(CONTROLS.encode(), is_raw=True, ends_line=False)
    terminal.show_headers([("name", CONTROLS)], is_raw=True)
    assert capsysbinary.readouterr().out.decode() == f"{CONTROLS}name: {CONTROLS}\n\n"


def test_errors_with_remote_text_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    terminal.show_failure(f"the broker said {CONTROLS}")
    terminal.show_error(ConfigError("no such thing", path="x", value=CONTROLS))
    error = capsys.readouterr().err
    assert error.count(r"\u001b") == 2
    assert "\x1b" not in error


def test_fields_are_spelled_as_in_the_api_and_keys_of_mappings_are_left(
    capsysbinary: pytest.CaptureFixture[bytes],
):
    found = Found(True, (Place(7),), {"my_queue": Part(8)})
    terminal.show_json([found, {"own_key": Place(9)}])
    assert json.loads(capsysbinary.readouterr().out) == [
        {
            "isGood": True,
            "places": [{"blockOffset": 7}],
            "messagesByQueue": {"my_queue": {"sizeBytes": 8}},
        },
        {"own_key": {"blockOffset": 9}},
    ]

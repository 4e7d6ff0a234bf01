"""Tables, progress, and names that look like markup."""

from __future__ import annotations

import io
import sys

import pytest

from vespiary_broker.cli import terminal


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

import logging
import re

import pytest

from vespiary_broker.app.log_lines import LineFormatter


def _format(message: str, *args: object, exc_info: object = None) -> str:
    record = logging.LogRecord(
        "vespiary_broker.server.connection",
        logging.INFO,
        "x.py",
        1,
        message,
        args,
        exc_info,  # type: ignore[arg-type]
    )
    return LineFormatter().format(record)


def test_one_line() -> None:
    line = _format("client refused peer=%s reason=%r", "192.0.2.1", "two\nlines")
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info logger=server\.connection "
        r"event=client refused peer=192\.0\.2\.1 reason='two\\nlines'",
        line,
    )


def test_line_feeds_of_a_message_do_not_make_lines() -> None:
    assert "\n" not in _format("a\nlevel=critical forged")


def test_traceback_is_indented() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        line = _format("failed", exc_info=(ValueError, error, error.__traceback__))
    first, *rest = line.splitlines()
    assert first.endswith("event=failed")
    assert all(text.startswith("    ") for text in rest)
    assert rest[-1] == "    ValueError: x"


def test_control_characters_of_clients_are_escaped() -> None:
    line = _format("client connected client-id=%s", "a\x1b[2J\x9b1m\x00\u202eb")
    assert line.endswith(r"client-id=a\u001b[2J\u009b1m\u0000\u202eb")
    try:
        raise ValueError("x\x1b[2J\ry")
    except ValueError as error:
        traced = _format("failed", exc_info=(ValueError, error, error.__traceback__))
    assert "\x1b" not in traced
    assert "\r" not in traced


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("x reason='disk failed' acceptor=all", "\"x reason='disk failed' acceptor=all\""),
        ("two words", "'two words'"),
        ("x\xa0level=error", r"'x\xa0level=error'"),
        ("x\nlevel=error", r"'x\nlevel=error'"),
        ("'", '"\'"'),
        ("plain.name", "plain.name"),
        ("", ""),
    ],
)
def test_names_of_clients_forge_no_fields(name: str, shown: str) -> None:
    line = _format("a message is late 100%% queue=%s address=%s of=%d", name, "a", 3)
    assert line.endswith(f"event=a message is late 100% queue={shown} address=a of=3")


def test_sentences_forge_no_fields() -> None:
    error = ValueError("there is no queue x level=error")
    assert _format("it stays: %s", error).endswith(
        "event=it stays: 'there is no queue x level=error'"
    )
    assert _format("it stays: %s", "no room here").endswith("event=it stays: no room here")
    assert _format("%(a)s", {"a": 1}).endswith("event=1")
    assert _format("half=%*d", 3, 1).endswith("event=half= 1")

"""Header lines by name: read, dropped, added."""

from __future__ import annotations

from vespiary_broker.engine.property_lines import lines_of, value_of, without


def test_a_value_is_found_wherever_the_header_stands() -> None:
    lines = b"first:1\nsecond:a\\cb\nthird:\n"
    assert value_of(lines, b"first") == "1"
    assert value_of(lines, b"second") == "a:b"
    assert value_of(lines, b"third") == ""
    assert value_of(lines, b"irst") is None
    assert value_of(b"", b"first") is None
    assert value_of(b"a:1\na:2\n", b"a") == "1"


def test_lines_are_left_out_by_whole_names() -> None:
    lines = b"a:1\nab:2\na:3\nb:a\\c4\nc:\x0b\x85\n"
    assert without(lines, {b"a"}) == b"ab:2\nb:a\\c4\nc:\x0b\x85\n"
    assert without(b"", {b"a"}) == b""


def test_lines_are_escaped() -> None:
    assert lines_of([("n:m", "x\ny"), ("k", "v")]) == b"n\\cm:x\\ny\nk:v\n"

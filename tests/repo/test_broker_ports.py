"""Tests start brokers on free ports only, so that they pass while `make run` serves on its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[1]
_RIG = _TESTS / "vespiary_testkit/broker_process.py"
"""The only place that sets each port by its name; all other tests go through it or pass --port,
or --port-offset with one that they have looked for."""


def commands_without_port(source: str) -> Iterator[int]:
    """Yield the lines of commands `run --data ...` that leave the listeners at default ports."""
    if "--data" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Call):
            parts = node.args
        else:
            continue
        words = {part.value for part in parts if isinstance(part, ast.Constant)}
        if {"run", "--data"} <= words and not words & {"--port", "--port-offset"}:
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('vespiary("run", "--data", data)', [1]),
        ('\ncommand = [*PROGRAM, "run", "--json", "--data", str(data)]', [2]),
        ('vespiary("run", "--data", data, "--port", "0")', []),
        ('vespiary("run", "--data", data, "--port-offset", str(offset))', []),
        ('vespiary("journal", "verify", "--data", data)', []),
    ],
)
def test_a_command_without_a_port_is_found(source: str, lines: list[int]) -> None:
    assert list(commands_without_port(source)) == lines


@pytest.mark.ci
def test_no_test_starts_a_broker_on_default_ports() -> None:
    found = [
        f"{path.relative_to(_TESTS)}:{line}"
        for path in sorted(_TESTS.rglob("*.py"))
        if path != _RIG
        for line in commands_without_port(path.read_text())
    ]
    assert found == []

"""Tests start brokers on free ports only, so that they pass while `make run` serves on its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parents[1]
_RIG = _TESTS / "vespiary_testkit/broker_process.py"
"""The only place that sets each port by its name; all other tests go through it or pass --port,
or --port-offset with one that they have looked for, or write a configuration."""
_CONFIG = {"-c", "--config"}
_ADMIN_PORT = re.compile(r"admin: \{+port: ")


def commands_without_port(source: str) -> Iterator[int]:
    """Yield the lines of commands `run` that leave a listener at its default port.

    Such a command has neither an option for ports nor `-c` in a function that writes a
    configuration with a port for `admin`, which is the one most easily forgotten.
    """
    if '"run"' not in source:
        return
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Call):
            parts = node.args
        else:
            continue
        words = {part.value for part in parts if isinstance(part, ast.Constant)}
        if "run" not in words or not words & {"--data", *_CONFIG}:
            continue
        is_configured = bool(words & _CONFIG) and any(
            _sets_admin_port(source, function)
            for function in functions
            if node in ast.walk(function)
        )
        if not words & {"--port", "--port-offset"} and not is_configured:
            yield node.lineno


def _sets_admin_port(source: str, function: ast.FunctionDef) -> bool:
    parts = (function, *function.decorator_list)
    return any(_ADMIN_PORT.search(ast.get_source_segment(source, part) or "") for part in parts)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('vespiary("run", "--data", data)', [1]),
        ('\ncommand = [*PROGRAM, "run", "--json", "--data", str(data)]', [2]),
        ('vespiary("run", "--data", data, "--port", "0")', []),
        ('vespiary("run", "--data", data, "--port-offset", str(offset))', []),
        ('vespiary("journal", "verify", "--data", data)', []),
        ('def test():\n    vespiary("run", "-c", file)', [2]),
        ('vespiary("run", "--config", file)', [1]),
        ('def test():\n    write("admin: {port: 0}")\n    vespiary("run", "-c", file)', []),
        ('@cases("admin: {port: 0}")\ndef test():\n    vespiary("run", "-c", file)', []),
        ('vespiary("run", "-c", file, "--port", "0")', []),
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

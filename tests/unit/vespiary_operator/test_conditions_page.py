"""docs/reference/conditions.md and the code say the same reasons, both ways."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vespiary_spec.status import ConditionType, TuningConditionType

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "conditions.md").read_text("utf-8")
SOURCES = sorted((ROOT / "operator" / "vespiary_operator").glob("*.py"))
CODE = "\n".join(path.read_text("utf-8") for path in SOURCES)
STATES = {"TRUE", "FALSE", "UNKNOWN"}


def constants(tree: ast.Module) -> dict[str, str]:
    """Return the module's names for texts."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def reasons(tree: ast.Module) -> Iterator[str]:
    """Yield the reasons of findings, `(TRUE, "Reason", sentence)`, and of blocks."""
    named = constants(tree)
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            state = node.elts[0]
            last = state.attr if isinstance(state, ast.Attribute) else getattr(state, "id", "")
            found = node.elts[1] if last in STATES else None
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Block":
            found = next((k.value for k in node.keywords if k.arg == "reason"), None)
        if isinstance(found, ast.Constant):
            yield str(found.value)
        elif isinstance(found, ast.Name) and found.id in named:
            yield named[found.id]


def said() -> set[str]:
    return {r for path in SOURCES for r in reasons(ast.parse(path.read_text("utf-8")))}


def test_every_reason_that_is_said_stands_there() -> None:
    found = said()
    assert len(found) > 45, "the reasons are no longer found where they were"
    missing = {reason for reason in found if f"`{reason}`" not in PAGE}
    assert not missing, f"docs/reference/conditions.md lacks {sorted(missing)}"


def test_every_reason_that_stands_there_is_said() -> None:
    listed = set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))
    gone = {reason for reason in listed if f'"{reason}"' not in CODE}
    assert not gone, f"docs/reference/conditions.md still has {sorted(gone)}"


def test_every_condition_has_its_place() -> None:
    for condition in ConditionType:
        assert f"### {condition.value}: " in PAGE, condition
    for tuning in TuningConditionType:
        assert f"| {tuning.value} | True |" in PAGE, tuning

"""docs/reference/conditions.md and the code say the same reasons, both ways."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vespiary_operator import announcements
from vespiary_spec.status import ConditionType, TuningConditionType
from vespiary_spec.upgrade_status import UpgradeStage

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
    """Yield the reasons of findings, `(TRUE, "Reason", sentence)`, of blocks, and of upgrades.

    An upgrade's reason becomes one of the condition UpToDate; an action's is an Event's.
    """
    named = constants(tree)
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Tuple) and len(node.elts) == 3:
            state = node.elts[0]
            last = state.attr if isinstance(state, ast.Attribute) else getattr(state, "id", "")
            found = node.elts[1] if last in STATES else None
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("Block", "replace", "_replace"):
                found = next((k.value for k in node.keywords if k.arg == "reason"), None)
            elif called == "Checked" and len(node.args) > 1:
                found = node.args[1]
            elif called == "_waits":
                found = node.args[0]
        if isinstance(found, ast.Constant):
            if found.value:
                yield str(found.value)
        elif isinstance(found, ast.Name) and found.id in named:
            yield named[found.id]


def said() -> set[str]:
    return {r for path in SOURCES for r in reasons(ast.parse(path.read_text("utf-8")))}


def test_every_reason_that_is_said_stands_there() -> None:
    found = said()
    assert len(found) > 45, "the reasons are no longer found where they were"
    stages = {stage.value for stage in UpgradeStage}  # these have a page of their own
    missing = {reason for reason in found - stages if f"`{reason}`" not in PAGE}
    assert not missing, f"docs/reference/conditions.md lacks {sorted(missing)}"


def events(tree: ast.Module) -> Iterator[str]:
    """Yield the reasons of actions and announcements, and what a `reason` of theirs may become."""
    is_chosen = False
    assigned: list[ast.expr] = []
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("Apply", "Create", "Delete"):
                found = [k.value for k in node.keywords if k.arg == "reason"]
                is_chosen = is_chosen or any(isinstance(one, ast.Name) for one in found)
            elif called == "Announcement":
                found = node.args[:1]
        elif isinstance(node, ast.Assign):
            targets, value = node.targets[0], node.value
            if isinstance(targets, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(targets.elts, value.elts, strict=True)
                assigned += [v for t, v in pairs if getattr(t, "id", "") == "reason"]
            elif getattr(targets, "id", "") == "reason":
                assigned.append(value)
        yield from _texts(found)
    if is_chosen:
        yield from _texts(assigned)


def _texts(found: list[ast.expr]) -> Iterator[str]:
    for one in found:
        choices = [one.body, one.orelse] if isinstance(one, ast.IfExp) else [one]
        yield from (str(c.value) for c in choices if isinstance(c, ast.Constant))


def test_every_reason_of_an_event_stands_there() -> None:
    found = {r for path in SOURCES for r in events(ast.parse(path.read_text("utf-8")))}
    found -= {"", *announcements._SILENT}
    assert len(found) > 18, "the reasons are no longer found where they were"
    table = PAGE.partition("## Events")[2]
    missing = {reason for reason in found if f"`{reason}`" not in table}
    assert not missing, f"docs/reference/conditions.md lacks {sorted(missing)} below Events"


def test_every_reason_that_stands_there_is_said() -> None:
    listed = set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))
    stages = {f"Upgrade{stage.value}" for stage in UpgradeStage}
    gone = {reason for reason in listed - stages if f'"{reason}"' not in CODE}
    assert not gone, f"docs/reference/conditions.md still has {sorted(gone)}"


def test_every_condition_has_its_place() -> None:
    for condition in ConditionType:
        assert f"### {condition.value}: " in PAGE, condition
    for tuning in TuningConditionType:
        assert f"| {tuning.value} | True |" in PAGE, tuning

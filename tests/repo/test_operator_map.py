"""docs/internals/operator.md names every module of the operator, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "vespiary_operator"


def test_the_map_of_the_operator_is_whole() -> None:
    text = (ROOT / "docs" / "internals" / "operator.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z_]+)`", text))
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert modules <= named, f"not on the map: {sorted(modules - named)}"
    files = {path.stem for path in PACKAGE.glob("builders/*.py")} - {"__init__"}
    linked = set(re.findall(r"`builders/([a-z_]+)`", text))
    assert linked <= files, f"gone: {sorted(linked - files)}"

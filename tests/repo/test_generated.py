"""Generated files are what the model says; `make gen` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_spec.gen import __main__ as gen

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ci
def test_generated_files_are_up_to_date() -> None:
    gen.run(ROOT, is_check=True, say=lambda _: None)


def test_no_other_file_pretends_to_be_a_definition() -> None:
    expected = {path for path, _ in gen.generated() if path.startswith("crds/")}
    assert {f"crds/{path.name}" for path in (ROOT / "crds").glob("*.yaml")} == expected

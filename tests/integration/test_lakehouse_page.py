"""docs/howto/lakehouse.md: its commands and programs run, in order, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.lake_exports import write_export

pytestmark = pytest.mark.verify

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/lakehouse.md"
RUN_S = 60.0


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    day = "day=2026-11-22"
    write_export(tmp_path / "lake", [f"address=orders/{day}", f"address=invoices/{day}"], 0)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    blocks = re.findall(r"```(sh|python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks].count("text") == 4
    output = ""
    for kind, text in blocks:
        if kind == "text":
            assert output == text
            continue
        program = ["bash", "-e", "-c"] if kind == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, text],
            cwd=tmp_path, env=environment, check=False, capture_output=True, text=True,
            timeout=RUN_S,
        )  # fmt: skip
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        output = done.stdout
    assert (tmp_path / "catalog.db").exists()

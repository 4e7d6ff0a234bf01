"""The pages on Spark name every option and column, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vespiary_pipeline.cli import main
from vespiary_pipeline.options import OPTIONS
from vespiary_pipeline.schema import MESSAGES
from vespiary_pipeline.sink import sink_options
from vespiary_pipeline.sink.frames import COLUMNS
from vespiary_pipeline.stream import stream_options

PAGES = Path(__file__).resolve().parents[3] / "docs/howto"


def first_cells(page: str, heading: str) -> set[str]:
    """Return the names in the first column of the table below a row that begins so."""
    lines = (PAGES / page).read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    names: set[str] = set()
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        names.update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return names


@pytest.mark.parametrize(
    ("page", "options"),
    [
        ("spark.md", OPTIONS),
        ("spark-streams.md", stream_options.OPTIONS),
        ("spark-sink.md", sink_options.OPTIONS),
    ],
)
def test_the_options_are_all_there(page: str, options: dict[str, object]) -> None:
    assert first_cells(page, "option") == set(options)


def test_the_commands_are_all_there() -> None:
    text = (PAGES / "spark.md").read_text()
    assert set(re.findall(r"^\| `vespiary-pipeline (\w+)", text, re.MULTILINE)) == set(
        main.commands
    )


def test_the_columns_of_a_stream_are_all_there() -> None:
    assert first_cells("spark-streams.md", "column") == set(MESSAGES.names)


def test_the_columns_of_a_sink_are_all_there() -> None:
    assert first_cells("spark-sink.md", "column") == set(COLUMNS)

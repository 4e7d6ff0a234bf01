"""The pages on Spark name every command, option, default and column, and no others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from vespiary_pipeline import options, reference
from vespiary_pipeline.cli import main
from vespiary_pipeline.imports import import_options
from vespiary_pipeline.option_table import NOT_SAID
from vespiary_pipeline.schema import LIVE, MESSAGES, RECORDS
from vespiary_pipeline.sink import sink_options
from vespiary_pipeline.sink.frames import COLUMNS
from vespiary_pipeline.stream import stream_options
from vespiary_testkit.waiting import WAIT_S

PAGES = Path(__file__).resolve().parents[3] / "docs/howto"


def rows_below(page: str, heading: str) -> Iterator[list[str]]:
    """Yield the cells of the table below a row that begins so."""
    lines = (PAGES / page).read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        yield [cell.strip() for cell in line.split("|")[1:-1]]


def first_cells(page: str, heading: str) -> set[str]:
    """Return the names in the first column of the table below a row that begins so."""
    rows = rows_below(page, heading)
    return {name for cells in rows for name in re.findall(r"`(\w+)`", cells[0])}


OPTIONS = {
    "spark.md": options.TABLE,
    "spark-streams.md": stream_options.TABLE,
    "spark-sink.md": sink_options.TABLE,
    "spark-import.md": import_options.TABLE,
}


@pytest.mark.parametrize("page", OPTIONS)
def test_the_options_are_all_there(page: str) -> None:
    own = {"path"}  # Spark's load and save take it
    assert first_cells(page, "option") == set(OPTIONS[page].options) - own


@pytest.mark.parametrize("page", OPTIONS)
def test_the_defaults_are_those_of_the_code(page: str) -> None:
    compared = 0
    for cells in rows_below(page, "option"):
        names = re.findall(r"`(\w+)`", cells[0])
        shown = cells[1].replace("`", "").split(", ")
        for name, default in zip(names, shown * len(names) if len(shown) == 1 else shown):  # noqa: B905
            known = OPTIONS[page].default(name)
            if known == NOT_SAID:  # the page may say in words what is done then
                assert not re.match(r"\d|true|false", default), name
            else:
                assert default == known, name
                compared += 1
    assert compared >= 3


def test_the_reference_has_each_option_and_column_with_its_meaning() -> None:
    text = reference.page()
    for table in OPTIONS.values():
        for name, option in table.options.items():
            assert f"| `{name}` |" in text
            assert option.meaning in text
            assert option.field in table.fields._fields  # type: ignore[attr-defined]
    for column in (*RECORDS.columns, *MESSAGES.columns, *LIVE.columns):
        assert f"| `{column.name}` | `{column.spark}` | {column.meaning} |" in text
    for name, command in main.commands.items():
        assert f"### vespiary-pipeline {name}\n" in text
        for param in command.params:
            assert not isinstance(param, click.Option) or f"`{param.opts[0]}`" in text


def test_the_reference_needs_no_spark() -> None:
    program = (
        "import sys, vespiary_pipeline.reference as r; r.page()\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT_S)


def test_the_commands_are_all_there() -> None:
    text = (PAGES / "spark.md").read_text()
    assert set(re.findall(r"^\| `vespiary-pipeline (\w+)", text, re.MULTILINE)) == set(
        main.commands
    )


def test_the_columns_of_a_stream_are_all_there() -> None:
    assert first_cells("spark-streams.md", "column") == set(MESSAGES.names)


def test_the_columns_of_a_sink_are_all_there() -> None:
    assert first_cells("spark-sink.md", "column") == set(COLUMNS)


def test_what_is_said_when_something_is_wrong_is_said_by_the_code() -> None:
    sources = (PAGES.parents[1] / "pipeline").rglob("*.py")
    code = " ".join(path.read_text() for path in sources)
    for joint in (r'"\s+f?"', r"\s+"):  # sentences that go on in the next line
        code = re.sub(joint, "" if '"' in joint else " ", code)
    quoted = [
        phrase
        for cells in rows_below("spark-errors.md", "what is wrong")
        for phrase in cells[1].split("`")[1::2]
        if " " in phrase
    ]
    assert len(quoted) > 25
    # A cure begins in lower case in the code; its first sentence is the system's.
    missing = [one for one in quoted if one.split(". ")[-1].lower() not in code.lower()]
    assert missing == []

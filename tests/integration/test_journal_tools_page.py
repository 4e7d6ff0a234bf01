"""docs/howto/journal-tools.md does not lie: its commands run, and answer in the shape shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from vespiary_testkit.broker_process import BrokerProcess

pytestmark = pytest.mark.verify

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/journal-tools.md"
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"data@\S*|[0-9a-f]{32,64}\S*"), "DATA"),
    (re.compile(r"crc@\S*|,c\S*$"), "CRC"),
    (re.compile(r"0x[0-9a-f]{8}"), "NUMBER"),
    (re.compile(r"\d[\d.:;+-]*( B| KiB| MiB)?"), "NUMBER"),
    (re.compile(r"[ ,]+"), " "),
)


class Step(NamedTuple):
    """A command of the page and what it prints there."""

    command: str
    lines: tuple[str, ...]


def steps() -> list[Step]:
    found: list[Step] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            found.append(Step(command, tuple(lines)))
    return found


def shape(lines: tuple[str, ...]) -> set[str]:
    """Return the lines without what changes from run to run; order and repeats do not count."""
    shapes = set()
    for line in lines:
        text = line.strip()
        for pattern, name in CHANGING:
            text = pattern.sub(name, text)
        shapes.add(text.strip())
    return shapes - {""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page says that its examples begin with."""
    work = tmp_path_factory.mktemp("page")
    program = work / "bin/vespiary"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vespiary_broker "$@"\n')
    program.chmod(0o755)
    with BrokerProcess(work / "data", "journal-file-size=1MiB") as broker:
        place = ("--url", f"stomp://127.0.0.1:{broker.port()}")
        for body in ("first", "second", "third"):
            subprocess.run([program, "send", "orders", body, *place], check=True)
        subprocess.run([program, "receive", "orders", "-n", "1", *place], check=True)
    return work


def test_the_commands_answer_as_shown(folder: Path):
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    done = steps()
    assert len(done) >= 15
    for step in done:
        ran = subprocess.run(
            ["bash", "-c", step.command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        printed = tuple((ran.stdout + ran.stderr).splitlines())
        assert shape(printed) == shape(step.lines), step.command


def test_every_tool_has_its_place_on_the_page():
    text = PAGE.read_text()
    for name in ("info", "verify", "print", "export", "import", "recover"):
        assert f"journal {name}" in text or f"`{name}" in text, name
    for option in ("--safe", "--reclaimed", "--resume", "--include-acknowledged", "--json"):
        assert option in text, option

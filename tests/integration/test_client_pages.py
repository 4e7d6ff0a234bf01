"""docs/howto/clients: the pages of stock clients do not lie.

A page is followed as a newcomer would: its commands are run in an empty folder, its programs are
written as they stand there, and print what the page says. Ports alone are changed. First with a
broker that has no users, then with one that has, then with TLS.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from vespiary_testkit.broker_process import BrokerProcess

pytestmark = pytest.mark.once

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGES: Final = sorted((DOCS / "howto/clients").glob("*.md"))
FIRST: Final = DOCS / "howto/clients.md"
COMMAND_S: Final = 300.0
TOOLS: Final = {"pip": (), "npm": ("node", "npm"), "go": ("go",), "mvn": ("mvn", "java", "keytool")}
_BLOCK: Final = re.compile(r"(?:^`([\w.]+)`[^\n]*:\n\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.M)
_VERSION: Final = re.compile(
    r"(?:@v?|>=|qpid-jms-client</artifactId>\s*<version>|version )(\d+(?:\.\d+)+)"
)
"""A version of a client: in a command that installs it, in a POM, or in a sentence."""


class Block(NamedTuple):
    """A block of code of a page.

    Attributes:
        file: What it is to be written to; empty: no whole file.
        language: Its language.
        text: Its lines.
    """

    file: str
    language: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page, or of a part of it."""
    return [Block(*found) for found in _BLOCK.findall(text)]


def replaced(program: str, changes: str) -> str:
    """Return a program with other paragraphs: those that begin with the same line."""
    paragraphs = program.rstrip("\n").split("\n\n")
    for change in re.split(r"\n\n(?=(?://|#) )", changes.rstrip("\n")):
        first = change.partition("\n")[0]
        (begin,) = [at for at, one in enumerate(paragraphs) if first in one.split("\n")[:2]]
        is_open = first.endswith("(")  # imports of Go, which have paragraphs of their own
        end = begin
        while is_open and not paragraphs[end].endswith(")"):
            end += 1
        kept = (
            "" if paragraphs[begin].startswith(first) else paragraphs[begin].split("\n")[0] + "\n"
        )
        paragraphs[begin : end + 1] = [kept + change]
    return "\n\n".join(paragraphs) + "\n"


class Newcomer:
    """Follows a page in a folder of its own, with a broker at other ports than the page's."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self._folder, self._ports = folder, ports
        scripts = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "NPM_CONFIG_PREFER_OFFLINE": "true",
            "NPM_CONFIG_UPDATE_NOTIFIER": "false",
        }

    def write(self, file: str, text: str) -> None:
        """Write a file with the ports of the broker."""
        (self._folder / file).write_text(self._here(text))

    def run(self, console: str) -> None:
        """Run the commands of a console; compare what they print."""
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", console, re.M):
            done = subprocess.run(
                self._here(command), shell=True, cwd=self._folder, env=self._environment,
                capture_output=True, text=True, timeout=COMMAND_S, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            assert not printed or done.stdout == printed, f"{command}\n{done.stderr}"

    def _here(self, text: str) -> str:
        for written, port in self._ports.items():
            text = re.sub(rf"\b{written}\b", str(port), text)
        return text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, BrokerProcess]]:
    """Return a broker with the user and the TLS of the first page, and its folder."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("secured")
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    add_user, make_certificate, start = [
        block for block in blocks_of(FIRST.read_text()) if block.language == "console"
    ]
    (configuration,) = [block for block in blocks_of(FIRST.read_text()) if block.file]
    ports = {"61616": 0, "61617": 0}
    newcomer = Newcomer(folder, ports)
    (folder / "data").mkdir(mode=0o750)  # `make run` has made it
    newcomer.run(add_user.text)
    newcomer.run(make_certificate.text)
    newcomer.write(configuration.file, configuration.text)
    assert start.text == f"$ .venv/bin/vespiary run -c {configuration.file} --data data\n"
    broker = BrokerProcess(folder / "data", configuration=folder / configuration.file)
    with contextlib.chdir(folder):  # the certificate's place is relative to where it is started
        broker.start()
    try:
        yield folder, broker
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Return a broker as `make run` starts it."""
    with BrokerProcess(tmp_path_factory.mktemp("open") / "data") as broker:
        yield broker


@pytest.mark.verify
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page(
    tmp_path: Path, open_broker: BrokerProcess, secured: tuple[Path, BrokerProcess], page: Path
) -> None:
    text = page.read_text()
    plain, with_tls = text.split("## With TLS\n")
    for start, needed in TOOLS.items():
        if f"$ {start} " in plain:
            for program in needed:
                if shutil.which(program) is None:
                    pytest.skip(f"{program} is not installed")
    folder, broker = secured
    alone = Newcomer(tmp_path, {"61616": open_broker.port()})
    known = Newcomer(tmp_path, {"61616": broker.port(), "61617": broker.port("tls")})
    program, console = Block("", "", ""), ""
    for block in blocks_of(plain):
        if block.language == "console":
            alone.run(block.text)
            console = block.text
        else:
            assert block.file, f"a block of {block.language} has no name of a file"
            program = block
            alone.write(block.file, block.text)
    assert "confirmed\nhello\n" in console
    known.write(program.file, program.text)
    known.run(console)
    shutil.copy(folder / "tls.crt", tmp_path)
    changed, run = blocks_of(with_tls)
    known.write(program.file, replaced(program.text, changed.text))
    known.run(run.text)


def test_each_client_of_the_matrix_has_a_page() -> None:
    matrix = (DOCS / "reference/clients.md").read_text()
    linked = re.findall(r"\]\(\.\./howto/clients/([^)]+)\)", matrix)
    assert sorted(linked) == [page.name for page in PAGES]
    rows = [line for line in matrix.splitlines() if line.startswith("| [")]
    assert len(rows) == len(PAGES)
    first = FIRST.read_text()
    assert sorted(re.findall(r"\]\(clients/([^)]+)\)", first)) == [page.name for page in PAGES]
    assert all("## What to know\n- " in page.read_text() for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_its_versions_are_those_of_the_matrix(page: Path) -> None:
    matrix = (DOCS / "reference/clients.md").read_text()
    (row,) = [line for line in matrix.splitlines() if f"clients/{page.name})" in line]
    tested = row.split(" | ")[1].split(", ")
    named = _VERSION.findall(page.read_text())
    assert named, "the page says not which version it is about"
    assert set(named) <= set(tested)

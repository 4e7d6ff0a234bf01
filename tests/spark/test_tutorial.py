"""docs/tutorials/spark.md: its programs and commands run, in order, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_calls import call
from vespiary_testkit.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.verify]
PAGE = Path(__file__).resolve().parents[2] / "docs/tutorials/spark.md"
RUN_S = 300.0
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"in \d+ files \(\d+ B\)"), "in FILES files (BYTES B)"),
    (re.compile(r"in \d+ files\)"), "in FILES files)"),
    (re.compile(r"(?<=0       0      0         )\d+"), "BYTES"),
)


def blocks() -> list[tuple[str, str]]:
    """Return the page's blocks: what they are, and their text."""
    found = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [(kind, text) for kind, text in found]


def programs() -> Iterator[str]:
    """Yield the names under which the page has its programs saved."""
    yield from re.findall(r"as `(\w+\.py)`", PAGE.read_text())


def settings() -> list[str]:
    """Return the settings that the page starts its broker with."""
    (line,) = re.findall(r"^vespiary run (.*)$", PAGE.read_text(), re.MULTILINE)
    return re.findall(r"--set (\S+)", line)


def squeezed(text: str) -> str:
    """Return an output without what varies, and columns one space apart."""
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    lines = (re.sub(r" +", " ", line).rstrip() for line in text.splitlines())
    return "\n".join(lines).strip()


def test_the_page_does_what_it_says(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("spark")  # skips without Java
    names, last_output = programs(), ""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with BrokerProcess(tmp_path / "data", *settings()) as broker:
        environment["VESPIARY_URL"] = f"stomp://127.0.0.1:{broker.port()}"
        for kind, text in blocks()[2:]:  # behind the installation, and the broker's start
            text = text.replace(":61613", f":{broker.port()}").replace(
                "61613)", f"{broker.port()})"
            )
            text = text.replace(":8161", f":{broker.port('http')}")
            if kind == "python":
                (tmp_path / next(names)).write_text(text)
            elif kind == "sh":
                done = subprocess.run(
                    ["bash", "-e", "-c", text], cwd=tmp_path, env=environment, check=False,
                    capture_output=True, text=True, timeout=RUN_S,
                )  # fmt: skip
                assert done.returncode == 0, (text, done.stdout, done.stderr)
                last_output = done.stdout
            else:
                assert squeezed(text) in squeezed(last_output)
        assert call(broker, "GET", "/queues/orders.express")["messages"] == 0
    assert next(names, None) is None
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_the_picture_is_there() -> None:
    assert (PAGE.parent / "spark-report.png").read_bytes().startswith(b"\x89PNG")

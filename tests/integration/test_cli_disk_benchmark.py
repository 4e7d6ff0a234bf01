"""`vespiary disk-benchmark` as a user meets it: figures, a verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vespiary_native import loader

PROGRAM = [sys.executable, "-m", "vespiary_broker", "disk-benchmark"]
QUICK = ("--size", "4MiB", "--seconds", "0.02")
TIMEOUT_S = 120


def benchmark(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT_S
    )


@pytest.mark.ci
def test_json_holds_every_figure(tmp_path: Path):
    done = benchmark(tmp_path, *QUICK, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["judgement"]["isGood"] else 1), done.stderr
    files = {"zeros", "sparse-file", "os-kernel-copy", "chunked-zeros", "none"}
    engines = {phase["engine"] for phase in report["phases"]}
    assert "NIO" in engines or "ASYNCIO" in engines
    assert engines | set(report["missingEngines"]) == {"ASYNCIO", "NIO", "IO_URING"}
    for engine in engines:
        own = [phase for phase in report["phases"] if phase["engine"] == engine]
        for kind in ("synced-write", "read"):
            assert {p["preallocation"] for p in own if p["kind"] == kind} == files, (engine, kind)
    # Plain writes get what the flushed ones left of each file: nothing, on a fast disk.
    assert {p["preallocation"] for p in report["phases"] if p["kind"] == "write"} <= files
    for phase in report["phases"]:
        assert phase["operations"] >= 1
        assert phase["p50Us"] <= phase["p90Us"] <= phase["p99Us"] <= phase["maxUs"]
        rate = phase["operations"] / phase["seconds"]
        assert phase["operationsPerS"] == pytest.approx(rate)
    assert {making["preallocation"] for making in report["making"]} == files - {"none"}
    assert report["facts"]["filesystem"]
    assert report["judgement"]["sentences"]
    assert "journal-type" in report["judgement"]["settings"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
def test_people_get_tables_and_words(tmp_path: Path):
    done = benchmark(tmp_path / "new", *QUICK)
    assert "flushed writes to a file of" in done.stdout
    assert "none: the file grows" in done.stdout
    assert "journal-preallocation-strategy: " in done.stdout
    assert done.stdout.splitlines()[-1] in ("good", "not fit for a journal")
    assert done.stderr == "", "the bar is for terminals"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_refused(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    done = benchmark(tmp_path / "mine", *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    assert "never writes into what is there" in done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--bs", "100"), 1, "multiples of 512"),
        (("--bs", "4096", "--size", "10000"), 1, "multiple of 4096"),
        (("--size", "8EiB"), 2, "less than 8EiB"),
        (("--size", "4EiB"), 1, "not room enough"),
        (("--bs", "much"), 2, "this is no size"),
        (("--seconds", "0"), 2, "--seconds"),
    ],
)
def test_bad_numbers(tmp_path: Path, options: tuple[str, ...], code: int, words: str):
    done = benchmark(tmp_path, *options)
    assert done.returncode == code, done
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: int):
    command = [*PROGRAM, str(tmp_path), "--size", "4MiB", "--seconds", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        end_s = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob("*/none")):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"interrupted" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.skipif(not loader.is_wanted(), reason="one variant is enough for the terminal")
def test_a_terminal_shows_a_bar(tmp_path: Path):
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, str(tmp_path), "--size", "1MiB", "--seconds", "0.05"],
        stdout=subprocess.DEVNULL,
        stderr=writer,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(writer)
        shown = b""
        try:
            while data := os.read(reader, 65536):
                shown += data
        except OSError:  # how a pseudo-terminal says that the other side has gone
            pass
        process.wait(TIMEOUT_S)
    os.close(reader)
    assert b"measuring" in shown

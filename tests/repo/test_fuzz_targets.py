"""What is fuzzed: each scanner has all of its parts, what is kept is small, findings are told."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit import fuzz_corpus, fuzz_runs, fuzz_target

_ROOT = Path(__file__).resolve().parents[2]


def test_each_scanner_has_a_row_a_name_and_a_corpus() -> None:
    rows = (_ROOT / "native/fuzz/scanner_protocols.c").read_text()
    named = re.search(r"^FUZZ_SCANNERS := (.*)$", (_ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    names = named[1].split()
    scanned = {path.stem.removesuffix("_scan") for path in _ROOT.glob("native/src/*_scan.c")}
    assert names == re.findall(r"^    \{\"(\w+)\", open_", rows, re.MULTILINE)
    assert set(names) == scanned
    kept = {path.name for path in fuzz_target.CORPORA.iterdir()}
    assert kept == {*(f"{name}_scanner" for name in names), *fuzz_runs.DECODERS}


def test_what_is_kept_is_small() -> None:
    files = [path for path in fuzz_target.CORPORA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2**20
    assert max(path.stat().st_size for path in files) <= fuzz_target.INPUT_BYTES_MAX


def _check(data: bytes) -> None:
    assert b"\xff" not in data


def _target() -> fuzz_target.FuzzTarget:
    words = [b"\xff"]
    return fuzz_target.FuzzTarget("stomp_decoder", _check, lambda _: b"ab", words, "none")


def test_a_finding_is_raised_kept_and_says_how_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz_target, "FINDINGS", tmp_path / "findings")
    with pytest.raises(AssertionError):
        fuzz_target.run_random(_target(), 1000, 7)
    (kept,) = (tmp_path / "findings").iterdir()
    assert b"\xff" in kept.read_bytes()
    assert f"--replay {kept}" in capsys.readouterr().err


def test_inputs_are_a_function_of_the_seed() -> None:
    first, again, other = (list(fuzz_target.inputs(_target(), seed, 300)) for seed in (5, 5, 6))
    assert first == again != other
    assert len(set(first)) > 100


def test_bent_inputs_stay_short() -> None:
    source = random.Random(1)  # the harness itself
    pool = [b"x" * fuzz_target.INPUT_BYTES_MAX]
    for _ in range(300):
        data = fuzz_target.bent(source, pool, [b"y" * 100])
        assert len(data) <= fuzz_target.INPUT_BYTES_MAX


@pytest.mark.parametrize("choice", [0, 1, 6, 63, 64, 200, 255])
def test_pieces_are_the_whole(choice: int) -> None:
    for length in (0, 1, 30):
        stream = bytes(range(length))
        assert b"".join(fuzz_target.in_pieces(choice, stream)) == stream


def test_what_alone_reaches_something_is_kept() -> None:
    def steps(*lines: int) -> frozenset[fuzz_corpus.Step]:
        return frozenset(("file", 0, line, 1) for line in lines)

    found = {b"long" * 50: steps(1, 2), b"a": steps(1), b"b": steps(2, 3), b"c": steps(3)}
    kept = fuzz_corpus.chosen(found)
    assert sorted(kept) == [b"a", b"b"]


@pytest.mark.parametrize("code", [0, 1])
def test_a_job_that_fails_is_not_good(code: int, capfd: pytest.CaptureFixture[str]) -> None:
    program = f"print('x: no finding'); print('Test unit written to /f'); raise SystemExit({code})"
    job = fuzz_runs.Job("x", [sys.executable, "-c", program], "again FILE")
    assert fuzz_runs.run_job(job) == (code == 0)
    assert ("again /f" in capfd.readouterr().out) == bool(code)


def test_a_run_that_says_nothing_is_not_good() -> None:
    assert not fuzz_runs.run_job(fuzz_runs.Job("x", [sys.executable, "-c", ""]))


def test_the_program_replays_what_is_kept() -> None:
    files = sorted((fuzz_target.CORPORA / "mqtt_decoder").iterdir())[:3]
    done = subprocess.run(
        [sys.executable, "tests/fuzz/test_mqtt_decoder_fuzz.py", "--replay", *map(str, files)],
        cwd=_ROOT, env={"PYTHONPATH": "tests"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "mqtt_decoder: 3 inputs: no finding\n", done.stderr

"""The command line: one scenario from start to the kept result."""

import shlex
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import generator, table
from benchmarks.__main__ import main


def _invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


@pytest.mark.verify
def test_a_scenario_is_measured_shown_and_kept(
    tmp_path: Path, fake_broker: tuple[str, ...], stompload: Path, monkeypatch
) -> None:
    monkeypatch.setattr(generator, "build", lambda: stompload)
    code, output = _invoke(
        "--scenario", "b", "--rounds", "2", "--seconds", "0.2", "--warmup", "0",
        "--directory", str(tmp_path), "--broker", shlex.join(fake_broker),
    )  # fmt: skip
    assert code == 0, output
    assert "not D2" in output
    (kept,) = tmp_path.glob("bench-*.json")
    result = msgspec.json.decode(kept.read_bytes(), type=table.Result)
    assert [run.scenario for run in result.runs] == ["b", "b"]
    assert all(run.report is not None and run.report.passed for run in result.runs)


@pytest.mark.ci
def test_a_broker_that_fails_fails_the_program(
    tmp_path: Path, stompload: Path, monkeypatch
) -> None:
    monkeypatch.setattr(generator, "build", lambda: stompload)
    broker = shlex.join([sys.executable, "-c", "raise SystemExit(3)"])
    code, output = _invoke(
        "--scenario", "start", "--rounds", "1", "--directory", str(tmp_path), "--broker", broker
    )
    assert code == 1
    assert "start failed: the broker ended with 3" in output


def test_an_unknown_scenario_is_refused() -> None:
    code, output = _invoke("--scenario", "z")
    assert code == 2
    assert "'z' is not one of" in output

"""Scenarios on a fake broker: every metric that a floor names is really measured."""

import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.broker import BrokerError
from benchmarks.generator import Load
from benchmarks.measurement import Plan, Run, measure, summarize
from benchmarks.scenarios import FLOORS, SCENARIOS, Scenario

pytestmark = pytest.mark.verify


def _plan(tmp_path: Path, command: tuple[str, ...]) -> Plan:
    return Plan(
        directory=tmp_path / "bench", command=command, seconds=0.3, warmup=0.1, raw_write_s=0.02
    )


def test_one_in_flight_is_compared_with_the_raw_write(
    tmp_path: Path, fake_broker: tuple[str, ...], stompload: Path
) -> None:
    scenario = next(s for s in SCENARIOS if s.name == "a")
    run = measure(scenario, _plan(tmp_path, fake_broker), stompload)
    assert not run.is_void
    assert run.durability == "D0"
    assert run.metrics["confirmed_per_s"] > 10
    assert run.metrics["confirm_p50_per_raw_write"] == pytest.approx(
        run.metrics["confirm_p50_us"] / run.metrics["raw_write_p50_us"]
    )
    assert {f.metric for f in FLOORS if f.scenario == "a"} <= set(run.metrics)
    assert list((tmp_path / "bench").iterdir()) == []


def test_the_pipeline_is_charged_per_delivered_message(
    tmp_path: Path, fake_broker: tuple[str, ...], stompload: Path
) -> None:
    scenario = next(s for s in SCENARIOS if s.name == "c")
    run = measure(scenario, _plan(tmp_path, fake_broker), stompload)
    assert run.report is not None
    assert run.report.passed, run.report
    assert run.report.checks.order_checked
    count = run.report.window.delivered
    assert run.metrics["delivered_per_s"] == pytest.approx(count / run.report.seconds, rel=0.01)
    # The broker can't have used more than one core (it has one thread), nor nothing at all.
    assert 0 < run.metrics["cpu_us_per_message"] * count / 1e6 <= 1.2 * run.report.seconds + 0.05
    assert {f.metric for f in FLOORS if f.scenario == "c"} <= set(run.metrics)


def test_start_and_idle_memory(
    tmp_path: Path, fake_broker: tuple[str, ...], stompload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.measurement._IDLE_S", 0.0)
    run = measure(SCENARIOS[0], _plan(tmp_path, fake_broker), stompload)
    assert run.report is None
    assert {f.metric for f in FLOORS if f.scenario == "start"} <= set(run.metrics)
    assert 5 < run.metrics["idle_rss_mb"] < 200
    assert run.metrics["ready_reported_s"] <= run.metrics["ready_s"]


def test_a_broker_that_can_not_start_leaves_no_store(tmp_path: Path, stompload: Path) -> None:
    scenario = Scenario(name="x", title="", load=Load())
    plan = _plan(tmp_path, (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(BrokerError, match="ended with 3"):
        measure(scenario, plan, stompload)
    assert list((tmp_path / "bench").iterdir()) == []


def _run(value: float) -> Run:
    return Run(scenario="b", engine="", durability="", command=(), metrics={"m": value})


def test_summary_is_median_and_spread() -> None:
    summary = summarize([_run(3.0), _run(1.0), _run(10.0)])
    spread = summary["b"]["m"]
    assert (spread.median, spread.low, spread.high) == (3.0, 1.0, 10.0)


def test_a_void_run_stays_out_of_the_summary(
    tmp_path: Path, fake_broker: tuple[str, ...], stompload: Path
) -> None:
    scenario = Scenario(name="b", title="", load=Load(messages=50))
    good = measure(scenario, _plan(tmp_path, fake_broker), stompload)
    assert good.report is not None
    void = msgspec.structs.replace(good, report=msgspec.structs.replace(good.report, passed=False))
    assert void.is_void
    assert summarize([void]) == {}
    assert set(summarize([good, void])) == {"b"}

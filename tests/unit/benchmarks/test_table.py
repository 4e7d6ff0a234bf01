"""What is printed and kept: floors, misses, ratios, classes, void runs."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import generator, table
from benchmarks.machine import Machine
from benchmarks.measurement import Run, Spread
from benchmarks.perf_profile import Profile
from benchmarks.scenarios import FLOORS, SCENARIOS

_MACHINE = Machine(
    cpu="CPU X", cores=2, memory_bytes=8 << 30, kernel="6.1", python="3.11", filesystem="ext4",
    device="/dev/vda", mount_options="rw", write_cache="write back", fua="0", commit="abc",
)  # fmt: skip


def _result(rate: float, cpu_us: float = 4.0, durability: str = "D2") -> table.Result:
    metrics = {"delivered_per_s": rate, "cpu_us_per_message": cpu_us}
    run = Run(
        scenario="c", engine="ASYNCIO", durability=durability, command=("vespiary",),
        metrics=metrics, profile=Profile(percent={"kernel": 50.0, "Python": 25.0}),
    )  # fmt: skip
    summary = {"c": {name: Spread(value, value, value) for name, value in metrics.items()}}
    return table.Result(
        time="2026-01-01T00:00:00Z", machine=_MACHINE, settings=("x=1",), rounds=3,
        summary=summary, runs=[run],
    )  # fmt: skip


def _shown(result: table.Result, baseline: table.Result | None = None) -> str:
    console = Console(file=io.StringIO(), width=140)
    table.show(result, baseline, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_floor_names_a_scenario_and_is_kept_or_missed_at_its_bound() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    for floor in FLOORS:
        assert floor.scenario in names
        assert floor.is_kept(floor.bound)
        assert floor.is_kept(floor.bound * (1.01 if floor.at_least else 0.99))
        assert not floor.is_kept(floor.bound * (0.99 if floor.at_least else 1.01))


def test_a_missed_floor_is_shown_and_counted() -> None:
    good, bad = _result(130_000), _result(110_000, cpu_us=6)
    assert table.missed_floors(good.summary) == []
    assert {f.metric for f in table.missed_floors(bad.summary)} == {
        "delivered_per_s",
        "cpu_us_per_message",
    }
    assert "MISSED" not in _shown(good)
    assert "MISSED" in _shown(bad)


def test_machine_class_settings_and_shares_stand_beside_the_figures() -> None:
    text = _shown(_result(130_000))
    for part in ("2 x CPU X", "ext4 on /dev/vda (rw)", "D2 on ASYNCIO", "settings: x=1", "abc",
                 "kernel 50 % = 2.00 us", "Python 25 % = 1.00 us"):  # fmt: skip
        assert part in text
    assert "not D2" not in text
    assert "not D2" in _shown(_result(130_000, durability="D1"))


def test_ratios_to_a_baseline_and_a_warning_for_another_machine() -> None:
    baseline = _result(100_000)
    assert "x 1.30" in _shown(_result(130_000), baseline)
    other = msgspec.structs.replace(
        baseline, machine=msgspec.structs.replace(_MACHINE, cpu="CPU Y")
    )
    assert "ANOTHER MACHINE (CPU Y)" in _shown(_result(130_000), other)


def test_a_kept_result_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results" / "bench.json"
    table.save(_result(1), path)
    assert table.load_baseline(path) == _result(1)
    assert table.load_baseline(tmp_path / "none.json") is None
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a benchmark result"):
        table.load_baseline(path)


def test_a_void_run_is_shown(stompload: Path) -> None:
    from vespiary_testkit.stomp_server import Faults, running_stomp_server

    load = generator.Load(consumers=1, messages=100, warmup=0, seconds=0.2, drain_seconds=0.1)
    with running_stomp_server(Faults(lose_every=50)) as (_, port):
        report = generator.run_load(stompload, port, load)
    result = _result(130_000)
    void = msgspec.structs.replace(result.runs[0], report=report)
    text = _shown(msgspec.structs.replace(result, runs=[void]))
    assert "VOID c" in text
    assert "lost=2" in text

"""Shows what was measured beside its floor and beside the baseline, and keeps it as JSON.

Owns: the form of `benchmarks/results/*.json` and of `benchmarks/baseline.json`. Must never: hide
a void run or a missed floor. Called by `benchmarks.__main__`.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.machine import Machine
from benchmarks.measurement import Run, Spread
from benchmarks.scenarios import FLOORS, SCENARIOS, Floor


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one `python -m benchmarks`."""

    time: str
    machine: Machine
    settings: tuple[str, ...]
    rounds: int
    summary: dict[str, dict[str, Spread]]
    runs: list[Run]


def load_baseline(path: Path) -> Result | None:
    """Return the kept result to compare with, None when there is none.

    Raises:
        ValueError: The file is not a result of this program.
    """
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: not a benchmark result ({error}); remove or rewrite it") from (
            error
        )


def save(result: Result, path: Path) -> None:
    """Write a result as JSON that people can read and compare."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def result_path(folder: Path) -> Path:
    """Return a new file name for the result of this moment."""
    return folder / time.strftime("bench-%Y%m%dT%H%M%SZ.json", time.gmtime())


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def missed_floors(summary: dict[str, dict[str, Spread]]) -> list[Floor]:
    """Return the floors of measured metrics that their median does not keep."""
    return [
        floor
        for floor in FLOORS
        if floor.metric in summary.get(floor.scenario, {})
        and not floor.is_kept(summary[floor.scenario][floor.metric].median)
    ]


def _floor_cells(scenario: str, metric: str, median: float) -> tuple[str, str]:
    for floor in FLOORS:
        if (floor.scenario, floor.metric) == (scenario, metric):
            bound = f"{'>=' if floor.at_least else '<='} {_number(floor.bound)}"
            kept = floor.is_kept(median)
            return bound, "[green]kept[/green]" if kept else "[bold red]MISSED[/bold red]"
    return "", ""


def _table(result: Result, baseline: Result | None) -> Table:
    table = Table(title="median (lowest to highest) of each metric", title_justify="left")
    table.add_column("scenario")
    table.add_column("metric")
    for heading in ("measured", "spread", "floor"):
        table.add_column(heading, justify="right")
    table.add_column("")
    if baseline is not None:
        table.add_column("to baseline", justify="right")
    for scenario in SCENARIOS:
        for metric, spread in result.summary.get(scenario.name, {}).items():
            cells = [
                scenario.name,
                metric,
                _number(spread.median),
                f"{_number(spread.low)} to {_number(spread.high)}",
                *_floor_cells(scenario.name, metric, spread.median),
            ]
            if baseline is not None:
                before = baseline.summary.get(scenario.name, {}).get(metric)
                has_ratio = before is not None and before.median != 0
                cells.append(
                    f"x {spread.median / before.median:.2f}" if before and has_ratio else "new"
                )
            table.add_row(*cells)
        table.add_section()
    return table


def _floor_table(result: Result) -> Table:
    table = Table(title="floors", title_justify="left")
    for heading in ("scenario", "metric"):
        table.add_column(heading)
    for heading in ("floor", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for floor in FLOORS:
        spread = result.summary.get(floor.scenario, {}).get(floor.metric)
        if spread is not None:
            bound, verdict = _floor_cells(floor.scenario, floor.metric, spread.median)
            table.add_row(floor.scenario, floor.metric, bound, _number(spread.median), verdict)
    return table


def _show_profiles(runs: Sequence[Run], console: Console) -> None:
    for run in runs:
        if run.profile is None:
            continue
        if run.profile.problem:
            console.print(f"{run.scenario}: {run.profile.problem}", highlight=False)
            continue
        each_us = run.metrics["cpu_us_per_message"]
        parts = (
            f"{kind} {percent:.0f} % = {each_us * percent / 100:.2f} us"
            for kind, percent in run.profile.percent.items()
            if percent >= 0.5
        )
        console.print(
            f"{run.scenario}: broker CPU {each_us:.2f} us a message: {'; '.join(parts)}",
            highlight=False,
        )


def show(result: Result, baseline: Result | None, console: Console) -> None:
    """Print the machine, the settings, the table, the profile and every void run."""
    machine = result.machine
    classes = sorted({f"{run.durability} on {run.engine}" for run in result.runs})
    console.print(
        f"machine: {machine.cores} x {machine.cpu}, {machine.memory_bytes / 2**30:.0f} GiB, Linux "
        f"{machine.kernel}, Python {machine.python}, commit {machine.commit}\n"
        f"store: {machine.filesystem} on {machine.device} ({machine.mount_options}), write cache "
        f"{machine.write_cache}, FUA {machine.fua}\n"
        f"durability: {', '.join(classes)}; STOMP, 1 KiB persistent, a receipt for every send, "
        f"loopback, generator on the same machine; {result.rounds} round(s), interleaved\n"
        f"settings: {', '.join(result.settings) or 'defaults'}",
        highlight=False,
    )
    for scenario in SCENARIOS:
        if scenario.name in result.summary:
            console.print(f"  {scenario.name}: {scenario.title}", highlight=False)
    console.print(_table(result, baseline))
    if baseline is not None:
        same = baseline.machine.cpu == machine.cpu and baseline.machine.cores == machine.cores
        console.print(
            f"baseline: {baseline.time}, commit {baseline.machine.commit}"
            + ("" if same else f", ANOTHER MACHINE ({baseline.machine.cpu}): ratios mean little"),
            highlight=False,
        )
    _show_profiles(result.runs, console)
    console.print(_floor_table(result))
    if any(run.durability != "D2" for run in result.runs):
        console.print("[bold red]not D2: the floors don't apply to these figures[/bold red]")
    for run in result.runs:
        if run.is_void and run.report is not None:
            console.print(
                f"[bold red]VOID[/bold red] {run.scenario}: {run.report.ended} "
                f"{run.report.reason} {run.report.checks}",
                highlight=False,
            )

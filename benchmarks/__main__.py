"""`python -m benchmarks`: measure the broker and print the figures beside their floors.

Owns: the command line and the order of the runs. Must never: be part of a test's verdict on speed.
Called by `make bench`.
"""

import shlex
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from benchmarks import bytecode, generator, machine, table
from benchmarks.broker import BrokerError
from benchmarks.disk import DiskError
from benchmarks.generator import GeneratorError
from benchmarks.measurement import MeasurementError, Plan, Run, measure, summarize
from benchmarks.scenarios import SCENARIOS

_FOLDER = Path(__file__).parent
_NAMES = [scenario.name for scenario in SCENARIOS]


def _run_all(
    plan: Plan, names: tuple[str, ...], rounds: int, console: Console
) -> tuple[list[Run], bool]:
    """Run every scenario once a round, so that a slow minute hits all of them alike."""
    binary = generator.build()
    bytecode.compile_packages()
    runs: list[Run] = []
    complete = True
    for round_number in range(1, rounds + 1):
        for scenario in SCENARIOS:
            if names and scenario.name not in names:
                continue
            console.print(
                f"round {round_number} of {rounds}: {scenario.name}, {scenario.title}",
                style="dim",
                highlight=False,
            )
            try:
                runs.append(measure(scenario, plan, binary))
            except (BrokerError, GeneratorError) as error:
                complete = False
                console.print(f"[bold red]{scenario.name} failed[/bold red]: {error}")
    return runs, complete


@click.command(context_settings={"show_default": True})
@click.option("--quick", is_flag=True, help="One round, 1.5 s windows: a look, not a figure.")
@click.option(
    "--scenario", "names", multiple=True, type=click.Choice(_NAMES), help="Only this; repeatable."
)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, help="Rounds, interleaved.")
@click.option("--seconds", type=click.FloatRange(0.1, 600), help="Measured window. [default: 4]")
@click.option("--warmup", type=click.FloatRange(0, 600), help="Before the window. [default: 1]")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER / "results",
    help="Where stores lie while a run lasts, and results stay.",
)
@click.option("--broker", help="Broker to start in place of this environment's vespiary.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Broker setting.")
@click.option("--profile", is_flag=True, help="Split CPU into C, Python and kernel with perf.")
@click.option("--save-baseline", is_flag=True, help="Keep the result as benchmarks/baseline.json.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    quick: bool,
    names: tuple[str, ...],
    rounds: int,
    seconds: float | None,
    warmup: float | None,
    directory: Path,
    broker: str | None,
    settings: tuple[str, ...],
    profile: bool,
    save_baseline: bool,
    strict: bool,
) -> None:
    """Measure the broker's speed, start and memory; docs/howto/benchmarks.md explains the output.

    Exits with 1 when a run failed or is void (loss, duplicates, wrong order), whatever its speed.
    """
    console = Console(width=None if sys.stdout.isatty() else 110)
    if quick:
        rounds, seconds, warmup = 1, seconds or 1.5, 0.5 if warmup is None else warmup
    plan = Plan(
        directory=directory.resolve(),
        command=tuple(shlex.split(broker)) if broker else None,
        settings=settings,
        seconds=seconds,
        warmup=warmup,
        profiles=profile,
    )
    baseline_path = _FOLDER / "baseline.json"
    try:
        baseline = table.load_baseline(baseline_path)
        runs, complete = _run_all(plan, names, rounds, console)
    except (DiskError, GeneratorError, MeasurementError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    result = table.Result(
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=machine.describe(plan.directory),
        settings=settings,
        rounds=rounds,
        summary=summarize(runs),
        runs=runs,
    )
    if runs:
        table.show(result, baseline, console)
        path = table.result_path(plan.directory)
        table.save(result, path)
        console.print(f"kept in {path}", highlight=False, soft_wrap=True)
    if save_baseline and complete:
        table.save(result, baseline_path)
    is_void = any(run.is_void for run in runs)
    if not complete or is_void or (strict and table.missed_floors(result.summary)):
        sys.exit(1)


if __name__ == "__main__":
    main()

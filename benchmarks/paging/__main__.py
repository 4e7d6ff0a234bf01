"""`python -m benchmarks.paging`: a backlog larger than the memory, in and out.

Owns: the command line, the floors and the table. Must never: be part of a test's verdict on speed.
Called by `make bench-paging`.
"""

import shutil
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from benchmarks import bytecode, generator, machine
from benchmarks.broker import BrokerError
from benchmarks.generator import GeneratorError
from benchmarks.journal.__main__ import Figure, show
from benchmarks.paging import measurement, plot, steps

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1024 * 1024
SETTINGS = ("address-settings.#.max-size-bytes=16MiB", "global-max-size=48MiB")
"""Of every broker: what an address keeps in memory, and all together, the image included."""
STEPS = ((1, 0), (1, 1000), (10, 0), (100, 100))
"""Queues that share a page, and pages that they have before, for the time of single calls."""
RATE = 120_000.0
"""What a producer offers beside a lazy queue: the floor of a backlog. Flat out, the disk is the
limit, and what nobody reads is written twice."""


def backlog_figures(runs: list[measurement.Backlog]) -> list[Figure]:
    """Return the figures of backlogs beside the floors of the issue."""
    return [
        Figure(name="messages of 1 KiB", values=[float(run.messages) for run in runs]),
        Figure(name="in a second", values=[r.in_per_s for r in runs], bound=120_000, at_least=True),
        Figure(
            name="out a second", values=[r.out_per_s for r in runs], bound=100_000, at_least=True
        ),
        Figure(
            name="in, last tenth per first",
            values=[run.in_last_per_first_tenth for run in runs],
            bound=0.9,
            at_least=True,
        ),
        Figure(
            name="out, last tenth per first",
            values=[run.out_last_per_first_tenth for run in runs],
            bound=0.9,
            at_least=True,
        ),
        Figure(
            name="peak resident, MiB",
            values=[run.rss_peak_bytes / _MIB for run in runs],
            bound=256,
        ),
        Figure(name="CPU us a message, in and out", values=[r.cpu_us_per_message for r in runs]),
        Figure(
            name="MiB in pages at the end of filling", values=[r.disk_bytes / _MIB for r in runs]
        ),
    ]


def lazy_figures(runs: list[measurement.Lazy], *, has_floor: bool) -> list[Figure]:
    """Return the figures of a fast queue beside a lazy one."""
    rate = runs[0].rate
    offered = f"at {rate:,.0f} a second" if rate else "flat out"
    return [
        Figure(name=f"fast queue {offered}, alone", values=[run.alone.per_s for run in runs]),
        Figure(name="beside another fast one", values=[run.beside_other.per_s for run in runs]),
        Figure(name="beside a lazy one", values=[run.beside_lazy.per_s for run in runs]),
        Figure(
            name="of its speed",
            values=[run.ratio for run in runs],
            bound=0.9 if has_floor else None,
            at_least=True,
        ),
        Figure(
            name="of its speed beside another fast one",
            values=[run.ratio_to_other for run in runs],
        ),
        Figure(name="p50 in us, alone", values=[run.alone.end_to_end_us.p50 for run in runs]),
        Figure(name="p50 beside another", values=[r.beside_other.end_to_end_us.p50 for r in runs]),
        Figure(
            name="p50 beside a lazy one", values=[run.beside_lazy.end_to_end_us.p50 for run in runs]
        ),
        Figure(name="p99 in us, alone", values=[run.alone.end_to_end_us.p99 for run in runs]),
        Figure(name="p99 beside", values=[run.beside_lazy.end_to_end_us.p99 for run in runs]),
    ]


def step_figures(runs: list[steps.Steps]) -> list[Figure]:
    """Return how long single calls of the core take, each a step of the event loop."""
    return [
        Figure(
            name=f"ms to {name}, {run.queues} queues, {run.pages_before} pages before",
            values=[took_ms],
            bound=1,
        )
        for run in runs
        for name, took_ms in run.most_ms.items()
    ]


class Measured(msgspec.Struct, frozen=True):
    """All rounds: backlogs, and lazy queues at the rate of the floor and flat out."""

    backlogs: list[measurement.Backlog] = []
    lazy_at_rate: list[measurement.Lazy] = []
    lazy_flat_out: list[measurement.Lazy] = []


def _measure(
    folder: Path, messages: int, rounds: int, seconds: float, console: Console
) -> Measured:
    binary = generator.build()
    bytecode.compile_packages()
    found = Measured([], [], [])
    for number in range(rounds):
        place = folder / f"{number}"
        place.mkdir()
        try:
            console.print(f"round {number + 1} of {rounds}", style="dim", highlight=False)
            if messages:
                backlog = measurement.measure_backlog(place, binary, messages, SETTINGS)
                found.backlogs.append(backlog)
            if seconds:
                found.lazy_at_rate.append(
                    measurement.measure_lazy(place, binary, seconds, SETTINGS, rate=RATE)
                )
                found.lazy_flat_out.append(
                    measurement.measure_lazy(place, binary, seconds, SETTINGS)
                )
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return found


@click.command()
@click.option("--rounds", default=3, type=click.IntRange(1, 50), show_default=True)
@click.option(
    "--messages",
    default=10_000_000,
    type=click.IntRange(0, 20_000_000),
    show_default=True,
    help="Of the backlog; each takes about 1.1 KiB in the journal or in a page. 0: no backlog.",
)
@click.option(
    "--seconds",
    default=8.0,
    type=click.FloatRange(0, 600),
    show_default=True,
    help="Of each load beside a lazy queue, 4 or more. 0: none.",
)
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    show_default=True,
    help="Where the stores lie while a run lasts.",
)
@click.option(
    "--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Write an SVG there."
)
@click.option(
    "--steps", "is_timing_steps", is_flag=True, help="Time single calls of the core only."
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rounds: int,
    messages: int,
    seconds: float,
    directory: Path,
    picture: Path | None,
    is_timing_steps: bool,
    strict: bool,
) -> None:
    """Measure paging: a queue filled far beyond its memory, and a lazy queue beside a fast one."""
    console = Console()
    if is_timing_steps:
        figures = step_figures([steps.measure_steps(*shape) for shape in STEPS])
        show(figures, "paging-steps", console)
        _judge(figures, strict=strict)
        return
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="paging-"))
    try:
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, commit {here.commit}\nstore: {here.filesystem}, write cache "
            f"{here.write_cache}, FUA {here.fua}\nbroker: D2, {', '.join(SETTINGS)}; 1 producer x "
            "500 in flight, then 1 consumer, acknowledged one by one",
            highlight=False,
        )
        found = _measure(folder, messages, rounds, seconds, console)
    except (BrokerError, GeneratorError, measurement.PagingError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = []
    if found.backlogs:
        figures += backlog_figures(found.backlogs)
    if found.lazy_at_rate:
        figures += lazy_figures(found.lazy_at_rate, has_floor=True)
        figures += lazy_figures(found.lazy_flat_out, has_floor=False)
    show(figures, "paging", console)
    if picture is not None and found.backlogs:
        run = found.backlogs[-1]
        title = (
            f"{run.messages:,} messages of 1 KiB through one queue: at most "
            f"{run.rss_peak_bytes // _MIB} MiB resident"
        )
        lines = [("in, a second", run.in_per_second), ("out, a second", run.out_per_second)]
        picture.write_text(plot.draw(title, lines))
    _judge(figures, strict=strict)


def _judge(figures: list[Figure], *, strict: bool) -> None:
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

"""`python -m benchmarks.engine`: many queues beside few, and many subscribers of one address.

Owns: the command line, the floors and the table. Must never: be part of a test's verdict on speed.
Called by `make bench-engine`.
"""

import shutil
import tempfile
from pathlib import Path

import click
from rich.console import Console

from benchmarks import bytecode, generator, machine
from benchmarks.broker import BrokerError
from benchmarks.engine import measurement
from benchmarks.engine.measurement import BreadthError, FanOut, ManyQueues
from benchmarks.generator import GeneratorError
from benchmarks.journal.__main__ import Figure, show

_FOLDER = Path(__file__).parent.parent / "results"
_FEW = 10
_KIB = 1024
_BACKLOG = 20_000


def queue_figures(few: list[ManyQueues], many: list[ManyQueues], rate: float) -> list[Figure]:
    """Return the figures of many queues beside few; rounds are pairs."""
    count, pairs = many[0].queues, list(zip(few, many, strict=True))
    return [
        Figure(
            name=f"{count} queues: delivered a second",
            values=[run.delivered_per_s for run in many],
            bound=0.99 * rate,
            at_least=True,
        ),
        Figure(name=f"p50 in us, {_FEW} queues", values=[run.end_to_end_us.p50 for run in few]),
        Figure(name=f"p50 in us, {count} queues", values=[run.end_to_end_us.p50 for run in many]),
        Figure(name=f"p99 in us, {_FEW} queues", values=[run.end_to_end_us.p99 for run in few]),
        Figure(name=f"p99 in us, {count} queues", values=[run.end_to_end_us.p99 for run in many]),
        Figure(name=f"processors, {_FEW} queues", values=[run.cores for run in few]),
        Figure(name=f"processors, {count} queues", values=[run.cores for run in many]),
        Figure(
            name="processors, many per few",
            values=[wide.cores / narrow.cores for narrow, wide in pairs],
            bound=1.25,
        ),
        Figure(
            name=f"processors, {count} queues idle",
            values=[run.idle_cores for run in many],
            bound=0.05,
        ),
        Figure(
            name="KiB a queue with its consumer",
            values=[run.queues_rss_bytes / count / _KIB for run in many],
        ),
        Figure(name=f"s to start with {count} queues", values=[run.restart_s for run in many]),
    ]


def fan_out_figures(runs: list[FanOut]) -> list[Figure]:
    """Return the figures of many subscribers."""
    count = runs[0].subscribers
    return [
        Figure(
            name=f"1 to {count}: deliveries a second",
            values=[run.delivered_per_s for run in runs],
            bound=300_000,
            at_least=True,
        ),
        Figure(name="CPU us a delivery", values=[run.cpu_us_per_delivery for run in runs]),
        Figure(
            name=f"KiB of memory, 1 KiB for {count}",
            values=[run.memory_bytes_each / _KIB for run in runs],
        ),
        Figure(
            name=f"KiB on disk, 1 KiB for {count}",
            values=[run.written_bytes_each / _KIB for run in runs],
            bound=count / 10,
        ),
    ]


@click.command(context_settings={"show_default": True})
@click.option("--rounds", default=3, type=click.IntRange(1, 50))
@click.option("--queues", default=10_000, type=click.IntRange(20, 100_000))
@click.option("--rate", default=5000.0, type=click.FloatRange(10, 1e6), help="Messages a second.")
@click.option("--seconds", default=60.0, type=click.FloatRange(1, 3600), help="At that rate.")
@click.option("--subscribers", default=100, type=click.IntRange(1, 4096))
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the stores lie while a run lasts.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rounds: int,
    queues: int,
    rate: float,
    seconds: float,
    subscribers: int,
    directory: Path,
    strict: bool,
) -> None:
    """Measure breadth: many queues beside few, and one message for many subscribers."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="engine-"))
    few, many, fans = [], [], []
    try:
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, commit {here.commit}\nstore: {here.filesystem}, write cache "
            f"{here.write_cache}, FUA {here.fua}\nbroker: D2, default settings; 1 KiB; 10 producers"
            f" and 10 consumers over all queues at {rate:,.0f} a second, acknowledged one by one",
            highlight=False,
        )
        binary = generator.build()
        bytecode.compile_packages()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}", style="dim", highlight=False)
            places = [folder / f"{number}-{what}" for what in ("few", "many", "fan")]
            for place in places:
                place.mkdir()
            few.append(measurement.measure_queues(places[0], binary, _FEW, rate, seconds))
            many.append(measurement.measure_queues(places[1], binary, queues, rate, seconds))
            fans.append(measurement.measure_fan_out(places[2], binary, subscribers, 8.0, _BACKLOG))
            for place in places:
                shutil.rmtree(place)
    except (BreadthError, BrokerError, GeneratorError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = [*queue_figures(few, many, rate), *fan_out_figures(fans)]
    show(figures, "breadth", console)
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

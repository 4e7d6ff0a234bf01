"""`python -m benchmarks.pipeline`: journals as columns, journals and live queues through Spark.

Owns: the command line, the order of the runs, the floors and the table. Must never: be part of a
test's verdict on speed. Called by `make bench-pipeline`.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import machine
from benchmarks.broker import BrokerError
from benchmarks.generator import GeneratorError
from benchmarks.journal.__main__ import Figure, show
from benchmarks.pipeline import frames, live_queues, scanning, streaming
from benchmarks.pipeline.journals import Journal, write_journal
from vespiary_pipeline.session import local_session
from vespiary_spec.errors import VespiaryError

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1024 * 1024
_SCAN_FLOOR_MB = 1000.0
_SPARK_FLOOR_MB = 300.0
_EXPORT_FLOOR_MB = 150.0
_LIVE_S_MAX = 8.0
_WORKER_MIB_MAX = 512.0
_MESSAGES_1_KIB = 880_000
"""Messages of 1 KiB in the journal that Spark reads: 1 GB."""
_MESSAGES_100_B = 1_980_000
"""Messages of 100 bytes in the other one: 4 000 000 records."""
_WORKER_BODIES = ((1024, 20_000), (1024 * 1024, 200))
"""Size and number of the bodies that a worker's memory is measured with."""


def scan_figures(runs: list[scanning.Passes], *, has_floor: bool) -> list[Figure]:
    """Return the figures of one size of body.

    Args:
        runs: One for each round.
        has_floor: Whether the scan is held against its floor: that of 1 KiB bodies is.
    """
    return [
        Figure(
            name="MB a second and core, no bodies",
            values=[run.scan / 1e6 for run in runs],
            bound=_SCAN_FLOOR_MB if has_floor else None,
            at_least=True,
        ),
        Figure(name="the same with all headers", values=[run.properties / 1e6 for run in runs]),
        Figure(name="the same with all bodies", values=[run.bodies / 1e6 for run in runs]),
        Figure(
            name="million records a second and core",
            values=[run.records_per_s / 1e6 for run in runs],
        ),
    ]


def _scans(folder: Path, body_bytes: int, size_mib: int, rounds: int) -> list[scanning.Passes]:
    path = folder / f"bodies-{body_bytes}"
    try:
        journal = scanning.make_journal(path, body_bytes, size_mib * _MIB)
        return [scanning.measure(journal) for _ in range(rounds)]
    finally:
        path.unlink(missing_ok=True)


def _all_scans(folder: Path, size_mib: int, rounds: int, console: Console) -> list[Figure]:
    console.print(
        f"scan: {size_mib} MiB in the page cache, windows of {scanning.WINDOW_BYTES // _MIB} MiB, "
        "an ADD and an ACK for each message; by processor time of one thread",
        highlight=False,
    )
    shown: list[Figure] = []
    for body_bytes, has_floor in ((1024, True), (100, False)):
        runs = _scans(folder, body_bytes, size_mib, rounds)
        figures = scan_figures(runs, has_floor=has_floor)
        show(figures, f"bodies of {body_bytes} bytes", console)
        shown += figures
    return shown


def _read_figures(journal: Journal, spark: SparkSession, rounds: int) -> list[Figure]:
    """Read a journal with few columns and with all but bodies; without Spark, then with it."""
    few = {"columns": frames.FEW}
    megabytes = journal.used_bytes / 1e6

    def speeds(measure: Callable[[], float]) -> list[float]:
        measure()  # files into the page cache, workers warm
        return [megabytes / measure() for _ in range(rounds)]

    return [
        Figure(
            name="MB a second and core, three columns",
            values=speeds(lambda: frames.part_s(journal, **few)),
        ),
        Figure(
            name="the same, all columns but bodies", values=speeds(lambda: frames.part_s(journal))
        ),
        Figure(
            name="MB a second through Spark, three columns",
            values=speeds(lambda: frames.read_s(spark, journal, **few)),
            bound=_SPARK_FLOOR_MB,
            at_least=True,
        ),
        Figure(
            name="the same, all columns but bodies",
            values=speeds(lambda: frames.read_s(spark, journal)),
            bound=_SPARK_FLOOR_MB,
            at_least=True,
        ),
    ]


def _export_figure(journal: Journal, spark: SparkSession, to: Path, rounds: int) -> Figure:
    frames.export_s(spark, journal, to)
    megabytes = journal.used_bytes / 1e6
    return Figure(
        name="MB a second to Parquet, with bodies",
        values=[megabytes / frames.export_s(spark, journal, to) for _ in range(rounds)],
        bound=_EXPORT_FLOOR_MB,
        at_least=True,
    )


def _live_figure(journal: Journal, spark: SparkSession, rounds: int) -> Figure:
    frames.live_s(spark, journal)
    values = [frames.live_s(spark, journal) for _ in range(rounds)]
    return Figure(name="s to all live places", values=values, bound=_LIVE_S_MAX)


def _worker_figures(folder: Path, rounds: int) -> list[Figure]:
    figures = []
    for body_bytes, messages in _WORKER_BODIES:
        journal = write_journal(folder / f"worker-{body_bytes}", messages, body_bytes)
        for name, task in (("reads", frames.read_all), ("exports", frames.export_all)):
            peaks = [frames.worker_peak_bytes(journal.folder, task) for _ in range(rounds)]
            figures.append(
                Figure(
                    name=f"MiB at the most, {name} bodies of {body_bytes >> 10} KiB",
                    values=[peak / _MIB for peak in peaks],
                    bound=_WORKER_MIB_MAX,
                )
            )
    return figures


def _through_spark(folder: Path, rounds: int, console: Console) -> list[Figure]:
    """Measure all that needs Spark, and show it table by table."""
    large = write_journal(folder / "large", _MESSAGES_1_KIB, 1024)
    small = write_journal(folder / "small", _MESSAGES_100_B, 100)
    shown: list[Figure] = []

    def tell(figures: list[Figure], title: str) -> None:
        show(figures, title, console)
        shown.extend(figures)

    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    console.print(f"Spark: {frames.SETTINGS}, load before it {load}", highlight=False)
    with local_session(frames.SETTINGS, parent=folder) as spark:
        for journal, body in ((large, "1 KiB"), (small, "100 bytes")):
            title = f"bodies of {body}: {journal.records} records, {journal.used_bytes >> 20} MiB"
            tell(_read_figures(journal, spark, rounds), title)
        tell([_live_figure(small, spark, rounds)], f"live places of {small.records} records")
        tell([_export_figure(large, spark, folder / "lake", rounds)], "export of bodies of 1 KiB")
    tell(_worker_figures(folder, rounds), "memory of a worker")
    return shown


@click.command()
@click.option("--rounds", default=5, type=click.IntRange(1, 50), show_default=True)
@click.option(
    "--size-mib",
    default=256,
    type=click.IntRange(1, 65_536),
    show_default=True,
    help="Length of the file that is read; it has to fit into the page cache.",
)
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    show_default=True,
    help="Where the file lies while a run lasts.",
)
@click.option(
    "--messages",
    default=1_000_000,
    type=click.IntRange(2 * streaming.BATCH_ROWS),
    show_default=True,
    help="In the queues that Spark reads, and to the one that it writes.",
)
@click.option("--spark/--no-spark", default=True, help="Measure through Spark too.")
@click.option("--streams-only", is_flag=True, help="Measure live queues alone.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rounds: int,
    size_mib: int,
    directory: Path,
    messages: int,
    spark: bool,
    streams_only: bool,
    strict: bool,
) -> None:
    """Measure how fast a journal becomes columns, on one core and through Spark."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="pipeline-") as name:
        folder = Path(name)
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, {here.filesystem} on {here.device}, Python {here.python}, commit "
            f"{here.commit}",
            highlight=False,
        )
        try:
            if not streams_only:
                figures += _all_scans(folder, size_mib, rounds, console)
            if spark and not streams_only:
                figures += _through_spark(folder, rounds, console)
            if spark or streams_only:
                figures += live_queues.measure(folder, messages, rounds, console)
        except (VespiaryError, scanning.ScanError, BrokerError, GeneratorError) as error:
            raise click.ClickException(str(error)) from error
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

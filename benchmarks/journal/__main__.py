"""`python -m benchmarks.journal`: the journal beside the raw disk, and its recovery.

Owns: the command line, the order of the runs, the floors and the table. Must never: be part of a
test's verdict on speed. Called by `make bench-journal`.
"""

import shutil
import statistics
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import bytecode, generator, machine
from benchmarks.broker import BrokerError
from benchmarks.generator import GeneratorError
from benchmarks.journal import measurement, raw, recovery
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import JournalType

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1024 * 1024


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of all rounds, beside its floor.

    Attributes:
        name: What it is.
        values: One for each round.
        bound: Its floor; None for a figure that only explains.
        at_least: Whether the bound is the least or the most.
    """

    name: str
    values: list[float]
    bound: float | None = None
    at_least: bool = False

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Whether the floor is kept."""
        if self.bound is None:
            return ""
        is_kept = self.median >= self.bound if self.at_least else self.median <= self.bound
        return "kept" if is_kept else "MISSED"


def append_figures(runs: list[measurement.Appends], *, has_floors: bool) -> list[Figure]:
    """Return the figures of append runs.

    Args:
        runs: One for each round.
        has_floors: Whether they are held against the floors: those of the default setting are.
    """
    figures = [
        Figure(name="appends a second, 1 KiB", values=[run.messages_per_s for run in runs]),
        Figure(name="MiB written a second", values=[r.written_bytes_per_s / _MIB for r in runs]),
        Figure(name="KiB a write", values=[run.write_bytes / 1024 for run in runs]),
        Figure(name="raw MiB a second so", values=[run.raw_bytes_per_s / _MIB for run in runs]),
        Figure(
            name="bandwidth per raw",
            values=[run.bandwidth_per_raw for run in runs],
            bound=0.85,
            at_least=True,
        ),
        Figure(
            name="disk bytes per message byte",
            values=[run.disk_bytes_per_message_byte for run in runs],
            bound=1.10,
        ),
        Figure(name="one at a time, p50 us", values=[run.single_p50_us for run in runs]),
        Figure(name="one at a time, p99 us", values=[run.single_p99_us for run in runs]),
        Figure(name="raw 4 KiB write, p50 us", values=[run.raw_single_p50_us for run in runs]),
        Figure(
            name="one at a time per raw", values=[run.single_per_raw for run in runs], bound=1.3
        ),
    ]
    if has_floors:
        return figures
    return [msgspec.structs.replace(figure, bound=None) for figure in figures]


def recovery_figures(runs: list[recovery.Recovered]) -> list[Figure]:
    """Return the figures of recovery runs."""
    return [
        Figure(name="messages in the journal", values=[float(run.messages) for run in runs]),
        Figure(name="MiB of journal", values=[run.journal_bytes / _MIB for run in runs]),
        Figure(name="ready, s", values=[run.ready_s for run in runs]),
        Figure(name="ready with an empty store, s", values=[run.empty_ready_s for run in runs]),
        Figure(name="first delivery, s", values=[run.first_delivery_s for run in runs], bound=2.0),
        Figure(
            name="index bytes per message",
            values=[run.index_bytes_per_message for run in runs],
            bound=64.0,
        ),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def show(figures: list[Figure], title: str, console: Console) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    for heading in ("median", "lowest to highest", "floor"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for figure in figures:
        floor = ""
        if figure.bound is not None:
            floor = f"{'>=' if figure.at_least else '<='} {figure.bound:g}"
        span = f"{_number(min(figure.values))} to {_number(max(figure.values))}"
        table.add_row(figure.name, _number(figure.median), span, floor, figure.verdict)
    console.print(table)


def _appends(
    folder: Path, program: Path, plan: measurement.Plan, rounds: int
) -> list[measurement.Appends]:
    runs = []
    for number in range(rounds):
        place = folder / f"journal-{number}"
        try:
            runs.append(measurement.measure(place, program, plan))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return runs


def _show_appends(folder: Path, messages: int, rounds: int, console: Console) -> list[Figure]:
    """Measure and print all appends; return the figures that have floors."""
    program = raw.build(folder)
    plan = measurement.Plan(messages=messages)
    figures = append_figures(_appends(folder, program, plan, rounds), has_floors=True)
    show(figures, "appends, D2, ASYNCIO, files made beforehand", console)
    for title, other in (
        ("files made on the way", msgspec.structs.replace(plan, is_preallocated=False)),
        ("NIO", msgspec.structs.replace(plan, journal_type=JournalType.NIO)),
        ("IO_URING", msgspec.structs.replace(plan, journal_type=JournalType.IO_URING)),
    ):
        runs = _appends(folder, program, other, rounds)
        engines = ", ".join(dict.fromkeys(run.engine for run in runs))
        title = f"the same, {title} (engine {engines})"
        show(append_figures(runs, has_floors=False), title, console)
    return figures


def _recoveries(folder: Path, messages: int, rounds: int) -> list[recovery.Recovered]:
    runs = []
    binary = generator.build()
    bytecode.compile_packages()
    for number in range(rounds):
        place = folder / f"recovery-{number}"
        place.mkdir()
        try:
            destination = "/queue/bench.0"
            runs.append(recovery.measure(place, binary, messages, destination=destination))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return runs


@click.command()
@click.option("--rounds", default=3, type=click.IntRange(1, 50), show_default=True)
@click.option(
    "--messages",
    default=1_000_000,
    type=click.IntRange(10_000, 20_000_000),
    show_default=True,
    help="Live messages of the recovery; appends take six tenths of them.",
)
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    show_default=True,
    help="Where the journals lie while a run lasts.",
)
@click.option("--recovery-only", is_flag=True, help="Leave the appends out.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(rounds: int, messages: int, directory: Path, recovery_only: bool, strict: bool) -> None:
    """Measure the journal alone: appends beside the raw disk, and recovery after kill -9."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="journal-"))
    try:
        here = machine.describe(folder)
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, commit {here.commit}\nstore: {here.filesystem}, write cache "
            f"{here.write_cache}, FUA {here.fua}\nappends: 1 KiB in one process, without sockets; "
            "raw: the same writes by a C loop on the same files",
            highlight=False,
        )
        figures = (
            [] if recovery_only else _show_appends(folder, messages * 6 // 10, rounds, console)
        )
        recovered = recovery_figures(_recoveries(folder, messages, rounds))
        show(recovered, "recovery after kill -9 (default settings)", console)
    except (VespiaryError, BrokerError, GeneratorError, raw.RawError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    missed = [figure.name for figure in (*figures, *recovered) if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

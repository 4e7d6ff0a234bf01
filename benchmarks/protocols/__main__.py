"""`python -m benchmarks.protocols`: STOMP, MQTT and AMQP, from each to each, with TLS, and idle.

Owns: the command line, the order of the runs and the table. Must never: be part of a test's verdict
on speed, or show a figure of a row that has failed. Called by `make bench-protocols`.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from benchmarks import bytecode, generator, machine
from benchmarks.broker import BrokerError
from benchmarks.generator import GeneratorError
from benchmarks.journal.__main__ import Figure, show
from benchmarks.protocols import measurement
from benchmarks.protocols.figures import idle_figures, load_figures, ratio_figures
from benchmarks.protocols.measurement import IdleFigures, LoadFigures, ProtocolError
from benchmarks.protocols.rows import IDLE, ROWS, RowError, choose

_FOLDER = Path(__file__).parent.parent / "results"
_TABLE_COLUMNS = 110


class Found(msgspec.Struct):
    """What all rounds have found.

    Attributes:
        loads: The runs of each row, one a round.
        idle: Those of idle connections.
        failed: Rows without figures, and why.
    """

    loads: dict[str, list[LoadFigures]] = {}
    idle: list[IdleFigures] = []
    failed: dict[str, str] = {}

    def figures(self) -> list[Figure]:
        """Return all figures of the rows that have not failed."""
        loads = {name: runs for name, runs in self.loads.items() if name not in self.failed}
        figures = [figure for n, runs in loads.items() for figure in load_figures(ROWS[n], runs)]
        figures += ratio_figures(loads)
        return figures + (idle_figures(self.idle) if self.idle and IDLE not in self.failed else [])


def _introduce(folder: Path, settings: Sequence[str], console: Console) -> None:
    here = machine.describe(folder)
    console.print(
        f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
        f"{here.kernel}, commit {here.commit}\nstore: {here.filesystem}, write cache "
        f"{here.write_cache}, FUA {here.fua}\nbroker: D2, "
        f"{', '.join(settings) or 'default settings'}; 1 KiB, durable, each confirmed (receipts, "
        "QoS 1, unsettled transfers); journalled for a queue or a persistent session",
        highlight=False,
    )


def _measure(
    folder: Path, name: str, connections: int, settings: tuple[str, ...], found: Found
) -> None:
    """Measure one row once, on a fresh store; a failure is kept as the row's own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        if name == IDLE:
            found.idle.append(measurement.measure_idle(place, connections, settings))
        else:
            run = measurement.measure_load(place, ROWS[name], settings)
            found.loads.setdefault(name, []).append(run)
    except (BrokerError, GeneratorError, ProtocolError) as error:
        found.failed[name] = str(error)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _without_tls(names: list[str], console: Console) -> list[str]:
    """Leave out what can't be measured here, and say so."""
    if not any(name in ROWS and ROWS[name].has_tls for name in names) or generator.has_tls():
        return names
    console.print(
        "rows with TLS are left out: the load generator can't be built with it, as there is no "
        "openssl/ssl.h; on Debian: apt-get install libssl-dev, then remove benchmarks/bin",
        style="bold red",
        highlight=False,
    )
    return [name for name in names if name == IDLE or not ROWS[name].has_tls]


@click.command(context_settings={"show_default": True})
@click.argument("rows", nargs=-1)
@click.option("--rounds", default=3, type=click.IntRange(1, 50))
@click.option("--connections", default=10_000, type=click.IntRange(1, 100_000))
@click.option("--set", "settings", multiple=True, help="A setting of the broker, NAME=VALUE.")
@click.option(
    "--directory",
    default=_FOLDER,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the stores lie while a run lasts.",
)
@click.option("--list", "lists", is_flag=True, help="Name the rows, and measure nothing.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(
    rows: tuple[str, ...],
    rounds: int,
    connections: int,
    settings: tuple[str, ...],
    directory: Path,
    lists: bool,
    strict: bool,
) -> None:
    """Measure protocols: confirms, deliveries, CPU, and the memory of idle connections.

    ROWS are names of rows or parts of them ("amqp", "AMQP 1 x 200", tls, "mqtt to", idle); none
    means all.
    """
    console = Console()
    console.width = max(console.width, _TABLE_COLUMNS)
    try:
        names = choose(rows)
    except RowError as error:
        raise click.UsageError(str(error)) from error
    if lists:
        click.echo("\n".join(names))
        return
    names = _without_tls(names, console)
    directory.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=directory, prefix="protocols-"))
    found = Found()
    try:
        _introduce(folder, settings, console)
        bytecode.compile_packages()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}", style="dim", highlight=False)
            for name in names:
                if name not in found.failed:
                    _measure(folder, name, connections, settings, found)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = found.figures()
    if figures:
        show(figures, "protocols", console)
    for name, reason in found.failed.items():
        console.print(f"[bold red]VOID[/bold red] {name}: {reason}", highlight=False)
    missed = [figure.name for figure in figures if figure.verdict == "MISSED"]
    if found.failed:
        raise click.ClickException(f"rows without figures: {'; '.join(found.failed)}")
    if strict and missed:
        raise click.ClickException(f"floors missed: {'; '.join(missed)}")


if __name__ == "__main__":
    main()

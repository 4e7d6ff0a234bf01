"""`python -m benchmarks.pipeline`: journals as columns on one core, without Spark.

Owns: the command line, the order of the runs, the floors and the table. Must never: be part of a
test's verdict on speed. Called by `make bench-pipeline`.
"""

import tempfile
from pathlib import Path

import click
from rich.console import Console

from benchmarks import machine
from benchmarks.journal.__main__ import Figure, show
from benchmarks.pipeline import scanning
from vespiary_spec.errors import VespiaryError

_FOLDER = Path(__file__).parent.parent / "results"
_MIB = 1024 * 1024
_SCAN_FLOOR_MB = 1000.0


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
@click.option("--strict", is_flag=True, help="Exit with 1 when a floor is missed.")
def main(rounds: int, size_mib: int, directory: Path, strict: bool) -> None:
    """Measure how fast a journal becomes columns, on one core and without Spark."""
    console = Console()
    directory.mkdir(parents=True, exist_ok=True)
    missed: list[str] = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="pipeline-") as folder:
        here = machine.describe(Path(folder))
        console.print(
            f"machine: {here.cores} x {here.cpu}, {here.memory_bytes >> 30} GiB, Linux "
            f"{here.kernel}, Python {here.python}, commit {here.commit}\nscan: {size_mib} MiB in "
            f"the page cache, windows of {scanning.WINDOW_BYTES // _MIB} MiB, an ADD and an ACK "
            "for each message; by processor time of one thread",
            highlight=False,
        )
        for body_bytes, has_floor in ((1024, True), (100, False)):
            try:
                runs = _scans(Path(folder), body_bytes, size_mib, rounds)
            except (VespiaryError, scanning.ScanError) as error:
                raise click.ClickException(str(error)) from error
            figures = scan_figures(runs, has_floor=has_floor)
            show(figures, f"bodies of {body_bytes} bytes", console)
            missed += [figure.name for figure in figures if figure.verdict == "MISSED"]
    if strict and missed:
        raise click.ClickException(f"floors missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()

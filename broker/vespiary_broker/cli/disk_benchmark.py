"""`vespiary disk-benchmark`: measure a disk, and say what it means for a journal.

Owns: the command, its tables and its progress bar. What is measured and judged is
`store.disk_benchmark`. Called by `program`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.store.disk_benchmark import benchmark
from vespiary_broker.store.disk_benchmark.benchmark import BenchmarkRequest
from vespiary_broker.store.disk_benchmark.measuring import READ, SYNCED_WRITE, WRITE
from vespiary_broker.store.disk_benchmark.results import (
    BLOCK_SIZE,
    FIRST_WRITE,
    GROWING,
    REWRITE,
    DiskFacts,
    Phase,
    Report,
)
from vespiary_spec.errors import QuantityError
from vespiary_spec.units import format_size, format_size_rounded, parse_size

_TICKS_PER_S = 100
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Size(click.ParamType[int]):
    """A number of bytes, with suffixes as in `broker.yaml`."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the bytes."""
        try:
            return parse_size(value if isinstance(value, int) else str(value))
        except QuantityError as error:
            self.fail(str(error), param, ctx)


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, and let neither disturb the removal behind it."""
    is_interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command("disk-benchmark", short_help="Measure a disk for the journal.")
@click.argument("target", metavar="[FILE|DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--bs",
    "block_bytes",
    type=Size(),
    default=benchmark.BLOCK_BYTES_DEFAULT,
    show_default=True,
    help="Size of one write or read.",
)
@click.option(
    "--size",
    "file_bytes",
    type=Size(),
    default="64MiB",
    show_default=True,
    help="Size of each file; six times as much space is taken for a while.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=3600),
    default=benchmark.SECONDS_DEFAULT,
    show_default=True,
    help="Time for each of about 50 measurements.",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as one JSON object.")
def disk_benchmark(
    target: Path, block_bytes: int, file_bytes: int, seconds: float, is_json: bool
) -> int:
    """Measure flushed writes, plain writes and reads, as a journal would make them.

    In a new folder in DIR (a hidden one), or under the name FILE, which must not exist. One file is
    made by each preallocation strategy, and one that grows; each engine of the broker writes to
    them, one write in flight. Then it says what the disk promises, whether its flushes can be
    believed, and which settings to use. The folder is removed at the end, also after Ctrl-C.

    Exit codes: 0 good, 1 the disk is not fit for a journal or could not be measured, 2 usage.
    """
    request = BenchmarkRequest(
        target=target.absolute(), block_bytes=block_bytes, file_bytes=file_bytes, seconds=seconds
    )
    ticks = int(benchmark.phases_max() * seconds * _TICKS_PER_S)
    done_s, told = 0.0, 0
    with (
        _interrupted_once(),
        terminal.progress(f"measuring {request.target}", max(ticks, 2)) as advance,
    ):

        def on_progress(more_s: float) -> None:
            nonlocal done_s, told
            done_s += more_s
            steps = int(done_s * _TICKS_PER_S) - told
            told += steps
            advance(steps)

        report = benchmark.run(request, on_progress=on_progress)
    if is_json:
        terminal.show_json(report)
    else:
        show_report(report)
    return 0 if report.judgement.is_good else 1


def show_report(report: Report) -> None:
    """Print a report for people."""
    terminal.echo(_disk_line(report.facts))
    terminal.echo(
        f"files of {format_size(report.file_bytes)}, blocks of {format_size(report.block_bytes)}, "
        f"{report.seconds:g} s each, one operation in flight"
    )
    terminal.echo()
    terminal.show_table(
        ("preallocation", "made in#", "MiB/s#", "note"),
        [
            (
                making.preallocation,
                f"{making.seconds * 1000:.1f} ms",
                _mib(making.bytes_per_s),
                making.note,
            )
            for making in report.making
        ],
    )
    for title, group, kind, name_of in _TABLES:
        phases = [phase for phase in report.phases if (phase.group, phase.kind) == (group, kind)]
        if phases:
            terminal.echo()
            columns = (title, "engine", "per second#", "MiB/s#", "p50 µs#", "p90#", "p99#", "max#")
            terminal.show_table(
                columns, [(name_of(phase), phase.engine, *_figures(phase)) for phase in phases]
            )
    terminal.echo()
    for sentence in report.judgement.sentences:
        terminal.echo(f"- {sentence}")
    terminal.echo()
    terminal.echo("settings for this disk:")
    for name, value in report.judgement.settings.items():
        terminal.echo(f"  {name}: {value}")
    terminal.echo("good" if report.judgement.is_good else "not fit for a journal")


def _file_name(phase: Phase) -> str:
    return "none: the file grows" if phase.preallocation == GROWING else phase.preallocation


def _block_name(phase: Phase) -> str:
    return format_size(phase.block_bytes)


_TABLES: Final = (
    ("flushed writes to a file of", FIRST_WRITE, SYNCED_WRITE, _file_name),
    ("writes, flushed at the end, to", FIRST_WRITE, WRITE, _file_name),
    ("the same, to blocks written before", REWRITE, WRITE, _file_name),
    ("reads of", REWRITE, READ, _file_name),
    ("flushed writes of", BLOCK_SIZE, SYNCED_WRITE, _block_name),
)
"""Title of the first column, group and kind of the phases, and what stands in that column."""


def _figures(phase: Phase) -> tuple[str, ...]:
    return (
        f"{phase.operations_per_s:.0f}",
        _mib(phase.bytes_per_s),
        *(f"{value:.0f}" for value in (phase.p50_us, phase.p90_us, phase.p99_us, phase.max_us)),
    )


def _mib(bytes_per_s: float) -> str:
    return f"{bytes_per_s / (1 << 20):.1f}"


def _disk_line(facts: DiskFacts) -> str:
    parts = [f"{facts.folder}: {facts.filesystem}"]
    if facts.device:
        parts.append(f"on {facts.device}")
    if facts.write_cache:
        parts.append(f"write cache: {facts.write_cache}")
    if facts.alignment_bytes:
        parts.append(f"direct writes in units of {format_size_rounded(facts.alignment_bytes)}")
    parts.append(f"Linux {facts.kernel}, {facts.cores} processors")
    return ", ".join(parts)

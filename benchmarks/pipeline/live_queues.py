"""Live queues through Spark, in and out: which loads are run, and what they are held against.

Owns: the plans of streams and sinks, their floors, and their tables. Must never: measure anything
itself. Called by `benchmarks.pipeline.__main__`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import bytecode, generator
from benchmarks.journal.__main__ import Figure, show
from benchmarks.paging.__main__ import SETTINGS as PAGED
from benchmarks.pipeline import frames, sinking, streaming
from benchmarks.pipeline.sinking import SinkPlan
from benchmarks.pipeline.streaming import Plan, StreamRun
from vespiary_pipeline.session import local_session

ROWS_FLOOR: Final = 100_000.0
"""Messages a second from a live queue into Spark, at as many a batch."""
WORKER_MIB_MAX: Final = 512.0

_MIB: Final = 1024 * 1024
_FEW: Final = "queue string, sequence bigint, body binary"
_WARM: Final = Plan(messages=200_000, body_bytes=100, batch_rows=20_000)
"""Read before all others: a JVM compiles what it runs often, and a query of a day does."""


def stream_plans(messages: int) -> list[tuple[str, Plan]]:
    """Return what is read, by its title.

    Args:
        messages: Of each load; at least two batches.
    """
    return [
        ("bodies of 100 bytes", Plan(messages=messages, body_bytes=100)),
        ("bodies of 1 KiB", Plan(messages=messages, body_bytes=1024)),
        (
            "bodies of 1 KiB, queue, sequence and body alone",
            Plan(messages=messages, body_bytes=1024, columns=_FEW),
        ),
        ("bodies of 1 KiB, two queues", Plan(messages=messages, body_bytes=1024, queues=2)),
        (
            "bodies of 1 KiB, paged (48 MiB of memory)",
            Plan(messages=messages, body_bytes=1024, settings=PAGED),
        ),
    ]


def large_plan() -> Plan:
    """Return what a worker's memory is measured with."""
    return Plan(messages=600, body_bytes=_MIB, batch_rows=200)


def figures_of(runs: list[StreamRun], *, has_floor: bool) -> list[Figure]:
    """Return the figures of one load.

    Args:
        runs: One for each round.
        has_floor: Whether the rate is held against the floor of streams.
    """
    phases = [
        Figure(name=f"ms of {name}", values=[run.phase_ms[name] for run in runs])
        for name in streaming.PHASES
    ]
    return [
        Figure(
            name="rows a second, without the first batch",
            values=[run.rows_per_s for run in runs],
            bound=ROWS_FLOOR if has_floor else None,
            at_least=True,
        ),
        Figure(
            name="rows a second by the clock, with start and end",
            values=[run.rows_per_s_by_clock for run in runs],
        ),
        Figure(name="us a row of the broker", values=[run.broker_us for run in runs]),
        Figure(name="us a row of Python workers", values=[run.python_us for run in runs]),
        Figure(name="us a row of the JVM", values=[run.jvm_us for run in runs]),
        *phases,
        Figure(
            name="MiB of a worker at the most",
            values=[run.worker_peak_bytes / _MIB for run in runs],
            bound=WORKER_MIB_MAX,
        ),
    ]


def _rounds(measure: Callable[[], StreamRun], rounds: int, console: Console) -> list[StreamRun]:
    """Measure, with the machine's load beside each run."""
    runs = []
    for _ in range(rounds):
        runs.append(measure())
        console.print(
            f"load {os.getloadavg()[0]:.1f}: {runs[-1].rows_per_s:,.0f} rows a second, "
            f"{len(runs[-1].rows)} batches",
            highlight=False,
        )
    return runs


def _streams(
    spark: SparkSession, folder: Path, messages: int, rounds: int, console: Console
) -> list[Figure]:
    binary = generator.build()
    streaming.measure(spark, folder, binary, _WARM)
    shown: list[Figure] = []
    for title, plan in stream_plans(messages):
        runs = _rounds(lambda p=plan: streaming.measure(spark, folder, binary, p), rounds, console)  # type: ignore[misc]
        figures = figures_of(runs, has_floor=True)
        asked = plan.columns or "all columns"
        show(figures, f"from live queues: {title}; {asked}, class {runs[0].durability}", console)
        shown += figures
    plan = large_plan()
    runs = _rounds(lambda: streaming.measure(spark, folder, binary, plan), rounds, console)
    figures = figures_of(runs, has_floor=False)
    show(figures, f"from live queues: bodies of 1 MiB, {plan.batch_rows} a batch", console)
    return shown + figures


def _sinks(
    spark: SparkSession, folder: Path, rows: int, rounds: int, console: Console
) -> list[Figure]:
    shown: list[Figure] = []
    numbers = folder / "numbers"
    batches = max(2, rows // streaming.BATCH_ROWS)
    try:
        sinking.write_numbers(spark, numbers, batches * streaming.BATCH_ROWS)
        for body_bytes, text in ((100, "100 bytes"), (1024, "1 KiB")):
            plan = SinkPlan(batches=batches, body_bytes=body_bytes)
            runs = _rounds(
                lambda p=plan: sinking.measure(spark, folder, numbers, p),  # type: ignore[misc]
                rounds,
                console,
            )
            figures = figures_of(runs, has_floor=False)
            title = f"to a live queue, fenced: bodies of {text}, class {runs[0].durability}"
            show(figures, title, console)
            shown += figures
    finally:
        shutil.rmtree(numbers, ignore_errors=True)
    return shown


def measure(folder: Path, messages: int, rounds: int, console: Console) -> list[Figure]:
    """Measure streams and sinks, and show them table by table.

    Args:
        folder: Where brokers keep their data meanwhile.
        messages: Of each load.
        rounds: How often each is run, each time with a new broker.
        console: Where the tables go.

    Raises:
        ScanError: A run did not have every message once.
        BrokerError: A broker did not run.
        GeneratorError: A fill did not.
        SparkUnusable: Spark does not start.
    """
    bytecode.compile_packages()
    console.print(
        f"live queues: {frames.SETTINGS}, maxMessagesPerTrigger {streaming.BATCH_ROWS}, broker, "
        f"load generator and Spark on this machine, sink noop, {messages} messages; load before "
        f"it {os.getloadavg()[0]:.1f}",
        highlight=False,
    )
    with local_session(frames.SETTINGS, parent=folder) as spark:
        figures = _streams(spark, folder, messages, rounds, console)
        return figures + _sinks(spark, folder, messages, rounds, console)

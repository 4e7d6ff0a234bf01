"""`python -m benchmarks.pipeline.scaling`: 10 TB of journals on 100 executors, from what is measured here.

Owns: what grows with the number of files and records (the plan on the driver, the description of a
task, what is shuffled), measured on small journals, and a simulation of many executors with
stragglers and losses. Must never: give a computed figure as a measured one. The page that explains
the figures is docs/internals/pipeline-scaling.md.
"""  # noqa: E501

from __future__ import annotations

import heapq
import pickle
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.pipeline import frames
from benchmarks.pipeline.journals import Journal, write_journal
from vespiary_pipeline.options import read_options
from vespiary_pipeline.session import local_session
from vespiary_pipeline.source import VespiaryReader, declared_columns
from vespiary_pipeline.transform import live

FILE_BYTES = 320 * 1024
"""Of the files that are planned: what a plan costs does not depend on their size."""

_BODY_BYTES = 1024
_MESSAGES_A_FILE = 225
_TOTAL_BYTES = 10e12
_JOURNAL_FILE_BYTES = 10 * 1024 * 1024
_TASK_BYTES = 64 * 1024 * 1024
_EXECUTORS = 100
_CORES = 4
_RATE_BYTES_S = 50e6
"""Of one of 400 cores where the storage gives 20 GB/s: a core takes more (`bench-pipeline`)."""

_RECORD_BYTES = 1200
_RUNS = 20


class Plan(NamedTuple):
    """What planning a journal took.

    Attributes:
        files: Files in it.
        cpu_s: Processor time of the driver.
        memory_bytes: By how much its memory grew.
        task_bytes: Of all tasks' descriptions.
        tasks: How many there are.
    """

    files: int
    cpu_s: float
    memory_bytes: int
    task_bytes: int
    tasks: int


def plan(journal: Journal, files: int) -> Plan:
    """Plan a journal as the driver does."""
    options = read_options({"path": str(journal.folder), "journal": "message"})
    reader = VespiaryReader(options, declared_columns(options))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    parts = reader.partitions()
    spent = time.process_time() - begun
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    described = sum(len(pickle.dumps(part)) for part in parts)
    return Plan(files, spent, grown * 1024, described, len(parts))


def shuffled_bytes(spark: SparkSession, journal: Journal) -> int:
    """Return what resolving the live set of a journal shuffles, as Spark counts it."""
    before = len(_shuffled(spark))
    live(frames.load(spark, journal.folder, journal="message")).write.format("noop").mode(
        "overwrite"
    ).save()
    by_stage = _shuffled(spark)
    return sum(by_stage[: len(by_stage) - before])


def _shuffled(spark: SparkSession) -> list[int]:
    """Return what each stage of the session has written for others, the newest first."""
    java, gateway = spark._jvm, spark.sparkContext._gateway
    assert java is not None
    assert gateway is not None
    stages = (
        spark._jsc.sc()
        .statusStore()
        .stageList(
            None, False, False, gateway.new_array(java.double, 0), java.java.util.ArrayList()
        )
    )
    return [int(stages.apply(index).shuffleWriteBytes()) for index in range(stages.size())]


class Cluster(NamedTuple):
    """A cluster to simulate.

    Attributes:
        executors: How many.
        cores: Of each.
        losses_an_hour: Executors of all that are lost in an hour; each comes back after a minute.
        slow: Share of tasks that take five times as long.
        speculation: Whether a task is begun again elsewhere when it takes three times the usual.
    """

    executors: int
    cores: int
    losses_an_hour: float
    slow: float
    speculation: bool


def simulate(tasks: int, usual_s: float, cluster: Cluster, seed: int) -> float:
    """Return the seconds until all tasks are done.

    Args:
        tasks: How many.
        usual_s: What one takes.
        cluster: On what.
        seed: Of the chances.
    """
    chance = random.Random(seed)
    slots = [(0.0, index // cluster.cores) for index in range(cluster.executors * cluster.cores)]
    heapq.heapify(slots)
    rate = cluster.losses_an_hour / 3600 / cluster.executors
    lost_at = [chance.expovariate(rate) if rate else float("inf") for _ in range(cluster.executors)]
    todo, end_s = tasks, 0.0
    while todo:
        now_s, executor = heapq.heappop(slots)
        factor = 5.0 if chance.random() < cluster.slow else chance.uniform(0.8, 1.2)
        if cluster.speculation:
            factor = min(factor, 3.0 + chance.uniform(0.8, 1.2))
        done_s = now_s + usual_s * factor
        if done_s > lost_at[executor] >= now_s:
            back_s = lost_at[executor] + 60.0
            heapq.heappush(slots, (back_s, executor))
            if all(other != executor or at >= back_s for at, other in slots):
                lost_at[executor] = back_s + chance.expovariate(rate)
            continue  # the task runs again, elsewhere or here
        heapq.heappush(slots, (done_s, executor))
        todo, end_s = todo - 1, max(end_s, done_s)
    return end_s


def _measure(folder: Path) -> tuple[list[Plan], float]:
    plans, per_record = [], 0.0
    with local_session(frames.SETTINGS) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        for files in (100, 400, 1600):
            home = folder / str(files)
            journal = write_journal(home, files * _MESSAGES_A_FILE, _BODY_BYTES, FILE_BYTES)
            found = len(list((home / "journal").iterdir()))
            plans.append(plan(journal, found))
            if files == 400:
                per_record = shuffled_bytes(spark, journal) / journal.records
    return plans, per_record


@click.command()
def main() -> None:
    """Measure what grows, and say what 10 TB would take."""
    console = Console()
    console.print(str(machine.describe(Path(tempfile.gettempdir()))))
    with tempfile.TemporaryDirectory(prefix="vespiary-scaling-") as name:
        plans, per_record = _measure(Path(name))
    table = Table("files", "driver CPU s", "MiB more", "tasks", "KiB of tasks", "us a file")
    for one in plans:
        table.add_row(
            str(one.files), f"{one.cpu_s:.3f}", f"{one.memory_bytes / 2**20:.1f}", str(one.tasks),
            f"{one.task_bytes / 1024:.0f}", f"{one.cpu_s / one.files * 1e6:.0f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"shuffled by live: {per_record:.1f} bytes a record (measured)")
    _computed(console, plans[-1], per_record)


def _computed(console: Console, last: Plan, per_record: float) -> None:
    files = _TOTAL_BYTES / _JOURNAL_FILE_BYTES
    tasks = round(_TOTAL_BYTES / _TASK_BYTES)
    records = _TOTAL_BYTES / _RECORD_BYTES
    usual_s = _TASK_BYTES / _RATE_BYTES_S
    console.print(f"10 TB: {files:,.0f} files, {tasks:,} tasks, {records:.2g} records")
    console.print(f"plan: {files * last.cpu_s / last.files:.0f} s of the driver's processor")
    console.print(f"descriptions of tasks: {files * last.task_bytes / last.files / 2**20:.0f} MiB")
    console.print(f"shuffled by live: {records * per_record / 1e12:.2f} TB")
    for title, cluster in {
        "nothing goes wrong": Cluster(_EXECUTORS, _CORES, 0, 0, speculation=False),
        "2 % of tasks slow": Cluster(_EXECUTORS, _CORES, 0, 0.02, speculation=False),
        "… with speculation": Cluster(_EXECUTORS, _CORES, 0, 0.02, speculation=True),
        "… and 10 executors lost an hour": Cluster(_EXECUTORS, _CORES, 10, 0.02, speculation=True),
    }.items():
        ends = sorted(simulate(tasks, usual_s, cluster, seed) for seed in range(_RUNS))
        console.print(
            f"one pass, {title}: {ends[_RUNS // 2] / 60:.1f} min "
            f"({ends[0] / 60:.1f} to {ends[-1] / 60:.1f} of {_RUNS} simulated runs)"
        )


if __name__ == "__main__":
    main()

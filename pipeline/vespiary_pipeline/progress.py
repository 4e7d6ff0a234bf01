"""What Spark is doing for a command, as one line on a terminal.

Owns the line, and the thread that looks at Spark's status and draws it a few times a second. All it
says comes from that status (`SparkContext.statusTracker` and the store behind it): a count of tasks
has no share of what Spark has not begun yet, so its total grows. Rows that are none of Spark's the
tasks count (`row_counts`). Must never write to standard
output, nor ask for anything that makes Spark work. Called by `cli_common`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Protocol

from vespiary_pipeline.jobs.row_counts import Rows, rows_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from rich.progress import Progress

PERIOD_S: Final = 0.25
_END_TIMEOUT_S: Final = 5.0
_STARTING: Final = "starting Spark"
_KIB: Final = 1024.0


class Stage(NamedTuple):
    """What Spark says of one stage.

    Attributes:
        tasks: Tasks that it has.
        done: Those that are done.
        is_begun: A task of it runs, or has run: what Spark takes from an earlier stage never does.
        rows_read: Rows that its tasks have read of files and queues.
        rows_written: Rows that they have written to files.
        bytes_written: Bytes of those.
    """

    tasks: int
    done: int
    is_begun: bool
    rows_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0


class Job(NamedTuple):
    """What Spark says of one job.

    Attributes:
        is_over: It has ended, well or not.
        stages: Ids of its stages.
    """

    is_over: bool
    stages: tuple[int, ...]


class Status(Protocol):
    """Spark's status, as a line needs it; tests put a fake in its place."""

    def jobs(self) -> Iterable[int]:
        """Return ids of the jobs that Spark knows."""

    def job(self, job_id: int) -> Job | None:
        """Return what is known of a job; None if it is forgotten."""

    def stage(self, stage_id: int) -> Stage | None:
        """Return what is known of a stage; None if it is forgotten."""

    def rows(self) -> Rows:
        """Return what tasks counted themselves."""


class StatusLost(Exception):  # noqa: N818 (no defect: a state)
    """Spark answers no more: it has ended, or is ending."""


class SparkStatus:
    """The status of a running Spark.

    Args:
        context: The context, which is in this process.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._tracker = context.statusTracker()
        self._store = context._jsc.sc().statusStore()  # rows and bytes: the tracker has none

    def jobs(self) -> list[int]:
        """Return ids of the jobs that Spark knows; of those with a group the running ones."""
        with _lost():
            known = self._tracker.getJobIdsForGroup(None)
            return sorted({*known, *self._tracker.getActiveJobsIds()})

    def job(self, job_id: int) -> Job | None:
        """Return what is known of a job; None if it is forgotten."""
        with _lost():
            found = self._tracker.getJobInfo(job_id)
        if found is None:
            return None
        return Job(found.status in ("SUCCEEDED", "FAILED"), tuple(found.stageIds))

    def stage(self, stage_id: int) -> Stage | None:
        """Return what is known of a stage; None if it is forgotten."""
        with _lost():
            found = self._tracker.getStageInfo(stage_id)
            if found is None:
                return None
            done = found.numCompletedTasks
            is_begun = bool(done or found.numActiveTasks or found.numFailedTasks)
            if not is_begun:
                return Stage(found.numTasks, 0, is_begun=False)
            data = self._store.lastStageAttempt(stage_id)
            return Stage(
                found.numTasks, done, is_begun,
                data.inputRecords(), data.outputRecords(), data.outputBytes(),
            )  # fmt: skip

    def rows(self) -> Rows:
        """Return what tasks counted themselves, since none of their rows is Spark's."""
        return rows_of(self._context)


@contextmanager
def _lost() -> Iterator[None]:
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        raise StatusLost from error


class Work(NamedTuple):
    """What was done up to now.

    Attributes:
        tasks: Tasks of the stages that were begun.
        done: Those that are done.
        rows_read: Rows that were read, each time that they were.
        rows_written: Rows that were written.
        bytes_written: Bytes of those.
    """

    tasks: int = 0
    done: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0

    def __str__(self) -> str:
        """Return rows and bytes for people; what is not known is left out."""
        parts = [f"{_count(self.rows_read)} rows read"] if self.rows_read else []
        if self.rows_written:
            parts.append(f"{_count(self.rows_written)} written")
        if self.bytes_written:
            parts.append(_size(self.bytes_written))
        return ", ".join(parts)


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"


class Counter:
    """Adds up what Spark did since this was made. Owner: the thread that looks.

    A stage that has ended is asked for once more and then remembered, so a look costs as much as
    what runs.

    Args:
        status: Spark's status.

    Raises:
        StatusLost: Spark answers no more.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._over = set(status.jobs())  # of whoever had this session before
        self._before = status.rows()
        self._stages: dict[int, Stage] = {}
        self._ended: set[int] = set()

    def look(self) -> Work:
        """Return what was done up to now.

        Raises:
            StatusLost: Spark answers no more.
        """
        for job_id in self._status.jobs():
            if job_id in self._over:
                continue
            job = self._status.job(job_id)
            for stage_id in job.stages if job else ():
                self._look_at(stage_id, is_over=job is not None and job.is_over)
            if job is None or job.is_over:
                self._over.add(job_id)
        return self._sum()

    def _sum(self) -> Work:
        own, before = self._status.rows(), self._before
        work = Work(0, 0, *(now - then for now, then in zip(own, before, strict=True)))
        for number, stage in self._stages.items():
            if stage.is_begun:
                # Of a stage that was ended early, as by a limit, no more tasks will be done.
                tasks = stage.done if number in self._ended else stage.tasks
                work = Work(
                    work.tasks + tasks,
                    work.done + stage.done,
                    work.rows_read + stage.rows_read,
                    work.rows_written + stage.rows_written,
                    work.bytes_written + stage.bytes_written,
                )
        return work

    def _look_at(self, stage_id: int, *, is_over: bool) -> None:
        if stage_id in self._ended:
            return
        stage = self._status.stage(stage_id)
        if stage is not None:
            self._stages[stage_id] = stage
        if is_over:
            self._ended.add(stage_id)


class Line:
    """The line of one command. Owner: the command.

    Args:
        what: What is being done, a few words.
        terminal: Where it is drawn.
        period_s: Time between two looks.
    """

    def __init__(self, what: str, terminal: IO[str], period_s: float = PERIOD_S) -> None:
        self._what = what
        self._period_s = period_s
        self._bar = _bar(terminal)
        self._task = self._bar.add_task(_STARTING, total=None, counts="", rows="")
        self._is_ended = threading.Event()
        self._status: Status | None = None
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        """Draw it until `end`."""
        self._bar.start()
        self._thread.start()

    def watch(self, status: Status) -> None:
        """Show what Spark does from now on.

        Args:
            status: Its status.
        """
        self._status = status

    def end(self) -> None:
        """Take the line away, and look no more; a second call does nothing."""
        if self._is_ended.is_set():
            return
        self._is_ended.set()
        self._thread.join(_END_TIMEOUT_S)  # a Spark that hangs must not hang the command's end
        self._bar.stop()

    def _run(self) -> None:
        counter: Counter | None = None
        work = Work()
        try:
            while not self._is_ended.wait(self._period_s):
                if counter is None and self._status is not None:
                    counter = Counter(self._status)
                    self._bar.update(self._task, description=self._what)
                if counter is not None:
                    work = counter.look()
                self._draw(work)
        except StatusLost:
            pass  # why it ended, whoever waits for its jobs says

    def _draw(self, work: Work) -> None:
        counts = f"{work.done}/{work.tasks} tasks" if work.tasks else ""
        # Of a task without a total, rich draws a bar that runs to and fro.
        self._bar.update(
            self._task,
            completed=work.done,
            total=work.tasks or None,
            counts=counts,
            rows=str(work),
            refresh=True,
        )


def _bar(terminal: IO[str]) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    return Progress(
        TextColumn(
            "{task.description}", markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", min_width=12),
        ),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[counts]}", markup=False, table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rows]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(file=terminal),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,  # results go to standard output as they are
        redirect_stderr=False,
    )  # fmt: skip


@contextmanager
def shown(what: str, *, is_wanted: bool) -> Iterator[Line | None]:
    """Show a line on the terminal of standard error while the block runs.

    Args:
        what: What is being done, a few words.
        is_wanted: Whether there is to be one at all.

    Yields:
        The line; None if there is none.
    """
    if not is_wanted:
        yield None
        return
    # A descriptor of its own: that of standard error goes elsewhere while Spark starts.
    with os.fdopen(os.dup(2), "w") as terminal:
        line = Line(what, terminal)
        line.start()
        try:
            yield line
        finally:
            line.end()

"""The line of progress: what it counts, where it is drawn, and that it always ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from vespiary_pipeline import cli_common
from vespiary_pipeline.jobs.row_counts import Rows
from vespiary_pipeline.progress import Counter, Job, Line, Stage, StatusLost, Work
from vespiary_testkit.terminal import Terminal
from vespiary_testkit.waiting import WAIT_S, wait_for


class ScriptedStatus:
    """A status of Spark that says what a test has put into it."""

    def __init__(self) -> None:
        self.known: dict[int, Job] = {}
        self.stages: dict[int, Stage] = {}
        self.asked: list[int] = []
        self.own = Rows()
        self.is_lost = False

    def jobs(self) -> list[int]:
        if self.is_lost:
            raise StatusLost
        return list(self.known)

    def job(self, job_id: int) -> Job | None:
        return self.known[job_id]

    def stage(self, stage_id: int) -> Stage | None:
        self.asked.append(stage_id)
        return self.stages.get(stage_id)

    def rows(self) -> Rows:
        return self.own


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    if not made.file.closed:
        made.close()


# --- what is counted ------------------------------------------------------------------------------


def test_rows_that_tasks_count_themselves_come_on_top() -> None:
    status = ScriptedStatus()
    status.own = Rows(5, 5, 500)  # of whoever had this session before
    counter = Counter(status)
    status.known[0] = Job(is_over=False, stages=(0,))
    status.stages = {0: Stage(8, 3, is_begun=True, rows_read=50)}
    status.own = Rows(25, 15, 1500)
    assert counter.look() == Work(8, 3, 70, 10, 1000)


def test_tasks_of_stages_that_were_begun_are_counted() -> None:
    status = ScriptedStatus()
    counter = Counter(status)
    assert counter.look() == Work()
    status.known[0] = Job(is_over=False, stages=(0, 1))
    status.stages = {0: Stage(8, 3, is_begun=True, rows_read=50), 1: Stage(200, 0, is_begun=False)}
    assert counter.look() == Work(tasks=8, done=3, rows_read=50)
    status.known[0] = Job(is_over=True, stages=(0, 1))
    status.stages[0] = Stage(8, 8, is_begun=True, rows_read=90)
    status.known[1] = Job(is_over=False, stages=(2,))
    status.stages[2] = Stage(4, 1, is_begun=True, rows_written=7, bytes_written=2048)
    found = counter.look()
    assert found == Work(12, 9, rows_read=90, rows_written=7, bytes_written=2048)
    assert str(found) == "90 rows read, 7 written, 2.0 KiB"


def test_what_was_done_before_is_somebody_else_s() -> None:
    status = ScriptedStatus()
    status.known[0] = Job(is_over=True, stages=(0,))
    status.stages[0] = Stage(8, 8, is_begun=True)
    counter = Counter(status)
    assert counter.look() == Work()
    assert status.asked == []


def test_a_stage_that_has_ended_is_asked_for_once_more_and_never_again() -> None:
    status = ScriptedStatus()
    counter = Counter(status)
    status.known[0] = Job(is_over=True, stages=(0,))
    status.stages[0] = Stage(8, 8, is_begun=True)
    assert [counter.look().done for _ in range(3)] == [8, 8, 8]
    assert status.asked == [0]


def test_a_stage_that_a_limit_ended_has_no_tasks_left() -> None:
    status = ScriptedStatus()
    counter = Counter(status)
    status.known[0] = Job(is_over=True, stages=(0,))
    status.stages[0] = Stage(100, 4, is_begun=True)
    assert counter.look() == Work(tasks=4, done=4)


def test_a_stage_of_two_jobs_counts_once() -> None:
    status = ScriptedStatus()
    counter = Counter(status)
    status.known = {0: Job(is_over=True, stages=(0,)), 1: Job(is_over=False, stages=(0, 1))}
    status.stages = {0: Stage(8, 8, is_begun=True), 1: Stage(2, 1, is_begun=True)}
    assert counter.look() == Work(tasks=10, done=9)
    assert status.asked == [0, 1]


# --- the line -------------------------------------------------------------------------------------


def test_the_line_says_what_is_done_and_goes_at_the_end(terminal: Terminal) -> None:
    status = ScriptedStatus()
    line = Line("exporting data", terminal.file, period_s=0.01)
    line.start()
    wait_for(lambda: "starting Spark" in terminal.seen, "the line is drawn")
    line.watch(status)
    wait_for(lambda: "exporting data" in terminal.seen, "the line says what is done")
    status.stages[0] = Stage(8, 3, is_begun=True, rows_read=1234567)
    status.known[0] = Job(is_over=False, stages=(0,))
    wait_for(lambda: "1 234 567 rows read" in terminal.seen, "rows are shown")
    line.end()
    line.end()
    shown = terminal.close()
    assert "3/8 tasks" in shown
    assert "0:00:0" in shown
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor is back, the line is empty


def test_a_spark_that_answers_no_more_ends_the_looking_alone(terminal: Terminal) -> None:
    status = ScriptedStatus()
    status.is_lost = True
    line = Line("exporting", terminal.file, period_s=0.01)
    line.start()
    line.watch(status)
    wait_for(lambda: "progress" not in _threads(), "the thread has ended")
    line.end()
    assert terminal.close().endswith("\x1b[2K")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


# --- commands -------------------------------------------------------------------------------------

_PROGRAM = """
import contextlib, sys
import click
from vespiary_pipeline import cli, cli_common, progress
from vespiary_pipeline.jobs.row_counts import Rows
from vespiary_spec.errors import JobFailed

class NoStatus:
    def __init__(self, context): pass
    def jobs(self): return []
    def rows(self): return Rows()

class Session:
    sparkContext = None

class ImpatientLine(progress.Line):
    def __init__(self, what, terminal): super().__init__(what, terminal, period_s=0.01)

@contextlib.contextmanager
def session():
    yield Session()

progress.SparkStatus, progress.Line, cli_common.start_session = NoStatus, ImpatientLine, session

@cli.main.command()
@click.option("--json", "is_json", is_flag=True)
@click.option("--end", "how", default="")
@cli_common.told
def work(is_json, how):
    with cli_common.working("working hard", is_json=is_json):
        sys.stdin.readline()
        if how == "error": raise JobFailed("no luck")
        if how == "interrupt": raise KeyboardInterrupt
        cli_common.end_progress()
        click.echo("a result")

cli.main()
"""


def run_on_terminal(terminal: Terminal, *arguments: str, is_shown: bool = True) -> tuple[int, str]:
    """Run the command with a terminal as standard error; return exit code and standard output."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.file, text=True,
    )  # fmt: skip
    if is_shown:
        wait_for(lambda: "working hard" in terminal.seen, "the line is drawn")
    out, _ = process.communicate("go\n", timeout=WAIT_S)
    return process.returncode, out


def test_results_come_alone_and_when_the_line_has_gone(terminal: Terminal) -> None:
    assert run_on_terminal(terminal, "work") == (0, "a result\n")
    assert terminal.close().endswith("\x1b[2K")


@pytest.mark.parametrize(("how", "code", "said"), [
    ("error", 1, "vespiary-pipeline: no luck. [VSP-D103]"),
    ("interrupt", 130, "vespiary-pipeline: interrupted"),
])  # fmt: skip
def test_the_line_goes_whatever_happens(terminal: Terminal, how: str, code: int, said: str) -> None:
    assert run_on_terminal(terminal, "work", "--end", how) == (code, "")
    assert terminal.close().endswith(f"\x1b[2K{said}\r\n")


@pytest.mark.parametrize("arguments", [("work", "--json"), ("--quiet", "work"), ("-q", "work")])
def test_nothing_is_shown_to_who_wants_none(terminal: Terminal, arguments: tuple[str, ...]) -> None:
    assert run_on_terminal(terminal, *arguments, is_shown=False) == (0, "a result\n")
    assert terminal.close() == ""


def test_nothing_is_shown_where_standard_error_is_no_terminal() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "work"], input="go\n", capture_output=True, text=True,
        check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert (process.stdout, process.stderr) == ("a result\n", "")


def test_an_interrupted_command_ends_with_130() -> None:
    @click.command()
    @cli_common.told
    def interrupted() -> None:
        raise KeyboardInterrupt

    found = CliRunner().invoke(interrupted)
    assert (found.exit_code, found.stderr) == (130, "vespiary-pipeline: interrupted\n")

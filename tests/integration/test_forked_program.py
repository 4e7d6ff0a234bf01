"""The processes that tests fork off a nursery, which are to be like those started afresh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.forked_program import Process, start

pytestmark = pytest.mark.verify

PROGRAM = """
import os, sys, time
print(__name__, sys.argv[1:], os.environ["MARK"], os.getcwd(), flush=True)
print("a word", file=sys.stderr)
if sys.argv[1] == "fail":
    raise ValueError("on purpose")
if sys.argv[1] == "stay":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], Process]:
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM)
    variables = environment() | {"MARK": "here"}
    variables["PYTHONPATH"] += os.pathsep + str(tmp_path)

    def run_it(argument: str) -> Process:
        with (tmp_path / "errors").open("a") as errors:
            return start("program_of_a_test", [argument, "two"], variables, errors)

    return run_it


@pytest.mark.parametrize(("argument", "code", "word"), [("3", 3, "a word"), ("fail", 1, "purpose")])
def test_arguments_output_and_exit_code(
    run: Callable[[str], Process], tmp_path: Path, argument: str, code: int, word: str
) -> None:
    process = run(argument)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    assert said == f"__main__ {[argument, 'two']} here {Path.cwd()}\n"
    assert process.wait(60) == process.poll() == code
    assert word in (tmp_path / "errors").read_text()


def test_signals_and_waiting(run: Callable[[str], Process]) -> None:
    process = run("stay")
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def kill_if_there(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the other one was faster
        os.kill(pid, signal.SIGKILL)


def test_a_signal_to_one_that_ends_meanwhile_does_no_harm(run: Callable[[str], Process]) -> None:
    for _ in range(30):
        process = run("stay")
        assert process.stdout is not None
        killer = threading.Thread(target=kill_if_there, args=(process.pid,))
        killer.start()
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        killer.join()
        process.stdout.close()

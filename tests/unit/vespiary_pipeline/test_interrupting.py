"""Ctrl-C: jobs are ended in a thread of their own, and whoever waits for them is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from vespiary_pipeline import interrupting
from vespiary_pipeline.interrupting import ending_children, interruptible
from vespiary_testkit.waiting import WAIT_S, wait_for


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(WAIT_S)  # Python handles the signal here
    raise AssertionError("no KeyboardInterrupt came")


def test_jobs_are_ended_before_the_block_is() -> None:
    before = signal.getsignal(signal.SIGINT)
    ended: list[str] = []

    def work() -> None:
        with interruptible(lambda: ended.append(threading.current_thread().name)):
            try:
                interrupt()
            finally:
                assert ended == ["cancel"]

    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_one_waits_for_nothing() -> None:
    ended: list[int] = []
    with interruptible(lambda: ended.append(1)):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interrupt()
    assert ended == [1]


def test_a_spark_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupting, "_CANCEL_TIMEOUT_S", 0.01)
    answered = threading.Event()
    with interruptible(answered.wait), pytest.raises(KeyboardInterrupt):
        interrupt()
    answered.set()


def test_other_threads_leave_signals_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with interruptible(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    assert seen == [signal.getsignal(signal.SIGINT)]


def begin(error: type[BaseException]) -> subprocess.Popen[bytes]:
    """Return a process that was begun by what ended with an error."""
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with ending_children():
            begun.append(subprocess.Popen(["sleep", "600"]))
            raise error

    with pytest.raises(error):
        start()
    return begun[0]


def test_what_an_interrupted_start_has_begun_goes_with_it() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        begun = begin(KeyboardInterrupt)
        try:
            wait_for(lambda: begun.poll() is not None, "what was begun has ended")
            assert begun.returncode == -signal.SIGTERM
            assert other.poll() is None
        finally:
            begun.kill()
            other.kill()


def test_a_start_that_fails_by_itself_ends_nothing() -> None:
    begun = begin(KeyError)
    assert begun.poll() is None
    begun.kill()
    begun.wait(WAIT_S)

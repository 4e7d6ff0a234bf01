"""Starts that cannot go on end when they are told to, or at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.waiting import WAIT_S

STUCK = """
import asyncio, sys, threading
from vespiary_broker.app import broker

async def never(*_, **__):
    print("stuck", flush=True)
    await asyncio.to_thread(threading.Event().wait)  # as a disk that does not answer

broker.open_journal = never
from vespiary_broker.cli import main
sys.exit(main())
"""
"""A broker whose journal is not opened for ever, in a thread that nothing can interrupt."""


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_waits_for_a_disk_ends_when_it_is_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", STUCK, "run", "--data", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(
        [*command, "--set", "max-disk-usage=100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()  # nothing else would end it, if that does not
    assert process.returncode == 0
    assert "did not end within 5 s" in errors


@pytest.mark.ci
def test_a_pipe_in_place_of_a_file_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "journal").mkdir(parents=True)
    os.mkfifo(data / "journal" / "server.lock")
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", "run", "--data", str(data), "--port", "0"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot open the lock's file" in done.stderr
    assert "remove it" in done.stderr

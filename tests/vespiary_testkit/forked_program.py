"""Starts the repository's programs by forking a process that has already imported them.

Importing everything that a broker needs takes a second of CPU time, and the tests start a thousand
brokers. `start` therefore forks from a *nursery*: a process that has imported the modules and has
run nothing. From the parsing of its arguments on, a forked program behaves like one that was
started with `python -m`; tests/integration/test_cli_run.py covers real starts.

A nursery belongs to the test process that first needed it, and ends with it.
`VESPIARY_FRESH_PROCESSES=1` turns forking off.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

PRELOADED = (
    "vespiary_broker.cli.program",
    "vespiary_broker.cli.running",
    "vespiary_broker.app.broker",
    "vespiary_broker.app.log_lines",
    "vespiary_broker.admin.endpoints",
    "uvloop",
)
_AT_IMPORT = ("VESPIARY_", "PYTHON")
"""Variables that may be read at import time: each combination has a nursery of its own."""
_MESSAGE_BYTES = 256 * 1024


class ForkedProcess:
    """A process of the nursery, with those parts of `subprocess.Popen` that the tests use.

    Args:
        stdout: The reading end of its output.
        status: Socket on which the nursery reports the process id and the exit status.
    """

    def __init__(self, stdout: TextIO, status: socket.socket) -> None:
        self.stdout: TextIO | None = stdout
        self.returncode: int | None = None
        self._status = status
        told = status.recv(64)
        assert told, "the nursery could not start the program; its output is in the log of the run"
        self.pid = int(told)

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: It runs on.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            told = self._status.recv(64)
            assert told, f"the nursery of process {self.pid} is gone"
            self.returncode = int(told)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by signal 9."""
        self.send_signal(signal.SIGKILL)


class _Nursery:
    """The test process's side of a nursery."""

    def __init__(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "vespiary_testkit.forked_program", str(theirs.fileno())],
            env=environment,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self.close)

    def start(
        self, program: str, arguments: list[str], environment: dict[str, str], stderr: int
    ) -> ForkedProcess:
        """Fork a program."""
        told = {"program": program, "arguments": arguments, "environment": environment}
        message = json.dumps({**told, "folder": str(Path.cwd())}).encode()
        assert len(message) < _MESSAGE_BYTES, "an environment too large for one message"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        with theirs:
            try:
                descriptors = [writing, stderr, theirs.fileno()]
                socket.send_fds(self._control, [message], descriptors)
            finally:
                os.close(writing)
        return ForkedProcess(open(reading, encoding="utf-8"), ours)

    def close(self) -> None:
        """Stop the nursery."""
        self._control.close()
        self._process.wait()


Process = subprocess.Popen[str] | ForkedProcess
_nurseries: dict[tuple[tuple[str, str], ...], _Nursery] = {}


def start(
    program: str, arguments: list[str], environment: dict[str, str], stderr: TextIO
) -> Process:
    """Run `python -m PROGRAM ARGUMENTS`; its output is read from `stdout`.

    Args:
        program: The module.
        arguments: What follows it on the command line.
        environment: All its variables.
        stderr: An open file for what it logs.
    """
    if os.environ.get("VESPIARY_FRESH_PROCESSES"):
        return subprocess.Popen(
            [sys.executable, "-m", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        )
    kind = tuple(sorted(p for p in environment.items() if p[0].startswith(_AT_IMPORT)))
    if kind not in _nurseries:
        _nurseries[kind] = _Nursery(environment)
    return _nurseries[kind].start(program, arguments, environment, stderr.fileno())


# --- in the nursery -------------------------------------------------------------------------------


def _await_request(control: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """Fork for each request; return one in the process that is to serve it, None at the end."""
    ended = selectors.DefaultSelector()
    ended.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in ended.select():
            if key.data is None:
                message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 3)
                if not message:
                    _end_all(ended)
                    return None
                status = socket.socket(fileno=descriptors[2])
                pid = os.fork()
                if pid == 0:
                    status.close()
                    _forget_siblings(ended)
                    return json.loads(message), descriptors[:2]
                for descriptor in descriptors[:2]:
                    os.close(descriptor)
                status.send(b"%d" % pid)
                ended.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            else:
                pid, status = key.data
                ended.unregister(key.fd)
                os.close(key.fd)
                # Reported before it is reaped: until the client knows of the end, the process id
                # stays reserved, so a signal to it does no harm.
                ended_how = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert ended_how is not None
                is_exit = ended_how.si_code == os.CLD_EXITED
                code = ended_how.si_status if is_exit else -ended_how.si_status
                with status, contextlib.suppress(BrokenPipeError):  # nobody waited for it
                    status.send(b"%d" % code)
                os.waitpid(pid, 0)


def _end_all(ended: selectors.BaseSelector) -> None:
    """Kill the processes that still run: the test run has ended or was killed."""
    for key in ended.get_map().values():
        if key.data is not None:
            os.kill(key.data[0], signal.SIGKILL)


def _forget_siblings(ended: selectors.BaseSelector) -> None:
    """Close the nursery's descriptors in a forked process."""
    for key in list(ended.get_map().values()):
        if key.data is not None:
            os.close(key.fd)
            key.data[1].close()
    ended.close()


def _serve(request: dict[str, object], output: int, errors: int) -> None:
    """Become the program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    sys.argv[1:] = list(request["arguments"])  # type: ignore[call-overload]
    time.tzset()
    runpy.run_module(str(request["program"]), run_name="__main__", alter_sys=True)


def main() -> None:
    """Import the modules, then fork on request."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks it to fork is interrupted, and closes
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    request = _await_request(control)
    control.close()
    if request is not None:
        _serve(request[0], *request[1])


if __name__ == "__main__":
    main()

"""A real broker in a process of its own, for integration and crash tests.

`BrokerProcess` starts `vespiary run --json`, waits until it is ready, and ends it. What it logs
goes to a file that a failed test shows. The environment of the test run (`VESPIARY_NATIVE`,
`VESPIARY_RING`) is handed on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from vespiary_testkit.forked_program import Process, start
from vespiary_testkit.waiting import wait_for

START_S = 60.0
STOP_S = 60.0
ON_ANY_DISK = ("max-disk-usage=100",)
"""However full the disk of the machine is, producers don't wait for it; a test's settings win."""
LISTENERS = {
    **{name: f"acceptors.{name}.port" for name in ("all", "amqp", "mqtt", "stomp")},
    "http": "admin.port",
}
"""The listeners of the default configuration, and the settings with their ports."""
_ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Return the environment of this run with the repository's packages on the path."""
    folders = [str(_ROOT / name) for name in ("broker", "native", "crds", "operator", "tests")]
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders + known)}


class BrokerProcess:
    """One broker. Use as a context manager, or `start` and `stop` it several times.

    Args:
        data: Its data folder.
        settings: Further `NAME=VALUE` settings.
        log: File for what it logs; None puts it beside the data folder.
        ports: Ports of some of the listeners of `LISTENERS`; the others take free ones.
        configuration: File with its configuration; None for none.
        live: Further file, with settings that need no restart; None for none.
        own: Further file, whose settings win, and which may be missing; None for none.
        under: Command in front, such as a tracer; the broker has to keep the process's number.
        program: Module that is run.
    """

    def __init__(
        self,
        data: Path,
        *settings: str,
        log: Path | None = None,
        ports: Mapping[str, int] | None = None,
        configuration: Path | None = None,
        live: Path | None = None,
        own: Path | None = None,
        under: Sequence[str] = (),
        program: str = "vespiary_broker",
    ) -> None:
        self.program = program
        self.under = list(under)
        self.ports = ports
        self.data = data
        self.configuration = configuration
        self.live = live
        self.own = own
        self.settings = settings
        self.log = log or data.with_name(f"{data.name}.log")
        self.events: list[dict[str, Any]] = []
        self.process: Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            code = self.stop()
            assert code == 0, f"the broker ended with {code}:\n{self.log_text()}"

    def start(self) -> None:
        """Start it and wait until it is ready."""
        arguments = ["run", "--json", "--data", str(self.data)]
        if self.ports is None:
            arguments += ["--port", "0"]
        else:
            for name, setting in LISTENERS.items():
                arguments += ["--set", f"{setting}={self.ports.get(name, 0)}"]
        if self.configuration is not None:
            arguments += ["-c", str(self.configuration)]
        if self.live is not None:
            arguments += ["--live-config", str(self.live)]
        if self.own is not None:
            arguments += ["--own-config", str(self.own)]
        for setting in (*ON_ANY_DISK, *self.settings):
            arguments += ["--set", setting]
        with self.log.open("a") as log:
            if self.under:
                self.process = subprocess.Popen(
                    [*self.under, sys.executable, "-m", self.program, *arguments],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment(),
                )
            else:
                self.process = start(self.program, arguments, environment(), log)
        self.events = []
        end_s = time.monotonic() + START_S
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == "ready":
                return
            assert time.monotonic() < end_s, f"not ready in time:\n{self.log_text()}"
        code = self.process.wait(STOP_S)
        self._forget()
        raise AssertionError(
            f"the broker ended with {code} before it was ready:\n{self.log_text()}"
        )

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut of the process would."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the process meanwhile.

        Clients can still send as much as fits into the buffers of their sockets, and the broker
        finds all of it at once when it goes on. So a test decides what the broker has before it,
        in which order, and not the speed of its clients.
        """
        status = Path(f"/proc/{self.pid}/stat")
        os.kill(self.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: status.read_text().rpartition(") ")[2].startswith("T"), "it runs on")
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the broker did not stop:\n{self.log_text()}") from None
        finally:
            self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def ready(self) -> dict[str, Any]:
        """The `ready` event."""
        return self.events[-1]

    def port(self, name: str = "all") -> int:
        """Port of a listener."""
        return next(
            event["port"]
            for event in self.events
            if event["event"] == "listening" and event["name"] == name
        )

    def log_text(self) -> str:
        """Return the end of what it has logged, over all its lives."""
        return self.log.read_text()[-20_000:] if self.log.exists() else ""

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

"""Starts a broker as its user would, waits until it is ready, and stops it.

Owns: the broker's process and the thread that reads its events. Must never: reach into the broker
other than by its command line, its port and /proc. Called by `benchmarks.measurement`.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks import usage

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_DISK_FULL = "no journal file can be made"


class BrokerError(Exception):
    """The broker did not start, or ended on its own."""


class Listening(msgspec.Struct, frozen=True, tag_field="event", tag="listening"):
    """One listener of the broker."""

    name: str
    port: int


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    """The broker takes messages; `seconds` is its own figure."""

    seconds: float
    engine: str
    durability: str


class RunningBroker(msgspec.Struct, frozen=True):
    """A broker that is ready.

    `ready_s` counts from before the process was made until its `ready` line was read; `ports` are
    those of its listeners, by name.
    """

    pid: int
    port: int
    ready: Ready
    ready_s: float
    command: tuple[str, ...]
    http_port: int = 0
    ports: dict[str, int] = {}

    def usage(self) -> usage.Usage:
        """Return what the broker's process has used so far."""
        return usage.sample(self.pid)


def default_command() -> tuple[str, ...]:
    """Return the `vespiary` of this interpreter's environment."""
    return (str(Path(sys.executable).with_name("vespiary")),)


def _read_lines(process: "subprocess.Popen[bytes]", lines: "queue.Queue[bytes | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:  # to the end: a full pipe would stop the broker
        lines.put(line)
    lines.put(None)


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", lines: "queue.Queue[bytes | None]", log: Path
) -> tuple[dict[str, int], Ready]:
    ports: dict[str, int] = {}
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise BrokerError(f"no `ready` event in {_START_TIMEOUT_S:.0f} s; log: {log}") from None
        if line is None:
            code = process.wait()
            tail = log.read_text(errors="replace")[-2000:]
            raise BrokerError(f"the broker ended with {code} before it was ready:\n{tail}")
        try:
            event = msgspec.json.decode(line, type=Listening | Ready)
        except msgspec.DecodeError:
            continue  # another event, or a line for people
        if isinstance(event, Ready):
            if not {"all", "stomp"} & set(ports):
                raise BrokerError("`ready` came without a listener named all or stomp")
            return ports, event
        ports[event.name] = event.port


@contextmanager
def running_broker(
    data: Path,
    *,
    command: Sequence[str] | None = None,
    settings: Sequence[str] = (),
    configuration: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningBroker]:
    """Run `vespiary run` on free loopback ports; SIGTERM at the end of the block.

    Args:
        data: Data folder of the broker; its log goes to `broker.log` beside it.
        command: Program and leading arguments; None means the environment's own `vespiary`.
        settings: `NAME=VALUE` settings, handed over by `--set`.
        configuration: A broker.yaml, for what `--set` can't say.
        environment: Added to this process's environment, such as `VESPIARY_NATIVE=0`.

    Raises:
        BrokerError: It could not be started, was not ready in 60 s, or did not stop with 0 in 60 s.
    """
    line = [*(command or default_command()), "run", "--data", str(data), "--port", "0", "--json"]
    if configuration is not None:
        line += ["--config", str(configuration)]
    for setting in settings:
        line += ["--set", setting]
    log = data.with_name(data.name + ".log")
    lines: queue.Queue[bytes | None] = queue.Queue()
    with log.open("wb") as stderr:
        begin = time.monotonic()
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(environment or {})},
            )
        except FileNotFoundError as error:
            raise BrokerError(
                f"no broker at {line[0]}: run `make run` once, or give --broker"
            ) from (error)
    reader = threading.Thread(target=_read_lines, args=(process, lines), name="broker-events")
    reader.start()
    try:
        ports, ready = _wait_until_ready(process, lines, log)
        ready_s = time.monotonic() - begin
        port, http_port = ports.get("all") or ports["stomp"], ports.get("http", 0)
        try:
            yield RunningBroker(process.pid, port, ready, ready_s, tuple(line), http_port, ports)
        finally:
            check_disk(log)
        _stop(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join()
        assert process.stdout is not None
        process.stdout.close()


def check_disk(log: Path) -> None:
    """Refuse the figures of a run whose producers waited for the disk.

    Args:
        log: The broker's.

    Raises:
        BrokerError: They did; it has the broker's sentence, with disk usage against allowed.
    """
    lines = log.read_text(errors="replace").splitlines()
    blocked = next((line for line in lines if _DISK_FULL in line), None)
    if blocked is not None:
        raise BrokerError(
            "the disk was too full, so producers waited and the figures count for nothing; make "
            f"room, name another --directory, or add --set max-disk-usage=100: {blocked.strip()}"
        )


def _stop(process: "subprocess.Popen[bytes]", log: Path) -> None:
    if process.poll() is not None:
        tail = log.read_text(errors="replace")[-2000:]
        raise BrokerError(f"the broker ended by itself with {process.returncode}:\n{tail}")
    process.terminate()
    try:
        code = process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BrokerError(f"SIGTERM did not stop the broker in {_STOP_TIMEOUT_S:.0f} s") from None
    if code != 0:
        tail = log.read_text(errors="replace")[-2000:]
        raise BrokerError(f"SIGTERM stopped the broker with {code}, not 0:\n{tail}")

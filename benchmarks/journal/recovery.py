"""A broker that was killed with a full journal: seconds to its first message, bytes for its index.

Owns: filling a broker, ending it with SIGKILL, and the clock from its next start on. Must never:
give a figure for a journal that came back with a message too few or too many. Called by
`benchmarks.journal.__main__`.
"""

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.broker import BrokerError, running_broker
from benchmarks.generator import Load, run_load

_QUEUES = 1
_TIMEOUT_S = 60.0
_DRAIN_S = 120.0
_CONNECT = b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0"


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured after the kill.

    Attributes:
        messages: Live messages in the journal.
        journal_bytes: Size of its files.
        ready_s: From the start of the process until it was ready.
        first_delivery_s: From the start of the process until a consumer had its first message.
        empty_ready_s: The same start with an empty store.
        index_bytes_per_message: Resident memory beyond that of an empty broker, per message.
    """

    messages: int
    journal_bytes: int
    ready_s: float
    first_delivery_s: float
    empty_ready_s: float
    index_bytes_per_message: float


class _Killed(Exception):  # noqa: N818  (the way out of the block that owns the broker)
    """The broker was killed on purpose."""


def _fill(data: Path, binary: Path, messages: int, settings: Sequence[str]) -> tuple[str, int]:
    """Fill a new broker and kill it; return how the load ended and the count confirmed."""
    load = Load(
        producers=8, window=100, queues=_QUEUES, messages=messages, warmup=0.0, seconds=600.0
    )
    try:
        with running_broker(data, settings=settings) as broker:
            report = run_load(binary, broker.port, load)
            os.kill(broker.pid, signal.SIGKILL)
            raise _Killed
    except _Killed:
        return report.ended, report.totals.confirmed


def _first_message(port: int, destination: str) -> None:
    """Subscribe and return when the first MESSAGE has begun to arrive."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as peer:
        peer.sendall(_CONNECT)
        subscribe = f"SUBSCRIBE\nid:1\ndestination:{destination}\nack:client-individual\n\n\0"
        peer.sendall(subscribe.encode())
        received = b""
        while b"MESSAGE\n" not in received:
            part = peer.recv(65536)
            if not part or b"ERROR\n" in received:
                raise BrokerError(f"no message came: {received[-500:]!r}")
            received += part


def _empty_start(data: Path, settings: Sequence[str]) -> tuple[float, int]:
    with running_broker(data, settings=settings) as broker:
        time.sleep(0.5)
        return broker.ready_s, broker.usage().rss_bytes


def measure(
    folder: Path,
    binary: Path,
    messages: int,
    *,
    destination: str,
    settings: Sequence[str] = (),
) -> Recovered:
    """Fill, kill, start again, wait for the first message, and drain everything.

    Args:
        folder: A folder for the stores; left to the caller to remove.
        binary: The load generator.
        messages: Messages of 1 KiB to leave in the journal.
        destination: Where the generator's first queue is.
        settings: `NAME=VALUE` settings of the broker.

    Raises:
        BrokerError: The broker failed, or messages were lost or doubled.
    """
    empty_s, empty_bytes = _empty_start(folder / "empty", settings)
    data = folder / "full"
    ended, confirmed = _fill(data, binary, messages, settings)
    if confirmed < messages:
        raise BrokerError(f"only {confirmed} of {messages} messages were confirmed: {ended}")
    size = sum(path.stat().st_size for path in (data / "journal").glob("*.hq"))
    begin = time.monotonic()
    with running_broker(data, settings=settings) as broker:
        _first_message(broker.port, destination)
        first_s = time.monotonic() - begin
        index = broker.usage().rss_bytes - empty_bytes
        drain = Load(producers=0, consumers=1, queues=_QUEUES, warmup=0.0, seconds=_DRAIN_S)
        report = run_load(binary, broker.port, drain, extra_arguments=["--idle", "1"])
        if report.totals.delivered != confirmed:
            raise BrokerError(
                f"{confirmed} messages were confirmed and {report.totals.delivered} came back"
            )
        return Recovered(
            messages=confirmed,
            journal_bytes=size,
            ready_s=broker.ready_s,
            first_delivery_s=first_s,
            empty_ready_s=empty_s,
            index_bytes_per_message=index / confirmed,
        )

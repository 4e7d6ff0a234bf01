"""How fast a broker is drained into another one: `python -m benchmarks.bench_drain`.

Owns: two brokers on loopback, the loads, and the table. Both flush to the disk of `--folder` (D2).
Must never: be a test's verdict. Called by people; docs/howto/benchmarks.md has the figures.

Each load is sent to the first broker and confirmed; then that broker is drained into the second
one. The time is the broker's own, from the order to its word that nothing is left.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.broker import RunningBroker, running_broker

_CONFIRMED_EACH = 1000
_SETTINGS = ("max-disk-usage=100", "journal-file-size=10MiB")
_PAGED = ("address-settings.#.max-size-bytes=4MiB", "address-settings.#.page-size-bytes=1MiB")


class Load(NamedTuple):
    """What is in the broker when it is drained.

    Attributes:
        name: For the table.
        messages: How many.
        body_bytes: Of each.
        queues: Over how many queues.
        settings: More settings of the broker that is drained.
    """

    name: str
    messages: int
    body_bytes: int
    queues: int = 1
    settings: tuple[str, ...] = ()


LOADS = (
    Load("1 KiB, one queue", 100_000, 1024),
    Load("1 KiB, 16 queues", 100_000, 1024, queues=16),
    Load("1 KiB, one queue, paged", 100_000, 1024, settings=_PAGED),
    Load("16 KiB, one queue", 10_000, 16 * 1024),
    Load("1 MiB (large), one queue", 200, 1024 * 1024),
)


def _fill(port: int, load: Load) -> None:
    """Send the load, and wait until all of it is confirmed."""
    body = b"x" * load.body_bytes
    with socket.create_connection(("127.0.0.1", port)) as peer:
        stream = peer.makefile("rb")
        peer.sendall(b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0")
        _read_frame(stream)
        for number in range(load.messages):
            head = f"SEND\ndestination:/queue/load-{number % load.queues}\npersistent:true\n"
            is_confirmed = (number + 1) % _CONFIRMED_EACH == 0 or number == load.messages - 1
            if is_confirmed:
                head += f"receipt:{number}\n"
            peer.sendall(head.encode() + b"content-length:%d\n\n" % len(body) + body + b"\0")
            if is_confirmed:
                _read_frame(stream)


def _read_frame(stream: Any) -> bytes:
    data = bytearray()
    while (byte := stream.read(1)) not in (b"\0", b""):
        data += byte
    frame = bytes(data).lstrip()
    if not frame.startswith((b"RECEIPT", b"CONNECTED")):
        raise SystemExit(f"the broker said {frame!r}")
    return frame


def _call(broker: RunningBroker, method: str, body: Any = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.http_port}/api/v1/drain",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def measure(folder: Path, load: Load) -> dict[str, Any]:
    """Fill a broker, drain it, and return the broker's last answer.

    Args:
        folder: Where the data of both brokers go.
        load: What is in it.
    """
    with (
        running_broker(folder / "target", settings=_SETTINGS) as target,
        running_broker(folder / "source", settings=(*_SETTINGS, *load.settings)) as source,
    ):
        _fill(source.port, load)
        state = _call(source, "POST", {"target": f"http://127.0.0.1:{target.http_port}"})
        while state["phase"] == "draining":
            time.sleep(0.05)
            state = _call(source, "GET")
        if state["phase"] != "drained" or state["moved"] != load.messages:
            raise SystemExit(f"{load.name}: {state}")
        return state


def main() -> None:
    """Measure each load, and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the messages.")
    asked = parser.parse_args()
    print(machine.describe(asked.folder))
    for load in LOADS:
        messages = max(1, int(load.messages * asked.scale))
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            state = measure(Path(folder), load._replace(messages=messages))
        seconds = max(state["endedMs"] - state["startedMs"], 1) / 1000
        rate_mb = state["movedBytes"] / seconds / 1e6
        print(
            f"{load.name:<26} {messages:>8} messages in {seconds:6.2f} s: "
            f"{messages / seconds:>9.0f} messages/s, {rate_mb:7.1f} MB/s"
        )


if __name__ == "__main__":
    main()

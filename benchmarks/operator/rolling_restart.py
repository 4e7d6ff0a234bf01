"""Three brokers restarted one after the other, each with a stock client that reconnects.

Owns: the clients and their ledger of what was confirmed. A client sends numbered messages with
receipts, connects again for as long as its broker is away, and goes on with the next number. After
the restart each queue is read empty. Must never: count a number that was not confirmed as lost.
Called by `benchmarks.operator.__main__`.
"""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import stomp  # type: ignore[import-untyped]

from benchmarks.operator import first_ready
from benchmarks.operator.api import Api, path_of
from benchmarks.operator.process import OperatorError
from vespiary_operator import kinds

BROKERS = 3
NAME = "rolling"
QUEUE = "/queue/rolling"
PERIOD_S = 0.01
PORT = 61613

_LIMIT_S = 300.0
_ARRIVAL_S = 60.0


class Restarted(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        seconds: From the change of a setting until all brokers had it and were Ready.
        away_s: For each broker, the longest time in which its client got no receipt.
        confirmed: Messages whose receipt came, over all brokers.
        lost: Confirmed messages that no queue held afterwards.
    """

    seconds: float
    away_s: list[float]
    confirmed: int
    lost: int


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]
    def __init__(self, client: Client) -> None:
        self._client = client
        self.is_lost = threading.Event()

    def on_receipt(self, frame: Any) -> None:
        number = frame.headers["receipt-id"]
        if number.isdecimal():
            self._client.confirm(int(number))

    def on_message(self, frame: Any) -> None:
        self._client.received.add(int(frame.body))

    def on_disconnected(self) -> None:
        self.is_lost.set()


class Client(threading.Thread):
    """Sends to one broker until it is told to stop.

    Attributes:
        confirmed: Numbers whose receipt came.
        received: Numbers that were read back.
        away_s: The longest time without a receipt.
    """

    def __init__(self, namespace: str, pod: str, password: str) -> None:
        super().__init__(daemon=True)
        self._where, self._pod, self._password = namespace, pod, password
        self._over = threading.Event()
        self._number = 0
        self._last = 0.0
        self.confirmed: set[int] = set()
        self.received: set[int] = set()
        self.away_s = 0.0

    def confirm(self, number: int) -> None:
        """Take a receipt."""
        now = time.monotonic()
        if self._last:
            self.away_s = max(self.away_s, now - self._last)
        self._last = now
        self.confirmed.add(number)

    def run(self) -> None:
        """Send; connect again for as long as the broker is away."""
        while not self._over.is_set():
            try:
                with self._connection() as (connection, listener):
                    self._send(connection, listener)
            except (OperatorError, OSError, stomp.exception.StompException):
                time.sleep(0.2)

    def _send(self, connection: stomp.Connection12, listener: _Listener) -> None:
        while not self._over.is_set() and not listener.is_lost.is_set():
            self._number += 1
            number = str(self._number)
            connection.send(QUEUE, number, headers={"persistent": "true", "receipt": number})
            time.sleep(PERIOD_S)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[stomp.Connection12, _Listener]]:
        with forwarded(self._where, self._pod) as port:
            connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
            listener = _Listener(self)
            connection.set_listener("", listener)
            connection.connect("admin", self._password, wait=True)
            try:
                yield connection, listener
            finally:
                if connection.is_connected():
                    connection.disconnect()

    def stop(self) -> None:
        """Stop sending."""
        self._over.set()
        self.join(30)

    def read_back(self) -> int:
        """Read the queue until all that was confirmed is there; return how much is not."""
        with self._connection() as (connection, _):
            connection.subscribe(QUEUE, id="1", ack="auto")
            deadline = time.monotonic() + _ARRIVAL_S
            while self.confirmed - self.received and time.monotonic() < deadline:
                time.sleep(0.1)
        return len(self.confirmed - self.received)


@contextlib.contextmanager
def forwarded(namespace: str, pod: str) -> Iterator[int]:
    """Have a pod's port on loopback.

    Raises:
        OperatorError: The pod is not there, or does not listen.
    """
    process = subprocess.Popen(
        ["kubectl", "-n", namespace, "port-forward", f"pod/{pod}", f":{PORT}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("Forwarding from"):
            raise OperatorError(f"{pod} cannot be reached: {line.strip()}")
        yield int(line.split("->")[0].rpartition(":")[2])
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def _uids(api: Api, namespace: str) -> dict[str, str]:
    selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=broker"
    found = api.items(path_of(kinds.POD, namespace), labelSelector=selector)
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def measure(api: Api, namespace: str) -> Restarted:
    """Make three brokers, let clients send, change a setting that needs a restart, and count.

    Args:
        api: The API server.
        namespace: An empty namespace, looked after by an operator.

    Raises:
        OperatorError: The brokers did not get ready, or not with the new setting.
    """
    document = first_ready.broker(NAME, replicas=BROKERS, topology="Independent")
    api.call("POST", path_of(kinds.BROKER, namespace), document)
    first_ready.wait_ready(api, namespace, NAME)
    secret = api.call("GET", path_of(kinds.SECRET, namespace, f"{NAME}-credentials"))
    password = base64.b64decode(secret["data"]["admin"]).decode()
    clients = [Client(namespace, f"{NAME}-{n}", password) for n in range(BROKERS)]
    for client in clients:
        client.start()
    try:
        _until("every client was answered", lambda: all(c.confirmed for c in clients))
        before = _uids(api, namespace)
        begun = time.monotonic()
        path = path_of(kinds.BROKER, namespace, NAME)
        api.merge(path, {"spec": {"config": {"journalMinFiles": 3}}})
        _until(
            "every broker was restarted",
            lambda: all(uid != before[n] for n, uid in _uids(api, namespace).items()),
        )
        first_ready.wait_ready(api, namespace, NAME)
        seconds = time.monotonic() - begun
        counts = [len(client.confirmed) for client in clients]
        _until(
            "every client was answered again",
            lambda: all(len(c.confirmed) > n + 10 for c, n in zip(clients, counts, strict=True)),
        )
    finally:
        for client in clients:
            client.stop()
    return Restarted(
        seconds=seconds,
        away_s=[client.away_s for client in clients],
        lost=sum(client.read_back() for client in clients),
        confirmed=sum(len(client.confirmed) for client in clients),
    )


def _until(what: str, look: Any) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not look():
        if time.monotonic() > deadline:
            raise OperatorError(f"not within {_LIMIT_S:.0f} s: {what}")
        time.sleep(0.1)

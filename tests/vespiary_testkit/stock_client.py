"""A stock stomp.py client and what it received, for integration tests."""

from __future__ import annotations

import queue
import threading
from typing import Any

import stomp

from vespiary_testkit.waiting import WAIT_S

VERSIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class Recorder(stomp.ConnectionListener):
    """Collects what a connection receives."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.receipts: set[str] = set()
        self.ended = threading.Event()
        self._changed = threading.Condition()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_receipt(self, frame: Any) -> None:
        with self._changed:
            self.receipts.add(frame.headers["receipt-id"])
            self._changed.notify_all()

    def on_disconnected(self) -> None:
        self.ended.set()

    def wait_receipt(self, *ids: str) -> None:
        with self._changed:
            is_there = self._changed.wait_for(lambda: self.receipts.issuperset(ids), WAIT_S)
        assert is_there, (ids, [frame.headers.get("message") for frame in self.errors.queue])

    def take(self, count: int) -> list[Any]:
        return [self.messages.get(timeout=WAIT_S) for _ in range(count)]


class Client:
    """One stomp.py connection and its recorder."""

    def __init__(self, port: int, version: str, **options: Any) -> None:
        self.version = version
        self.recorder = Recorder()
        self.connection = VERSIONS[version]([("127.0.0.1", port)], **options)
        self.connection.set_listener("recorder", self.recorder)
        self.count = 0

    def connect(self, **headers: str) -> None:
        self.connection.connect(wait=True, headers=headers)

    def receipt(self) -> str:
        self.count += 1
        return f"receipt-{self.count}"

    def subscribe(self, destination: str, ack: str = "auto", **headers: str) -> None:
        receipt = self.receipt()
        self.connection.subscribe(
            destination, id="1", ack=ack, headers={"receipt": receipt, **headers}
        )
        self.recorder.wait_receipt(receipt)

    def send(self, destination: str, body: str | bytes, **headers: str) -> None:
        receipt = self.receipt()
        self.connection.send(
            destination, body, headers={"receipt": receipt, "persistent": "true", **headers}
        )
        self.recorder.wait_receipt(receipt)

    def is_quiet(self) -> bool:
        """Return whether nothing has come, although the broker has answered this client since."""
        self.send("/queue/is-quiet", "x")
        return self.recorder.messages.empty()

    def ack(self, message: Any, **headers: str) -> None:
        receipt = self.receipt()
        reference = self._reference(message)
        self.connection.ack(*reference, receipt=receipt, **headers)
        self.recorder.wait_receipt(receipt)

    def nack(self, message: Any) -> None:
        self.connection.nack(*self._reference(message))

    def _reference(self, message: Any) -> list[str]:
        if self.version == "1.2":
            return [message.headers["ack"]]
        if self.version == "1.1":
            return [message.headers["message-id"], message.headers["subscription"]]
        return [message.headers["message-id"]]

    def disconnect(self) -> None:
        receipt = self.receipt()
        self.connection.disconnect(receipt)
        self.recorder.wait_receipt(receipt)

"""Journals that are filled to the last file by a stock client, and volumes that grow under them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

import pytest
import stomp

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

QUEUE = "/queue/work"
ASIDE = "/queue/aside"
BODY_BYTES = 60_000
WINDOW = 24
"""Messages that are under way without a receipt."""
QUIET_S = 8.0
"""So long without a receipt, with room for messages everywhere but on the disk, is waiting."""


def with_full_journal(storage_class: str, size: str) -> dict[str, Any]:
    """Return a Broker whose memory holds more than its journal, so the disk is full first."""
    document = small_broker("orders", resources={"limits": {"memory": "1Gi"}})
    document["spec"]["config"]["globalMaxSize"] = "512Mi"
    document["spec"]["storage"]["volumes"]["journal"] = {
        "size": size,
        "storageClassName": storage_class,
    }
    return document


class Receipts(stomp.ConnectionListener):
    """Hands receipts on.

    Attributes:
        is_lost: Set once the connection is gone.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.is_lost = Event()

    def on_receipt(self, frame: Any) -> None:
        self._sender.confirm(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self._sender.refusals.append(str(frame.headers.get("message", frame.body)))

    def on_disconnected(self) -> None:
        self.is_lost.set()


class Sender(Thread):
    """Sends numbered messages, and after a lost connection those again that lack a receipt.

    Attributes:
        confirmed: Numbers whose receipt came.
        refusals: What the broker refused.
        connections: How often it connected.
        is_enough: Set to begin no further number.
    """

    def __init__(self, cluster: KubernetesCluster, namespace: str, password: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace, self._password = cluster, namespace, password
        self._lock = Lock()
        self._pending: dict[int, bool] = {}
        self._next = 0
        self._last_s = time.monotonic()
        self._over = Event()
        self.is_enough = Event()
        self.confirmed: set[int] = set()
        self.refusals: list[str] = []
        self.connections = 0

    def confirm(self, receipt: str) -> None:
        if receipt.isdecimal():
            with self._lock:
                self._pending.pop(int(receipt), None)
                self.confirmed.add(int(receipt))
                self._last_s = time.monotonic()

    @property
    def pending(self) -> int:
        """Messages that were sent and not confirmed."""
        with self._lock:
            return len(self._pending)

    @property
    def waits(self) -> bool:
        """Whether it got nothing confirmed for a while, though it has sent all it may."""
        return self.pending == WINDOW and time.monotonic() - self._last_s > QUIET_S

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with self._cluster.forwarded("pod/orders-0", 61613, self._namespace) as port:
                    self._send(port)
            except (AssertionError, IndexError, OSError, stomp.exception.StompException):
                self._over.wait(0.5)

    def _send(self, port: int) -> None:
        connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        listener = Receipts(self)
        connection.set_listener("", listener)
        connection.connect("admin", self._password, wait=True)
        self.connections += 1
        with self._lock:
            self._pending = dict.fromkeys(self._pending, False)
        while not self._over.is_set() and not listener.is_lost.is_set():
            number = self._chosen()
            if number is None:
                self._over.wait(0.005)
                continue
            headers = {"persistent": "true", "receipt": str(number)}
            connection.send(QUEUE, f"{number} ".ljust(BODY_BYTES, "x"), headers=headers)
        if connection.is_connected():
            connection.disconnect()

    def _chosen(self) -> int | None:
        """Return the next number to send; None while enough are under way."""
        with self._lock:
            number = next((n for n, is_sent in self._pending.items() if not is_sent), None)
            if number is None:
                if len(self._pending) >= WINDOW or self.is_enough.is_set():
                    return None
                number = self._next
                self._next += 1
            self._pending[number] = True
            return number

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        assert not self.is_alive()


class Taken(stomp.ConnectionListener):
    """What a connection got."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.receipts: set[str] = set()

    def on_receipt(self, frame: Any) -> None:
        self.receipts.add(frame.headers["receipt-id"])

    def on_message(self, frame: Any) -> None:
        self.bodies.append(frame.body)


@contextmanager
def consumer(
    cluster: KubernetesCluster, namespace: str, password: str
) -> Iterator[tuple[stomp.Connection12, Taken]]:
    with cluster.forwarded("pod/orders-0", 61613, namespace) as port:
        connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        taken = Taken()
        connection.set_listener("", taken)
        connection.connect("admin", password, wait=True)
        yield connection, taken
        if connection.is_connected():
            connection.disconnect()


@contextmanager
def sending(cluster: KubernetesCluster, namespace: str, password: str) -> Iterator[Sender]:
    sender = Sender(cluster, namespace, password)
    sender.start()
    try:
        yield sender
    finally:
        sender.stop()


def fill(cluster: KubernetesCluster, namespace: str, sender: Sender) -> None:
    """Send until the disk is full; see who says so, and that it is the journal's."""
    begun = time.monotonic()

    def is_said() -> bool:  # that it gets nothing confirmed may be a disk that is only slow
        said = cluster.read("logs", "-n", namespace, "orders-0", "-c", "broker")
        return "no journal file can be made, producers will wait" in said

    wait_for("the producer waits", lambda: sender.waits and is_said())
    assert not sender.refusals
    full_s = time.monotonic() - begun

    def waits() -> dict[str, Any] | None:  # before, it may say that the volume is nearly full
        found = cluster.condition("orders", namespace, "Degraded")
        return found if found.get("reason") == "ProducersWait" else None

    degraded = wait_for("the status says so", waits)
    print(f"full after {full_s:.0f} s and {len(sender.confirmed)} confirmed messages")
    print(f"Degraded {time.monotonic() - begun - full_s:.0f} s later: {degraded['message']}")
    assert degraded["status"] == "True"
    assert "orders-0 has its producers wait" in degraded["message"]
    assert "no journal file can be made" in degraded["message"]
    assert cluster.condition("orders", namespace, "Ready")["status"] == "True"
    assert sender.waits, "it still waits"


def take_aside(cluster: KubernetesCluster, namespace: str, password: str) -> None:
    """Take a message that was sent before: a full disk keeps no consumer waiting."""
    with consumer(cluster, namespace, password) as (connection, taken):
        connection.subscribe(ASIDE, id="1", ack="auto")
        wait_for("the consumer goes on", lambda: taken.bodies == ["aside"])


def grow(cluster: KubernetesCluster, namespace: str, document: dict[str, Any], size: str) -> None:
    document["spec"]["storage"]["volumes"]["journal"]["size"] = size
    cluster.apply(document, namespace)


def all_there(cluster: KubernetesCluster, namespace: str, password: str, wanted: set[int]) -> None:
    """Take every message; what was confirmed is among them, whole."""
    found: set[int] = set()
    with consumer(cluster, namespace, password) as (connection, taken):
        connection.subscribe(QUEUE, id="1", ack="auto")

        def is_all() -> bool:
            while taken.bodies:
                body = taken.bodies.pop()
                number = int(body.split(" ", 1)[0])
                assert body == f"{number} ".ljust(BODY_BYTES, "x")
                found.add(number)
            return found >= wanted

        wait_for("every confirmed message", is_all)
    print(f"all {len(wanted)} confirmed messages are there; {len(found - wanted)} more were kept")


def prepare(cluster: KubernetesCluster, namespace: str, document: dict[str, Any]) -> str:
    """Have a Broker with one message aside; return its password."""
    storage_class = document["spec"]["storage"]["volumes"]["journal"]["storageClassName"]
    if cluster.get("storageclass", storage_class) is None:
        pytest.skip(f"the cluster has no storage class {storage_class}")
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    password = cluster.password("orders", namespace)
    with consumer(cluster, namespace, password) as (connection, taken):
        connection.send(ASIDE, "aside", headers={"persistent": "true", "receipt": "aside"})
        wait_for("the receipt", lambda: "aside" in taken.receipts, pause_s=0.1)
    return password


def test_a_journal_on_xfs_is_filled_and_grows_under_the_producer(
    cluster: KubernetesCluster, namespace: str
) -> None:
    document = with_full_journal("local-xfs", "300Mi")
    password = prepare(cluster, namespace, document)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    with sending(cluster, namespace, password) as sender:
        fill(cluster, namespace, sender)
        take_aside(cluster, namespace, password)
        confirmed = len(sender.confirmed)
        grow(cluster, namespace, document, "400Mi")
        begun = time.monotonic()
        goes_on = "the producer goes on"
        wait_for(goes_on, lambda: len(sender.confirmed) > confirmed + 50, pause_s=0.2)
        print(f"it went on {time.monotonic() - begun:.1f} s after the new size was applied")
        sender.is_enough.set()
        wait_for("all that was sent is confirmed", lambda: not sender.pending)
        assert (sender.connections, sender.refusals) == (1, [])
        wanted = set(sender.confirmed)
    cluster.wait_for_condition("orders", namespace, "Degraded", "False")
    cluster.wait_for_condition("orders", namespace, "VolumesSized", "True", generation=2)
    same = cluster.get("pod", "orders-0", namespace)
    assert same is not None
    assert same["metadata"]["uid"] == pod["metadata"]["uid"], "the broker was not restarted"
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    all_there(cluster, namespace, password, wanted)


def test_a_journal_on_ext4_is_filled_and_grows_with_one_restart(
    cluster: KubernetesCluster, namespace: str
) -> None:
    document = with_full_journal("local-ext4", "128Mi")
    password = prepare(cluster, namespace, document)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    with sending(cluster, namespace, password) as sender:
        fill(cluster, namespace, sender)
        before = set(sender.confirmed)
        grow(cluster, namespace, document, "192Mi")
        wait_for(
            "the status says that the pod has to be started again",
            lambda: (
                cluster.condition("orders", namespace, "VolumesSized").get("reason")
                == "RestartPending"
            ),
        )
        same = cluster.get("pod", "orders-0", namespace)
        assert same is not None
        assert same["metadata"]["uid"] == pod["metadata"]["uid"], "it serves: it is given time"
        begun = time.monotonic()
        wait_for("the producer goes on", lambda: len(sender.confirmed) > len(before) + 50)
        print(f"it went on {time.monotonic() - begun:.0f} s after RestartPending")
        sender.is_enough.set()
        wait_for("all that was sent is confirmed", lambda: not sender.pending)
        assert sender.connections == 2, "one restart, and no more"
        assert set(sender.refusals) <= {"the broker is stopping"}
        wanted = set(sender.confirmed)
    cluster.wait_for_condition("orders", namespace, "VolumesSized", "True", generation=2)
    said = [e for e in cluster.items("events", namespace) if e["reason"] == "RestartedToGrow"]
    assert len(said) == 1
    all_there(cluster, namespace, password, wanted)


@pytest.mark.alone
def test_a_journal_that_fills_up_grows_by_itself_as_far_as_it_may(
    cluster: KubernetesCluster, namespace: str
) -> None:
    document = with_full_journal("local-xfs", "300Mi")
    journal = document["spec"]["storage"]["volumes"]["journal"]
    journal["autoGrow"] = {"maxSize": "420Mi", "growthStep": "60Mi"}
    password = prepare(cluster, namespace, document)
    before = {kind: of_orders(cluster, kind, namespace) for kind in ("pod", "statefulset")}
    sizes: list[str] = []
    with sending(cluster, namespace, password) as sender:
        begun = time.monotonic()

        def is_largest() -> bool:
            claim = cluster.get("pvc", "journal-orders-0", namespace)
            assert claim is not None
            size = claim["status"]["capacity"]["storage"]
            if size not in sizes:
                sizes.append(size)
                print(f"{size} after {time.monotonic() - begun:.0f} s", len(sender.confirmed))
                if len(sizes) == 2:
                    cluster.restart_operator()  # what it grew to is told by the claim
            return bool(size == "420Mi")

        wait_for("the claim has grown as far as it may", is_largest, 600, 0.3)
        assert sizes == ["300Mi", "360Mi", "420Mi"]

        def exhausted() -> dict[str, Any] | None:
            found = cluster.condition("orders", namespace, "VolumesSized")
            return found if found["reason"] == "MaxSizeReached" else None

        sized = wait_for("it says that there is no more to grow to", exhausted)
        assert sized["status"] == "False"
        assert "autoGrow.maxSize larger" in sized["message"]
        wait_for("the producer waits", lambda: sender.waits)
        assert (sender.connections, sender.refusals) == (1, [])
        sender.is_enough.set()
        wanted = set(sender.confirmed)
        after = {kind: of_orders(cluster, kind, namespace) for kind in ("pod", "statefulset")}
        assert after == before, "neither was replaced"
    found = cluster.broker("orders", namespace)
    assert found["metadata"]["generation"] == 1, "nothing is written into the spec"
    (volume,) = (v for v in found["status"]["volumes"] if v["name"] == "journal")
    assert volume["requestedBytes"] == 300 * 1024 * 1024
    (grown,) = volume["grown"]
    assert (grown["fromBytes"], grown["toBytes"]) == (360 * 1024 * 1024, 420 * 1024 * 1024)
    print(grown["message"])
    # One that was not written yet when the operator was restarted is lost; none is written twice.
    said = [e for e in cluster.items("events", namespace) if e["reason"] == "AutoGrowing"]
    assert 1 <= len(said) <= 2
    all_there(cluster, namespace, password, wanted)


def of_orders(cluster: KubernetesCluster, kind: str, namespace: str) -> str:
    """Return the UID of the pod or StatefulSet of the Broker."""
    found = cluster.get(kind, "orders-0" if kind == "pod" else "orders", namespace)
    assert found is not None
    return str(found["metadata"]["uid"])

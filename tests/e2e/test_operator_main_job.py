"""The main job: a Broker becomes a durable broker; what was confirmed survives `kill -9`."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any

import pytest
import stomp
import yaml

from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    ROOT,
    KubernetesCluster,
    small_broker,
    wait_for,
)

pytestmark = pytest.mark.e2e

MESSAGES = 10_000
IN_FLIGHT = 500
QUEUE = "orders"


class Producer(stomp.ConnectionListener):
    """Sends numbered messages with receipts; keeps the numbers whose receipt came."""

    def __init__(self, port: int, password: str, confirmed: set[int]) -> None:
        self._confirmed = confirmed
        self._room = threading.Semaphore(IN_FLIGHT)
        self._answered, self._lost = threading.Event(), threading.Event()
        self._connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        self._connection.set_listener("", self)
        # Its own waiting may not end when the connection is lost before the login.
        self._connection.connect("admin", password)
        if not self._answered.wait(30) or self._lost.is_set():
            raise OSError("nobody was let in")

    def on_connected(self, _frame: Any) -> None:
        self._answered.set()

    def on_receipt(self, frame: Any) -> None:
        self._confirmed.add(int(frame.headers["receipt-id"]))
        self._room.release()

    def on_disconnected(self) -> None:
        self._lost.set()
        self._answered.set()

    def send(self, numbers: list[int], halfway: threading.Event, killed: threading.Event) -> bool:
        """Send messages; return whether the connection lasted until every receipt was there.

        From half of them on they go slowly, so that the kill comes while some are on their way; the
        last ones wait for it.
        """
        for number in numbers:
            if self._lost.is_set():
                return False
            while not self._room.acquire(timeout=0.1):
                if self._lost.is_set():
                    return False
            if len(self._confirmed) >= MESSAGES // 2 and not killed.is_set():
                halfway.set()
                time.sleep(0.005 if len(self._confirmed) < MESSAGES * 3 // 4 else 0.05)
            try:
                self._connection.send(
                    QUEUE,
                    f"{number}",
                    headers={"persistent": "true", "receipt": str(number)},
                )
            except (stomp.exception.StompException, OSError):
                return False
        deadline = time.monotonic() + 60
        while not set(numbers) <= self._confirmed and time.monotonic() < deadline:
            if self._lost.is_set():
                return False
            time.sleep(0.02)
        return set(numbers) <= self._confirmed

    def close(self) -> None:
        if self._connection.is_connected():
            self._connection.disconnect()


class Consumer(stomp.ConnectionListener):
    """Receives and acknowledges until it has what is wanted, or has waited long for it."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()

    def on_message(self, frame: Any) -> None:
        self.numbers.add(int(frame.body))

    def drain(self, port: int, password: str, wanted: set[int]) -> set[int]:
        connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        connection.set_listener("", self)
        connection.connect("admin", password, wait=True)
        connection.subscribe(QUEUE, id="1", ack="auto")
        deadline = time.monotonic() + 120
        while not wanted <= self.numbers and time.monotonic() < deadline:
            time.sleep(0.1)
        connection.disconnect()
        return self.numbers


def test_what_was_confirmed_survives_kill_9(cluster: KubernetesCluster, namespace: str) -> None:
    example = yaml.safe_load((ROOT / "examples" / "broker.yaml").read_text("utf-8"))
    cluster.apply(example, namespace)
    cluster.wait_until_ready("orders", namespace)

    def is_shown() -> bool:
        shown = cluster.kubectl("get", "br", "-n", namespace).stdout
        return all(word in shown for word in ("True", "ASYNCIO", "ext4"))

    wait_for("readiness, engine and file system in the table", is_shown)
    password = cluster.password("orders", namespace)

    confirmed: set[int] = set()
    halfway = threading.Event()
    killed = threading.Event()

    def kill() -> None:
        assert halfway.wait(240)
        cluster.kill_broker("orders-0", namespace)
        killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    losses = 0
    deadline = time.monotonic() + 480
    while len(confirmed) < MESSAGES:
        assert time.monotonic() < deadline, f"{len(confirmed)} of {MESSAGES} were confirmed"
        cluster.wait_until_ready("orders", namespace)
        with cluster.forwarded("service/orders", 61613, namespace) as port:
            try:
                producer = Producer(port, password, confirmed)
            except (stomp.exception.StompException, OSError):
                losses += 1
                time.sleep(1)
                continue
            missing = [number for number in range(MESSAGES) if number not in confirmed]
            losses += not producer.send(missing, halfway, killed)
            producer.close()
    killer.join(60)
    assert killed.is_set(), "the broker was never killed"
    assert losses, "the kill was not noticed: it came too late"

    cluster.wait_until_ready("orders", namespace)
    with cluster.forwarded("service/orders", 61613, namespace) as port:
        received = Consumer().drain(port, password, confirmed)
    assert confirmed <= received, f"{len(confirmed - received)} confirmed messages are lost"
    if cluster.script is not None:

        def restarts() -> int:
            pod = cluster.get("pod", "orders-0", namespace)
            assert pod is not None
            return int(pod["status"]["containerStatuses"][0]["restartCount"])

        wait_for("the kubelet tells of the restart", restarts)


@pytest.mark.verify
def test_status_tells_engine_volumes_and_endpoints(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)

    def told() -> dict[str, Any] | None:
        status: dict[str, Any] = cluster.broker("orders", namespace)["status"]
        return status if status["brokers"][0].get("durability") else None

    status = wait_for("the broker's own answer in the status", told)
    (broker,) = status["brokers"]
    assert broker["engine"] == "ASYNCIO"
    assert broker["durability"] == "D2"
    assert broker["aio"]["demand"] == 500
    assert [v["name"] for v in broker["volumes"]] == [
        "bindings",
        "journal",
        "paging",
        "large-messages",
    ]
    assert all(v["dedicated"] and v["verdict"] == "allow" for v in broker["volumes"])
    assert {(e["name"], e["port"]) for e in status["endpoints"]} == {
        ("all", 61616),
        ("amqp", 5672),
        ("mqtt", 1883),
        ("stomp", 61613),
        ("http", 8161),
    }
    assert status["selector"]
    expected = {
        "Ready": "True",
        "Available": "True",
        "Progressing": "False",
        "Degraded": "False",
        "StorageVerified": "True",
        "VolumesSized": "True",
        "JournalEngine": "True",
        "NodeTuned": "True",
        "ConfigApplied": "True",
        "CertificateValid": "True",
        "Integrated": "True",
        "Draining": "False",
        "UpToDate": "True",
        "Paused": "False",
    }

    def kinds() -> dict[str, str]:
        conditions = cluster.broker("orders", namespace)["status"]["conditions"]
        return {c["type"]: c["status"] for c in conditions}

    with contextlib.suppress(AssertionError):  # what differs says more than that it does
        wait_for("the conditions", lambda: kinds() == expected)
    assert kinds() == expected
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])
    metadata = cluster.broker("orders", namespace)["metadata"]
    assert "finalizers" not in metadata
    assert set(metadata.get("annotations", {})) <= {
        "kubectl.kubernetes.io/last-applied-configuration"
    }
    says_when_a_volume_is_nearly_full(cluster, namespace)


FILL = """
import os
room = os.statvfs("/var/lib/vespiary/paging")
left = room.f_blocks * 12 // 100  # of 10 % its producers would have to wait
file = os.open("/var/lib/vespiary/paging/filler", os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(file, 0, (room.f_bavail - left) * room.f_frsize)
"""
EMPTY = "import os; os.unlink('/var/lib/vespiary/paging/filler')"


def says_when_a_volume_is_nearly_full(cluster: KubernetesCluster, namespace: str) -> None:
    """A volume that fills up is named while the broker serves, and no more when it has room."""

    def told(program: str, status: str) -> dict[str, Any]:
        command = ("-c", "broker", "--", "/opt/vespiary/bin/python3", "-c", program)
        cluster.kubectl("-n", namespace, "exec", "orders-0", *command)
        # How full it is makes no event: have the Broker looked at now, not within a minute; if its
        # broker had not noticed by then, that minute it is.
        look = f"e2e/look={uuid.uuid4().hex}"
        cluster.kubectl("-n", namespace, "annotate", BROKER, "orders", "--overwrite", look)
        return cluster.wait_for_condition("orders", namespace, "Degraded", status)

    found = told(FILL, "True")
    assert found["reason"] == "VolumeNearlyFull"
    assert "The volume paging of orders-0 is nearly full: " in found["message"]
    assert "at 10% producers wait (maxDiskUsage)" in found["message"]
    assert "make spec.storage.volumes.paging.size larger" in found["message"]
    (broker,) = cluster.broker("orders", namespace)["status"]["brokers"]
    (paging,) = (volume for volume in broker["volumes"] if volume["name"] == "paging")
    assert 0.10 < paging["freeBytes"] / paging["sizeBytes"] < 0.15
    assert cluster.condition("orders", namespace, "Ready")["status"] == "True"
    assert told(EMPTY, "False")["reason"] == "AsExpected"

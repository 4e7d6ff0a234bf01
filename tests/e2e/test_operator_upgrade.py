"""Upgrades on a real cluster while a stock client sends: supervised, failed, refused, copied."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import stomp

from vespiary_testkit.kubectl_plugin import plugin
from vespiary_testkit.kubernetes_cluster import (
    ROOT,
    KubernetesCluster,
    run,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NAME = "orders"
QUEUE = "/queue/orders"
PACKAGES = "/opt/vespiary/lib/python3.11/site-packages"
VERSION_FILE = f"{PACKAGES}/vespiary_spec/version.py"
HEADER_FILE = f"{PACKAGES}/vespiary_codec/journal/file_header.py"
RUNNING_FILE = f"{PACKAGES}/vespiary_broker/cli/running.py"

VERSIONS = {
    "0.2.0": [],
    "0.3.0": [f"sed -i '1i raise SystemExit(\"this version does not start\")' {RUNNING_FILE}"],
    "0.4.0": [
        f"sed -i 's/^FORMAT_VERSION: Final = 1$/FORMAT_VERSION: Final = 2/' {HEADER_FILE}",
        f"sed -i 's/^READABLE_VERSIONS: Final = .*/READABLE_VERSIONS: Final = 1, 2/' {HEADER_FILE}",
    ],
}
"""Version → what is changed in the image, beside the number."""


@pytest.fixture(scope="module")
def images(cluster: KubernetesCluster) -> dict[str, str]:
    """Return images of other versions, made from the tree's own by a few lines."""
    if cluster.script is None:
        pytest.skip("images of other versions are made with the script's own builder")
    base, _, tag = cluster.broker_image.rpartition(":")
    script = str(cluster.script)
    there = run(script, "enter", "ctr", "-n", "k8s.io", "images", "ls", "-q").stdout.split()
    found = {}
    for version, changes in VERSIONS.items():
        image = f"{base}:{tag}-{version}"
        found[version] = image
        if f"docker.io/{image}" in there:
            continue
        number = f"sed -i 's/^VERSION: Final = .*$/VERSION: Final = \"{version}\"/' {VERSION_FILE}"
        text = f"FROM docker.io/{cluster.broker_image}\nUSER 0\n"
        text += "".join(f"RUN {change}\n" for change in (number, *changes))
        text += "USER 10001:10001\n"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "Dockerfile").write_text(text)
            run(script, "image", folder, image, timeout_s=300)
    return found


class Sender(threading.Thread):
    """Sends numbered messages with receipts to the Service, and reconnects for ever.

    Attributes:
        confirmed: Numbers whose receipt came.
        connections: How often it connected.
    """

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self._password = cluster.password(NAME, namespace)
        self._over = threading.Event()
        self._number = 0
        self.confirmed: set[int] = set()
        self.connections = 0

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with self._cluster.forwarded(f"service/{NAME}", 61613, self._namespace) as port:
                    self._send(port)
            except (AssertionError, IndexError, OSError, stomp.exception.StompException):
                time.sleep(0.5)

    def _send(self, port: int) -> None:
        connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
        listener = Receipts(self.confirmed)
        connection.set_listener("", listener)
        connection.connect("admin", self._password, wait=True)
        self.connections += 1
        while not self._over.is_set() and not listener.is_lost.is_set():
            self._number += 1
            connection.send(
                QUEUE,
                str(self._number),
                headers={"persistent": "true", "receipt": str(self._number)},
            )
            time.sleep(0.01)
        if connection.is_connected():
            connection.disconnect()

    def stop(self) -> None:
        self._over.set()
        self.join(30)
        assert not self.is_alive()


class Receipts(stomp.ConnectionListener):
    def __init__(self, confirmed: set[int]) -> None:
        self._confirmed = confirmed
        self.is_lost = threading.Event()

    def on_receipt(self, frame: Any) -> None:
        if frame.headers["receipt-id"].isdecimal():
            self._confirmed.add(int(frame.headers["receipt-id"]))

    def on_disconnected(self) -> None:
        self.is_lost.set()


class Numbers(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.found: set[int] = set()

    def on_message(self, frame: Any) -> None:
        self.found.add(int(frame.body))


def received(cluster: KubernetesCluster, namespace: str, wanted: set[int]) -> set[int]:
    """Return the numbers that all brokers together hold."""
    numbers = Numbers()
    for pod in (f"{NAME}-0", f"{NAME}-1"):
        with cluster.forwarded(f"pod/{pod}", 61613, namespace) as port:
            connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
            connection.set_listener("", numbers)
            connection.connect("admin", cluster.password(NAME, namespace), wait=True)
            connection.subscribe(QUEUE, id="1", ack="auto")
            last = -1
            deadline = time.monotonic() + 60
            while last != len(numbers.found) and time.monotonic() < deadline:
                last = len(numbers.found)
                time.sleep(2)
            connection.disconnect()
    return numbers.found


class Upgraded:
    """A Broker that is upgraded."""

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def change(self, **spec: Any) -> None:
        self.cluster.kubectl(
            "-n",
            self.namespace,
            "patch",
            "broker.vespiary.dev",
            NAME,
            "--type=merge",
            "-p",
            json.dumps({"spec": spec}),
        )

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.broker(NAME, self.namespace).get("status") or {}
        return found

    def stage(self, image: str) -> str:
        upgrade = self.status().get("upgrade") or {}
        return str(upgrade.get("stage")) if upgrade.get("toImage") == image else ""

    def until(self, image: str, stage: str, *, timeout_s: float = 180) -> dict[str, Any]:
        def look() -> bool:
            return self.stage(image) == stage

        try:
            wait_for(f"the stage {stage}", look, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; now {self.status().get('upgrade')}") from error
        found: dict[str, Any] = self.status()["upgrade"]
        return found

    def pods(self) -> dict[str, tuple[str, str]]:
        """Return image and UID by pod."""
        found = self.cluster.items("pods", self.namespace, "app.kubernetes.io/component=broker")
        return {
            pod["metadata"]["name"]: (
                pod["spec"]["containers"][0]["image"],
                pod["metadata"]["uid"],
            )
            for pod in found
        }

    def up_to_date(self) -> tuple[str, str, str]:
        found = self.cluster.condition(NAME, self.namespace, "UpToDate")
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")


@pytest.fixture
def upgraded(cluster: KubernetesCluster, namespace: str) -> Upgraded:
    spec = {
        "replicas": 2,
        "topology": "Independent",
        "upgrade": {"strategy": "Supervised", "soakTime": 5, "deadline": 25},
    }
    document = small_broker(NAME, **spec)
    # The journal's files, their copy, and what is put back beside them.
    document["spec"]["storage"]["volumes"]["journal"]["size"] = "768Mi"
    cluster.apply(document, namespace)
    cluster.wait_until_ready(NAME, namespace)
    return Upgraded(cluster, namespace)


def is_approved_before_the_rest(upgraded: Upgraded, images: dict[str, str]) -> None:
    """Supervised: one broker is tried, the other waits for a word."""
    cluster, namespace = upgraded.cluster, upgraded.namespace
    first = upgraded.pods()
    tried = plugin(namespace, "upgrade", NAME, "--image", images["0.2.0"], "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert f"{NAME}-1 is the first, and is watched for 5 s." in tried.stdout
    assert "image" not in cluster.broker(NAME, namespace)["spec"]
    nonsense = plugin(namespace, "upgrade", NAME, "--to", "nonsense", "--dry-run")
    assert nonsense.returncode == 1, "the API server checks a dry run"
    assert "spec.version" in nonsense.stderr
    done = plugin(namespace, "upgrade", NAME, "--image", images["0.2.0"])
    assert done.returncode == 0, done.stderr
    upgrade = upgraded.until(images["0.2.0"], "AwaitingApproval")
    assert (upgrade["fromVersion"], upgrade["toVersion"]) == ("0.1.0", "0.2.0")
    now = upgraded.pods()
    assert now[f"{NAME}-1"][0] == images["0.2.0"]
    assert now[f"{NAME}-0"] == first[f"{NAME}-0"], "the other was not touched"
    shown = json.loads(plugin(namespace, "upgrade", NAME, "-o", "json").stdout)
    assert (shown["stage"], shown["revision"]) == ("AwaitingApproval", upgrade["revision"])
    assert shown["next"].split("    ")[0].endswith(f"upgrade {NAME} --approve")
    assert plugin(namespace, "upgrade", NAME, "--approve").returncode == 0
    upgraded.until(images["0.2.0"], "Complete")
    assert {image for image, _ in upgraded.pods().values()} == {images["0.2.0"]}
    restarts = upgraded.status()["restarts"]
    assert [(r["broker"], r["reason"], r["actor"]) for r in restarts] == [
        (f"{NAME}-0", "Upgrade", "vespiary-operator"),
        (f"{NAME}-1", "Upgrade", "vespiary-operator"),
    ]


def is_taken_back(upgraded: Upgraded, images: dict[str, str]) -> None:
    """A version that does not start is taken back."""
    before = upgraded.pods()
    upgraded.change(image=images["0.3.0"])
    upgraded.until(images["0.3.0"], "RolledBack")
    after = upgraded.pods()
    assert {image for image, _ in after.values()} == {images["0.2.0"]}
    assert after[f"{NAME}-0"] == before[f"{NAME}-0"], "the other was not touched"
    status, reason, message = upgraded.up_to_date()
    assert (status, reason) == ("False", "RolledBack"), message
    upgraded.cluster.wait_until_ready(NAME, upgraded.namespace)
    shown = plugin(upgraded.namespace, "upgrade", NAME)
    assert shown.returncode == 1
    assert "0.3.0 was taken back" in shown.stdout
    # Settings that the brokers take are no reason to try it again.
    upgraded.change(addressSettings=[{"match": "orders.#", "maxDeliveryAttempts": 3}])
    generation = upgraded.cluster.broker(NAME, upgraded.namespace)["metadata"]["generation"]
    upgraded.cluster.wait_for_condition(
        NAME, upgraded.namespace, "ConfigApplied", "True", generation=generation, timeout_s=120
    )
    assert upgraded.stage(images["0.3.0"]) == "RolledBack"
    assert upgraded.pods() == after
    assert plugin(upgraded.namespace, "upgrade", NAME, "--retry").returncode == 0
    wait_for("it is tried again", lambda: upgraded.stage(images["0.3.0"]) == "Canary", 60)
    upgraded.until(images["0.3.0"], "RolledBack")


def changes_the_format_when_asked(upgraded: Upgraded, images: dict[str, str]) -> str:
    """A version that changes the format is refused until it is asked for; then there is a copy.

    Returns its name.
    """
    cluster, namespace = upgraded.cluster, upgraded.namespace
    after = upgraded.pods()
    upgraded.change(image=images["0.4.0"])
    upgraded.until(images["0.4.0"], "Refused")
    assert upgraded.up_to_date()[1] == "FormatChange"
    assert upgraded.pods() == after
    upgraded.change(upgrade={"allowFormatChange": True, "strategy": "RollingUpdate"})
    upgraded.until(images["0.4.0"], "Complete")
    copies = json.loads(
        cluster.kubectl(
            "-n",
            namespace,
            "exec",
            f"{NAME}-1",
            "-c",
            "broker",
            "--",
            *("vespiary", "journal", "snapshots", "-c", "/etc/vespiary/broker.yaml", "--json"),
        ).stdout
    )
    assert {Path(part["folder"]).name for part in copies} >= {"bindings", "journal", "paging"}
    assert sum(part["files"] for part in copies) >= 4
    name = str(copies[0]["name"])
    assert re.fullmatch(r"[0-9a-f]{10}-\d{14}", name)
    return name


def refuses_the_way_back(upgraded: Upgraded, images: dict[str, str]) -> None:
    """The way back is refused by name; a paused strategy restarts nobody."""
    running = upgraded.pods()
    upgraded.change(image=images["0.2.0"])
    upgraded.until(images["0.2.0"], "Refused")
    _, reason, message = upgraded.up_to_date()
    assert reason == "FormatUnreadable"
    assert "Version 0.2.0 reads journal files of format 1" in message
    upgraded.change(image=images["0.4.0"], upgrade={"strategy": "Paused"}, podLabels={"a": "b"})
    wait_for("the hold", lambda: "Paused" in upgraded.up_to_date()[2], 60)
    assert upgraded.pods() == running


def goes_back_to_the_copy(upgraded: Upgraded, images: dict[str, str], name: str) -> None:
    """What docs/howto/upgrades.md says: stop, put the copy back, say so, start as before."""
    cluster, namespace = upgraded.cluster, upgraded.namespace
    pods = upgraded.pods()
    upgraded.change(
        hibernate=True, upgrade={"allowFormatChange": True, "strategy": "RollingUpdate"}
    )
    wait_for("the brokers have stopped", lambda: not upgraded.pods(), 90)
    page = (ROOT / "docs" / "howto" / "upgrades.md").read_text("utf-8")
    manifest = page.split("# restore.yaml\n", 1)[1].split("```", 1)[0]
    manifest = manifest.replace("IMAGE", images["0.2.0"]).replace("NAME", name)
    for pod in pods:
        cluster.kubectl(
            "-n", namespace, "apply", "-f", "-", stdin=manifest.replace("orders-0", pod)
        )
        restore = f"restore-{pod}"

        def phase(restore: str = restore) -> str:
            found = cluster.get("pod", restore, namespace) or {}
            said = str((found.get("status") or {}).get("phase"))
            return said if said in ("Succeeded", "Failed") else ""

        ended = wait_for(f"{restore} has ended", phase, 60)
        log = cluster.kubectl("-n", namespace, "logs", restore, check=False).stdout
        assert ended == "Succeeded", log
        cluster.kubectl("-n", namespace, "delete", "pod", restore)
    # In one patch, as the page has it; forgotten at first is the word that the copy was put back.
    upgraded.change(image=images["0.2.0"], hibernate=False)
    upgraded.until(images["0.2.0"], "Refused")
    asleep = cluster.wait_for_condition(NAME, namespace, "Ready", "False", timeout_s=30)
    assert asleep["reason"] == "KeptAsleep", asleep
    assert "Version 0.2.0 reads journal files of format 1" in asleep["message"]
    assert upgraded.status()["upgrade"]["nextCheckAt"] in upgraded.up_to_date()[2]
    assert not upgraded.pods()
    annotation = f"vespiary.dev/restored-snapshot={name}"
    cluster.kubectl("-n", namespace, "annotate", "broker.vespiary.dev", NAME, annotation)

    def serves() -> bool:
        found = {image for image, _ in upgraded.pods().values()}
        assert found <= {images["0.2.0"]}, "the other version was woken"
        return len(upgraded.pods()) == 2 and (
            cluster.condition(NAME, namespace, "Ready").get("status") == "True"
        )

    wait_for("the version before serves", serves, 180)
    wait_for("UpToDate", lambda: upgraded.up_to_date()[0] == "True", 30)


def test_versions_come_and_go_while_a_client_sends(
    cluster: KubernetesCluster, namespace: str, images: dict[str, str], upgraded: Upgraded
) -> None:
    sender = Sender(cluster, namespace)
    sender.start()
    wait_for("the first receipts", lambda: len(sender.confirmed) > 50, 60)
    is_approved_before_the_rest(upgraded, images)
    is_taken_back(upgraded, images)
    name = changes_the_format_when_asked(upgraded, images)
    refuses_the_way_back(upgraded, images)

    assert sender.connections >= 2, "no restart was noticed by the client"
    sender.stop()
    found = received(cluster, namespace, sender.confirmed)
    lost = sender.confirmed - found
    assert not lost, f"{len(lost)} of {len(sender.confirmed)} confirmed messages are lost"
    print(f"{len(sender.confirmed)} confirmed, {sender.connections} connections")
    goes_back_to_the_copy(upgraded, images, name)

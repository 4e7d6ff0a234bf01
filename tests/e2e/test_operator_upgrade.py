"""Upgrades on a real cluster while stock clients send: supervised, failed, refused, copied."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stomp

from vespiary_testkit.image_variants import PACKAGES, variant
from vespiary_testkit.kubectl_plugin import plugin
from vespiary_testkit.kubernetes_cluster import (
    ROOT,
    KubernetesCluster,
    small_broker,
    wait_for,
)

pytestmark = pytest.mark.e2e

NAME = "orders"
QUEUE = "/queue/orders"
VERSION_FILE = f"{PACKAGES}/vespiary_spec/version.py"
HEADER_FILE = f"{PACKAGES}/vespiary_codec/journal/file_header.py"
RUNNING_FILE = f"{PACKAGES}/vespiary_broker/cli/running.py"
SENDING_FILE = f"{PACKAGES}/vespiary_broker/server/stomp/sending.py"

DEADLINE_S = 240
"""Every version that starts does so well within it."""

HOPELESS_S = 25
"""For one that never starts: so long it is waited for."""

SOAK_S = 20
"""Long enough to see what there is meanwhile, and for clients to get errors by the dozen."""

REFUSAL = "this version takes no messages"

VERSIONS = {
    "0.2.0": [],
    "0.3.0": [f"sed -i '1i raise SystemExit(\"this version does not start\")' {RUNNING_FILE}"],
    "0.4.0": [
        f"sed -i 's/^FORMAT_VERSION: Final = 1$/FORMAT_VERSION: Final = 2/' {HEADER_FILE}",
        f"sed -i 's/^READABLE_VERSIONS: Final = .*/READABLE_VERSIONS: Final = 1, 2/' {HEADER_FILE}",
    ],
    # It starts, is ready, and answers every SEND with an ERROR.
    "0.5.0": [
        f"sed -i 's/^        message = self.outgoing(frame)$/"
        f'        raise RemoteProtocolError("{REFUSAL}")/\' {SENDING_FILE}',
        f"grep -q '{REFUSAL}' {SENDING_FILE}",
    ],
}
"""Version → what is changed in the image, beside the number."""


def image_of(cluster: KubernetesCluster, version: str) -> str:
    """Return an image of another version, made from the tree's own by a few lines."""
    number = f"sed -i 's/^VERSION: Final = .*$/VERSION: Final = \"{version}\"/' {VERSION_FILE}"
    return variant(cluster, cluster.broker_image, version, number, *VERSIONS[version])


@pytest.fixture(scope="module")
def images(cluster: KubernetesCluster) -> dict[str, str]:
    """Return the images of all versions."""
    return {version: image_of(cluster, version) for version in VERSIONS}


def version_of(image: str) -> str:
    """Return what `spec.version` says to get an image."""
    return image.rpartition(":")[2]


MISHAPS = (stomp.exception.StompException, subprocess.SubprocessError)
"""What may happen to a client, or to kubectl's forwarding, while brokers go."""


class Sender(threading.Thread):
    """Sends numbered messages with receipts, and reconnects for ever.

    Args:
        cluster: The cluster.
        namespace: Where the Broker is.
        pod: The one broker that it sends to; empty means the Service.
        number: Numbers begin behind this one.

    Attributes:
        confirmed: Numbers whose receipt came.
        connections: How often it connected.
        errors: What the ERROR frames said that it got.
    """

    def __init__(
        self, cluster: KubernetesCluster, namespace: str, pod: str = "", number: int = 0
    ) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace, self._pod = cluster, namespace, pod
        self._password = cluster.password(NAME, namespace)
        self._over = threading.Event()
        self._number = number
        self.confirmed: set[int] = set()
        self.connections = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with self._address() as (host, port):
                    while not self._over.is_set():
                        self._send(host, port)
            except (AssertionError, IndexError, OSError, *MISHAPS):
                time.sleep(0.5)

    @contextlib.contextmanager
    def _address(self) -> Iterator[tuple[str, int]]:
        if not self._pod:
            with self._cluster.forwarded(f"service/{NAME}", 61613, self._namespace) as port:
                yield "127.0.0.1", port
            return
        pod = self._cluster.get("pod", self._pod, self._namespace) or {"status": {}}
        address = pod["status"].get("podIP")
        if not address:
            raise OSError(f"{self._pod} has no address yet")
        yield address, 61613

    def _send(self, host: str, port: int) -> None:
        connection = stomp.Connection12(
            [(host, port)], heartbeats=(0, 0), timeout=5, reconnect_attempts_max=1
        )
        listener = Listener(self.confirmed, self.errors)
        connection.set_listener("", listener)
        # Its own waiting never ends when the connection is lost before the login.
        connection.connect("admin", self._password)
        if not listener.is_answered.wait(10) or listener.is_lost.is_set():
            raise OSError(f"{host} let nobody in")
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
        self._over.wait(0.05)

    def stop(self) -> None:
        self._over.set()
        self.join(120)
        assert not self.is_alive()


class Listener(stomp.ConnectionListener):
    def __init__(self, confirmed: set[int], errors: list[str]) -> None:
        self._confirmed, self._errors = confirmed, errors
        self.is_answered, self.is_lost = threading.Event(), threading.Event()

    def on_connected(self, _frame: Any) -> None:
        self.is_answered.set()

    def on_receipt(self, frame: Any) -> None:
        if frame.headers["receipt-id"].isdecimal():
            self._confirmed.add(int(frame.headers["receipt-id"]))

    def on_error(self, frame: Any) -> None:
        self._errors.append(f"{frame.headers.get('message')} {frame.body}")

    def on_disconnected(self) -> None:
        self.is_lost.set()
        self.is_answered.set()


class Numbers(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.found: set[int] = set()

    def on_message(self, frame: Any) -> None:
        self.found.add(int(frame.body))


def received(cluster: KubernetesCluster, namespace: str, wanted: set[int]) -> set[int]:
    """Return the numbers that all brokers together hold, as far as those that are wanted go."""
    numbers = Numbers()
    with contextlib.ExitStack() as stack:
        for pod in (f"{NAME}-0", f"{NAME}-1"):
            port = stack.enter_context(cluster.forwarded(f"pod/{pod}", 61613, namespace))
            connection = stomp.Connection12([("127.0.0.1", port)], heartbeats=(0, 0))
            connection.set_listener("", numbers)
            connection.connect("admin", cluster.password(NAME, namespace), wait=True)
            stack.callback(connection.disconnect)
            connection.subscribe(QUEUE, id="1", ack="auto")
        deadline = time.monotonic() + 240
        while not wanted <= numbers.found and time.monotonic() < deadline:
            time.sleep(0.2)
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

    def until(self, image: str, stage: str) -> dict[str, Any]:
        """Return what the status says of the upgrade to an image once it is in a stage."""

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self.status().get("upgrade") or {}
            return found if (found.get("toImage"), found.get("stage")) == (image, stage) else None

        try:
            return wait_for(f"the stage {stage}", look, 480)
        except AssertionError as error:
            raise AssertionError(f"{error}; now {self.status().get('upgrade')}") from error

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

    def soaking(self, image: str) -> dict[str, tuple[str, str]]:
        """Return image and UID by pod as they were while the first broker was watched."""
        self.until(image, "Soaking")
        found = self.pods()
        assert self.stage(image) == "Soaking", "the soak time is too short to see anything in it"
        return found

    def up_to_date(self) -> tuple[str, str, str]:
        found = self.cluster.condition(NAME, self.namespace, "UpToDate")
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def create(cluster: KubernetesCluster, namespace: str, **more: Any) -> Upgraded:
    """Return a Broker that is ready to be upgraded."""
    spec = {
        "replicas": 2,
        "topology": "Independent",
        "upgrade": {"strategy": "Supervised", "soakTime": 5, "deadline": DEADLINE_S},
        **more,
    }
    document = small_broker(NAME, **spec)
    # The journal's files, their copy, and what is put back beside them.
    document["spec"]["storage"]["volumes"]["journal"]["size"] = "768Mi"
    cluster.apply(document, namespace)
    cluster.wait_until_ready(NAME, namespace)
    return Upgraded(cluster, namespace)


def is_approved_before_the_rest(upgraded: Upgraded, image: str) -> None:
    """Supervised: one broker is tried, the other waits for a word; nothing happens in a pause."""
    cluster, namespace = upgraded.cluster, upgraded.namespace
    first = upgraded.pods()
    version = version_of(image)
    tried = plugin(namespace, "upgrade", NAME, "--to", version, "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert f"{NAME}-1 is the first, and is watched for 5 s." in tried.stdout
    assert "version" not in cluster.broker(NAME, namespace)["spec"]
    nonsense = plugin(namespace, "upgrade", NAME, "--to", "nonsense", "--dry-run")
    assert nonsense.returncode == 1, "the API server checks a dry run"
    assert "spec.version" in nonsense.stderr
    done = plugin(namespace, "upgrade", NAME, "--to", version)
    assert done.returncode == 0, done.stderr
    upgrade = upgraded.until(image, "AwaitingApproval")
    assert (upgrade["fromVersion"], upgrade["toVersion"]) == ("0.1.0", "0.2.0")
    now = upgraded.pods()
    assert now[f"{NAME}-1"][0] == image
    assert now[f"{NAME}-0"] == first[f"{NAME}-0"], "the other was not touched"
    shown = json.loads(plugin(namespace, "upgrade", NAME, "-o", "json").stdout)
    assert (shown["stage"], shown["revision"]) == ("AwaitingApproval", upgrade["revision"])
    assert shown["next"].split("    ")[0].endswith(f"upgrade {NAME} --approve")

    assert plugin(namespace, "upgrade", NAME, "--pause").returncode == 0
    approved = plugin(namespace, "upgrade", NAME, "--approve")
    assert approved.returncode == 0, approved.stderr
    assert "Nothing happens while" in approved.stdout
    # Its generation tells that a pass saw all three.
    upgraded.change(upgrade={"deadline": DEADLINE_S + 1})
    generation = cluster.broker(NAME, namespace)["metadata"]["generation"]
    cluster.wait_for_condition(NAME, namespace, "Paused", "True", generation=generation)
    assert upgraded.stage(image) == "AwaitingApproval"
    assert upgraded.pods() == now
    resumed = plugin(namespace, "upgrade", NAME, "--resume")
    assert resumed.returncode == 0, resumed.stderr

    upgraded.until(image, "Complete")
    assert {running for running, _ in upgraded.pods().values()} == {image}
    restarts = upgraded.status()["restarts"]
    assert [(r["broker"], r["reason"], r["actor"]) for r in restarts] == [
        (f"{NAME}-0", "Upgrade", "vespiary-operator"),
        (f"{NAME}-1", "Upgrade", "vespiary-operator"),
    ]


def is_taken_back(upgraded: Upgraded, images: dict[str, str]) -> None:
    """A version that does not start is taken back, whether one broker is watched first or not."""
    before = upgraded.pods()
    # Without a strategy of its own it is Canary.
    upgraded.change(
        version=version_of(images["0.3.0"]), upgrade={"strategy": None, "deadline": HOPELESS_S}
    )
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
    upgraded.change(
        addressSettings=[{"match": "orders.#", "maxDeliveryAttempts": 3}],
        upgrade={"strategy": "RollingUpdate"},
    )
    generation = upgraded.cluster.broker(NAME, upgraded.namespace)["metadata"]["generation"]
    upgraded.cluster.wait_for_condition(
        NAME, upgraded.namespace, "ConfigApplied", "True", generation=generation
    )
    assert upgraded.stage(images["0.3.0"]) == "RolledBack"
    assert upgraded.pods() == after
    assert plugin(upgraded.namespace, "upgrade", NAME, "--retry").returncode == 0
    wait_for("it is tried again", lambda: upgraded.stage(images["0.3.0"]) == "Rolling")
    upgraded.until(images["0.3.0"], "RolledBack")
    last = upgraded.pods()
    assert {image for image, _ in last.values()} == {images["0.2.0"]}
    assert last[f"{NAME}-0"] == before[f"{NAME}-0"], "it waited for the one before"


def is_judged_by_what_clients_get(upgraded: Upgraded, images: dict[str, str]) -> set[int]:
    """A canary that is ready, and refuses every message, is taken back when its soak ends.

    Returns:
        Numbers that were confirmed to clients of that broker alone.
    """
    cluster, namespace = upgraded.cluster, upgraded.namespace
    before = upgraded.pods()
    clients = [
        Sender(cluster, namespace, f"{NAME}-1", number) for number in (10_000_000, 20_000_000)
    ]
    for client in clients:
        client.start()
    wait_for("the version before confirms", lambda: all(c.confirmed for c in clients))
    version = version_of(images["0.5.0"])
    upgraded.change(
        version=version, upgrade={"strategy": None, "soakTime": SOAK_S, "deadline": DEADLINE_S}
    )
    assert upgraded.soaking(images["0.5.0"])[f"{NAME}-1"][0] == images["0.5.0"]
    said = upgraded.until(images["0.5.0"], "RolledBack")["message"]
    print(said)
    pattern = rf"0\.5\.0 was taken back: {NAME}-1 answers clients with errors: (\d+) while 0 mess"
    found = re.match(pattern, said)
    assert found, said
    assert int(found[1]) >= 20
    assert upgraded.up_to_date() == ("False", "RolledBack", said)
    after = upgraded.pods()
    assert {image for image, _ in after.values()} == {images["0.2.0"]}
    assert after[f"{NAME}-0"] == before[f"{NAME}-0"], "the other was not touched"
    had = [len(client.confirmed) for client in clients]
    wait_for(
        "the version before confirms again",
        lambda: all(len(c.confirmed) > n for c, n in zip(clients, had, strict=True)),
    )
    for client in clients:
        client.stop()
        assert any(REFUSAL in error for error in client.errors), client.errors[-3:]
    # What the Broker asks for is what its brokers have again: nobody is restarted.
    back = plugin(namespace, "upgrade", NAME, "--back")
    assert back.returncode == 0, back.stderr
    assert cluster.broker(NAME, namespace)["spec"]["version"] == version_of(images["0.2.0"])
    generation = cluster.broker(NAME, namespace)["metadata"]["generation"]
    cluster.wait_for_condition(NAME, namespace, "UpToDate", "True", generation=generation)
    assert upgraded.pods() == after
    return clients[0].confirmed | clients[1].confirmed


def changes_the_format_when_asked(upgraded: Upgraded, images: dict[str, str]) -> str:
    """A version that changes the format is refused until it is asked for; then there is a copy.

    Returns:
        Its name.
    """
    cluster, namespace = upgraded.cluster, upgraded.namespace
    after = upgraded.pods()
    upgraded.change(image=images["0.4.0"])
    upgraded.until(images["0.4.0"], "Refused")
    assert upgraded.up_to_date()[1] == "FormatChange"
    assert upgraded.pods() == after
    upgraded.change(upgrade={"allowFormatChange": True})
    pods = upgraded.soaking(images["0.4.0"])  # Canary, and nobody has to say a word
    assert {image for image, _ in pods.values()} == {images["0.2.0"], images["0.4.0"]}
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
    wait_for("the hold", lambda: "Paused" in upgraded.up_to_date()[2])
    assert upgraded.pods() == running


def goes_back_to_the_copy(upgraded: Upgraded, images: dict[str, str], name: str) -> None:
    """What docs/howto/upgrades.md says: stop, put the copy back, say so, start as before."""
    cluster, namespace = upgraded.cluster, upgraded.namespace
    pods = upgraded.pods()
    upgraded.change(
        hibernate=True, upgrade={"allowFormatChange": True, "strategy": "RollingUpdate"}
    )
    wait_for("the brokers have stopped", lambda: not upgraded.pods())
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

        ended = wait_for(f"{restore} has ended", phase)
        log = cluster.kubectl("-n", namespace, "logs", restore, check=False).stdout
        assert ended == "Succeeded", log
        cluster.kubectl("-n", namespace, "delete", "pod", restore)
    annotation = f"vespiary.dev/restored-snapshot={name}"
    cluster.kubectl("-n", namespace, "annotate", "broker.vespiary.dev", NAME, annotation)
    upgraded.change(image=images["0.2.0"])
    upgraded.until(images["0.2.0"], "Complete")  # the other version must not be woken
    upgraded.change(hibernate=False)
    wait_for(
        "the version before serves",
        lambda: (
            {image for image, _ in upgraded.pods().values()} == {images["0.2.0"]}
            and cluster.condition(NAME, namespace, "Ready").get("reason") == "Serving"
        ),
        480,
    )


def start_sending(cluster: KubernetesCluster, namespace: str) -> Sender:
    """Return a client of the Service that has sent, and goes on."""
    sender = Sender(cluster, namespace)
    sender.start()
    wait_for("the first receipts", lambda: len(sender.confirmed) > 50)
    return sender


def check_nothing_is_lost(
    cluster: KubernetesCluster, namespace: str, sender: Sender, confirmed: set[int]
) -> None:
    """Stop the client, and fail unless the brokers hold every message that was confirmed."""
    assert sender.connections >= 2, "no restart was noticed by the client"
    sender.stop()
    confirmed |= sender.confirmed
    lost = confirmed - received(cluster, namespace, confirmed)
    assert not lost, f"{len(lost)} of {len(confirmed)} confirmed messages are lost"
    print(f"{len(confirmed)} confirmed, {sender.connections} connections")


def test_an_upgrade_waits_for_approval_and_loses_nothing(
    cluster: KubernetesCluster, namespace: str
) -> None:
    image = image_of(cluster, "0.2.0")
    upgraded = create(cluster, namespace)
    sender = start_sending(cluster, namespace)
    is_approved_before_the_rest(upgraded, image)
    check_nothing_is_lost(cluster, namespace, sender, set())


@pytest.mark.verify
def test_versions_come_and_go_while_a_client_sends(
    cluster: KubernetesCluster, namespace: str, images: dict[str, str]
) -> None:
    upgraded = create(cluster, namespace, version=version_of(images["0.2.0"]))
    sender = start_sending(cluster, namespace)
    is_taken_back(upgraded, images)
    confirmed = is_judged_by_what_clients_get(upgraded, images)
    name = changes_the_format_when_asked(upgraded, images)
    refuses_the_way_back(upgraded, images)
    check_nothing_is_lost(cluster, namespace, sender, confirmed)
    goes_back_to_the_copy(upgraded, images, name)

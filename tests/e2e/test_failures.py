"""What fails on a real cluster: the API server for a minute, the operator at any time, its leader.

Brokers go on serving, nothing is made twice, and whoever comes back goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import stomp

from vespiary_testkit.failure_checks import check_log, names_of, seen_pods
from vespiary_testkit.kubectl_plugin import plugin
from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    DEPLOYMENT,
    OPERATORS,
    PATIENCE_S,
    SYSTEM_NAMESPACE,
    KubernetesCluster,
    small_broker,
    wait_for,
)
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.e2e

OUTAGE_S = 60.0
BATCH = 20
"""Messages that have to be confirmed again and again while something else is away."""

AT_REST_S = 10.0
"""A broker that has nothing to do looks for files to free more often than this."""


def needs_the_node(cluster: KubernetesCluster) -> None:
    if cluster.script is None:
        pytest.skip("the node of this cluster cannot be reached from here")


class Sender(threading.Thread):
    """Sends one message after the other, each when the receipt of the one before has come."""

    def __init__(self, host: str, password: str) -> None:
        super().__init__(name="sender", daemon=True)
        self.confirmed = 0
        self.failure = ""
        self._end = threading.Event()
        self._came = threading.Event()
        self._connection = stomp.Connection12([(host, 61613)], heartbeats=(0, 0))
        self._connection.set_listener("", self)  # type: ignore[arg-type]
        self._connection.connect("admin", password, wait=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):  # of a listener; only receipts matter
            return lambda *_: None
        raise AttributeError(name)

    def on_receipt(self, _: Any) -> None:
        self._came.set()

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._came.clear()
                self._connection.send("orders", "x", receipt=str(self.confirmed), persistent="true")
                if not self._came.wait(PATIENCE_S):
                    self.failure = f"no receipt after {self.confirmed} of them"
                    return
                self.confirmed += 1
                self._end.wait(0.05)
        except (stomp.exception.StompException, OSError) as error:
            self.failure = repr(error)

    def wait_for_more(self) -> None:
        """Wait until some more messages are confirmed."""
        wanted = self.confirmed + BATCH
        wait_for("messages are confirmed", lambda: self.confirmed >= wanted or self.failure)
        assert not self.failure

    def stop(self) -> None:
        self._end.set()
        self.join(PATIENCE_S + 5)
        with contextlib.suppress(stomp.exception.StompException, OSError):
            self._connection.disconnect()


def identity(cluster: KubernetesCluster, namespace: str, name: str = "orders-0") -> tuple[str, int]:
    """Return the UID of a broker's pod and how often its container was started again."""
    pod = cluster.get("pod", name, namespace)
    assert pod is not None
    (broker,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], broker["restartCount"]


def operator_log(cluster: KubernetesCluster) -> str:
    done = cluster.kubectl(
        "-n", SYSTEM_NAMESPACE, "logs", DEPLOYMENT, "--tail=-1", "--all-pods", check=False
    )
    return done.stdout


@pytest.mark.alone
@pytest.mark.verify
def test_brokers_serve_and_the_operator_comes_back_while_the_api_server_is_away(
    cluster: KubernetesCluster, namespace: str
) -> None:
    needs_the_node(cluster)
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    before = identity(cluster, namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    sender = Sender(pod["status"]["podIP"], cluster.password("orders", namespace))
    sender.start()
    try:
        cluster.signal_component("kube-apiserver", "STOP")
        try:
            ends = time.monotonic() + OUTAGE_S
            while time.monotonic() < ends:
                sender.wait_for_more()
        finally:
            cluster.signal_component("kube-apiserver", "CONT")
        wait_for(
            "the API server answers",
            lambda: cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0,
        )
        patch = json.dumps({"spec": {"addresses": [{"name": "later"}]}})
        back_at = time.monotonic()
        wait_for(
            "the change is taken",
            lambda: (
                cluster.kubectl(
                    *("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", patch),
                    check=False,
                ).returncode
                == 0
            ),
        )
        generation = cluster.broker("orders", namespace)["metadata"]["generation"]
        for kind in ("ConfigApplied", "Ready"):
            cluster.wait_for_condition("orders", namespace, kind, "True", generation=generation)
        print(f"the operator worked again after {time.monotonic() - back_at:.0f} s")
    finally:
        sender.stop()
    print(f"{sender.confirmed} confirmed")
    assert not sender.failure
    assert identity(cluster, namespace) == before, "the broker was not restarted"
    check_log(operator_log(cluster))


def kill_operator(cluster: KubernetesCluster, moments: random.Random) -> None:
    """End the operator with signal 9, some moment after it began."""

    def begun() -> str:
        for pod in cluster.operators():
            for status in pod["status"].get("containerStatuses") or ():
                if "running" in status["state"]:
                    return str(pod["metadata"]["name"])
        return ""

    name = wait_for("the operator runs", begun, pause_s=0.1)
    time.sleep(moments.uniform(0.5, 4.0))
    cluster.signal_container(name, SYSTEM_NAMESPACE, "operator", "KILL")


@pytest.mark.alone
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.verify)])
def test_an_operator_that_is_killed_does_nothing_twice(
    cluster: KubernetesCluster, namespace: str, kills: int
) -> None:
    needs_the_node(cluster)
    moments = random.Random(seed_for("operator kills"))
    document = small_broker("orders", replicas=2, topology="Independent")
    with seen_pods(namespace) as seen:
        cluster.apply(document, namespace)
        for _ in range(kills):
            kill_operator(cluster, moments)
        cluster.wait_until_ready("orders", namespace)
        password = cluster.password("orders", namespace)
        made = cluster.get("statefulset", "orders", namespace)

        for pod in cluster.operators():  # a new pod has no pause before its container restarts
            cluster.kubectl(
                *("-n", SYSTEM_NAMESPACE, "delete", "pod", pod["metadata"]["name"]),
                *("--force", "--grace-period=0"),
            )
        document["spec"]["config"]["globalMaxSize"] = "64Mi"
        cluster.apply(document, namespace)
        for _ in range(kills):
            kill_operator(cluster, moments)
        generation = cluster.broker("orders", namespace)["metadata"]["generation"]
        for kind in ("UpToDate", "Ready"):
            cluster.wait_for_condition("orders", namespace, kind, "True", generation=generation)
        cluster.wait_for_condition(
            "orders", namespace, "Progressing", "False", generation=generation
        )
        assert {name: len(uids) for name, uids in seen.uids.items()} == {
            "orders-0": 2,  # the first, and the one with the changed setting
            "orders-1": 2,
        }
    now = cluster.get("statefulset", "orders", namespace)
    assert made is not None
    assert now is not None
    assert now["metadata"]["uid"] == made["metadata"]["uid"]
    assert cluster.password("orders", namespace) == password
    assert names_of(cluster, "statefulset", namespace) == ["orders"]
    assert names_of(cluster, "secret", namespace) == ["orders-credentials", "orders-users"]
    assert len(names_of(cluster, "controllerrevision", namespace)) == 2
    wait_for(
        "the settings before are put away",
        lambda: sum("orders-config-" in n for n in names_of(cluster, "configmap", namespace)) == 1,
    )
    restarts = cluster.broker("orders", namespace)["status"].get("restarts") or []
    assert len(restarts) == 2, "each restart is told once"
    check_log(operator_log(cluster))


@pytest.mark.alone
@pytest.mark.verify
def test_a_node_that_falls_silent_is_named_and_nothing_is_forced(
    cluster: KubernetesCluster, namespace: str
) -> None:
    needs_the_node(cluster)
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    before = identity(cluster, namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    node = pod["spec"]["nodeName"]
    sender = Sender(pod["status"]["podIP"], cluster.password("orders", namespace))
    sender.start()

    def named() -> str:
        found = cluster.condition("orders", namespace, "Ready")
        return str(found["message"]) if found.get("reason") == "NodeLost" else ""

    try:
        cluster.signal_component("kubelet", "STOP")
        try:
            said = wait_for("the lost node is named", named)
        finally:  # long before pods are asked to end, 300 s after the node was found silent
            cluster.signal_component("kubelet", "CONT")
    finally:
        sender.stop()
    print(said)
    assert f"orders-0 is on the node {node}, which is not ready since 20" in said
    assert "two brokers would write to one volume" in said
    cluster.wait_until_ready("orders", namespace)
    assert identity(cluster, namespace) == before
    assert not sender.failure, "the broker itself served on"
    wait_for(
        "nothing is said of it any longer",
        lambda: cluster.condition("orders", namespace, "Degraded").get("status") == "False",
    )
    check_log(operator_log(cluster))


# --- a second broker ---------------------------------------------------------------------------


def files_of(cluster: KubernetesCluster, namespace: str) -> str:
    """Return every file of the broker's volumes with the digest of what it holds."""
    command = "cd /var/lib/vespiary && find . -type f -exec sha256sum {} + | sort -k 2"
    return cluster.kubectl(
        *("-n", namespace, "exec", "orders-0", "-c", "broker", "--", "sh", "-c", command)
    ).stdout


def files_at_rest(cluster: KubernetesCluster, namespace: str) -> str:
    """Return that once nothing changes any longer: a broker tidies up when its clients are gone."""
    seen: list[str] = []

    def are_same() -> bool:
        seen.append(files_of(cluster, namespace))
        return len(seen) > 1 and seen[-1] == seen[-2]

    wait_for("the broker's files are at rest", are_same, pause_s=AT_REST_S)
    return seen[-1]


def second_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod that is the same on the same node and volumes, and that nobody looks after."""
    label = "apps.kubernetes.io/pod-index"
    own = ("hostname", "subdomain")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "second", "labels": {label: pod["metadata"]["labels"][label]}},
        "spec": {k: v for k, v in pod["spec"].items() if k not in own} | {"restartPolicy": "Never"},
    }


@pytest.mark.verify
def test_a_second_pod_on_the_volumes_of_a_broker_does_not_get_its_journal(
    cluster: KubernetesCluster, namespace: str
) -> None:
    needs_the_node(cluster)
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    before = identity(cluster, namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    host, password = pod["status"]["podIP"], cluster.password("orders", namespace)
    sender = Sender(host, password)
    sender.start()
    sender.wait_for_more()
    sender.stop()
    files = files_at_rest(cluster, namespace)
    assert "journal/activemq-data-1.hq" in files
    assert "bindings/activemq-bindings-1.bindings" in files

    def ended() -> dict[str, Any]:
        found = (cluster.get("pod", "second", namespace) or {}).get("status") or {}
        of_broker = [s["state"] for s in found.get("containerStatuses") or ()]
        return next((state["terminated"] for state in of_broker if "terminated" in state), {})

    cluster.apply(second_pod(pod), namespace)
    end = wait_for("the second broker has ended", ended)
    said = cluster.kubectl("-n", namespace, "logs", "second", "-c", "broker").stdout
    print(end["exitCode"], said)
    assert end["exitCode"] == 1
    assert "the folder is in use by the broker with process id 1 on host orders-0, started" in said
    assert files_of(cluster, namespace) == files, "the second broker wrote nothing"

    sender = Sender(host, password)
    sender.start()
    try:  # once more, while messages come in
        cluster.kubectl("-n", namespace, "delete", "pod", "second")
        cluster.apply(second_pod(pod), namespace)
        wait_for("the second broker has ended again", ended)
        sender.wait_for_more()
    finally:
        sender.stop()
    assert not sender.failure
    assert identity(cluster, namespace) == before
    verified = plugin(namespace, "journal", "orders", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


# --- standby --------------------------------------------------------------------------------------


@pytest.fixture
def two_operators(cluster: KubernetesCluster) -> Iterator[None]:
    needs_the_node(cluster)
    cluster.install("replicas=2")
    try:
        yield
    finally:
        # The Role goes with the second replica, so those that use it go first.
        cluster.kubectl("-n", SYSTEM_NAMESPACE, "scale", DEPLOYMENT, "--replicas=0")
        wait_for("both have ended", lambda: not cluster.items("pods", SYSTEM_NAMESPACE, OPERATORS))
        cluster.install()


def leader(cluster: KubernetesCluster) -> str:
    """Return who holds the Lease, the pod and its process; empty if nobody does."""
    lease = cluster.get("lease", "vespiary", SYSTEM_NAMESPACE)
    return str((lease or {"spec": {}})["spec"].get("holderIdentity") or "")


def pod_of(identity_: str) -> str:
    return identity_.rpartition("_")[0]


def leading(cluster: KubernetesCluster) -> dict[str, float]:
    """Return what each operator says of itself; one that cannot be asked says nothing."""
    found = {}
    for pod in cluster.operators():
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{name}:8080/proxy/metrics"
        page = cluster.kubectl("get", "--raw", path, check=False).stdout
        for line in page.splitlines():
            if line.startswith("vespiary_operator_leader "):
                found[name] = float(line.split()[1])
    return found


@contextlib.contextmanager
def seen_holders() -> Iterator[list[str]]:
    """Yield a list to which a watch adds who holds the Lease, each time that it is written."""
    found: list[str] = []
    process = subprocess.Popen(
        [
            *("kubectl", "-n", SYSTEM_NAMESPACE, "get", "lease", "vespiary", "--watch"),
            *("-o", r"jsonpath={.spec.holderIdentity}{'\n'}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = process.stdout

    def read() -> None:
        for line in lines:
            found.append(line.strip())  # noqa: PERF401 - each at once

    reader = threading.Thread(target=read, name="holders", daemon=True)
    reader.start()
    try:
        yield found
    finally:
        process.kill()
        process.wait(60)
        reader.join(60)
        lines.close()


def follows(cluster: KubernetesCluster, former: str) -> str:
    """Wait until another process holds the Lease; return it."""

    def other() -> str:
        now = leader(cluster)
        return now if now != former else ""  # empty as well while it is given back

    began = time.monotonic()
    found = wait_for("another operator leads", other, pause_s=0.2)
    print(f"{found} led {time.monotonic() - began:.1f} s after {former} had ended")
    return found


@pytest.mark.alone
@pytest.mark.verify
def test_a_standby_takes_over(
    cluster: KubernetesCluster, namespace: str, two_operators: None
) -> None:
    def first_leader() -> str:
        is_one = sorted(leading(cluster).values()) == [0, 1]
        names = {pod["metadata"]["name"] for pod in cluster.operators()}
        now = leader(cluster)
        return now if is_one and len(names) == 2 and pod_of(now) in names else ""

    first = wait_for("one of two operators leads", first_leader)
    names = {pod["metadata"]["name"] for pod in cluster.operators()}

    cluster.signal_container(pod_of(first), SYSTEM_NAMESPACE, "operator", "KILL")
    cluster.apply(small_broker("orders"), namespace)
    second = follows(cluster, first)  # the other pod, or the container that was started again
    assert pod_of(second) in names
    cluster.wait_until_ready("orders", namespace)
    before = identity(cluster, namespace)

    # A leader that stands still is followed, and ends when it wakes.
    def restarts(name: str) -> int:
        pod = cluster.get("pod", name, SYSTEM_NAMESPACE)
        assert pod is not None
        return int(pod["status"]["containerStatuses"][0]["restartCount"])

    had = restarts(pod_of(second))
    cluster.signal_container(pod_of(second), SYSTEM_NAMESPACE, "operator", "STOP")
    try:
        third = follows(cluster, second)
        assert pod_of(third) != pod_of(second)
    finally:
        cluster.signal_container(pod_of(second), SYSTEM_NAMESPACE, "operator", "CONT")
    wait_for("the one that woke has ended", lambda: restarts(pod_of(second)) > had)
    wait_for("one says that it leads", lambda: sorted(leading(cluster).values()) == [0, 1])
    assert leader(cluster) == third

    # A leader that is asked to go gives the Lease back, and nobody waits.
    with seen_holders() as holders:
        wait_for("the watch has begun", lambda: third in holders)
        going = ("-n", SYSTEM_NAMESPACE, "delete", "pod", pod_of(third), "--wait=false")
        cluster.kubectl(*going)
        fourth = follows(cluster, third)
        wait_for("the watch has seen it", lambda: fourth in holders)
    given_back = list(dict.fromkeys(holders))
    assert given_back == [third, "", fourth], "nobody waited for the Lease to run out"
    patch = json.dumps({"spec": {"addresses": [{"name": "later"}]}})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", patch)
    generation = cluster.broker("orders", namespace)["metadata"]["generation"]
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=generation)
    assert identity(cluster, namespace) == before
    check_log(operator_log(cluster))

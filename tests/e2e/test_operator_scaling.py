"""More brokers, fewer brokers, no broker for a while, on a real cluster."""

from __future__ import annotations

import base64
import contextlib
import json
import queue
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.certificates import Authority
from vespiary_testkit.kubectl_plugin import plugin
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

PODS = "app.kubernetes.io/component=broker"


def test_hibernating_and_waking(cluster: KubernetesCluster, namespace: str) -> None:
    document = small_broker("orders", replicas=2, topology="Independent")
    document["spec"]["storage"]["retention"] = {"whenScaled": "Delete"}
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    assert {s["metadata"]["name"] for s in cluster.items("service", namespace)} == {
        "orders",
        "orders-0",
        "orders-1",
        "orders-headless",
    }
    wait_for(
        "the Service of the second broker leads to it alone",
        lambda: targets(cluster, namespace, "orders-1") == ["orders-1"],
    )
    claims = uids(cluster, "pvc", namespace)
    secret = found(cluster, "secret", "orders-credentials", namespace)["metadata"]["uid"]
    document["spec"]["hibernate"] = True
    cluster.apply(document, namespace)
    asleep = cluster.wait_for_condition("orders", namespace, "Available", "False", generation=2)
    assert asleep["reason"] == "Hibernated"
    wait_for("no pod is left", lambda: cluster.items("pods", namespace, PODS) == [])
    for kind, status in (("Ready", "True"), ("Progressing", "False")):
        wait_for(
            f"the condition {kind} says so",
            lambda kind=kind, status=status: (
                condition(cluster, namespace, kind) == (status, "Hibernated")
            ),
        )
    assert uids(cluster, "pvc", namespace) == claims
    del document["spec"]["hibernate"]
    cluster.apply(document, namespace)
    wait_for(
        "both brokers serve again",
        lambda: cluster.broker("orders", namespace)["status"].get("summary") == "2/2",
    )
    assert uids(cluster, "pvc", namespace) == claims
    assert found(cluster, "secret", "orders-credentials", namespace)["metadata"]["uid"] == secret


def condition(cluster: KubernetesCluster, namespace: str, kind: str) -> tuple[str, str]:
    conditions = cluster.broker("orders", namespace)["status"].get("conditions") or ()
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == kind), ("", ""))


def uids(cluster: KubernetesCluster, kind: str, namespace: str) -> dict[str, str]:
    return {c["metadata"]["name"]: c["metadata"]["uid"] for c in cluster.items(kind, namespace)}


def targets(cluster: KubernetesCluster, namespace: str, service: str) -> list[str]:
    slices = cluster.items("endpointslice", namespace, f"kubernetes.io/service-name={service}")
    return [
        endpoint["targetRef"]["name"] for each in slices for endpoint in each.get("endpoints") or ()
    ]


def found(cluster: KubernetesCluster, kind: str, name: str, namespace: str) -> dict[str, Any]:
    there = cluster.get(kind, name, namespace)
    assert there is not None, f"{kind}/{name} is not there"
    return there


@pytest.mark.alone
def test_brokers_leave_only_when_they_are_empty(cluster: KubernetesCluster, namespace: str) -> None:
    document = small_broker("orders", replicas=3, topology="Independent")
    document["spec"]["config"] |= {"minLargeMessageSize": "100Ki", "journalFileSize": "1Mi"}
    document["spec"]["addressSettings"] = [
        {"match": "#", "maxSizeBytes": "256Ki", "pageSizeBytes": "64Ki"}
    ]
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    password = cluster.password("orders", namespace)
    survivor = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    sent: set[str] = set()
    for ordinal in range(3):
        sent |= fill(cluster, namespace, ordinal, password)
    # The broker that stays takes nothing of that kind now, so the drain stands still.
    set_filter(cluster, namespace, password, "colour = 'red'")
    drained = plugin(namespace, "drain", "orders", "--to", "1")
    assert drained.returncode == 0, drained.stderr
    assert "orders goes from 3 to 1 brokers; those that leave are emptied first." in drained.stdout

    def is_said() -> bool:  # between two tries it is under way
        told = cluster.condition("orders", namespace, "Draining")
        found = (told.get("status"), told.get("reason"))
        sentence = "the queue work does not take a message"
        return found == ("True", "DrainWaits") and sentence in told["message"]

    wait_for("the drain waits, and says for what", is_said, pause_s=0.1)
    cluster.restart_operator()
    former = wait_for("it runs", lambda: running(cluster, namespace, "orders-2"))
    cluster.kill_broker("orders-2", namespace)
    wait_for(
        "the broker that leaves runs again",
        lambda: running(cluster, namespace, "orders-2") not in ("", former),
    )
    assert pod_names(cluster, namespace) == ["orders-0", "orders-1", "orders-2"]
    set_filter(cluster, namespace, password, "")
    wait_for("one broker is left", lambda: pod_names(cluster, namespace) == ["orders-0"], 480)
    status = wait_for("nobody is leaving", lambda: settled_status(cluster, namespace))
    assert [record["broker"] for record in status["scaleDowns"]] == ["orders-2", "orders-1"]
    assert all(record["target"] == "orders-0" for record in status["scaleDowns"])
    assert {"NobodyLeaves"} == {
        c["reason"] for c in status["conditions"] if c["type"] == "Draining"
    }
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == survivor
    claims = uids(cluster, "pvc", namespace)
    assert "journal-orders-2" in claims, "the claims are kept, as retention says"
    wait_for(
        "the Service of the last broker is gone",
        lambda: cluster.get("service", "orders-2", namespace) is None,
    )
    bodies = received(cluster, namespace, password, len(sent))
    assert Counter(bodies) == Counter(sent), "everything is there, and once"
    verified = plugin(namespace, "journal", "orders", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    come_back_and_one_is_forced(cluster, namespace, document, password)


def come_back_and_one_is_forced(
    cluster: KubernetesCluster, namespace: str, document: dict[str, Any], password: str
) -> None:
    """They come back with their old claims, and let clients in again; one is forced to go."""
    claims = uids(cluster, "pvc", namespace)
    scale_to(cluster, namespace, 2)
    two_serve(cluster, namespace)
    kept = fill(cluster, namespace, 1, password, count=3)
    document["spec"] |= {"replicas": 1, "scaleDown": {"force": True}}
    cluster.apply(document, namespace)
    wait_for("one broker is left", lambda: pod_names(cluster, namespace) == ["orders-0"])
    record = status_of(cluster, namespace)["scaleDowns"][-1]
    assert (record["broker"], record["forced"]) == ("orders-1", True)
    wait_for(
        "an Event tells of it",
        lambda: "ForcedScaleDown" in {e["reason"] for e in cluster.items("events", namespace)},
    )
    assert uids(cluster, "pvc", namespace) == claims
    document["spec"] |= {"replicas": 2, "scaleDown": {"force": False}}
    cluster.apply(document, namespace)
    two_serve(cluster, namespace)
    assert set(received(cluster, namespace, password, len(kept), ordinal=1)) == kept
    leave_over_tls(cluster, namespace, document, password)


def leave_over_tls(
    cluster: KubernetesCluster, namespace: str, document: dict[str, Any], password: str
) -> None:
    """Running brokers get TLS at their HTTP port, and one is then drained over it."""
    # A consumer whose forwarded connection lingers would be sent what comes now.
    wait_for(
        "the consumer of before is gone",
        lambda: all(
            each["consumers"] == 0
            for each in call(cluster, namespace, password, 1, "GET", "/queues")["items"]
        ),
    )
    sent = fill(cluster, namespace, 1, password, count=300)
    authority = Authority()
    own = authority.sign(f"orders.{namespace}.svc")
    parts = {"tls.crt": own.certificate, "tls.key": own.key, "ca.crt": authority.certificate}
    data = {name: base64.b64encode(value).decode() for name, value in parts.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert"}, "data": data}
    cluster.apply(secret, namespace)
    document["spec"]["admin"] = {"tls": {"secretName": "cert"}}
    cluster.apply(document, namespace)
    generation = cluster.broker("orders", namespace)["metadata"]["generation"]
    cluster.wait_for_condition(
        *("orders", namespace, "ConfigApplied", "True"), generation=generation, timeout_s=480
    )
    scale_to(cluster, namespace, 1)
    wait_for("one broker is left", lambda: pod_names(cluster, namespace) == ["orders-0"], 480)
    record = status_of(cluster, namespace)["scaleDowns"][-1]
    assert (record["broker"], record["target"]) == ("orders-1", "orders-0")
    assert record["messages"] == len(sent)
    bodies = received(cluster, namespace, password, len(sent))
    assert Counter(bodies) == Counter(sent), "everything came along, and once"


def two_serve(cluster: KubernetesCluster, namespace: str) -> None:
    """Wait until two brokers are ready, which none is that lets no clients in."""
    wait_for("two brokers serve", lambda: status_of(cluster, namespace).get("summary") == "2/2")


def running(cluster: KubernetesCluster, namespace: str, name: str) -> str:
    """Return which container a broker runs in, ready or not; empty while it does not run."""
    pod = cluster.get("pod", name, namespace) or {}
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    found = (str(s["containerID"]) for s in statuses if "running" in s["state"])
    return next(found, "")


def set_filter(cluster: KubernetesCluster, namespace: str, password: str, text: str) -> None:
    """Change what the queue of the first broker takes."""
    call(cluster, namespace, password, 0, "PATCH", "/queues/work", {"filterString": text})


def call(
    cluster: KubernetesCluster,
    namespace: str,
    password: str,
    ordinal: int,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Call the API of a broker, in clear."""
    login = base64.b64encode(f"admin:{password}".encode()).decode()
    with cluster.forwarded(f"pod/orders-{ordinal}", 8161, namespace) as port:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/v1{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Basic {login}"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def scale_to(cluster: KubernetesCluster, namespace: str, replicas: int) -> None:
    cluster.kubectl("-n", namespace, "scale", "broker", "orders", f"--replicas={replicas}")


def status_of(cluster: KubernetesCluster, namespace: str) -> dict[str, Any]:
    return dict(cluster.broker("orders", namespace).get("status") or {})


def settled_status(cluster: KubernetesCluster, namespace: str) -> dict[str, Any] | None:
    status = status_of(cluster, namespace)
    is_done = status.get("members") == 1 and "scaleDown" not in status
    draining = next((c for c in status["conditions"] if c["type"] == "Draining"), {})
    return status if is_done and draining.get("status") == "False" else None


def pod_names(cluster: KubernetesCluster, namespace: str) -> list[str]:
    return sorted(pod["metadata"]["name"] for pod in cluster.items("pods", namespace, PODS))


@contextlib.contextmanager
def client_of(
    cluster: KubernetesCluster, namespace: str, ordinal: int, password: str
) -> Iterator[Client]:
    with cluster.forwarded(f"pod/orders-{ordinal}", 61613, namespace) as port:
        client = Client(port, "1.2")
        client.connection.connect("admin", password, wait=True)
        try:
            yield client
        finally:
            client.connection.disconnect()
            # A broker that has not read that when the forwarding ends serves the client on for a
            # moment: to an `auto` consumer it hands what comes next, which nobody receives.
            client.recorder.ended.wait(WAIT_S)


def fill(
    cluster: KubernetesCluster, namespace: str, ordinal: int, password: str, *, count: int = 1000
) -> set[str]:
    """Send messages to one broker, so many that some are paged, and a large one; return bodies."""
    bodies = [f"{ordinal}-{number}-{'x' * 500}" for number in range(count)]
    bodies.append(f"{ordinal}-large-{'y' * 200_000}")
    with client_of(cluster, namespace, ordinal, password) as client:
        for body in bodies[:-2]:
            client.connection.send("/queue/work", body, headers={"persistent": "true"})
        for body in bodies[-2:]:
            client.send("/queue/work", body)
    return set(bodies)


def received(
    cluster: KubernetesCluster, namespace: str, password: str, count: int, *, ordinal: int = 0
) -> list[str]:
    """Receive what is there, and a moment longer."""
    with client_of(cluster, namespace, ordinal, password) as client:
        client.subscribe("/queue/work")
        bodies = [frame.body for frame in client.recorder.take(count)]
        with contextlib.suppress(queue.Empty):
            bodies.append(client.recorder.messages.get(timeout=1.0).body)
    return bodies

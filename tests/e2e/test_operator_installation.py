"""The operator itself: node tuning on a real node, and what an uninstall leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    SYSTEM_NAMESPACE,
    TUNING,
    TUNING_NAMESPACE,
    KubernetesCluster,
    run,
    small_broker,
    wait_for,
)
from vespiary_testkit.operator_looks import at_rest, wait_for_a_look

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

KNOB = "/proc/sys/fs/aio-max-nr"


@pytest.fixture
def node_value(cluster: KubernetesCluster) -> Iterator[int]:
    """Yield the machine's fs.aio-max-nr, and put it back: the test raises it for real."""
    if cluster.script is None:
        pytest.skip("raising fs.aio-max-nr would change a node that is not ours to change")
    script = str(cluster.script)
    before = int(run(script, "enter", "cat", KNOB).stdout)
    try:
        yield before
    finally:
        run(script, "enter", "sh", "-c", f"echo {before} > {KNOB}")
        assert int(run(script, "enter", "cat", KNOB).stdout) == before


def tuning(cluster: KubernetesCluster) -> dict[str, Any]:
    found = cluster.get(TUNING, "default")
    assert found is not None
    return found


def node_of(tuning: dict[str, Any]) -> dict[str, Any]:
    """Return what a tuning says of the one node; empty while it says nothing."""
    (node,) = (tuning.get("status") or {}).get("nodes") or [{}]
    return dict(node)


def set_mode(cluster: KubernetesCluster, mode: str, **spec: Any) -> None:
    document = {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "BrokerNodeTuning",
        "metadata": {"name": "default"},
        "spec": {"mode": mode, **spec},
    }
    cluster.apply(document)


def test_raise_raises_and_never_lowers(
    cluster: KubernetesCluster, namespace: str, node_value: int
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    wait_for(
        "mode Verify knows the node's number",
        lambda: {"aioMaxNr"} == {"aioMaxNr", "raisedFrom"} & node_of(tuning(cluster)).keys(),
    )
    script = str(cluster.script)
    floor = node_value + 1000
    try:
        set_mode(cluster, "Raise", floor=floor, margin=100)

        def is_raised() -> bool:
            node = node_of(tuning(cluster))
            told = (node.get("raisedFrom"), node.get("aioMaxNr"), node.get("satisfied"))
            return told == (node_value, floor, True)

        wait_for("fs.aio-max-nr is raised, and the status says from what", is_raised)
        assert int(run(script, "enter", "cat", KNOB).stdout) == floor
        assert "1/1" in cluster.kubectl("get", "brnt", "default").stdout

        run(script, "enter", "sh", "-c", f"echo {node_value} > {KNOB}")
        wait_for(
            "a value that was lowered is raised again",
            lambda: int(run(script, "enter", "cat", KNOB).stdout) == floor,
        )
        set_mode(cluster, "Verify")

        def is_gone() -> bool:
            return not cluster.items(
                "daemonset,pods", TUNING_NAMESPACE, "app.kubernetes.io/component=node-tuning"
            )

        wait_for("the DaemonSet and its pods are gone", is_gone)
        assert int(run(script, "enter", "cat", KNOB).stdout) == floor, "it was not lowered"
    finally:
        set_mode(cluster, "Verify")
        wait_for(
            "no tuning pod is left to raise the value again",
            lambda: (
                not cluster.items(
                    "pods", TUNING_NAMESPACE, "app.kubernetes.io/component=node-tuning"
                )
            ),
        )


@pytest.mark.verify
def test_uninstall_keeps_definitions_brokers_and_claims(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    at_rest(cluster, "orders", namespace)
    claims = {c["metadata"]["uid"] for c in cluster.items("pvc", namespace)}
    asked = generation_of_its_set(cluster, namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    try:
        cluster.uninstall()
        assert BROKER in cluster.kubectl("get", "crd", "-o", "name").stdout
        assert cluster.broker("orders", namespace)
        still = cluster.get("pod", "orders-0", namespace)
        assert still is not None
        assert still["metadata"]["uid"] == pod["metadata"]["uid"], "the broker runs on"
        assert {c["metadata"]["uid"] for c in cluster.items("pvc", namespace)} == claims
    finally:
        cluster.install()
    wait_for_a_look(cluster, "orders", namespace)
    cluster.wait_until_ready("orders", namespace)
    assert generation_of_its_set(cluster, namespace) == asked, "a new operator changes nothing"
    after = cluster.get("pod", "orders-0", namespace)
    assert after is not None
    assert after["metadata"]["uid"] == pod["metadata"]["uid"], "a new operator restarts nobody"
    cluster.kubectl("-n", namespace, "delete", BROKER, "orders", "--timeout=110s")
    wait_for("the pod is gone", lambda: not cluster.items("pods", namespace))
    left = [c["metadata"] for c in cluster.items("pvc", namespace)]
    assert {metadata["uid"] for metadata in left} == claims
    assert not [m["name"] for m in left if "deletionTimestamp" in m or "ownerReferences" in m]


def generation_of_its_set(cluster: KubernetesCluster, namespace: str) -> int:
    """Return how often what is asked of the StatefulSet was changed."""
    found = cluster.get("statefulset", "orders", namespace)
    assert found is not None
    return int(found["metadata"]["generation"])


@pytest.mark.verify
def test_the_pod_of_the_operator_is_restricted(cluster: KubernetesCluster) -> None:
    cluster.helm("test", "vespiary", "-n", SYSTEM_NAMESPACE)
    (pod,) = cluster.operators()
    container = pod["spec"]["containers"][0]["securityContext"]
    assert container["readOnlyRootFilesystem"]
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    statuses = pod["status"]["containerStatuses"]
    assert [status["restartCount"] for status in statuses] == [0]

"""Scope `namespaces`: with a Role in one namespace, the operator looks after that one alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from vespiary_testkit.kubernetes_cluster import (
    SYSTEM_NAMESPACE,
    KubernetesCluster,
    small_broker,
    wait_for,
)
from vespiary_testkit.operator_looks import at_rest

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


@pytest.fixture
def other(cluster: KubernetesCluster) -> Iterator[str]:
    name = f"e2e-other-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.alone
def test_a_broker_of_the_namespace_gets_ready_and_others_are_left_alone(
    cluster: KubernetesCluster, namespace: str, other: str
) -> None:
    cluster.install("scope=namespaces", f"namespaces={{{namespace}}}")
    try:
        documents = json.loads(
            cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "json").stdout
        )["items"]
        ours = [d for d in documents if d["metadata"]["name"].startswith("vespiary")]
        assert not ours, "nothing cluster-wide is granted"
        cluster.apply(small_broker("stranger"), other)
        cluster.apply(small_broker("orders"), namespace)
        at_rest(cluster, "orders", namespace)  # made later: the other one would have been seen to
        assert "status" not in cluster.broker("stranger", other)
        assert not cluster.items("statefulsets", other)
        assert not cluster.items("secrets", other)
        verified = cluster.condition("orders", namespace, "StorageVerified")
        assert verified["status"] == "True", "the pods themselves judge the volumes"
        # What is edited is put back with these rights as well.
        cluster.kubectl("-n", namespace, "delete", "service", "orders")
        wait_for("the Service is back", lambda: cluster.get("service", "orders", namespace))
        (pod,) = cluster.operators()
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        log = cluster.kubectl("-n", SYSTEM_NAMESPACE, "logs", pod["metadata"]["name"]).stdout
        assert f"looks after {namespace};" in log
    finally:
        cluster.install()


def test_broker_pods_have_no_token(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    assert pod["spec"]["automountServiceAccountToken"] is False
    mounts = [
        mount["mountPath"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        for mount in container.get("volumeMounts", ())
    ]
    assert not [path for path in mounts if "serviceaccount" in path], "nothing added one either"
    account = f"system:serviceaccount:{namespace}:{pod['spec']['serviceAccountName']}"
    for right in (("get", "secrets"), ("list", "pods"), ("get", "brokers.vespiary.dev")):
        done = cluster.kubectl(
            "-n", namespace, "auth", "can-i", *right, "--as", account, check=False
        )
        assert done.stdout.strip() == "no", right

"""What the operator made stays as it made it, and is changed one gate at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from vespiary_operator import names
from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for
from vespiary_testkit.operator_looks import at_rest, wait_for_a_look, wait_for_watch

T = TypeVar("T")

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

CHILDREN = [
    ("statefulset", "orders"),
    ("service", "orders"),
    ("service", "orders-headless"),
    ("serviceaccount", "orders-broker"),
    ("poddisruptionbudget", "orders"),
    ("secret", "orders-users"),
    ("networkpolicy", "orders"),
]


def test_children_are_put_back(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders", networkPolicy={"enabled": True}), namespace)
    cluster.wait_until_ready("orders", namespace)
    users = found(cluster, "secret", "orders-users", namespace)["data"]
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    (config,) = [
        c["metadata"]["name"]
        for c in cluster.items("configmap", namespace)
        if c["metadata"]["name"].startswith("orders-config-")
    ]

    for kind, name in [*CHILDREN, ("configmap", config), ("configmap", "orders-live-config")]:
        deleted: set[str] = set()

        def delete(kind: str = kind, name: str = name, deleted: set[str] = deleted) -> None:
            deleted.add(found(cluster, kind, name, namespace)["metadata"]["uid"])
            cascade = ["--cascade=orphan"] if kind == "statefulset" else []
            cluster.kubectl("-n", namespace, "delete", kind, name, "--wait=false", *cascade)

        def is_back(kind: str = kind, name: str = name, deleted: set[str] = deleted) -> bool:
            there = cluster.get(kind, name, namespace)
            return there is not None and there["metadata"]["uid"] not in deleted

        wait_for_watch(cluster, f"{kind}/{name} is made again", delete, is_back)
    assert set(found(cluster, "secret", "orders-users", namespace)["data"]) == set(users)

    for kind, name, patch, path in (
        ("service", "orders", {"spec": {"selector": {"app": "x"}}}, ["spec", "selector"]),
        ("poddisruptionbudget", "orders", {"spec": {"maxUnavailable": 3}}, ["spec"]),
        ("networkpolicy", "orders", {"spec": {"ingress": []}}, ["spec", "ingress"]),
        ("statefulset", "orders", {"spec": {"replicas": 3}}, ["spec", "replicas"]),
        (
            "statefulset",
            "orders",
            {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}},
            ["spec", "template", "spec", "terminationGracePeriodSeconds"],
        ),
        ("secret", "orders-users", {"data": {"users": "eA=="}}, ["data", "users"]),
    ):
        wanted = part(found(cluster, kind, name, namespace), path)
        merge = ("patch", kind, name, "--type=merge", "-p", json.dumps(patch))

        def change(merge: tuple[str, ...] = merge) -> None:
            cluster.kubectl("-n", namespace, *merge)

        def is_right(
            kind: str = kind, name: str = name, path: list[str] = path, wanted: Any = wanted
        ) -> bool:
            value = part(found(cluster, kind, name, namespace), path)
            if kind == "secret":  # hashes have a fresh salt when they are made anew
                return value not in (None, "eA==")
            return bool(value == wanted)

        place = f"{kind}/{name} is put right at {'.'.join(path)}"
        wait_for_watch(cluster, place, change, is_right)
    cluster.wait_until_ready("orders", namespace)
    after = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    assert after == pod, "no edit of a child restarted the broker"
    wait_for(
        "events of what was made and put back",
        lambda: (
            {"Created", "Restored"} <= {e["reason"] for e in cluster.items("events", namespace)}
        ),
    )


@pytest.mark.alone
def test_nothing_is_written_while_nothing_changes(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    at_rest(cluster, "orders", namespace)
    # Nothing wakes the operator for what brokers and volumes say by now: have it looked at first.
    look = f"e2e/look={uuid.uuid4().hex}"
    cluster.kubectl("-n", namespace, "annotate", BROKER, "orders", look)
    before = settled(lambda: written(cluster, namespace))
    cluster.restart_operator()
    wait_for_a_look(cluster, "orders", namespace)
    assert written(cluster, namespace) == before


@pytest.mark.alone
def test_the_password_outlives_the_operator(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    before = [found(cluster, "secret", f"orders-{s}", namespace) for s in ("credentials", "users")]
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    cluster.restart_operator()
    wait_for_a_look(cluster, "orders", namespace)
    after = [found(cluster, "secret", f"orders-{s}", namespace) for s in ("credentials", "users")]
    assert [s["data"] for s in after] == [s["data"] for s in before]
    assert [s["metadata"]["uid"] for s in after] == [s["metadata"]["uid"] for s in before]
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == pod


def test_a_changed_setting_reaches_one_broker_after_the_other(
    cluster: KubernetesCluster, namespace: str
) -> None:
    document = small_broker("orders", replicas=2, topology="Independent")
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    old = {
        p["metadata"]["name"]: p["metadata"]["uid"]
        for p in cluster.items("pods", namespace, "app.kubernetes.io/component=broker")
    }
    document["spec"]["config"]["globalMaxSize"] = "64Mi"
    cluster.apply(document, namespace)

    fewest = 2

    def look() -> bool:
        nonlocal fewest
        pods = cluster.items("pods", namespace, "app.kubernetes.io/component=broker")
        ready = [p for p in pods if is_ready(p)]
        fewest = min(fewest, len(ready))
        new = [p for p in pods if old.get(p["metadata"]["name"]) != p["metadata"]["uid"]]
        return len(new) == 2 and len(ready) == 2

    wait_for("both brokers have the new settings", look, 400, pause_s=0.2)
    assert fewest >= 1, "both were away, as they are new ones, but not at a time"
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=2)
    stateful_set = found(cluster, "statefulset", "orders", namespace)

    def rests() -> bool:
        live = found(cluster, "statefulset", "orders", namespace)
        return bool(live["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 2)

    wait_for("the partition rests at the number of replicas", rests)
    assert stateful_set["spec"]["podManagementPolicy"] == "Parallel"

    def maps() -> list[str]:
        return [
            c["metadata"]["name"]
            for c in cluster.items("configmap", namespace)
            if c["metadata"]["name"].startswith("orders-config-")
        ]

    wait_for("the ConfigMap that nobody reads is gone", lambda: len(maps()) == 1)


def test_scaling_and_growing(cluster: KubernetesCluster, namespace: str) -> None:
    if cluster.get("storageclass", "local-xfs") is None:
        pytest.skip("the cluster has no storage class local-xfs, whose volumes grow in use")
    document = small_broker("orders", topology="Independent")
    journal = document["spec"]["storage"]["volumes"]["journal"]
    journal |= {"storageClassName": "local-xfs", "size": "320Mi"}
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    assert "ext4, xfs" in cluster.kubectl("get", "br", "orders", "-n", namespace).stdout
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    journal["size"] = "400Mi"
    cluster.apply(document, namespace)

    def has_grown() -> bool:
        claim = found(cluster, "pvc", "journal-orders-0", namespace)
        return bool(claim["status"]["capacity"]["storage"] == "400Mi")

    wait_for("the claim of the journal has grown", has_grown)
    cluster.kubectl("-n", namespace, "scale", "broker", "orders", "--replicas=2")
    wait_for(
        "two brokers serve",
        lambda: cluster.broker("orders", namespace)["status"].get("summary") == "2/2",
    )
    wait_for("the second claim has the new size", lambda: second_size(cluster, namespace))
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == pod


def second_size(cluster: KubernetesCluster, namespace: str) -> bool:
    claim = found(cluster, "pvc", "journal-orders-1", namespace)
    return bool(claim["spec"]["resources"]["requests"]["storage"] == "400Mi")


def test_a_wrong_setting_changes_nothing(cluster: KubernetesCluster, namespace: str) -> None:
    document = small_broker("orders")
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    document["spec"]["addresses"] = [
        {"name": "a", "queues": [{"name": "q", "routingType": "ANYCAST"}]},
        {"name": "b", "queues": [{"name": "q", "routingType": "ANYCAST"}]},
    ]
    cluster.apply(document, namespace)
    wrong = cluster.wait_for_condition("orders", namespace, "ConfigApplied", "False", generation=2)
    assert wrong["reason"] == "InvalidConfiguration"
    assert "spec.addresses[1].queues[0].name" in wrong["message"]
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == pod
    assert is_ready(found(cluster, "pod", "orders-0", namespace))


def written(cluster: KubernetesCluster, namespace: str) -> dict[str, Any]:
    """Return what the operator has written, and when.

    Without what others write at times of their own: the status of Kubernetes' objects, and the room
    on volumes, which moves while a broker makes files.
    """
    seen: dict[str, Any] = {}
    for kind, name in [*CHILDREN[:-1], (BROKER, "orders")]:
        text = cluster.kubectl(
            *("-n", namespace, "get", kind, name, "-o", "json", "--show-managed-fields")
        ).stdout
        document = json.loads(text)
        metadata = document["metadata"]
        metadata.pop("resourceVersion")
        fields = metadata.pop("managedFields")
        if kind == BROKER:
            for broker in document["status"]["brokers"]:
                for volume in broker["volumes"]:
                    volume.pop("freeBytes", None)
                    volume.pop("freeInodes", None)
        else:
            document.pop("status", None)
            document["written"] = [f for f in fields if f["manager"].startswith(names.MANAGER)]
            assert document["written"], f"{kind}/{name}"
        seen[f"{kind}/{name}"] = document
    return seen


def settled(look: Callable[[], T]) -> T:
    """Return what is seen when it has been the same for a while."""
    seen = [look()]

    def is_quiet() -> T | None:
        seen.append(look())
        return seen[-1] if len(seen) > 4 and seen[-4:] == [seen[-1]] * 4 else None

    return wait_for("nothing changes for some seconds", is_quiet, pause_s=1.0)


def found(cluster: KubernetesCluster, kind: str, name: str, namespace: str) -> dict[str, Any]:
    there = cluster.get(kind, name, namespace)
    assert there is not None, f"{kind}/{name} is not there"
    return there


def part(document: dict[str, Any], path: list[str]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if value is not None else None
    return value


def is_ready(pod: dict[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

"""Volumes that grow on a real cluster: in use and at rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

MIB = 1024 * 1024
ORPHANED_S = 300
"""A cluster that has just learned of new resources may take minutes to orphan anything."""


def grown(storage_class: str, size: str, **spec: Any) -> dict[str, Any]:
    """Return a Broker whose journal is of a class and a size."""
    document = small_broker("orders", **spec)
    document["spec"]["storage"]["volumes"]["journal"] = {
        "size": size,
        "storageClassName": storage_class,
    }
    return document


def needs(cluster: KubernetesCluster, storage_class: str) -> None:
    if cluster.get("storageclass", storage_class) is None:
        pytest.skip(f"the cluster has no storage class {storage_class}")


def capacity(cluster: KubernetesCluster, namespace: str, ordinal: int = 0) -> str:
    claim = cluster.get("pvc", f"journal-orders-{ordinal}", namespace)
    assert claim is not None
    return str((claim["status"].get("capacity") or {}).get("storage"))


def uid(cluster: KubernetesCluster, kind: str, name: str, namespace: str) -> str:
    found = cluster.get(kind, name, namespace)
    return str(found["metadata"]["uid"]) if found is not None else ""


def template_size(cluster: KubernetesCluster, namespace: str) -> str:
    found = cluster.get("statefulset", "orders", namespace)
    if found is None or found["metadata"].get("deletionTimestamp"):
        return ""
    templates = found["spec"]["volumeClaimTemplates"]
    (journal,) = (t for t in templates if t["metadata"]["name"] == "journal")
    return str(journal["spec"]["resources"]["requests"]["storage"])


def reasons(cluster: KubernetesCluster, namespace: str) -> set[str]:
    return {event["reason"] for event in cluster.items("events", namespace)}


def refused(cluster: KubernetesCluster, document: dict[str, Any], namespace: str) -> str:
    done = cluster.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(document), check=False
    )
    assert done.returncode != 0, "the API server took it"
    return done.stderr


def watch_the_replacement(cluster: KubernetesCluster, namespace: str) -> None:
    """Wait until the claim has grown, and the StatefulSet that replaces the former has its size."""
    wait_for(
        "the claim of the journal has grown",
        lambda: capacity(cluster, namespace) == "400Mi",
    )
    wait_for(
        "the StatefulSet has the new size", lambda: template_size(cluster, namespace) == "400Mi"
    )


def test_in_use_with_the_stateful_set_replaced_and_no_broker_touched(
    cluster: KubernetesCluster, namespace: str
) -> None:
    needs(cluster, "local-xfs")
    document = grown("local-xfs", "320Mi")
    # With `Delete` the claims belong to the StatefulSet: its replacement must not take them along.
    document["spec"]["storage"]["retention"] = {"whenDeleted": "Delete"}
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    claims = {c["metadata"]["name"]: c["metadata"]["uid"] for c in cluster.items("pvc", namespace)}
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    former = uid(cluster, "statefulset", "orders", namespace)
    document["spec"]["storage"]["volumes"]["journal"]["size"] = "400Mi"
    cluster.apply(document, namespace)
    watch_the_replacement(cluster, namespace)

    def at_rest() -> bool:
        status = cluster.broker("orders", namespace)["status"]
        return "operation" not in status and status["summary"] == "1/1"

    wait_for("nothing is under way any more", at_rest)
    after = uid(cluster, "statefulset", "orders", namespace)
    assert after != former
    same = cluster.get("pod", "orders-0", namespace)
    assert same is not None
    assert same["metadata"]["uid"] == pod["metadata"]["uid"], "the broker was not restarted"
    assert same["status"]["containerStatuses"][0]["restartCount"] == 0
    assert [o["uid"] for o in same["metadata"]["ownerReferences"]] == [after]
    assert {
        c["metadata"]["name"]: c["metadata"]["uid"] for c in cluster.items("pvc", namespace)
    } == claims
    sized = cluster.wait_for_condition("orders", namespace, "VolumesSized", "True", generation=2)
    assert sized["reason"] == "AsAsked"
    (journal,) = (
        v
        for v in cluster.broker("orders", namespace)["status"]["volumes"]
        if v["name"] == "journal"
    )
    assert (journal["capacityBytes"], journal["claims"]) == (400 * MIB, "1/1")
    wait_for(
        "Events tell of all of it",  # they are written behind the status
        lambda: {"Growing", "Deleted", "Recreated"} <= reasons(cluster, namespace),
    )

    document["spec"]["storage"]["volumes"]["journal"]["size"] = "350Mi"
    assert "cannot become smaller than the claims are" in refused(cluster, document, namespace)

    # Somebody takes it away from its brokers altogether.
    orphan(cluster, namespace)
    wait_for(
        "the orphaned brokers have a StatefulSet again",
        lambda: uid(cluster, "statefulset", "orders", namespace) not in ("", after),
        ORPHANED_S,
    )
    cluster.wait_until_ready("orders", namespace)
    assert uid(cluster, "pod", "orders-0", namespace) == pod["metadata"]["uid"]
    leave_nothing_behind(cluster, namespace, claims)


def orphan(cluster: KubernetesCluster, namespace: str) -> None:
    """Have the StatefulSet go without its pods; the garbage collector needs its time for that."""
    command = ("delete", "statefulset", "orders", "--cascade=orphan", "--wait=false")
    cluster.kubectl("-n", namespace, *command)


def leave_nothing_behind(
    cluster: KubernetesCluster, namespace: str, claims: dict[str, str]
) -> None:
    """A Broker that goes while no StatefulSet holds its pods takes them with it; claims stay."""
    # Paused, the operator leaves the gap open that a replacement has for a second.
    cluster.kubectl("-n", namespace, "annotate", BROKER, "orders", "vespiary.dev/paused=true")
    cluster.wait_for_condition("orders", namespace, "Paused", "True")
    former = uid(cluster, "statefulset", "orders", namespace)
    orphan(cluster, namespace)

    def is_loose() -> bool:
        pod = cluster.get("pod", "orders-0", namespace)
        is_gone = uid(cluster, "statefulset", "orders", namespace) != former
        return is_gone and pod is not None and not pod["metadata"].get("ownerReferences")

    wait_for("nothing owns the pod", is_loose, ORPHANED_S)
    assert not cluster.get("statefulset", "orders", namespace), "a paused Broker gets no other"
    cluster.kubectl("-n", namespace, "delete", BROKER, "orders")
    wait_for("the pod ends", lambda: not cluster.items("pods", namespace))
    assert {
        c["metadata"]["name"]: c["metadata"]["uid"] for c in cluster.items("pvc", namespace)
    } == claims


def test_at_rest_one_broker_after_the_other(cluster: KubernetesCluster, namespace: str) -> None:
    needs(cluster, "local-ext4")
    document = grown("local-ext4", "256Mi", replicas=2, topology="Independent")
    cluster.apply(document, namespace)
    wait_for(
        "two brokers serve",
        lambda: cluster.broker("orders", namespace).get("status", {}).get("summary") == "2/2",
    )
    before = [uid(cluster, "pod", f"orders-{n}", namespace) for n in (0, 1)]
    document["spec"]["storage"]["volumes"]["journal"]["size"] = "320Mi"
    cluster.apply(document, namespace)
    waits = cluster.wait_for_condition("orders", namespace, "VolumesSized", "False", generation=2)
    wait_for(
        "the status says that a pod has to be started again",
        lambda: (
            cluster.condition("orders", namespace, "VolumesSized").get("reason") == "RestartPending"
        ),
    )
    assert waits["reason"] in ("Growing", "RestartPending")
    fewest = 2

    def both_grown() -> bool:
        nonlocal fewest
        pods = cluster.items("pods", namespace, "app.kubernetes.io/component=broker")
        ready = [p for p in pods if is_ready(p)]
        fewest = min(fewest, len(ready))
        sizes = {capacity(cluster, namespace, n) for n in (0, 1)}
        return sizes == {"320Mi"} and len(ready) == 2

    wait_for("both claims have grown", both_grown, 480, pause_s=0.3)
    assert fewest >= 1, "both were away, as they are new ones, but not at a time"
    after = [uid(cluster, "pod", f"orders-{n}", namespace) for n in (0, 1)]
    assert not set(before) & set(after)
    wait_for(
        "the StatefulSet has the new size",
        lambda: template_size(cluster, namespace) == "320Mi",
    )
    assert [uid(cluster, "pod", f"orders-{n}", namespace) for n in (0, 1)] == after
    wait_for("an Event says why", lambda: "RestartedToGrow" in reasons(cluster, namespace))


def is_ready(pod: dict[str, Any]) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


FILL = (
    "import os; f = os.open('/var/lib/vespiary/large-messages/ballast', os.O_CREAT | os.O_WRONLY);"
    " os.posix_fallocate(f, 0, 50 << 20)"
)


def test_by_itself_with_a_restart_where_the_filesystem_needs_one(
    cluster: KubernetesCluster, namespace: str
) -> None:
    needs(cluster, "local-ext4")
    document = small_broker("orders")
    document["spec"]["storage"]["volumes"]["largeMessages"] = {
        "size": "64Mi",
        "storageClassName": "local-ext4",
        "autoGrow": {"maxSize": "96Mi", "growthStep": "64Mi"},
    }
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    before = uid(cluster, "pod", "orders-0", namespace)
    whole = uid(cluster, "statefulset", "orders", namespace)
    cluster.kubectl(
        "-n", namespace, "exec", "orders-0", "-c", "broker", "--", "python3", "-c", FILL
    )
    # Its next look would come within a minute; this one tests what it does then.
    cluster.kubectl("-n", namespace, "annotate", "broker", "orders", "example.com/look=now")
    wait_for("it grows by itself", lambda: "AutoGrowing" in reasons(cluster, namespace))
    wait_for(
        "the status says that the pod has to be started again",
        lambda: (
            cluster.condition("orders", namespace, "VolumesSized").get("reason") == "RestartPending"
        ),
    )
    assert uid(cluster, "pod", "orders-0", namespace) == before, "it serves: it is given time"

    def has_grown() -> bool:
        claim = cluster.get("pvc", "large-messages-orders-0", namespace)
        return claim is not None and claim["status"]["capacity"]["storage"] == "96Mi"

    wait_for("the claim has grown, and no further than it may", has_grown)
    cluster.wait_until_ready("orders", namespace)
    assert uid(cluster, "pod", "orders-0", namespace) != before
    assert uid(cluster, "statefulset", "orders", namespace) == whole, "its templates are as before"
    found = cluster.broker("orders", namespace)
    assert found["metadata"]["generation"] == 1
    (volume,) = (v for v in found["status"]["volumes"] if v["name"] == "large-messages")
    assert volume["requestedBytes"] == 64 * MIB
    assert [(g["fromBytes"], g["toBytes"]) for g in volume["grown"]] == [(64 * MIB, 96 * MIB)]
    print(volume["grown"][0]["message"])

"""Volumes that must not hold a journal are refused, in words, and nothing is written to them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.cluster_pods import run_in_pod
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, run, small_broker, wait_for

pytestmark = pytest.mark.e2e


def on_class(storage_class: str, **volume: Any) -> dict[str, Any]:
    """Return a Broker whose journal is of a storage class."""
    document = small_broker("orders")
    journal = document["spec"]["storage"]["volumes"]["journal"]
    journal |= {"storageClassName": storage_class, **volume}
    return document


@pytest.mark.parametrize(
    ("storage_class", "filesystem"),
    [("local-tmpfs", "tmpfs"), pytest.param("local-fuse", "fuse", marks=pytest.mark.verify)],
)
def test_a_refused_filesystem_keeps_the_pod_in_init(
    cluster: KubernetesCluster, namespace: str, storage_class: str, filesystem: str
) -> None:
    if cluster.get("storageclass", storage_class) is None:
        pytest.skip(f"the cluster has no storage class {storage_class}")
    cluster.apply(on_class(storage_class), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "VolumeRefused"
    assert f"The volume journal is on {filesystem}" in found["message"]
    assert "Give it a volume with xfs or ext4" in found["message"]

    ready = cluster.wait_for_condition("orders", namespace, "Ready", "False")
    assert ready["reason"] == "VolumeRefused"
    shown = cluster.kubectl("get", "br", "-n", namespace).stdout
    assert f"journal: {filesystem}" in shown
    described = cluster.kubectl("describe", "br", "orders", "-n", namespace).stdout
    assert found["message"] in described

    def is_told() -> bool:  # events are written behind the status
        return any(
            e["reason"] == "VolumeRefused" and e["type"] == "Warning" and e["count"] == 1
            for e in cluster.items("events", namespace)
        )

    wait_for("the event of the refused volume", is_told)

    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    status = pod["status"]
    assert "running" not in status["containerStatuses"][0]["state"]
    assert status["containerStatuses"][0]["restartCount"] == 0, "the broker was never started"
    verdicts = {
        v["name"]: v["verdict"]
        for v in cluster.broker("orders", namespace)["status"]["brokers"][0]["volumes"]
    }
    assert verdicts == {
        "bindings": "allow",
        "journal": "deny",
        "paging": "allow",
        "large-messages": "allow",
    }
    assert_untouched(cluster, namespace)


def assert_untouched(cluster: KubernetesCluster, namespace: str) -> None:
    """Look into the volumes: no file of the store, and no stamp, is in any of them."""
    claims = {
        name: f"{name}-orders-0" for name in ("bindings", "journal", "paging", "large-messages")
    }
    looked = ["find", "/volumes", "-type", "f"]
    found = run_in_pod(cluster, namespace, looked, claims).split()
    assert found == [], "the volumes of a refused broker hold files"


@pytest.mark.verify
def test_another_policy_lets_it_start(cluster: KubernetesCluster, namespace: str) -> None:
    if cluster.get("storageclass", "local-btrfs") is None:
        pytest.skip("the cluster has no storage class local-btrfs")
    document = on_class("local-btrfs")
    document["spec"]["storage"]["filesystemPolicy"] = {"deny": ["btrfs"]}
    cluster.apply(document, namespace)
    cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    document["spec"]["storage"]["filesystemPolicy"] = {"allow": ["ext4", "xfs"], "warn": ["btrfs"]}
    cluster.apply(document, namespace)
    cluster.wait_for_condition("orders", namespace, "Ready", "True", generation=2)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "True", generation=2)
    assert found["reason"] == "VerifiedWithWarnings"
    assert "copy-on-write" in found["message"]


@pytest.mark.verify
def test_a_disk_with_a_slow_scheduler_is_warned_of(
    cluster: KubernetesCluster, namespace: str
) -> None:
    if cluster.script is None:
        pytest.skip("the disk is set by the script's own node")
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)

    def journal() -> str:
        (broker,) = cluster.broker("orders", namespace)["status"]["brokers"]
        return next(v["device"] for v in broker["volumes"] if v["name"] == "journal")

    path = f"/sys/dev/block/{wait_for('the device', journal)}/queue/scheduler"
    node = (str(cluster.script), "enter", "sh", "-c")
    known = run(*node, f"cat {path}").stdout
    if "bfq" not in known:
        pytest.skip(f"the kernel of the node has no bfq: {known.strip()}")
    before = known.partition("[")[2].partition("]")[0]
    run(*node, f"echo bfq > {path}")
    try:
        cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=110s")

        def warned() -> dict[str, Any] | None:
            found = cluster.condition("orders", namespace, "StorageVerified")
            return found if found.get("reason") == "VerifiedWithWarnings" else None

        found = wait_for("the warning", warned)
        assert "The volume journal is on the disk loop" in found["message"]
        assert "with the I/O scheduler bfq" in found["message"]
        assert found["status"] == "True"
        cluster.wait_until_ready("orders", namespace)
    finally:
        run(*node, f"echo {before} > {path}")


@pytest.fixture
def nfs_volume(cluster: KubernetesCluster) -> Iterator[str]:
    """Yield the class of a PersistentVolume that is declared as NFS; nothing serves it."""
    name = f"nfs-{uuid.uuid4().hex[:8]}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": name,
                "nfs": {"server": "192.0.2.1", "path": "/export"},
            },
        }
    )
    yield name
    cluster.kubectl("delete", "pv", name, "--wait=false")


def test_a_volume_declared_as_nfs_starts_no_pod(
    cluster: KubernetesCluster, namespace: str, nfs_volume: str
) -> None:
    cluster.apply(on_class(nfs_volume), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "VolumeRefused"
    assert "The volume journal is on nfs4, which is refused" in found["message"]
    assert nfs_volume in found["message"]
    assert cluster.items("pods", namespace) == []
    assert cluster.items("statefulsets", namespace) == []
    assert cluster.items("persistentvolumeclaims", namespace) == []
    assert "journal: refused" in cluster.kubectl("get", "br", "-n", namespace).stdout


@pytest.mark.verify
def test_a_claim_that_is_bound_to_nfs_starts_no_pod(
    cluster: KubernetesCluster, namespace: str, nfs_volume: str
) -> None:
    """Somebody made the claim beforehand, and bound it: it is found by the volume that it has."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "journal-orders-0"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": nfs_volume,
            "volumeName": nfs_volume,
            "resources": {"requests": {"storage": "256Mi"}},
        },
    }
    cluster.apply(claim, namespace)

    def is_bound() -> bool:
        found = cluster.get("pvc", "journal-orders-0", namespace) or {}
        return (found.get("status") or {}).get("phase") == "Bound"

    wait_for("the claim is bound", is_bound)
    cluster.apply(on_class(nfs_volume), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "VolumeRefused"
    assert "The volume journal is on nfs4, which is refused" in found["message"]
    assert f"PersistentVolume {nfs_volume}" in found["message"]
    ready = cluster.wait_for_condition("orders", namespace, "Ready", "False")
    assert ready["reason"] == "VolumeRefused"
    assert cluster.items("pods", namespace) == []
    assert cluster.items("statefulsets", namespace) == []
    claims = cluster.items("persistentvolumeclaims", namespace)
    assert [claim["metadata"]["name"] for claim in claims] == ["journal-orders-0"]


@pytest.mark.verify
def test_aio_that_cannot_be_had_is_never_silent(cluster: KubernetesCluster, namespace: str) -> None:
    most = int(cluster_value(cluster, namespace, "/proc/sys/fs/aio-max-nr"))
    if most > 65536:
        pytest.skip(f"fs.aio-max-nr={most}: no setting of journalMaxIo can exceed it")
    document = small_broker("orders")
    document["spec"]["config"]["journalMaxIo"] = 65536
    document["spec"]["aioShortage"] = "DegradeToNio"
    other = small_broker("first")
    cluster.apply(other, namespace)  # holds 500 of the 65536, so that the rest is not enough
    cluster.wait_until_ready("first", namespace)
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    engine = cluster.wait_for_condition("orders", namespace, "JournalEngine", "False")
    assert engine["reason"] == "Fallback"
    assert "65536 AIO operations are needed" in engine["message"]
    tuned = cluster.wait_for_condition("orders", namespace, "NodeTuned", "False")
    assert tuned["reason"] == "AioShortage"
    assert f"fs.aio-max-nr={most}" in tuned["message"]
    wait_for(
        "the engine in the table",
        lambda: " NIO " in cluster.kubectl("get", "br", "orders", "-n", namespace).stdout,
    )
    log = cluster.kubectl("-n", namespace, "logs", "orders-0", "-c", "broker").stdout
    assert '"engine":"NIO"' in log.replace(" ", "")
    password = cluster.password("orders", namespace)
    with cluster.forwarded("service/orders", 8161, namespace) as port:
        metrics = scrape(port, password)
    assert any("NIO" in line and line.endswith(" 1.0") for line in metrics.splitlines()), metrics


@pytest.mark.verify
def test_a_strict_engine_is_refused_instead(cluster: KubernetesCluster, namespace: str) -> None:
    if int(cluster_value(cluster, namespace, "/proc/sys/fs/aio-max-nr")) > 65536:
        pytest.skip("fs.aio-max-nr is so high that no setting of journalMaxIo can exceed it")
    first = small_broker("first")
    cluster.apply(first, namespace)
    cluster.wait_until_ready("first", namespace)
    document = small_broker("orders")
    document["spec"]["config"] |= {"journalMaxIo": 65536, "journalTypeStrict": True}
    document["spec"]["aioShortage"] = "DegradeToNio"
    cluster.apply(document, namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "Refused"
    assert "65536" in found["message"]
    cluster.wait_for_condition("orders", namespace, "Ready", "False")


def cluster_value(cluster: KubernetesCluster, namespace: str, path: str) -> str:
    """Return what a file of /proc says on the node, by a small pod."""
    return run_in_pod(cluster, namespace, ["cat", path]).strip()


def scrape(port: int, password: str) -> str:
    """Return a broker's metrics."""
    import base64
    import urllib.request

    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
    token = base64.b64encode(f"admin:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {token}")
    with urllib.request.urlopen(request, timeout=60) as response:
        body: bytes = response.read()
    return body.decode()

"""Facts about volumes that only the pod can find: whose they are, what they share, how mounted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.cluster_pods import run_in_pod
from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    KubernetesCluster,
    run,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

SWAP = """
import os
for name in ("bindings", "paging"):
    os.rename(f"/volumes/{name}/.vespiary-volume.json", f"/volumes/{name}/stamp")
held = {name: open(f"/volumes/{name}/stamp").read() for name in ("bindings", "paging")}
for name, other in (("bindings", "paging"), ("paging", "bindings")):
    with open(f"/volumes/{name}/.vespiary-volume.json", "w") as file:
        file.write(held[other])
    os.remove(f"/volumes/{name}/stamp")
"""


def hibernate(cluster: KubernetesCluster, namespace: str, is_asleep: bool) -> int:
    """Stop the broker, which is over then, or have it started; return the Broker's generation."""
    text = json.dumps({"spec": {"hibernate": is_asleep}})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)
    if is_asleep:
        wait_for("the pod is gone", lambda: cluster.get("pod", "orders-0", namespace) is None)
    return int(cluster.broker("orders", namespace)["metadata"]["generation"])


def volumes(cluster: KubernetesCluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Return what the status says of each volume of the broker."""
    (broker,) = cluster.broker("orders", namespace)["status"]["brokers"]
    return {volume["name"]: volume for volume in broker["volumes"]}


def test_swapped_volumes_are_refused_and_both_are_named(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    hibernate(cluster, namespace, True)
    claims = {name: f"{name}-orders-0" for name in ("bindings", "paging")}
    run_in_pod(cluster, namespace, ["python3", "-c", SWAP], claims)
    hibernate(cluster, namespace, False)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "VolumeRefused"
    mine = f"broker {namespace}/orders ordinal 0"
    for name, other in (("bindings", "paging"), ("paging", "bindings")):
        words = f"belongs to another: its stamp says {other} of {mine}"
        assert f"Volume {name} at /var/lib/vespiary/{name} {words}" in found["message"]
        assert f"wanted is {name} of {mine}" in found["message"]
    assert "attach the right volume" in found["message"]
    assert "To adopt it" not in found["message"], "no adoption makes pages of bindings"
    verdicts = {name: volume["verdict"] for name, volume in volumes(cluster, namespace).items()}
    assert verdicts == {
        "bindings": "deny",
        "journal": "allow",
        "paging": "deny",
        "large-messages": "allow",
    }
    # Put back as they were, all is as it was: nothing was written meanwhile.
    hibernate(cluster, namespace, True)
    run_in_pod(cluster, namespace, ["python3", "-c", SWAP], claims)
    awake = hibernate(cluster, namespace, False)  # asleep it was ready as well
    cluster.wait_for_condition("orders", namespace, "Ready", "True", generation=awake)
    verdicts = {volume["verdict"] for volume in volumes(cluster, namespace).values()}
    assert verdicts == {"allow"}


FOLDERS = "import os; [os.mkdir(f'/volumes/disk/{name}') for name in ('journal', 'paging')]"


class SharedDisk:
    """One disk, of which two folders are PersistentVolumes of a class of their own.

    Attributes:
        storage_class: The class.
        path: Where the disk is mounted on the node.
    """

    def __init__(self, cluster: KubernetesCluster, namespace: str) -> None:
        self._script = str(cluster.script)
        self.storage_class = f"e2e-{uuid.uuid4().hex[:8]}"
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "disk"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local-ext4",
                "resources": {"requests": {"storage": "512Mi"}},
            },
        }
        cluster.apply(claim, namespace)
        run_in_pod(cluster, namespace, ["python3", "-c", FOLDERS], {"disk": "disk"})
        bound = cluster.get("pvc", "disk", namespace) or {}
        disk = cluster.get("pv", bound["spec"]["volumeName"]) or {}
        self.path = str(disk["spec"]["local"]["path"])
        self.names = [f"{self.storage_class}-{name}" for name in ("journal", "paging")]
        for name in self.names:
            folder = f"{self.path}/{name.rpartition('-')[2]}"
            spec = {
                "capacity": {"storage": "512Mi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.storage_class,
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": folder},
                "nodeAffinity": disk["spec"]["nodeAffinity"],
            }
            kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
            cluster.apply(kind | {"metadata": {"name": name}, "spec": spec})

    def remount(self, option: str) -> None:
        run(self._script, "enter", "mount", "-o", f"remount,{option}", self.path)

    def write_cache(self) -> str:
        """Return what the kernel says of the disk's cache."""
        number = run(self._script, "enter", "findmnt", "-no", "MAJ:MIN", self.path).stdout.strip()
        knob = f"/sys/dev/block/{number}/queue/write_cache"
        return run(self._script, "enter", "cat", knob).stdout.strip()


@pytest.fixture
def shared_disk(cluster: KubernetesCluster, namespace: str) -> Iterator[SharedDisk]:
    if cluster.script is None:
        pytest.skip("the node cannot be reached")
    disk = SharedDisk(cluster, namespace)
    try:
        yield disk
    finally:
        disk.remount("barrier")
        cluster.kubectl("delete", "pv", *disk.names, "--wait=false")


def test_a_shared_device_and_unsafe_mount_options_are_found(
    cluster: KubernetesCluster, namespace: str, shared_disk: SharedDisk
) -> None:
    shared_disk.remount("nobarrier")
    document = small_broker("orders")
    for name in ("journal", "paging"):
        volume = document["spec"]["storage"]["volumes"][name]
        volume["storageClassName"] = shared_disk.storage_class
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "True")
    assert found["reason"] == "VerifiedWithWarnings"
    for name in ("journal", "paging"):
        assert (
            f"The volume {name} is mounted with nobarrier: flushes don't reach the disk's cache. "
            "Take nobarrier out of the mount options of its storage class."
        ) in found["message"]
    told = volumes(cluster, namespace)
    assert {name: volume["dedicated"] for name, volume in told.items()} == {
        "bindings": True,
        "journal": False,
        "paging": False,
        "large-messages": True,
    }
    assert told["journal"]["verdict"] == "warn"
    assert "nobarrier" in told["journal"]["options"].split(",")
    assert told["journal"]["writeCache"] == shared_disk.write_cache() != ""

    # Mounted as it should be, the next start finds nothing to say but that the disk is shared.
    shared_disk.remount("barrier")
    cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=110s")

    def is_fine() -> bool:
        now = cluster.condition("orders", namespace, "StorageVerified")
        return now["status"] == "True" and "mounted with" not in now["message"]

    wait_for("nothing is said of mount options any more", is_fine)
    told = volumes(cluster, namespace)
    assert (told["journal"]["verdict"], told["journal"]["dedicated"]) == ("allow", False)

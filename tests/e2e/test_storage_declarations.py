"""What classes and PersistentVolumes declare is told, by name, before any pod is made."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for
from vespiary_testkit.operator_looks import operator_page

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

NFS_CLASS = "e2e-nfs"
OWN_CLASS = "e2e-own-driver"


def on_class(name: str, storage_class: str, **volume: Any) -> dict[str, Any]:
    """Return a Broker whose journal is of a storage class."""
    document = small_broker(name)
    journal = document["spec"]["storage"]["volumes"]["journal"]
    journal |= {"storageClassName": storage_class, **volume}
    return document


def assert_nothing_made(cluster: KubernetesCluster, namespace: str) -> None:
    for kind in ("pods", "statefulsets", "persistentvolumeclaims"):
        assert cluster.items(kind, namespace) == [], kind


@pytest.fixture(scope="module")
def classes(cluster: KubernetesCluster) -> Iterator[None]:
    """Have classes whose provisioners nobody runs."""
    for name, provisioner in ((NFS_CLASS, "nfs.csi.k8s.io"), (OWN_CLASS, "files.example.com")):
        cluster.apply(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer",
            }
        )
    yield
    cluster.kubectl("delete", "storageclass", NFS_CLASS, OWN_CLASS)


def test_a_class_of_an_nfs_provisioner_starts_no_pod(
    cluster: KubernetesCluster, namespace: str, classes: None
) -> None:
    cluster.apply(on_class("orders", NFS_CLASS), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "VolumeRefused"
    assert "The volume journal is on nfs4, which is refused" in found["message"]
    assert "(provisioner nfs.csi.k8s.io)" in found["message"]
    assert_nothing_made(cluster, namespace)


def test_a_class_that_does_not_exist_is_named_until_it_does(
    cluster: KubernetesCluster, namespace: str
) -> None:
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.apply(on_class("orders", name), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "StorageClassMissing"
    assert f"asks for the storage class {name}, which does not exist" in found["message"]
    assert "there are: " in found["message"]
    ready = cluster.wait_for_condition("orders", namespace, "Ready", "False")
    assert ready["reason"] == "StorageClassMissing"
    assert_nothing_made(cluster, namespace)
    like = cluster.get("storageclass", "local-ext4")
    assert like is not None
    made = {key: like[key] for key in ("apiVersion", "kind", "provisioner", "volumeBindingMode")}
    made |= {"metadata": {"name": name}, "parameters": like.get("parameters") or {}}
    cluster.apply(made)
    try:
        cluster.wait_for_condition("orders", namespace, "Progressing", "True")
        wait_for("pods are made", lambda: cluster.items("pods", namespace))
    finally:
        cluster.kubectl("delete", "storageclass", name)


@pytest.fixture
def volume(cluster: KubernetesCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the class, label and name of a PersistentVolume of a driver that nobody runs."""
    name = f"e2e-{uuid.uuid4().hex[:8]}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {"disk": name}},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": name,
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": "none.example.com", "volumeHandle": name},
                **getattr(request, "param", {}),
            },
        }
    )
    yield name
    cluster.kubectl("delete", "pv", name, "--wait=false")


def test_two_brokers_that_select_one_volume(
    cluster: KubernetesCluster, namespace: str, volume: str
) -> None:
    selector = {"matchLabels": {"disk": volume}}
    cluster.apply(on_class("first", volume, selector=selector), namespace)

    def bound() -> bool:
        claim = cluster.get("pvc", "journal-first-0", namespace) or {}
        return (claim.get("status") or {}).get("phase") == "Bound"

    wait_for("the first Broker's claim is bound", bound)
    cluster.apply(on_class("second", volume, selector=selector), namespace)
    found = cluster.wait_for_condition("second", namespace, "StorageVerified", "False")
    assert found["reason"] == "NoVolumeFits"
    assert f"{volume} is claimed by {namespace}/journal-first-0" in found["message"]
    assert cluster.get("statefulset", "second", namespace) is None


@pytest.mark.parametrize("volume", [{"volumeMode": "Block"}], indirect=True)
def test_a_volume_of_the_wrong_mode(
    cluster: KubernetesCluster, namespace: str, volume: str
) -> None:
    cluster.apply(on_class("orders", volume), namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
    assert found["reason"] == "NoVolumeFits"
    assert f"{volume} is a raw block device (volumeMode: Block)" in found["message"]
    assert_nothing_made(cluster, namespace)


def test_an_override_is_ready_with_a_warning_that_stays(
    cluster: KubernetesCluster, namespace: str
) -> None:
    document = on_class("orders", "local-tmpfs")
    document["spec"]["storage"]["filesystemPolicy"] = {"allow": ["ext4", "xfs", "tmpfs"]}
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "True")
    assert found["reason"] == "FilesystemOverridden"
    assert "is on tmpfs, which is refused by default and taken only because" in found["message"]

    def told() -> str:  # metrics are counted behind the status
        found = (
            line
            for line in operator_page(cluster).splitlines()
            if line.startswith("vespiary_operator_broker_filesystem_overridden{")
            and namespace in line
        )
        return next(found, "")

    line = wait_for("the metric of what is overridden", told)
    assert 'filesystem="tmpfs"' in line
    assert line.endswith(" 1.0")


@pytest.mark.alone
def test_the_users_table_of_drivers_is_heeded(
    cluster: KubernetesCluster, namespace: str, classes: None
) -> None:
    cluster.apply(on_class("orders", OWN_CLASS), namespace)
    cluster.wait_for_condition("orders", namespace, "StorageVerified", "Unknown")
    try:
        cluster.install(
            "storageDrivers[0].driver=*.example.com", "storageDrivers[0].filesystem=nfs4"
        )
        found = cluster.wait_for_condition("orders", namespace, "StorageVerified", "False")
        assert "The volume journal is on nfs4, which is refused" in found["message"]
        assert "(provisioner files.example.com)" in found["message"]
    finally:
        cluster.install()

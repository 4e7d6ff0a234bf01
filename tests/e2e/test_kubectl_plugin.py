"""`kubectl vespiary`, found by the real kubectl, on a real Broker and one that is refused."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from vespiary_testkit.kubectl_plugin import plugin
from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


def test_the_plugin_on_a_real_broker(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    empty = plugin(namespace, "status")
    assert (empty.returncode, empty.stdout.strip()) == (
        0,
        f"There is no Broker in the namespace {namespace}.",
    )
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)

    done = plugin(namespace, "status", "orders", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["ready"], found["desired"], found["actual"]) == (True, 1, 1)

    done = plugin(namespace, "verify", "orders", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    volumes = {one["what"]: one["filesystem"] for one in json.loads(done.stdout)}
    assert volumes["journal"] == "ext4"

    done = plugin(namespace, "journal", "orders", "info")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "activemq-data" in done.stdout

    password = cluster.password("orders", namespace)
    target = tmp_path / "bundle.tar.gz"
    done = plugin(namespace, "support-bundle", "orders", "--file", str(target))
    assert done.returncode == 0, done.stderr
    with tarfile.open(target) as archive:
        files = {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert files["bundle/secret-names.yaml"].split() == [
        "-",
        "orders-credentials",
        "-",
        "orders-users",
    ]
    assert files["bundle/logs/orders-0-broker.log"]
    users = cluster.get("secret", "orders-users", namespace)
    assert users is not None
    for text in files.values():
        assert password not in text
        assert users["data"]["users"] not in text

    refused = small_broker("refused")
    refused["spec"]["storage"]["volumes"]["journal"]["storageClassName"] = "local-tmpfs"
    cluster.apply(refused, namespace)
    cluster.wait_for_condition("refused", namespace, "StorageVerified", "False")
    done = plugin(namespace, "status", "refused")
    assert done.returncode == 1
    assert "tmpfs" in done.stdout
    assert f"next: kubectl vespiary -n {namespace} verify refused" in done.stdout
    assert plugin(namespace, "verify", "refused").returncode == 1

    none = plugin(namespace, "drain", "orders")
    assert none.returncode == 2, "the only broker has nobody to take its messages"

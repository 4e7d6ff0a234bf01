"""A lost volume that comes back blank is refused until a person has it adopted."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def hibernate(cluster: KubernetesCluster, namespace: str, is_asleep: bool) -> None:
    text = json.dumps({"spec": {"hibernate": is_asleep}})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)


def files(cluster: KubernetesCluster, namespace: str) -> set[str]:
    """Return the files that the broker's pod has mounted and may change."""
    found = cluster.get("configmap", "orders-live-config", namespace)
    return set(found["data"]) if found is not None else set()


def refusal(cluster: KubernetesCluster, namespace: str) -> dict[str, Any] | None:
    found = cluster.condition("orders", namespace, "StorageVerified")
    return found if found.get("status") == "False" and "To adopt it" in found["message"] else None


def test_a_blank_volume_beside_full_ones_is_adopted_as_told_once(
    cluster: KubernetesCluster, namespace: str
) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    hibernate(cluster, namespace, True)
    wait_for("the pod is gone", lambda: cluster.get("pod", "orders-0", namespace) is None, 60)
    cluster.kubectl("-n", namespace, "delete", "pvc", "journal-orders-0", "--timeout=60s")
    hibernate(cluster, namespace, False)
    said = wait_for("the blank volume is refused", lambda: refusal(cluster, namespace), 90)
    assert "is blank, but volume " in said["message"]
    words = shlex.split(said["message"].partition("To adopt it: ")[2])
    assert words[0] == "kubectl"
    assert words[-1].startswith("vespiary.dev/adopt-volume=journal-orders-0=")
    cluster.kubectl(*words[1:])
    wait_for("the file", lambda: "adopt-0.yaml" in files(cluster, namespace), 30)
    cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=60s")  # no back-off
    cluster.wait_until_ready("orders", namespace)
    (record,) = wait_for(
        "the record", lambda: cluster.broker("orders", namespace)["status"].get("adoptions"), 30
    )
    assert "adopted the volume of journal-orders-0" in record["message"]
    events = cluster.items("events", namespace)
    assert [e["message"] for e in events if e["reason"] == "VolumeAdopted"] == [record["message"]]
    wait_for("the file is gone", lambda: files(cluster, namespace) == {"live.yaml"}, 30)

"""Volumes refused for whose they are, blank or another's, until a person has them adopted."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


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


def adopt(cluster: KubernetesCluster, namespace: str, message: str, volume: str) -> None:
    """Do what a refusal says, word by word, and wait for the broker.

    Its pod is made anew before: no back-off is waited for, and a verification that has adopted
    the volume is not followed by another one, which would find nothing to adopt.
    """
    words = shlex.split(message.partition("To adopt it: ")[2])
    assert words[0] == "kubectl"
    assert words[-1].startswith(f"vespiary.dev/adopt-volume={volume}-orders-0=")
    cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=100s")
    cluster.kubectl(*words[1:])
    cluster.wait_until_ready("orders", namespace)


def adopted(cluster: KubernetesCluster, namespace: str, claim: str) -> dict[str, Any]:
    """Return the record of a claim's volume, once it is the only one: the last command's."""

    def found() -> dict[str, Any] | None:
        known = cluster.broker("orders", namespace)["status"].get("adoptions", [])
        return known[0] if [each["claim"] for each in known] == [claim] else None

    return wait_for("the record", found)


def told(cluster: KubernetesCluster, namespace: str) -> list[str]:
    """Return what the Events say was adopted; they are made after the status is written."""
    events = cluster.items("events", namespace)
    return [event["message"] for event in events if event["reason"] == "VolumeAdopted"]


def in_broker(cluster: KubernetesCluster, namespace: str, program: str) -> None:
    """Run a few lines of Python in the broker's pod."""
    command = ("-c", "broker", "--", "/opt/vespiary/bin/python3", "-c", program)
    cluster.kubectl("-n", namespace, "exec", "orders-0", *command)


ANOTHERS = """
import json, pathlib
path = pathlib.Path("/var/lib/vespiary/paging/.vespiary-volume.json")
stamp = json.loads(path.read_text())
stamp |= {"brokerName": "shop/invoices", "brokerUid": "0b51aa1e-7c2b-4d55-9d0e-6f6f2f4f1a11"}
path.write_text(json.dumps(stamp))
"""


def refuses_and_adopts_anothers(cluster: KubernetesCluster, namespace: str) -> None:
    """A volume with another broker's stamp is refused, and taken when a person says so."""
    in_broker(cluster, namespace, ANOTHERS)
    cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=100s")
    said = wait_for("the volume is refused", lambda: refusal(cluster, namespace))
    assert "belongs to another" in said["message"]
    assert "paging of broker shop/invoices ordinal 0" in said["message"]
    assert cluster.condition("orders", namespace, "Ready")["status"] == "False"
    adopt(cluster, namespace, said["message"], "paging")
    record = adopted(cluster, namespace, "paging-orders-0")
    assert "adopted the volume of paging-orders-0" in record["message"]
    wait_for("the file is gone", lambda: files(cluster, namespace) == {"live.yaml"})
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    cluster.kubectl("-n", namespace, "delete", "pod", "orders-0", "--timeout=100s")
    # It is this broker's for good.
    cluster.wait_until_ready("orders", namespace, without=[pod["metadata"]["uid"]])


def test_volumes_are_adopted_as_told_once(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders"), namespace)
    cluster.wait_until_ready("orders", namespace)
    hibernate(cluster, namespace, True)
    wait_for("the pod is gone", lambda: cluster.get("pod", "orders-0", namespace) is None)
    cluster.kubectl("-n", namespace, "delete", "pvc", "journal-orders-0", "--timeout=100s")
    hibernate(cluster, namespace, False)
    said = wait_for("the blank volume is refused", lambda: refusal(cluster, namespace))
    assert "is blank, but volume " in said["message"]
    adopt(cluster, namespace, said["message"], "journal")
    record = adopted(cluster, namespace, "journal-orders-0")
    assert "adopted the volume of journal-orders-0" in record["message"]
    wait_for("it is told", lambda: told(cluster, namespace))
    wait_for("the file is gone", lambda: files(cluster, namespace) == {"live.yaml"})
    assert told(cluster, namespace) == [record["message"]]
    refuses_and_adopts_anothers(cluster, namespace)

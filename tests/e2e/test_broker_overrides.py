"""Settings of one broker alone, on a real cluster: that broker takes them, and no other notices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


def patch(cluster: KubernetesCluster, namespace: str, spec: dict[str, Any]) -> int:
    """Change the Broker `orders`; return its generation."""
    text = json.dumps({"spec": spec})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)
    return int(cluster.broker("orders", namespace)["metadata"]["generation"])


def lives(cluster: KubernetesCluster, namespace: str) -> list[tuple[str, int]]:
    """Return the UIDs of both pods, and how often their containers were started again."""
    found = []
    for ordinal in (0, 1):
        pod = cluster.get("pod", f"orders-{ordinal}", namespace)
        if pod is None or not pod["status"].get("containerStatuses"):
            return []
        (broker,) = pod["status"]["containerStatuses"]
        found.append((pod["metadata"]["uid"], broker["restartCount"]))
    return found


def journal_files(cluster: KubernetesCluster, namespace: str, ordinal: int) -> int:
    """Return how many files a broker's journal has."""
    listed = cluster.kubectl(
        "-n", namespace, "exec", f"orders-{ordinal}", "-c", "broker", "--",
        "ls", "/var/lib/vespiary/journal",
    ).stdout  # fmt: skip
    return sum(line.endswith(".hq") for line in listed.splitlines())


def test_one_broker_has_settings_of_its_own_and_gives_them_back(
    cluster: KubernetesCluster, namespace: str
) -> None:
    small = small_broker("orders", replicas=2, topology="Independent")
    small["spec"]["config"]["journalFileSize"] = "1Mi"
    cluster.apply(small, namespace)
    cluster.wait_until_ready("orders", namespace)
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True")
    first = lives(cluster, namespace)

    # Something that a running broker takes, and something that it starts again for.
    loud = [{"ordinal": 1, "config": {"logLevel": "debug"}}]
    generation = patch(cluster, namespace, {"perBroker": loud})
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=generation)
    assert lives(cluster, namespace) == first, "nobody was restarted"
    more = [{"ordinal": 1, "config": {"journalMinFiles": 7}}]
    generation = patch(cluster, namespace, {"perBroker": more})
    wait_for(
        "another life of orders-1",
        lambda: (found := lives(cluster, namespace)) and found[1] != first[1],
    )
    cluster.wait_until_ready("orders", namespace)
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=generation)
    wait_for("seven files", lambda: journal_files(cluster, namespace, 1) >= 7)
    second = lives(cluster, namespace)
    assert second[0] == first[0], "orders-0 goes on"
    assert journal_files(cluster, namespace, 0) < 7
    (record,) = cluster.broker("orders", namespace)["status"]["restarts"]
    assert (record["broker"], record["reason"]) == ("orders-1", "Restarted")
    assert "journal-min-files" in record["message"]

    for instance in cluster.broker("orders", namespace)["status"]["brokers"]:
        (journal,) = (v for v in instance["volumes"] if v["name"] == "journal")
        assert 0 < journal["freeBytes"] < journal["sizeBytes"]
        assert 0 <= journal.get("freeInodes", 0) <= journal["inodes"]

    # Out again: the file goes, and the broker has what all have.
    generation = patch(cluster, namespace, {"perBroker": None})
    wait_for(
        "orders-1 without settings of its own",
        lambda: (found := lives(cluster, namespace)) and found[1] != second[1],
    )
    cluster.wait_until_ready("orders", namespace)
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=generation)
    assert lives(cluster, namespace)[0] == first[0]
    live = cluster.get("configmap", "orders-live-config", namespace)
    assert live is not None
    assert set(live["data"]) == {"live.yaml"}

"""A Broker that is paused stays as it is and is still watched; restarts wait for their hours."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

PAUSED = "vespiary.dev/paused"
IGNORE_WINDOWS = "vespiary.dev/ignore-maintenance-windows"


def patch(
    cluster: KubernetesCluster,
    namespace: str,
    spec: dict[str, Any],
    annotations: dict[str, str | None] | None = None,
) -> int:
    """Change the Broker at once in both; return its generation."""
    document = {"spec": spec, "metadata": {"annotations": annotations or {}}}
    cluster.kubectl(
        *("-n", namespace, "patch", "br", "orders", "--type=merge", "-p", json.dumps(document))
    )
    return int(cluster.broker("orders", namespace)["metadata"]["generation"])


def children(cluster: KubernetesCluster, namespace: str) -> dict[str, Any]:
    """Return what the operator would change, as it is now."""
    found: dict[str, Any] = {}
    for kind in ("service", "statefulset", "poddisruptionbudget"):
        child = cluster.get(kind, "orders", namespace)
        found[kind] = None if child is None else child["spec"]
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    return {**found, "pod": pod["metadata"]["uid"]}


def wait_for_message(
    cluster: KubernetesCluster, namespace: str, kind: str, words: str, generation: int
) -> dict[str, Any]:
    """Return a condition once it is about this generation and says this."""

    def look() -> dict[str, Any] | None:
        found = cluster.condition("orders", namespace, kind)
        is_said = words in found.get("message", "")
        return found if is_said and found["observedGeneration"] >= generation else None

    return wait_for(f"{kind} says: {words}", look, pause_s=0.2)


def test_a_pause_and_a_closed_window(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders", probes={"readiness": {"period": "1s"}}), namespace)
    cluster.wait_until_ready("orders", namespace)
    good = children(cluster, namespace)
    touched = stays_as_it_is(cluster, namespace)
    opens = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=6)
    window = {"start": f"{opens:%H:%M}", "duration": "5m"}

    generation = patch(cluster, namespace, {"maintenanceWindows": [window]}, {PAUSED: None})
    cluster.wait_for_condition("orders", namespace, "Paused", "False", generation=generation)
    wait_for(
        "the Service and the budget are put right",
        lambda: all(
            children(cluster, namespace)[kind] == good[kind]
            for kind in ("service", "poddisruptionbudget")
        ),
    )
    until = f"No maintenance window is open; the next one opens at {opens:%Y-%m-%dT%H:%M:%SZ}"
    wait_for_message(cluster, namespace, "ConfigApplied", until, generation)
    held = cluster.condition("orders", namespace, "UpToDate")
    assert held["status"] == "False"
    assert until in held["message"]
    now = children(cluster, namespace)
    assert now["pod"] == touched["pod"], "it was not restarted"
    assert now["statefulset"]["template"] != good["statefulset"]["template"], "it only waits"

    patch(cluster, namespace, {}, {IGNORE_WINDOWS: "true"})

    def is_new() -> bool:
        pod = cluster.get("pod", "orders-0", namespace)
        return pod is not None and pod["metadata"]["uid"] != now["pod"]

    wait_for("the broker is a new one", is_new)
    cluster.wait_for_condition("orders", namespace, "UpToDate", "True", generation=generation)
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True", generation=generation)
    cluster.wait_until_ready("orders", namespace)


def stays_as_it_is(cluster: KubernetesCluster, namespace: str) -> dict[str, Any]:
    """Pause it, change what the operator would change, and return all of that as it stays."""
    setting = {"config": {"journalMinFiles": 2, "globalMaxSize": "64Mi"}}
    generation = patch(cluster, namespace, {"paused": True, **setting})
    wait_for_message(cluster, namespace, "Paused", "while spec.paused is true", generation)
    for kind in ("UpToDate", "ConfigApplied"):
        held = cluster.condition("orders", namespace, kind)
        assert held["status"] == "False"
        assert "It waits while spec.paused is true" in held["message"]
    edit = json.dumps({"spec": {"selector": {"app": "elsewhere"}}})
    cluster.kubectl("-n", namespace, "patch", "service", "orders", "--type=merge", "-p", edit)
    cluster.kubectl("-n", namespace, "delete", "poddisruptionbudget", "orders")
    touched = children(cluster, namespace)
    assert touched["service"]["selector"]["app"] == "elsewhere"
    assert touched["poddisruptionbudget"] is None

    before = cluster.condition("orders", namespace, "Ready")
    assert before["status"] == "True"
    cluster.kill_broker("orders-0", namespace)

    def is_back() -> bool:
        """Whether it is ready since a later time: then it was not, however short that was."""
        now = cluster.condition("orders", namespace, "Ready")
        return now["status"] == "True" and now["lastTransitionTime"] > before["lastTransitionTime"]

    wait_for("Ready was False, and is True again", is_back)
    assert children(cluster, namespace) == touched, "the status is live, and nothing else"

    generation = patch(cluster, namespace, {"paused": False}, {PAUSED: "true"})
    wait_for_message(cluster, namespace, "Paused", f"the annotation {PAUSED}", generation)
    assert cluster.condition("orders", namespace, "Paused")["status"] == "True"
    assert children(cluster, namespace) == touched, "the annotation is as good as the field"
    return touched

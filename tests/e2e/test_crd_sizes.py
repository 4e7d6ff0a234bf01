"""The rule on sizes, on a real API server: volumes only grow; a failed growth is taken back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster
from vespiary_testkit.local_operator import installed_operator_stopped

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

GIB = 1024**3


def broker(name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    volumes = {volume: {"size": size} for volume, size in sizes.items()}
    return {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "Broker",
        "metadata": {"name": name},
        # Nothing is made of it: what the API server says is all that is looked at.
        "spec": {"paused": True, "storage": {"volumes": volumes} if volumes else {}},
    }


def apply(cluster: KubernetesCluster, document: dict[str, Any], namespace: str) -> str:
    """Apply a document; return what the API server said against it, empty if it took it."""
    done = cluster.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(document), check=False
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize(
    ("before", "after", "volume"),
    [
        ({"journal": "2Gi"}, {"journal": "1Gi"}, "journal"),
        ({"journal": "20Gi"}, {}, "journal"),
        ({}, {"journal": "9Gi"}, "journal"),
        ({}, {"bindings": "1023Mi"}, "bindings"),
        ({"paging": 2 * GIB}, {"paging": "1Gi"}, "paging"),
        ({"largeMessages": "2Gi"}, {"largeMessages": 2 * GIB - 1}, "largeMessages"),
        ({"jms": "2Gi"}, {"jms": "1Gi"}, "jms"),
        ({"retention": "2Gi"}, {"retention": "1Gi"}, "retention"),
    ],
)
def test_a_smaller_size_is_refused(
    cluster: KubernetesCluster,
    namespace: str,
    before: dict[str, Any],
    after: dict[str, Any],
    volume: str,
) -> None:
    name = f"sized-{uuid.uuid4().hex[:8]}"
    assert apply(cluster, broker(name, before), namespace) == ""
    said = apply(cluster, broker(name, after), namespace)
    assert f"spec.storage.volumes.{volume}.size cannot become smaller than the claims are" in said


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"journal": "1Gi"}, {"journal": "2Gi"}),
        ({"journal": "1Gi"}, {"journal": GIB}),
        ({"bindings": "1Gi"}, {}),
        ({}, {"bindings": GIB}),
        ({"paging": "1024Mi", "largeMessages": "1Gi"}, {"paging": "1Gi", "largeMessages": "1.5Gi"}),
    ],
)
def test_the_same_size_and_a_larger_one_are_taken(
    cluster: KubernetesCluster, namespace: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    name = f"sized-{uuid.uuid4().hex[:8]}"
    assert apply(cluster, broker(name, before), namespace) == ""
    assert apply(cluster, broker(name, after), namespace) == ""


@pytest.mark.alone
def test_a_growth_that_failed_can_be_taken_back_to_what_there_is(
    cluster: KubernetesCluster, namespace: str
) -> None:
    name = f"sized-{uuid.uuid4().hex[:8]}"
    with installed_operator_stopped(cluster):  # it would write what it sees, and here is no claim
        take_back(cluster, namespace, name)


def take_back(cluster: KubernetesCluster, namespace: str, name: str) -> None:
    """Grow, have a status that says that it failed, and ask for less in several ways."""
    assert apply(cluster, broker(name, {"largeMessages": "2Gi"}), namespace) == ""
    assert apply(cluster, broker(name, {"largeMessages": "9Gi"}), namespace) == ""
    sizes = {"name": "large-messages", "requestedBytes": 9 * GIB, "largestBytes": 2 * GIB}
    cluster.kubectl(
        "patch", "-n", namespace, f"broker/{name}", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": {"volumes": [sizes]}}),
    )  # fmt: skip
    said = apply(cluster, broker(name, {"largeMessages": "2047Mi"}), namespace)
    assert "cannot become smaller than the claims are" in said
    assert apply(cluster, broker(name, {"largeMessages": "3Gi"}), namespace) == ""
    assert apply(cluster, broker(name, {"largeMessages": "2Gi"}), namespace) == ""

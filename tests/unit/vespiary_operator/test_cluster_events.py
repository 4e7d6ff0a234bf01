"""What only Events say becomes a sentence that names the object and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.cluster_events import trouble
from vespiary_operator.observation import Observed
from vespiary_spec.resources import API_VERSION, Broker

BROKER = Broker.from_dict(
    {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
    }
)


def pod(*, is_scheduled: bool = True, claim: str = "") -> dict[str, Any]:
    conditions = (
        []
        if is_scheduled
        else [{"type": "PodScheduled", "status": "False", "message": "no persistent volumes"}]
    )
    volumes = [{"name": "journal", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    return {
        "metadata": {"name": "orders-0", "uid": "p", "ownerReferences": [{"uid": "s"}]},
        "spec": {"nodeName": "node-1" if is_scheduled else "", "volumes": volumes},
        "status": {
            "conditions": conditions,
            "initContainerStatuses": [
                {"name": "verify", "state": {"waiting": {"reason": "PodInitializing"}}}
            ],
        },
    }


def event(kind: str, name: str, reason: str, message: str, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "e", "creationTimestamp": more.pop("at", "2026-01-01T00:00:00Z")},
        "involvedObject": {"kind": kind, "name": name, **more},
        "type": "Warning",
        "reason": reason,
        "message": message,
    }


def observed(*events: dict[str, Any], **more: Any) -> Observed:
    return Observed(broker=BROKER, events=events, **more)


def test_a_secret_that_is_not_there_is_named() -> None:
    old = event("Pod", "orders-0", "FailedMount", "an older one", at="2025-01-01T00:00:00Z")
    new = event(
        "Pod", "orders-0", "FailedMount",
        'MountVolume.SetUp failed for volume "extra-ca" : secret "company-ca" not found',
    )  # fmt: skip
    found = trouble(observed(old, new, pods=(pod(),)))
    assert found is not None
    assert found[1] == "PodCannotStart"
    assert 'secret "company-ca" not found. Create the Secret' in found[2]


@pytest.mark.parametrize(
    "other",
    [
        event("Pod", "orders-1", "FailedMount", "another pod"),
        event("Pod", "orders-0", "FailedMount", "an earlier pod of the name", uid="gone"),
        event("Pod", "orders-0", "Unhealthy", "another reason"),
    ],
)
def test_what_is_about_something_else_says_nothing(other: dict[str, Any]) -> None:
    assert trouble(observed(other, pods=(pod(),))) is None


def test_a_pod_that_is_refused_is_told_of() -> None:
    refused = event("StatefulSet", "orders", "FailedCreate", 'serviceaccount "robot" not found')
    found = trouble(observed(refused))
    assert found is not None
    assert found[1] == "PodRefused"
    assert "The StatefulSet orders" not in found[2]
    assert "StatefulSet orders is not made" in found[2]
    assert "correct spec.serviceAccount.name" in found[2]


def claim(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "journal-orders-0", "uid": "c"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def test_a_claim_whose_driver_is_silent_is_named_once_it_is_overdue() -> None:
    """The scheduler says nothing of a pod whose claims wait for their driver."""
    silent = pod(is_scheduled=True, claim="journal-orders-0")
    silent["spec"].pop("nodeName", None)
    silent["status"]["conditions"] = []
    waiting = claim()
    waiting["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    for now, is_said in (
        ("", False),
        ("2026-01-01T00:00:19Z", False),
        ("2026-01-01T00:00:20Z", True),
    ):
        seen = observed(pods=(silent,), claims={"journal-orders-0": waiting}, now=now)
        found = trouble(seen)
        assert (found is not None) == is_said, now
    assert found is not None
    assert found[1] == "ClaimNotBound"
    assert "its class has provided none so far" in found[2]


def test_a_claim_that_is_not_bound_is_named_with_what_it_asks_for() -> None:
    waiting = pod(is_scheduled=False, claim="journal-orders-0")
    claims = {"journal-orders-0": claim()}
    found = trouble(observed(pods=(waiting,), claims=claims))
    assert found is not None
    assert found[1] == "ClaimNotBound"
    assert "journal-orders-0 (class fast, 1Gi, ReadWriteOnce)" in found[2]
    failed = event(
        "PersistentVolumeClaim", "journal-orders-0", "ProvisioningFailed",
        'storageclass.storage.k8s.io "fast" not found',
    )  # fmt: skip
    found = trouble(observed(failed, pods=(waiting,), claims=claims))
    assert found is not None
    assert 'storageclass.storage.k8s.io "fast" not found. Create the class' in found[2]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity.", "PodNotScheduled"),
        ("0/1 nodes are available: 1 Insufficient memory.", "PodNotScheduled"),
        (
            "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            "",
        ),
        ("0/1 nodes are available: 1 node(s) did not have enough free storage.", ""),
        ("pod has unbound immediate PersistentVolumeClaims.", ""),
    ],
)
def test_a_claim_that_waits_for_a_node_is_not_to_blame(words: str, reason: str) -> None:
    waiting = pod(is_scheduled=False, claim="journal-orders-0")
    for condition in waiting["status"]["conditions"]:
        if condition["type"] == "PodScheduled":
            condition["message"] = words
    found = trouble(observed(pods=(waiting,), claims={"journal-orders-0": claim()}))
    assert found is not None
    assert found[1] == (reason or "ClaimNotBound")
    assert words in found[2]
    assert ("spec.nodeSelector" in found[2]) == bool(reason)

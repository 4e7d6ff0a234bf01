"""Refusals from declarations: classes, bound volumes, and those next in line."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.storage_checks import class_name, declared
from vespiary_spec.resources import API_VERSION, Broker, VolumeSpec

BLOCK = {"metadata": {"name": "fast"}, "provisioner": "ebs.csi.aws.com"}
NFS = {"metadata": {"name": "shared"}, "provisioner": "nfs.csi.k8s.io"}


def broker(**spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns"},
            "spec": spec,
        }
    )


def journal_on(storage_class: str, **more: Any) -> Broker:
    volume = {"storageClassName": storage_class, "size": "1Gi"}
    return broker(storage={"volumes": {"journal": volume}}, **more)


def volume(name: str, size: str = "10Gi", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "manual",
            **more,
        },
        "status": {"phase": "Bound" if "claimRef" in more else "Available"},
    }


NFS_SOURCE = {"nfs": {"server": "s", "path": "/p"}}
LOCAL = {"local": {"path": "/d"}}


def sentences(found: tuple[Any, ...]) -> list[str]:
    return [item.verdict.sentence for item in found if item.verdict.is_denied]


def test_a_class_that_mounts_nfs_is_refused() -> None:
    found = declared(journal_on("shared"), classes={"shared": NFS, "fast": BLOCK}, volumes=())
    (sentence,) = sentences(found)
    assert "The volume journal is on nfs4, which is refused" in sentence
    assert "provisioner nfs.csi.k8s.io" in sentence
    assert found[0].ordinal is None


def test_the_default_class_counts_where_none_is_named() -> None:
    default = {
        **NFS,
        "metadata": {
            "name": "shared",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
    }
    found = declared(broker(), classes={"shared": default}, volumes=())
    assert [item.volume for item in found] == ["bindings", "journal", "paging", "large-messages"]
    assert class_name(VolumeSpec(), {"fast": BLOCK}) is None


def test_what_is_not_known_refuses_nothing() -> None:
    assert declared(journal_on("anything"), classes=None, volumes=None) == ()
    assert declared(journal_on("anything"), classes={}, volumes=()) == ()


def test_the_volume_that_the_binder_would_take_is_judged() -> None:
    small = volume("pv-small", "2Gi", **NFS_SOURCE)
    large = volume("pv-large", "20Gi", **LOCAL)
    found = declared(journal_on("manual"), classes={}, volumes=(large, small))
    (sentence,) = sentences(found)
    assert "PersistentVolume pv-small" in sentence
    assert declared(journal_on("manual", replicas=0), classes={}, volumes=(small,)) == ()
    fits_not = volume("pv-tiny", "1Mi", **NFS_SOURCE)
    assert declared(journal_on("manual"), classes={}, volumes=(large, fits_not)) == ()


def test_a_second_broker_takes_the_second_volume() -> None:
    good = volume("pv-a", "2Gi", **LOCAL)
    bad = volume("pv-b", "3Gi", **NFS_SOURCE)
    assert declared(journal_on("manual"), classes={}, volumes=(good, bad)) == ()
    found = declared(journal_on("manual", replicas=2), classes={}, volumes=(good, bad))
    assert [item.ordinal for item in found] == [1]


def test_a_reserved_or_bound_volume_is_judged_for_its_claim() -> None:
    reference = {"namespace": "ns", "name": "journal-orders-0"}
    bound = volume("pv-x", storageClassName="other", claimRef=reference, **NFS_SOURCE)
    (sentence,) = sentences(declared(journal_on("fast"), classes={}, volumes=(bound,)))
    assert "pv-x" in sentence
    elsewhere = volume("pv-x", claimRef={"namespace": "x", "name": "y"}, **NFS_SOURCE)
    assert declared(journal_on("manual"), classes={}, volumes=(elsewhere,)) == ()


@pytest.mark.parametrize(
    ("expression", "is_chosen"),
    [
        ({"key": "disk", "operator": "In", "values": ["nfs"]}, True),
        ({"key": "disk", "operator": "NotIn", "values": ["nfs"]}, False),
        ({"key": "disk", "operator": "Exists"}, True),
        ({"key": "disk", "operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_is_honoured(expression: dict[str, Any], is_chosen: bool) -> None:
    wanted = broker(
        storage={
            "volumes": {
                "journal": {
                    "storageClassName": "manual",
                    "size": "1Gi",
                    "selector": {"matchExpressions": [expression]},
                }
            }
        }
    )
    found = declared(
        wanted, classes={}, volumes=(volume("pv", labels={"disk": "nfs"}, **NFS_SOURCE),)
    )
    assert bool(found) is is_chosen


def test_kept_copies_may_be_on_any_filesystem() -> None:
    kept = broker(storage={"volumes": {"retention": {"storageClassName": "shared"}}})
    assert declared(kept, classes={"shared": NFS}, volumes=()) == ()


def test_the_policy_may_allow_it_and_ephemeral_brokers_claim_nothing() -> None:
    allowed = broker(
        storage={
            "filesystemPolicy": {"allow": ["nfs4"]},
            "volumes": {"journal": {"storageClassName": "shared"}},
        }
    )
    (found,) = declared(allowed, classes={"shared": NFS}, volumes=())
    assert not found.verdict.is_denied
    assert "taken only because filesystemPolicy names it" in found.verdict.sentence
    assert declared(broker(storage={"ephemeral": True}), classes={"shared": NFS}, volumes=()) == ()

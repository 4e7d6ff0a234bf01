"""Claims that cannot be bound or attached are told of before a pod waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.observation import Observed
from vespiary_operator.options import Options, from_environment
from vespiary_operator.storage_preflight import judge
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import VerdictLevel

LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
FAST = {"metadata": {"name": "fast"}, "provisioner": "ebs.csi.aws.com", **LATE}
STATIC = {"metadata": {"name": "manual"}, "provisioner": "kubernetes.io/no-provisioner", **LATE}
CLASSES = {"fast": FAST, "manual": STATIC}


def broker(journal: dict[str, Any], *, others: str = "fast", **spec: Any) -> Broker:
    rest = {name: {"storageClassName": others} for name in ("bindings", "paging", "largeMessages")}
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns"},
            "spec": {"storage": {"volumes": {"journal": journal, **rest}}, **spec},
        }
    )


def volume(name: str, size: str = "10Gi", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": more.pop("labels", {})},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": more.pop("modes", ["ReadWriteOnce"]),
            "storageClassName": "manual",
            "local": {"path": "/d"},
            **more,
        },
        "status": {"phase": "Bound" if "claimRef" in more else "Available"},
    }


def said(asked: Broker, **observed: Any) -> list[tuple[str, str]]:
    given = {"classes": CLASSES, "volumes": (), **observed}
    found = judge(Observed(broker=asked, **given), Options())
    return [
        (item.reason if item.verdict.is_denied else "warn", item.verdict.sentence) for item in found
    ]


def test_a_class_that_does_not_exist_is_named_with_those_that_do() -> None:
    assert said(broker({"storageClassName": "fats"})) == [
        (
            "StorageClassMissing",
            "The volume journal asks for the storage class fats, which does not exist (there are: "
            "fast, manual). Create it, or make the Broker anew with another "
            "spec.storage.volumes.journal.storageClassName, which cannot change.",
        )
    ]
    assert said(broker({"storageClassName": "fats"}), classes=None) == [], "nothing is known"
    bound = {"spec": {"volumeName": "pv-1", "storageClassName": "fats"}}
    claims = {"journal-orders-0": bound}
    assert said(broker({"storageClassName": "fats"}), claims=claims) == [], "it was there once"


def test_no_default_class_is_told() -> None:
    ((level, sentence),) = said(broker({}))
    assert level == "warn"
    assert "names no storage class, and the cluster has no default one" in sentence
    assert "there are: fast, manual" in sentence
    default = {
        **FAST["metadata"],
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    }  # type: ignore[dict-item]
    assert said(broker({}), classes={"fast": {**FAST, "metadata": default}}) == []


@pytest.mark.parametrize(
    ("volumes", "words"),
    [
        ((), "there is none of its class"),
        ((volume("pv", volumeMode="Block"),), "pv is a raw block device (volumeMode: Block)"),
        ((volume("pv", modes=["ReadOnlyMany"]),), "pv does not take ReadWriteOnce"),
        ((volume("pv", "1Gi"),), "pv has 1Gi only"),
        (
            (volume("pv", claimRef={"namespace": "other", "name": "journal-bills-0"}),),
            "pv is claimed by other/journal-bills-0, and a volume is one claim's alone",
        ),
        (tuple(volume(f"pv-{n}", "1Gi") for n in range(5)), "and 2 more"),
    ],
)
def test_volumes_that_do_not_fit_are_named(volumes: Any, words: str) -> None:
    ((reason, sentence),) = said(broker({"storageClassName": "manual"}), volumes=volumes)
    assert reason == "NoVolumeFits"
    assert sentence.startswith("No PersistentVolume fits the volume journal: ")
    assert words in sentence
    assert "Create one of class manual with ReadWriteOnce, volumeMode Filesystem" in sentence


def test_two_brokers_that_select_one_volume() -> None:
    selector = {"matchLabels": {"disk": "a"}}
    asked = broker({"storageClassName": "manual", "selector": selector})
    free = volume("pv-a", labels={"disk": "a"})
    assert said(asked, volumes=(free,)) == []
    taken = volume(
        "pv-a", labels={"disk": "a"}, claimRef={"namespace": "ns", "name": "journal-bills-0"}
    )
    other = volume("pv-b", labels={"disk": "b"})
    ((reason, sentence),) = said(asked, volumes=(taken, other))
    assert reason == "NoVolumeFits"
    assert "pv-a is claimed by ns/journal-bills-0" in sentence
    assert "pv-b" not in sentence
    ((_, sentence),) = said(asked, volumes=(other,))
    assert "none of the 1 of its class has the labels" in sentence


def test_one_volume_is_not_counted_for_two_roles() -> None:
    asked = broker({"storageClassName": "manual"}, others="manual")
    four = tuple(volume(f"pv-{number}") for number in range(4))
    assert said(asked, volumes=four) == []
    ((reason, sentence),) = said(asked, volumes=four[:3])
    assert reason == "NoVolumeFits"
    assert "large-messages" in sentence


def test_classes_that_bind_at_once_are_a_warning_until_they_have_bound() -> None:
    early = {"fast": {**FAST, "volumeBindingMode": "Immediate"}}
    asked = broker({"storageClassName": "fast"})
    ((level, sentence),) = said(asked, classes=early)
    assert level == "warn"
    assert "bindings, journal, paging, large-messages are of the storage class fast" in sentence
    claims = {
        f"{name}-orders-0": {"spec": {"volumeName": "pv"}}
        for name in ("bindings", "journal", "paging", "large-messages")
    }
    assert said(asked, classes=early, claims=claims) == []


def csi_node(count: int, driver: str = "ebs.csi.aws.com") -> dict[str, Any]:
    return {"spec": {"drivers": [{"name": driver, "allocatable": {"count": count}}]}}


@pytest.mark.parametrize(
    ("limits", "replicas", "is_said"),
    [
        ((25,), 6, False),
        ((25,), 7, True),
        ((3, 3), 1, True),
        ((7, 5), 2, False),
        ((), 100, False),
    ],
)
def test_attach_limits(limits: tuple[int, ...], replicas: int, is_said: bool) -> None:
    asked = broker({"storageClassName": "fast"}, replicas=replicas)
    nodes = (*(csi_node(limit) for limit in limits), csi_node(1, "other"), {"spec": {}})
    found = said(asked, csi_nodes=nodes)
    assert bool(found) is is_said
    if found:
        assert "Each broker attaches 4 volumes of the driver ebs.csi.aws.com" in found[0][1]


def test_the_users_drivers_come_from_the_environment() -> None:
    text = '[{"driver": "ebs.csi.aws.com", "filesystem": "nfs4"}]'
    options = from_environment({"VESPIARY_STORAGE_DRIVERS": text})
    found = judge(
        Observed(broker=broker({"storageClassName": "fast"}), classes=CLASSES, volumes=()), options
    )
    assert {item.verdict.level for item in found} == {VerdictLevel.DENY}
    for wrong, words in (("[", "this is no JSON"), ("{}", "a list of storage drivers")):
        with pytest.raises(ConfigError, match=words):
            from_environment({"VESPIARY_STORAGE_DRIVERS": wrong})

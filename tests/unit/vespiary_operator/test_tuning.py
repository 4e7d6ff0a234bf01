"""The budget of fs.aio-max-nr: added up by node, planned, and reported."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator import kinds, names
from vespiary_operator.options import Options
from vespiary_operator.plan import Apply, Delete
from vespiary_operator.tuning import (
    Budget,
    NodeReport,
    ObservedTuning,
    budgets,
    compute_status,
    plan,
    report_of,
)
from vespiary_spec.resources import API_VERSION, BrokerNodeTuning
from vespiary_spec.verification import AioResult, encode, summarise

OPTIONS = Options(own_namespace="system", operator_image="vespiary/operator:1")


def tuning(**spec: Any) -> BrokerNodeTuning:
    return BrokerNodeTuning.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "BrokerNodeTuning",
            "metadata": {"name": "default", "uid": "u"},
            "spec": spec,
        }
    )


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def pod(
    node_name: str, *, demand: int = 500, nr: int = 0, max_nr: int = 65536, engine: str = "ASYNCIO"
) -> dict[str, Any]:
    answer = summarise((), AioResult(max_nr=max_nr, nr=nr, demand=demand), engine=engine)
    return {
        "metadata": {"name": "orders-0", "annotations": {names.ANNOTATION_DEMAND: str(demand)}},
        "spec": {"nodeName": node_name},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [
                {"name": "verify", "state": {"terminated": {"message": encode(answer).decode()}}}
            ],
        },
    }


def test_demand_and_what_is_held_are_added_up_by_node() -> None:
    found = budgets([pod("a"), pod("a", demand=1000, nr=500), pod("b", engine="NIO")])
    assert found["a"] == Budget(demand=1500, reserved=1500, aio_max_nr=65536, aio_nr=500)
    assert found["b"] == Budget(demand=500, reserved=0, aio_max_nr=65536, aio_nr=0)
    gone = pod("a")
    gone["status"]["phase"] = "Succeeded"
    assert budgets([gone, pod("")]) == {}


@pytest.mark.parametrize(
    ("broker_pods", "status", "reason"),
    [
        ((), "True", "Enough"),
        ((pod("a"),), "True", "Enough"),
        ((pod("a", max_nr=1000, demand=500),), "False", "NotEnough"),
        ((pod("a", nr=65400),), "False", "NotEnough"),
    ],
)
def test_verify_reports_what_brokers_found(broker_pods: Any, status: str, reason: str) -> None:
    observed = ObservedTuning(
        tuning=tuning(), nodes=(node("a"), node("b")), broker_pods=broker_pods
    )
    found = compute_status(observed, now="2026-01-01T00:00:00Z")
    (ready,) = found.conditions
    assert (ready.status.value, ready.reason) == (status, reason)
    assert [n.name for n in found.nodes] == ["a", "b"]
    assert plan(observed, OPTIONS) == []
    if reason == "NotEnough":
        assert "sysctl -w fs.aio-max-nr=" in ready.message
        assert found.summary == "1/2"


def test_raise_makes_the_orders_before_the_pods_and_then_nothing() -> None:
    observed = ObservedTuning(
        tuning=tuning(mode="Raise"), nodes=(node("a"),), broker_pods=(pod("a"),)
    )
    actions = plan(observed, OPTIONS)
    assert [a.manifest["kind"] for a in actions if isinstance(a, Apply)] == [
        "ConfigMap",
        "DaemonSet",
    ]
    orders, daemon_set = (a.manifest for a in actions if isinstance(a, Apply))
    assert '"a": {"demand": 500, "reserved": 500}' in orders["data"]["nodes.json"]
    again = ObservedTuning(
        tuning=observed.tuning,
        nodes=observed.nodes,
        broker_pods=observed.broker_pods,
        orders=orders,
        daemon_set=daemon_set,
    )
    assert plan(again, OPTIONS) == []


def test_the_pods_may_do_one_thing_only() -> None:
    actions = plan(ObservedTuning(tuning=tuning(mode="Raise")), OPTIONS)
    (daemon_set,) = (
        a.manifest for a in actions if isinstance(a, Apply) and a.manifest["kind"] == "DaemonSet"
    )
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert [v["hostPath"] for v in spec["volumes"] if "hostPath" in v] == [
        {"path": "/proc/sys/fs/aio-max-nr", "type": "File"}
    ]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("mode", ["Off", "Verify"])
def test_other_modes_take_the_pods_away(mode: str) -> None:
    made = plan(ObservedTuning(tuning=tuning(mode="Raise")), OPTIONS)
    objects = {
        a.manifest["kind"]: {
            **a.manifest,
            "metadata": {**a.manifest["metadata"], "uid": "1"},
        }
        for a in made
        if isinstance(a, Apply)
    }
    observed = ObservedTuning(
        tuning=tuning(mode=mode), daemon_set=objects["DaemonSet"], orders=objects["ConfigMap"]
    )
    assert [a.kind for a in plan(observed, OPTIONS) if isinstance(a, Delete)] == [
        kinds.DAEMON_SET,
        kinds.CONFIG_MAP,
    ]


def test_raise_reports_what_the_node_answers_or_waits_for() -> None:
    report = NodeReport(
        aio_max_nr=66036, aio_nr=500, raised_from=65536, message="raised", is_satisfied=True
    )
    observed = ObservedTuning(
        tuning=tuning(mode="Raise", nodeSelector={"pool": "x"}),
        nodes=(node("a", pool="x"), node("b", pool="x"), node("c")),
        broker_pods=(pod("a"),),
        reports={"a": report},
        waiting={"b": "image cannot be pulled"},
    )
    found = compute_status(observed, now="")
    assert found.summary == "1/2"
    assert found.nodes[0].target == 66036
    assert found.nodes[0].raised_from == 65536
    assert found.conditions[0].message == "b: image cannot be pulled"


@pytest.mark.parametrize("document", [None, [], {}, "x", {"aio_max_nr": 1}])
def test_other_answers_are_none(document: Any) -> None:
    assert report_of(document) is None


def test_numbers_of_another_type_are_left_out() -> None:
    found = report_of({"message": "m", "aio_max_nr": True, "aio_nr": "1", "is_satisfied": 1})
    assert found == NodeReport(message="m")

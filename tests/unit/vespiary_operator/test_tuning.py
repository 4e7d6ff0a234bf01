"""The budget of fs.aio-max-nr: added up by node, planned, and reported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from vespiary_operator import kinds, names
from vespiary_operator.actions import Apply, Delete
from vespiary_operator.node_tuning import Order, order_of
from vespiary_operator.options import Options
from vespiary_operator.tuning import NodeReport, ObservedTuning, orders_of, plan, report_of
from vespiary_operator.tuning_budget import Budget, budgets, looked_after_by
from vespiary_operator.tuning_metrics import TuningMetrics
from vespiary_operator.tuning_status import compute
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
        ((pod("a", nr=65400, engine="NIO"),), "False", "NotEnough"),
    ],
)
def test_verify_reports_what_brokers_found(broker_pods: Any, status: str, reason: str) -> None:
    observed = ObservedTuning(
        tuning=tuning(), nodes=(node("a"), node("b")), broker_pods=broker_pods
    )
    found = compute(observed, OPTIONS, now="2026-01-01T00:00:00Z")
    ready, overlapping = found.conditions
    assert (overlapping.type, overlapping.status.value) == ("Overlapping", "False")
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
    digest = Order(floor=65536, margin=65536, maximum=4194304, demand=500, reserved=500).digest
    report = NodeReport(
        aio_max_nr=66036,
        aio_nr=500,
        raised_from=65536,
        message="raised",
        is_satisfied=True,
        orders=digest,
    )
    observed = ObservedTuning(
        tuning=tuning(mode="Raise", nodeSelector={"pool": "x"}),
        nodes=(node("a", pool="x"), node("b", pool="x"), node("c")),
        broker_pods=(pod("a"),),
        reports={"a": report},
        waiting={"b": "image cannot be pulled"},
    )
    found = compute(observed, OPTIONS, now="")
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


# --- orders that arrive -------------------------------------------------------------------------


def tuner(node_name: str, told: str = "") -> dict[str, Any]:
    annotations = {names.ANNOTATION_ORDERS: told} if told else {}
    return {
        "metadata": {
            "name": f"tuner-{node_name}",
            "namespace": "system",
            "uid": "t",
            "annotations": annotations,
        },
        "spec": {"nodeName": node_name},
    }


def raising(**more: Any) -> ObservedTuning:
    """Return what is observed once the DaemonSet and the orders are as they should be."""
    observed = ObservedTuning(
        tuning=tuning(mode="Raise"), nodes=(node("a"),), broker_pods=(pod("a"),), **more
    )
    made = {
        action.manifest["kind"]: action.manifest
        for action in plan(dataclasses.replace(observed, tuners={}), OPTIONS)
        if isinstance(action, Apply)
    }
    return dataclasses.replace(observed, orders=made["ConfigMap"], daemon_set=made["DaemonSet"])


def notices(observed: ObservedTuning) -> list[str]:
    return [
        action.manifest["metadata"]["annotations"][names.ANNOTATION_ORDERS]
        for action in plan(observed, OPTIONS)
        if isinstance(action, Apply) and action.manifest["kind"] == "Pod"
    ]


def test_a_tuning_pod_is_told_of_new_orders_until_it_has_read_them() -> None:
    orders = orders_of(raising(), OPTIONS)
    digest = order_of(orders["data"]["nodes.json"], "a").digest
    old = NodeReport(message="m", is_satisfied=True, aio_max_nr=65536, orders="old")
    assert notices(raising(tuners={"a": tuner("a")})) == [digest]
    assert notices(raising(tuners={"a": tuner("a", "old")}, reports={"a": old})) == [digest]
    # The annotation came before the ConfigMap did, so the kubelet mounted the old one again.
    told = raising(tuners={"a": tuner("a", digest)}, reports={"a": old})
    assert notices(told) == [f"{digest}-1"]
    again = raising(tuners={"a": tuner("a", f"{digest}-1")}, reports={"a": old})
    assert notices(again) == [f"{digest}-2"]
    (first,) = compute(told, OPTIONS, now="").nodes
    assert first.satisfied is None
    assert first.message == "Its tuning pod has yet to read its new orders."
    # One that does not answer is not written to over and over.
    assert notices(raising(tuners={"a": tuner("a", digest)})) == []
    new = dataclasses.replace(old, orders=digest)
    assert notices(raising(tuners={"a": tuner("a", digest)}, reports={"a": new})) == []
    assert notices(raising(tuners={"a": tuner("a")}, reports={"a": new})) == []


def test_what_a_node_was_raised_from_outlives_its_tuning_pod() -> None:
    observed = raising()
    was = {"nodes": [{"name": "a", "raisedFrom": 65536}]}
    resource = BrokerNodeTuning.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "BrokerNodeTuning",
            "metadata": {"name": "default"},
            "spec": {"mode": "Raise"},
            "status": was,
        }
    )
    found = compute(dataclasses.replace(observed, tuning=resource), OPTIONS, now="")
    assert found.nodes[0].raised_from == 65536
    assert found.nodes[0].satisfied is None
    later = NodeReport(aio_max_nr=70000, aio_nr=0, raised_from=66036, message="m")
    again = dataclasses.replace(observed, tuning=resource, reports={"a": later})
    assert compute(again, OPTIONS, now="").nodes[0].raised_from == 65536, "a step on the way"


# --- tunings that overlap -----------------------------------------------------------------------


def named(name: str, created: str, mode: str = "Raise", **selector: str) -> BrokerNodeTuning:
    return BrokerNodeTuning.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "BrokerNodeTuning",
            "metadata": {"name": name, "creationTimestamp": created, "uid": name},
            "spec": {"mode": mode, "nodeSelector": selector or None},
        }
    )


def test_of_several_tunings_the_most_special_then_the_oldest_has_a_node() -> None:
    default = named("default", "2026-01-01T00:00:00Z")
    pool = named("pool", "2026-02-01T00:00:00Z", pool="x")
    zone = named("zone", "2026-01-15T00:00:00Z", zone="1")
    both = named("both", "2026-03-01T00:00:00Z", pool="x", zone="1")
    every = (default, pool, zone, both)
    assert looked_after_by(node("a"), every) == "default"
    assert looked_after_by(node("a", pool="x"), every) == "pool"
    assert looked_after_by(node("a", pool="x", zone="1"), every) == "both"
    assert looked_after_by(node("a", pool="x", zone="1"), (default, pool, zone)) == "zone"
    assert looked_after_by(node("a"), (pool,)) == ""


def test_a_tuning_leaves_anothers_nodes_alone_and_says_so() -> None:
    nodes = (node("a"), node("b", pool="x"))
    default = named("default", "2026-01-01T00:00:00Z")
    pool = named("pool", "2026-02-01T00:00:00Z", mode="Off", pool="x")
    observed = ObservedTuning(
        tuning=default, others=(pool,), nodes=nodes, broker_pods=(pod("a"), pod("b"))
    )
    orders = orders_of(observed, OPTIONS)["data"]["nodes.json"]
    assert order_of(orders, "b").is_excluded
    assert not order_of(orders, "a").is_excluded
    found = compute(observed, OPTIONS, now="")
    assert [n.name for n in found.nodes] == ["a"]
    overlapping = found.conditions[1]
    assert (overlapping.status.value, overlapping.reason) == ("True", "LookedAfterByAnother")
    assert "b by pool" in overlapping.message
    other = ObservedTuning(tuning=pool, others=(default,), nodes=nodes)
    assert compute(other, OPTIONS, now="").conditions[1].status.value == "False"


# --- mode Tuned ---------------------------------------------------------------------------------


def profile_of(observed: ObservedTuning) -> dict[str, Any]:
    (manifest,) = (
        a.manifest
        for a in plan(observed, OPTIONS)
        if isinstance(a, Apply) and a.manifest["kind"] == "Tuned"
    )
    return manifest


def test_mode_tuned_keeps_a_profile_whose_value_never_falls() -> None:
    observed = ObservedTuning(
        tuning=tuning(mode="Tuned", nodeSelector={"pool": "x", "zone": "1"}),
        nodes=(node("a", pool="x", zone="1"), node("b")),
        broker_pods=(pod("a", nr=100), pod("b", demand=9000)),
        is_tuned_served=True,
    )
    made = profile_of(observed)
    assert made["metadata"]["namespace"] == "openshift-cluster-node-tuning-operator"
    assert f"fs.aio-max-nr=>{100 + 500 + 65536}\n" in made["spec"]["profile"][0]["data"]
    assert made["spec"]["recommend"] == [
        {
            "profile": "vespiary-node-tuning-default",
            "priority": 25,
            "match": [{"label": "pool", "value": "x", "match": [{"label": "zone", "value": "1"}]}],
        }
    ]
    live = {**made, "metadata": {**made["metadata"], "uid": "1"}}
    assert plan(dataclasses.replace(observed, tuned=live), OPTIONS) == []
    fewer = dataclasses.replace(observed, broker_pods=(), tuned=live)
    assert plan(fewer, OPTIONS) == [], "a lower value would be taken from the node"
    more = dataclasses.replace(observed, broker_pods=(pod("a", demand=10**7),), tuned=live)
    assert "fs.aio-max-nr=>4194304\n" in profile_of(more)["spec"]["profile"][0]["data"]

    found = compute(dataclasses.replace(observed, tuned=live), OPTIONS, now="")
    assert found.profile == "vespiary-node-tuning-default"
    assert found.nodes[0].target == 66136
    off = dataclasses.replace(observed, tuning=tuning(mode="Off"), tuned=live)
    assert [a.kind for a in plan(off, OPTIONS) if isinstance(a, Delete)] == [kinds.TUNED]


def test_mode_tuned_where_it_is_not_served_says_so() -> None:
    observed = ObservedTuning(tuning=tuning(mode="Tuned"), nodes=(node("a"),))
    assert plan(observed, OPTIONS) == []
    ready = compute(observed, OPTIONS, now="").conditions[0]
    assert (ready.status.value, ready.reason) == ("False", "TunedNotServed")
    assert "tuned.openshift.io/v1" in ready.message


def test_a_profile_that_does_not_reach_its_node_is_told() -> None:
    observed = ObservedTuning(
        tuning=tuning(mode="Tuned"),
        nodes=(node("a"),),
        broker_pods=(pod("a", nr=65400, engine="NIO"),),
        is_tuned_served=True,
    )
    found = compute(observed, OPTIONS, now="")
    assert found.nodes[0].satisfied is False
    assert "`oc get profiles`" in found.nodes[0].message


def test_a_broker_that_waited_and_got_its_share_lacks_nothing() -> None:
    waited = pod("a", nr=65400)
    found = budgets([waited])["a"]
    assert (found.missing, found.reserved, found.aio_max_nr) == (0, 500, 65900)
    waited["status"]["conditions"] = []
    found = budgets([waited])["a"]
    assert (found.missing, found.reserved, found.aio_max_nr) == (364, 0, 65536)


def test_nodes_are_shown_as_metrics_until_they_are_gone() -> None:
    registry = CollectorRegistry()
    metrics = TuningMetrics(registry)
    observed = ObservedTuning(tuning=tuning(), nodes=(node("a"),), broker_pods=(pod("a"),))
    metrics.show("default", compute(observed, OPTIONS, now=""))
    text = generate_latest(registry).decode()
    line = 'vespiary_operator_node_aio_requests{node="a",tuning="default",what="demand"} 500.0'
    assert line in text
    assert 'vespiary_operator_node_tuned{node="a",tuning="default"} 1.0' in text
    metrics.show("default", compute(ObservedTuning(tuning=tuning()), OPTIONS, now=""))
    assert 'node="a"' not in generate_latest(registry).decode()
    metrics.forget("default")

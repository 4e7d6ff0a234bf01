"""Objects of kinds that a cluster may lack: made where it has them, said where it has not."""

from __future__ import annotations

from typing import Any

from vespiary_operator import kinds
from vespiary_operator.actions import Apply
from vespiary_operator.children import supporting
from vespiary_operator.conditions import Finding
from vespiary_operator.integrations import condition, looked_for, manifests
from vespiary_operator.observation import Observed
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import ConditionStatus, ConditionType

ROUTE = {
    "parentRefs": [{"name": "gate", "namespace": "edge"}],
    "hostnames": ["mq.example.com"],
    "acceptor": "all",
}
SPEC: dict[str, Any] = {
    "metrics": {"podMonitor": {"credentialsSecretName": "watcher", "interval": "30s"}},
    "tlsRoute": ROUTE,
    "service": {"ports": [{"name": "all", "port": 443}]},
}
SERVED = {"PodMonitor": kinds.POD_MONITOR, "TLSRoute": kinds.TLS_ROUTE_VERSIONS[2]}


def broker(conditions: list[dict[str, Any]] | None = None, **spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
            "spec": spec,
            "status": {"conditions": conditions or []},
        }
    )


def test_what_is_asked_for_is_made_in_the_version_that_there_is() -> None:
    monitor, route = manifests(Observed(broker=broker(**SPEC), served=SERVED))
    assert monitor["spec"]["podMetricsEndpoints"] == [
        {
            "port": "http",
            "path": "/metrics",
            "interval": "30s",
            "basicAuth": {
                "username": {"name": "watcher", "key": "username"},
                "password": {"name": "watcher", "key": "password"},
            },
        }
    ]
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1alpha2"
    assert route["spec"]["parentRefs"] == [{"name": "gate", "namespace": "edge"}]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "orders", "port": 443}]}]


def test_prometheus_needs_no_login_at_the_port_for_probes() -> None:
    for monitor in ({"interval": "30s"}, {"credentialsSecretName": "watcher", "interval": "30s"}):
        asked = broker(admin={"probePort": 8162}, metrics={"podMonitor": monitor})
        (made,) = manifests(Observed(broker=asked, served=SERVED))
        assert made["spec"]["podMetricsEndpoints"] == [
            {"port": "probes", "path": "/metrics", "interval": "30s"}
        ]


def test_a_kind_that_is_not_there_is_said_and_hinders_nothing() -> None:
    observed = Observed(broker=broker(**SPEC), served={"PodMonitor": kinds.POD_MONITOR})
    assert [m["kind"] for m in manifests(observed)] == ["PodMonitor"]
    found = condition(observed, [])[ConditionType.INTEGRATED]
    assert found[:2] == (ConditionStatus.FALSE, "ApiMissing")
    assert "spec.tlsRoute asks for a TLSRoute" in found[2]
    assert "install the definitions of the Gateway API" in found[2]


def test_nothing_is_looked_for_unless_it_was_asked_for() -> None:
    assert looked_for(broker()) == ()
    (found,) = condition(Observed(broker=broker()), []).values()
    assert found[:2] == (ConditionStatus.TRUE, "NotAsked")
    quiet = [{"type": "Integrated", "status": "True", "reason": "NotAsked"}]
    assert looked_for(broker(quiet)) == ()
    had = [{"type": "Integrated", "status": "True", "reason": "AsAsked"}]
    assert looked_for(broker(had)) != ()


def test_what_is_not_asked_for_any_more_is_deleted_if_it_is_ours() -> None:
    live = {
        "metadata": {
            "name": "orders",
            "namespace": "ns",
            "uid": "p",
            "ownerReferences": [{"uid": "u"}],
        }
    }
    observed = Observed(broker=broker(), served=SERVED, children={("PodMonitor", "orders"): live})
    deleted = [
        a
        for a in supporting(observed, {"kind": "ConfigMap", "metadata": {"name": "c"}})
        if getattr(a, "uid", "") == "p"
    ]
    assert len(deleted) == 1
    foreign = {"metadata": {**live["metadata"], "ownerReferences": []}}
    observed = Observed(
        broker=broker(), served=SERVED, children={("PodMonitor", "orders"): foreign}
    )
    left = supporting(observed, {"kind": "ConfigMap", "metadata": {"name": "c"}})
    assert not [a for a in left if getattr(a, "uid", "") == "p"]


def test_nothing_is_said_to_be_there_that_is_not() -> None:
    """Somebody who waits for the condition finds the objects."""
    asked = broker(**SPEC)
    names_ = ("PodMonitor", "orders"), ("TLSRoute", "orders")
    ours: dict[str, Any] = {"metadata": {"name": "orders", "ownerReferences": [{"uid": "u"}]}}
    made = [
        Apply(manifest=manifest, reason="Created", sentence="")
        for manifest in manifests(Observed(broker=asked, served=SERVED))
    ]

    def found(there: dict[str, Any], actions: list[Apply], failure: str = "") -> Finding:
        children = dict.fromkeys(names_, there) if there else {}
        observed = Observed(broker=asked, served=SERVED, children=children)
        return condition(observed, actions, failure=failure)[ConditionType.INTEGRATED]

    assert found(ours, [])[:2] == found({}, made)[:2] == (ConditionStatus.TRUE, "AsAsked")
    assert found(ours, [], "The API server is busy.")[1] == "AsAsked", "they are there all the same"
    refused = found({}, made, "The API server knows no tlsroutes.")
    assert refused[:2] == (ConditionStatus.FALSE, "NotMade")
    assert "PodMonitor orders, TLSRoute orders. The API server knows no tlsroutes." in refused[2]
    assert found({}, [])[:2] == found({}, made[:1])[:2] == (ConditionStatus.FALSE, "NotMade")
    assert "PodMonitor" not in found({}, made[:1])[2]
    foreign = {"metadata": {"name": "orders", "ownerReferences": [{"uid": "x"}]}}
    assert found(foreign, [])[1] == "NotMade", "that of somebody else is not what was asked for"

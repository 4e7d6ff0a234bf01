"""Services as asked for, and that no field of one type reaches another."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.builders import services
from vespiary_operator.drift import difference
from vespiary_spec.configuration import from_broker
from vespiary_spec.errors import ConfigError
from vespiary_testkit.broker_resources import broker

OUTSIDE = {
    "type": "LoadBalancer",
    "labels": {"team": "blue"},
    "annotations": {"cloud.example.com/internal": "true"},
    "externalTrafficPolicy": "Local",
    "loadBalancerSourceRanges": ["10.0.0.0/8"],
    "loadBalancerClass": "example.com/inner",
    "ipFamilyPolicy": "PreferDualStack",
    "ipFamilies": ["IPv6", "IPv4"],
    "ports": [{"name": "all", "port": 443, "nodePort": 30443}],
}


def test_every_field_reaches_the_service() -> None:
    found = services.client(broker(service=OUTSIDE))
    assert found["metadata"]["labels"]["team"] == "blue"
    assert found["metadata"]["labels"]["app.kubernetes.io/instance"] == "orders"
    assert found["metadata"]["annotations"] == {"cloud.example.com/internal": "true"}
    spec = found["spec"]
    for name in ("type", "externalTrafficPolicy", "loadBalancerSourceRanges", "ipFamilies"):
        assert spec[name] == OUTSIDE[name]
    assert spec["loadBalancerClass"] == "example.com/inner"
    assert spec["ipFamilyPolicy"] == "PreferDualStack"
    assert spec["ports"] == [
        {"name": "all", "port": 443, "protocol": "TCP", "targetPort": 61616, "nodePort": 30443},
        {"name": "amqp", "port": 5672, "protocol": "TCP", "targetPort": 5672},
        {"name": "mqtt", "port": 1883, "protocol": "TCP", "targetPort": 1883},
        {"name": "stomp", "port": 61613, "protocol": "TCP", "targetPort": 61613},
    ]


def test_http_is_shown_outside_where_it_is_named() -> None:
    ports = [{"name": "http", "port": 80}]
    spec = services.client(broker(service={"type": "LoadBalancer", "ports": ports}))["spec"]
    assert spec["ports"][-1]["name"] == "http"
    assert spec["ports"][-1]["port"] == 80
    assert spec["ports"][-1]["targetPort"] == 8161


def test_services_of_single_brokers_have_no_ports_of_nodes_twice() -> None:
    spec = services.per_broker(broker(service=OUTSIDE), 1)["spec"]
    assert spec["type"] == "LoadBalancer"
    assert spec["ports"][0]["port"] == 443
    assert not any("nodePort" in port for port in spec["ports"])
    own = services.per_broker(broker(service=OUTSIDE, brokerServices={"type": "ClusterIP"}), 1)
    assert own["spec"]["type"] == "ClusterIP"
    assert "externalTrafficPolicy" not in own["spec"]


def test_the_headless_service_has_the_brokers_own_ports() -> None:
    found = services.headless(
        broker(service=OUTSIDE, headlessService={"labels": {"a": "b"}, "ipFamilies": ["IPv4"]})
    )
    assert [port["port"] for port in found["spec"]["ports"]] == [61616, 5672, 1883, 61613, 8161]
    assert found["metadata"]["labels"]["a"] == "b"
    assert found["spec"]["ipFamilies"] == ["IPv4"]


def test_the_second_family_is_the_api_servers_to_add() -> None:
    wanted = services.client(broker(service={"ipFamilies": ["IPv4"]}))
    live = {**wanted, "spec": {**wanted["spec"], "ipFamilies": ["IPv4", "IPv6"]}}
    assert difference(wanted, live) == ""
    other = {**wanted, "spec": {**wanted["spec"], "ipFamilies": ["IPv6"]}}
    assert difference(wanted, other) != ""


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"service": {"externalTrafficPolicy": "Local"}}, "spec.service.externalTrafficPolicy"),
        ({"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}, "spec.service"),
        ({"service": {"ports": [{"name": "all", "nodePort": 30001}]}}, "ports[0].nodePort"),
        ({"service": {"ports": [{"name": "core", "port": 5672}]}}, "ports[0].name"),
        ({"service": {"ports": [{"name": "all", "port": 61613}]}}, "spec.service.ports"),
        ({"service": {"labels": {"app.kubernetes.io/name": "x"}}}, "spec.service.labels"),
        ({"service": {"annotations": {"a b": "x"}}}, "spec.service.annotations"),
        ({"brokerServices": {"loadBalancerClass": "x"}}, "spec.brokerServices"),
        (
            {
                "tlsRoute": {
                    "parentRefs": [{"name": "g"}],
                    "hostnames": ["a.b"],
                    "acceptor": "core",
                }
            },
            "spec.tlsRoute.acceptor",
        ),
    ],
)
def test_what_the_rules_refuse_is_refused_without_an_api_server(
    spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        from_broker(broker(**spec))
    assert path in refused.value.path

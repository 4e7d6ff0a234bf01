"""Volumes, Services and objects of other projects, as a Broker asks for them, on a real cluster."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

QUICK = "quick-for-vespiary"


@pytest.fixture
def attributes_class(cluster: KubernetesCluster) -> Iterator[str]:
    """Yield the name of a VolumeAttributesClass; nobody acts on it here, and claims may name it."""
    found = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttributesClass",
        "metadata": {"name": QUICK},
        "driverName": "nobody.example.com",
        "parameters": {"iops": "3000"},
    }
    cluster.apply(found)
    try:
        yield QUICK
    finally:
        # A claim on its way out may hold it for some time.
        cluster.kubectl(
            "delete", "volumeattributesclass", QUICK, "--ignore-not-found", "--wait=false"
        )


def found(cluster: KubernetesCluster, kind: str, name: str, namespace: str) -> dict[str, Any]:
    there = cluster.get(kind, name, namespace)
    assert there is not None, f"{kind}/{name} is not there"
    return there


def claims(cluster: KubernetesCluster, namespace: str) -> set[str]:
    return {claim["metadata"]["name"] for claim in cluster.items("pvc", namespace)}


def test_shared_claims_and_what_claims_say(
    cluster: KubernetesCluster, namespace: str, attributes_class: str
) -> None:
    document = small_broker("orders")
    spec = document["spec"]
    volumes = spec["storage"]["volumes"]
    volumes["paging"] = {"shareWith": "journal"}
    volumes["journal"]["metadata"] = {"labels": {"tier": "gold"}}
    spec["storage"]["retention"] = {"whenDeleted": "Delete"}
    spec["inheritedMetadata"] = {
        "labels": {"example.com/team": "blue"},
        "annotations": {"example.com/cost": "42"},
    }
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)

    assert claims(cluster, namespace) == {
        "bindings-orders-0",
        "journal-orders-0",
        "large-messages-orders-0",
    }
    (broker,) = cluster.broker("orders", namespace)["status"]["brokers"]
    seen = {volume["name"]: volume for volume in broker["volumes"]}
    assert set(seen) == {"bindings", "journal", "paging", "large-messages"}
    assert seen["paging"]["dedicated"] is False
    assert seen["paging"]["sharesWith"] == "journal", "as asked for"
    assert seen["paging"]["device"] == seen["journal"]["device"]
    assert "sharesWith" not in seen["bindings"]
    assert cluster.condition("orders", namespace, "StorageVerified")["status"] == "True"
    listed = cluster.kubectl(
        "-n", namespace, "exec", "orders-0", "-c", "broker", "--", "python3", "-c",
        "import os, json; print(json.dumps([sorted(os.listdir('/var/lib/vespiary/' + n)) "
        "for n in ('journal', 'paging')]))",
    ).stdout  # fmt: skip
    journal, paging = json.loads(listed)
    assert journal, "the journal has its files in a folder of its own"
    assert not set(journal) & {"paging", "lost+found"}
    assert set(journal) != set(paging)

    for kind, name in (
        ("statefulset", "orders"),
        ("service", "orders"),
        ("service", "orders-headless"),
        ("secret", "orders-users"),
        ("serviceaccount", "orders-broker"),
        ("poddisruptionbudget", "orders"),
        ("pod", "orders-0"),
        ("pvc", "journal-orders-0"),
        ("pvc", "bindings-orders-0"),
    ):
        metadata = found(cluster, kind, name, namespace)["metadata"]
        assert metadata["labels"]["example.com/team"] == "blue", f"{kind}/{name}"
        assert metadata["annotations"]["example.com/cost"] == "42", f"{kind}/{name}"
    assert found(cluster, "pvc", "journal-orders-0", namespace)["metadata"]["labels"]["tier"] == (
        "gold"
    )

    change_claims(cluster, namespace, document, attributes_class)

    cluster.kubectl("-n", namespace, "delete", BROKER, "orders")
    wait_for("whenDeleted: Delete lets the claims go", lambda: not claims(cluster, namespace))


def change_claims(
    cluster: KubernetesCluster, namespace: str, document: dict[str, Any], attributes_class: str
) -> None:
    """Claims that are there get a new label and another attributes class, without a restart."""
    journal = document["spec"]["storage"]["volumes"]["journal"]
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    journal["metadata"] = {"labels": {"grade": "one"}}
    journal["volumeAttributesClassName"] = "not-there"
    cluster.apply(document, namespace)

    def is_said() -> bool:
        condition = cluster.condition("orders", namespace, "Degraded")
        return "VolumeAttributesClass not-there, which does not exist" in condition["message"]

    wait_for("the class that does not exist is named", is_said)
    journal["volumeAttributesClassName"] = attributes_class
    cluster.apply(document, namespace)

    def is_changed() -> bool:
        claim = found(cluster, "pvc", "journal-orders-0", namespace)
        labels = claim["metadata"]["labels"]
        return (
            claim["spec"].get("volumeAttributesClassName") == attributes_class
            and labels.get("grade") == "one"
            and labels["tier"] == "gold"  # the controller gave it when it made the claim
            and labels["app.kubernetes.io/instance"] == "orders"
        )

    wait_for("the claim has what the Broker says now", is_changed)
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == pod

    def is_replaced() -> bool:
        there = cluster.get("statefulset", "orders", namespace)
        if there is None or "operation" in cluster.broker("orders", namespace)["status"]:
            return False
        (template,) = (
            t for t in there["spec"]["volumeClaimTemplates"] if t["metadata"]["name"] == "journal"
        )
        owners = [
            [owner["uid"] for owner in claim["metadata"].get("ownerReferences") or ()]
            for claim in cluster.items("pvc", namespace)
        ]
        return template["spec"].get("volumeAttributesClassName") == attributes_class and all(
            there["metadata"]["uid"] in uids for uids in owners
        )

    # Meanwhile the claims are nobody's, so that none can be lost: not even if it is asked for.
    wait_for("the StatefulSet has the class as well, and the claims again", is_replaced)


# --- Services, and what a cluster may lack --------------------------------------------------------


def definition(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    """Return a small definition in the place of another project's, with its names."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "x-kubernetes-preserve-unknown-fields": True,
                                }
                            },
                        }
                    },
                }
            ],
        },
    }


DEFINITIONS = (
    definition("gateway.networking.k8s.io", "v1alpha2", "TLSRoute", "tlsroutes"),
    definition("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
)


@pytest.fixture
def no_other_projects(cluster: KubernetesCluster) -> Iterator[None]:
    """Begin without the definitions of other projects, and end without them."""
    names = [document["metadata"]["name"] for document in DEFINITIONS]
    if any(cluster.get("crd", name) is not None for name in names):
        pytest.skip("the cluster has the Gateway API or the Prometheus operator already")
    try:
        yield
    finally:
        cluster.kubectl("delete", "crd", *names, "--ignore-not-found", "--timeout=110s")


def test_services_and_objects_of_other_projects(
    cluster: KubernetesCluster, namespace: str, no_other_projects: None
) -> None:
    document = small_broker("orders")
    document["spec"] |= {
        "service": {
            "type": "NodePort",
            "labels": {"reach": "outside"},
            "annotations": {"example.com/dns": "mq.example.com"},
            "externalTrafficPolicy": "Local",
            "ports": [{"name": "all", "port": 5000, "nodePort": 31616}],
        },
        "headlessService": {"annotations": {"example.com/x": "y"}},
        "tlsRoute": {
            "parentRefs": [{"name": "gate", "sectionName": "tls"}],
            "hostnames": ["mq.example.com"],
            "acceptor": "all",
        },
        "metrics": {"podMonitor": {"credentialsSecretName": "watcher"}},
    }
    cluster.apply(document, namespace)
    cluster.wait_until_ready("orders", namespace)
    missing = cluster.wait_for_condition("orders", namespace, "Integrated", "False")
    assert missing["reason"] == "ApiMissing"
    assert (
        "spec.tlsRoute asks for a TLSRoute, which this API server does not know"
        in (missing["message"])
    )
    assert "spec.metrics.podMonitor asks for a PodMonitor" in missing["message"]

    service = found(cluster, "service", "orders", namespace)
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["externalTrafficPolicy"] == "Local"
    assert service["metadata"]["labels"]["reach"] == "outside"
    assert service["metadata"]["annotations"]["example.com/dns"] == "mq.example.com"
    port = next(port for port in service["spec"]["ports"] if port["name"] == "all")
    assert (port["port"], port["targetPort"], port["nodePort"]) == (5000, 61616, 31616)
    endpoints = cluster.broker("orders", namespace)["status"]["endpoints"]
    assert next(e["port"] for e in endpoints if e["name"] == "all") == 5000
    headless = found(cluster, "service", "orders-headless", namespace)
    assert headless["metadata"]["annotations"]["example.com/x"] == "y"

    for made in DEFINITIONS:
        cluster.apply(made)
    cluster.wait_for_condition("orders", namespace, "Integrated", "True")
    route = found(cluster, "tlsroutes.gateway.networking.k8s.io", "orders", namespace)
    assert route["spec"]["hostnames"] == ["mq.example.com"]
    assert route["spec"]["parentRefs"] == [{"name": "gate", "sectionName": "tls"}]
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": "orders", "port": 5000}]
    monitor = found(cluster, "podmonitors.monitoring.coreos.com", "orders", namespace)
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "http"

    serve_probes_apart(cluster, namespace, document)
    take_back(cluster, namespace, document)


def serve_probes_apart(
    cluster: KubernetesCluster, namespace: str, document: dict[str, Any]
) -> None:
    """Metrics and probes get a port of their own, and another one, each by a restart."""
    document["spec"]["metrics"] = {"podMonitor": {}}  # Prometheus needs no login there
    for number in (8162, 8163):
        pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
        document["spec"]["admin"] = {"probePort": number}
        cluster.apply(document, namespace)
        generation = cluster.broker("orders", namespace)["metadata"]["generation"]
        cluster.wait_for_condition(
            "orders", namespace, "ConfigApplied", "True", generation=generation
        )
        cluster.wait_until_ready("orders", namespace, without={pod})
        look_at_probes(cluster, namespace, number)
    (endpoint,) = found(cluster, "podmonitors.monitoring.coreos.com", "orders", namespace)["spec"][
        "podMetricsEndpoints"
    ]
    assert endpoint["port"] == "probes"
    assert "basicAuth" not in endpoint


def look_at_probes(cluster: KubernetesCluster, namespace: str, number: int) -> None:
    """Kubelet and Prometheus are led to the port, which answers them alone; no Service is."""
    pod = found(cluster, "pod", "orders-0", namespace)
    (main,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert (ports["http"], ports["probes"]) == (8161, number)
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert main[kind]["httpGet"]["port"] == "probes"
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(number)
    for name in ("orders", "orders-headless"):
        served = found(cluster, "service", name, namespace)["spec"]["ports"]
        assert number not in {port["targetPort"] for port in served}
    with cluster.forwarded("pod/orders-0", number, namespace) as local:
        for path, status, part in (
            ("/healthz", 200, ""),
            ("/readyz", 200, ""),
            ("/metrics", 200, "vespiary_messages_in_total"),
            ("/api/v1/brokers", 404, ""),
            ("/", 404, ""),
            ("/ws", 404, ""),
        ):
            answer = answer_of(local, path)
            assert answer[0] == status, f"{path}: {answer}"
            assert part in answer[1]
    with cluster.forwarded("pod/orders-0", 8161, namespace) as local:
        assert answer_of(local, "/metrics")[0] == 401, "as before, to users alone"


def answer_of(port: int, path: str) -> tuple[int, str]:
    """Return status and body of an answer to somebody without a login."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def take_back(cluster: KubernetesCluster, namespace: str, document: dict[str, Any]) -> None:
    """What is taken out of the Broker goes from its objects."""
    pod = found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"]
    for name in ("service", "headlessService", "tlsRoute", "metrics"):
        del document["spec"][name]
    cluster.apply(document, namespace)
    generation = cluster.broker("orders", namespace)["metadata"]["generation"]

    def is_plain() -> bool:
        service = found(cluster, "service", "orders", namespace)
        spec, metadata = service["spec"], service["metadata"]
        return (
            spec["type"] == "ClusterIP"
            and {port["port"] for port in spec["ports"]} == {61616, 5672, 1883, 61613, 8161}
            and not any("nodePort" in port for port in spec["ports"])
            and "reach" not in metadata["labels"]
            and not metadata.get("annotations", {}).get("example.com/dns")
            and cluster.get("tlsroutes.gateway.networking.k8s.io", "orders", namespace) is None
            and cluster.get("podmonitors.monitoring.coreos.com", "orders", namespace) is None
        )

    wait_for("the Services are as they were, and the rest is gone", is_plain)
    there = cluster.wait_for_condition(
        "orders", namespace, "Integrated", "True", generation=generation
    )
    assert there["reason"] == "NotAsked"
    headless = found(cluster, "service", "orders-headless", namespace)
    assert "example.com/x" not in headless["metadata"].get("annotations", {})
    assert found(cluster, "pod", "orders-0", namespace)["metadata"]["uid"] == pod

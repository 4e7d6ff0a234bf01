"""Rules on pods, Services and volumes, as a real API server enforces them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


def broker(spec: dict[str, Any], name: str = "tried") -> str:
    return json.dumps(
        {
            "apiVersion": "vespiary.dev/v1beta1",
            "kind": "Broker",
            "metadata": {"name": name},
            "spec": spec,
        }
    )


def answer(cluster: KubernetesCluster, namespace: str, document: str) -> str:
    """Return what the API server says against a resource; empty if it would take it."""
    done = cluster.kubectl(
        "apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=document, check=False
    )
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def place(cluster: KubernetesCluster) -> Iterator[str]:
    """Yield a namespace for resources that are never made, but for one that is paused."""
    name = f"e2e-fields-{uuid.uuid4().hex[:8]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


FOLDER = {"extraVolumes": [{"name": "a", "emptyDir": {}}]}


def mounted(path: str) -> dict[str, Any]:
    return FOLDER | {"extraVolumeMounts": [{"name": "a", "mountPath": path}]}


def volumes(**given: dict[str, Any]) -> dict[str, Any]:
    return {"storage": {"volumes": given}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"env": [{"name": "VESPIARY_NATIVE", "value": "0"}]}, "set by the image and the operator"),
    ({"env": [{"name": "LD_PRELOAD", "value": "x"}]}, "set by the image and the operator"),
    ({"env": [{"name": "A B", "value": "x"}]}, "should match"),
    ({"env": [{"name": "A"}, {"name": "A"}]}, "Duplicate value"),
    (
        {
            "env": [
                {
                    "name": "A",
                    "value": "x",
                    "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                }
            ]
        },
        "one of value and valueFrom",
    ),
    (
        {"env": [{"name": "A", "valueFrom": {}}]},
        "one of configMapKeyRef, secretKeyRef and fieldRef",
    ),
    ({"envFrom": [{"prefix": "PYTHON_", "secretRef": {"name": "s"}}]}, "set by the image"),
    ({"envFrom": [{"prefix": "A", "secretRef": {"name": "s"}}]}, "should match"),
    ({"envFrom": [{"secretRef": {"name": "s"}}]}, "prefix: Required value"),
    ({"envFrom": [{"prefix": "A_"}]}, "one of configMapRef and secretRef"),
    ({"extraVolumes": [{"name": "a", "hostPath": {"path": "/"}}]}, "unknown field"),
    ({"extraVolumes": [{"name": "a"}]}, "a volume has one of"),
    (
        {"extraVolumes": [{"name": "a", "emptyDir": {}, "secret": {"secretName": "s"}}]},
        "a volume has one of",
    ),
    (
        {"extraVolumes": [{"name": "a", "projected": {"sources": [{}]}}]},
        "each source is one of configMap and secret",
    ),
    (
        {
            "extraVolumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "journal-bills-0"}}
            ]
        },
        "holds a broker's data",
    ),
    (FOLDER, "mounted nowhere"),
    ({"extraVolumeMounts": [{"name": "a", "mountPath": "/mnt/a"}]}, "does not have"),
    (mounted("/var/lib/vespiary/journal"), "the image's or the operator's"),
    (mounted("/var/lib"), "the image's or the operator's"),
    (mounted("/etc/vespiary/users"), "the image's or the operator's"),
    (mounted("/tmp"), "the image's or the operator's"),
    (mounted("/mnt/../etc"), "should match"),
    ({"podTemplate": {"securityContext": {"runAsUser": 0}}}, "greater than or equal to 1"),
    ({"podTemplate": {"securityContext": {"privileged": True}}}, "unknown field"),
    (
        {"podTemplate": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}},
        "supported values",
    ),
    (
        {"podTemplate": {"securityContext": {"seccompProfile": {"type": "Localhost"}}}},
        "belongs to the type Localhost",
    ),
    ({"podTemplate": {"hostNetwork": True}}, "unknown field"),
    ({"serviceAccount": {"name": "a", "annotations": {"b": "c"}}}, "keeps its own"),
    ({"probes": {"liveness": {"period": "0s"}}}, "allowed: 1 to 3600 s"),
    ({"probes": {"startup": {"failureThreshold": 0}}}, "greater than or equal to 1"),
    ({"disruptionBudget": {"maxUnavailable": -1}}, "greater than or equal to 0"),
    ({"service": {"externalTrafficPolicy": "Local"}}, "for the types NodePort and LoadBalancer"),
    (
        {"service": {"type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"]}},
        "for the type LoadBalancer",
    ),
    ({"service": {"ports": [{"name": "all", "nodePort": 30001}]}}, "a nodePort is for"),
    ({"service": {"ports": [{"name": "amqps", "port": 5672}]}}, "a name that no acceptor has"),
    ({"service": {"labels": {"app.kubernetes.io/name": "x"}}}, "are the operator's"),
    ({"service": {"labels": {"a": "b c"}}}, "should match"),
    ({"brokerServices": {"loadBalancerClass": "x"}}, "for the type LoadBalancer"),
    ({"headlessService": {"ipFamilies": ["IPv5"]}}, "supported values"),
    (
        {"tlsRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["a.b"], "acceptor": "amqps"}},
        "tlsRoute.acceptor names no acceptor",
    ),
    (
        {"tlsRoute": {"parentRefs": [], "hostnames": ["a.b"], "acceptor": "all"}},
        "should have at least 1 items",
    ),
    ({"metrics": {"podMonitor": {}}}, "credentialsSecretName: Required value"),
    ({"inheritedMetadata": {"labels": {"vespiary.dev/x": "y"}}}, "are the operator's"),
    ({"inheritedMetadata": {"annotations": {"pv.kubernetes.io/x": "y"}}}, "Kubernetes' own"),
    (volumes(paging={"shareWith": "journal", "size": "1Gi"}), "no other field than shareWith"),
    (volumes(paging={"shareWith": "paging"}), "which has none of its own"),
    (
        volumes(paging={"shareWith": "journal"}, journal={"shareWith": "bindings"}),
        "which has none of its own",
    ),
    (volumes(paging={"shareWith": "jms"}), "supported values"),
    (
        volumes(paging={"shareWith": "journal", "autoGrow": {"maxSize": "20Gi"}}),
        "has no other field than shareWith",
    ),
    (
        volumes(journal={"size": "20Gi", "autoGrow": {"maxSize": "20479Mi"}}),
        "autoGrow.maxSize is below the size of the volume journal",
    ),
    (
        volumes(largeMessages={"autoGrow": {"maxSize": "9Gi"}}),
        "autoGrow.maxSize is below the size of the volume largeMessages",
    ),
    (
        volumes(bindings={"autoGrow": {"maxSize": "1023Mi"}}),
        "autoGrow.maxSize is below the size of the volume bindings",
    ),
    (volumes(journal={"autoGrow": {"growthStep": "1Gi"}}), "autoGrow.maxSize: Required value"),
    (volumes(journal={"autoGrow": {"maxSize": "lots"}}), "autoGrow.maxSize"),
    (volumes(journal={"autoGrow": {"maxSize": "20Gi", "growthStep": "1Mi"}}), "growthStep"),
    (volumes(journal={"autoGrow": {"maxSize": "20Gi", "minFreePercent": 0}}), "minFreePercent"),
    (volumes(journal={"autoGrow": {"maxSize": "20Gi", "minFreePercent": 91}}), "minFreePercent"),
    (volumes(journal={"metadata": {"labels": {"vespiary.dev/x": "y"}}}), "are the operator's"),
]

TAKEN: list[dict[str, Any]] = [
    {
        "env": [
            {"name": "TZ", "value": "UTC"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        ],
        "envFrom": [{"prefix": "APP_", "secretRef": {"name": "s", "optional": True}}],
        "extraVolumes": [
            {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "b", "secret": {"secretName": "s", "items": [{"key": "k", "path": "x/y"}]}},
            {"name": "c", "configMap": {"name": "m"}},
            {"name": "d", "projected": {"sources": [{"secret": {"name": "s"}}]}},
            {"name": "e", "persistentVolumeClaim": {"claimName": "shelf"}},
        ],
        "extraVolumeMounts": [
            {"name": "a", "mountPath": "/mnt/a"},
            {"name": "b", "mountPath": "/etc/ssl/company", "readOnly": True},
            {"name": "c", "mountPath": "/mnt/c", "subPath": "x"},
            {"name": "d", "mountPath": "/opt/d"},
            {"name": "e", "mountPath": "/srv/e"},
        ],
        "podTemplate": {
            "schedulerName": "mine",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.1"]},
            "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["a"]}],
            "securityContext": {
                "runAsUser": 12345,
                "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"},
            },
        },
        "serviceAccount": {"name": "robot"},
        "probes": {"liveness": {"period": "20s", "timeout": 3, "failureThreshold": 9}},
        "disruptionBudget": {"enabled": False, "maxUnavailable": 0},
    },
    {
        "inheritedMetadata": {"labels": {"example.com/team": "blue"}, "annotations": {"a": "b"}},
        "service": {
            "type": "LoadBalancer",
            "labels": {"a": "b"},
            "annotations": {"cloud.example.com/x": "y"},
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["10.0.0.0/8", "fd00::/8"],
            "loadBalancerClass": "example.com/inner",
            "ipFamilyPolicy": "PreferDualStack",
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "all", "port": 443, "nodePort": 30443}, {"name": "http"}],
        },
        "brokerServices": {"type": "NodePort", "externalTrafficPolicy": "Cluster"},
        "headlessService": {"annotations": {"a": "b"}},
        "tlsRoute": {
            "parentRefs": [{"name": "g", "namespace": "edge", "sectionName": "tls"}],
            "hostnames": ["*.example.com"],
            "acceptor": "stomp",
        },
        "metrics": {"podMonitor": {"credentialsSecretName": "watcher", "interval": "30s"}},
    },
    volumes(
        journal={"size": "20Gi", "autoGrow": {"maxSize": "20480Mi"}},
        bindings={"autoGrow": {"maxSize": 1073741824}},
        paging={
            "autoGrow": {"maxSize": "1Ti", "minFreePercent": 90, "growthStep": "16Mi"},
        },
        jms={"size": "64Mi", "autoGrow": {"maxSize": "64Mi"}},
    ),
    volumes(
        paging={"shareWith": "journal"},
        jms={"shareWith": "bindings"},
        journal={
            "volumeAttributesClassName": "quick",
            "metadata": {"labels": {"tier": "gold"}, "annotations": {"backup/plan": "daily"}},
        },
    ),
]

KEPT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"podTemplate": {"securityContext": {"runAsUser": 12345}}},
        {"podTemplate": {"securityContext": {"runAsUser": 12346}}},
        "the files on its volumes belong to it",
    ),
    (
        {"podTemplate": {"securityContext": {"fsGroup": 12345}}},
        {},
        "the files on its volumes belong to it",
    ),
    (volumes(paging={"shareWith": "journal"}), {}, "cannot change once the Broker exists"),
    (
        volumes(paging={"shareWith": "journal"}),
        volumes(paging={"shareWith": "bindings"}),
        "cannot change once the Broker exists",
    ),
    ({}, volumes(paging={"shareWith": "journal"}), "cannot change once the Broker exists"),
    (
        volumes(journal={"volumeAttributesClassName": "quick"}),
        volumes(journal={}),
        "may change, but not be taken out",
    ),
]

MAY_CHANGE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        volumes(journal={"volumeAttributesClassName": "quick"}),
        volumes(
            journal={"volumeAttributesClassName": "quicker", "metadata": {"labels": {"a": "b"}}}
        ),
    ),
    (
        volumes(journal={"autoGrow": {"maxSize": "50Gi"}}),
        volumes(journal={"autoGrow": {"maxSize": "20Gi", "minFreePercent": 30}}),
    ),
    (volumes(journal={"autoGrow": {"maxSize": "50Gi"}}), {}),
    ({}, {"podTemplate": {"securityContext": {"runAsUser": 10001, "supplementalGroups": [5]}}}),
    ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}),
]


def test_bad_values_are_refused_in_words(cluster: KubernetesCluster, place: str) -> None:
    wrong = [
        f"{json.dumps(spec)}: {said or 'taken'}"
        for spec, words in REFUSED
        if words not in (said := answer(cluster, place, broker(spec)))
    ]
    assert not wrong, "\n".join(wrong)


def test_good_values_are_taken(cluster: KubernetesCluster, place: str) -> None:
    for spec in TAKEN:
        assert answer(cluster, place, broker(spec)) == ""


def test_what_shapes_the_data_cannot_change(cluster: KubernetesCluster, place: str) -> None:
    for number, (before, after, words) in enumerate(KEPT):
        name = f"kept-{number}"
        paused = {"paused": True, "replicas": 0}
        cluster.kubectl("apply", "-n", place, "-f", "-", stdin=broker(paused | before, name))
        assert answer(cluster, place, broker(paused | before, name)) == ""
        said = answer(cluster, place, broker(paused | after, name))
        assert words in said, f"{json.dumps(after)}: {said or 'taken'}"
        cluster.kubectl("delete", BROKER, name, "-n", place)
    for number, (before, after) in enumerate(MAY_CHANGE):
        name = f"moved-{number}"
        paused = {"paused": True, "replicas": 0}
        cluster.kubectl("apply", "-n", place, "-f", "-", stdin=broker(paused | before, name))
        assert answer(cluster, place, broker(paused | after, name)) == ""

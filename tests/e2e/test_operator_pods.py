"""What a Broker says about its pods, as the pods have it; and what is said when it can't be."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import KubernetesCluster, small_broker, wait_for
from vespiary_testkit.operator_looks import at_rest

pytestmark = [pytest.mark.e2e, pytest.mark.verify]


def template_of(cluster: KubernetesCluster, namespace: str) -> dict[str, Any]:
    found = cluster.get("statefulset", "orders", namespace)
    assert found is not None
    template: dict[str, Any] = found["spec"]["template"]
    return template


PAGE = """
import base64, sys, urllib.request
login = base64.b64encode(b"admin:" + sys.stdin.read().strip().encode()).decode()
request = urllib.request.Request("http://127.0.0.1:8161/metrics")
request.add_header("Authorization", f"Basic {login}")
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""
"""Prints a broker's metrics, from inside its pod."""


def message_limit_bytes(cluster: KubernetesCluster, namespace: str) -> int:
    """Return `global-max-size` as the broker says that it holds."""
    page = cluster.kubectl(
        "-n", namespace, "exec", "-i", "orders-0", "-c", "broker", "--", "python3", "-c", PAGE,
        stdin=cluster.password("orders", namespace),
    ).stdout  # fmt: skip
    found = re.search(r"^vespiary_memory_limit_bytes(?:\{[^}]*\})? (\S+)$", page, re.MULTILINE)
    assert found is not None, page[:2000]
    return int(float(found[1]))


def asked_of_pods(namespace: str) -> dict[str, Any]:
    """Return what a Broker may say about its pods."""
    return {
        "env": [
            {"name": "TZ", "value": "Europe/Oslo"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "words", "key": "one"}}},
        ],
        "envFrom": [{"prefix": "APP_", "configMapRef": {"name": "settings"}}],
        "extraVolumes": [
            {"name": "words", "secret": {"secretName": "words"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "8Mi"}},
        ],
        "extraVolumeMounts": [
            {"name": "words", "mountPath": "/etc/words", "readOnly": True},
            {"name": "scratch", "mountPath": "/mnt/scratch"},
        ],
        "podTemplate": {
            "securityContext": {"runAsUser": 12345, "runAsGroup": 12345, "fsGroup": 12345},
            "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["elsewhere"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
        },
        "podAnnotations": {"team": "blue"},
        "serviceAccount": {"name": "robot"},
        "resources": {"limits": {"memory": "320Mi"}},
        "networkPolicy": {"enabled": True},
        **scheduling(namespace),
    }


@pytest.mark.alone
def test_pods_are_as_asked_and_go_back(
    cluster: KubernetesCluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    document = small_broker("orders", **asked_of_pods(namespace))
    spec = document["spec"]
    cluster.apply(priority_class(namespace))
    request.addfinalizer(lambda: take_away(cluster, namespace))
    cluster.apply(document, namespace)

    supply_what_is_missing(cluster, namespace)
    look_inside(cluster, namespace)
    is_scheduled_as_asked(cluster, namespace)
    assert cluster.get("serviceaccount", "orders-broker", namespace) is None
    assert template_of(cluster, namespace)["spec"]["serviceAccountName"] == "robot"
    small = message_limit_bytes(cluster, namespace)
    assert 0 < small <= 160 * 2**20, "at most half of the container's memory"

    # What is taken out of the Broker is taken out of its pods, and what others put there stays.
    for name in ("env", "envFrom", "extraVolumes", "extraVolumeMounts", "podAnnotations"):
        del spec[name]
    for name in scheduling(namespace):
        del spec[name]
    del spec["podTemplate"]["hostAliases"]
    spec["resources"] = {"limits": {"memory": "512Mi"}}
    spec["disruptionBudget"] = spec["networkPolicy"] = {"enabled": False}
    before = cluster.get("pod", "orders-0", namespace)
    assert before is not None
    for kind in ("poddisruptionbudget", "networkpolicy"):
        assert cluster.get(kind, "orders", namespace) is not None
    cluster.apply(document, namespace)

    def is_new() -> bool:
        pod = cluster.get("pod", "orders-0", namespace)
        return pod is not None and pod["metadata"]["uid"] != before["metadata"]["uid"]

    wait_for("the pod is a new one", is_new)
    cluster.wait_for_condition("orders", namespace, "UpToDate", "True", generation=2)
    for kind in ("poddisruptionbudget", "networkpolicy"):
        assert cluster.get(kind, "orders", namespace) is None
    template = template_of(cluster, namespace)
    container = template["spec"]["containers"][0]
    left = {variable["name"] for variable in container["env"]}
    assert left == {"VESPIARY_ORDINAL", "VESPIARY_OWN_CONFIG"}, "the operator's own stay"
    assert "envFrom" not in container
    assert "hostAliases" not in template["spec"]
    assert "team" not in template["metadata"]["annotations"]
    assert not any(v["name"].startswith("extra-") for v in template["spec"]["volumes"])
    cluster.wait_until_ready("orders", namespace)
    assert message_limit_bytes(cluster, namespace) > small, "more memory holds more messages"
    is_scheduled_as_usual(cluster, namespace)


def scheduling(namespace: str) -> dict[str, Any]:
    """Return what a Broker may say of where and when its pods run, and how they are asked."""
    linux = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [linux]}]}
    return {
        "nodeSelector": {LABEL: namespace},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 2,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": "orders"}},
            }
        ],
        "tolerations": [
            {"key": LABEL, "operator": "Equal", "value": namespace, "effect": "NoSchedule"},
        ],
        "priorityClassName": namespace,
        "imagePullSecrets": [{"name": "registry"}],
        "probes": {
            "startup": {"period": "3s", "timeout": "4s", "failureThreshold": 500},
            "liveness": {"period": "20s", "timeout": "7s", "failureThreshold": 4},
            "readiness": {"period": "1s", "timeout": "6s", "failureThreshold": 2},
        },
    }


LABEL = "vespiary.example/e2e"
"""Label and taint of a node, for one test."""


def priority_class(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 1234,
        "preemptionPolicy": "Never",
    }


def node_name(cluster: KubernetesCluster) -> str:
    return str(cluster.items("nodes", "")[0]["metadata"]["name"])


def take_away(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.kubectl("delete", "priorityclass", namespace, "--ignore-not-found")
    cluster.kubectl("label", "node", node_name(cluster), f"{LABEL}-")
    cluster.kubectl("taint", "node", node_name(cluster), f"{LABEL}-", check=False)


def numbers_of(probe: dict[str, Any]) -> tuple[int, int, int]:
    return probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]


def is_scheduled_as_asked(cluster: KubernetesCluster, namespace: str) -> None:
    """The pod that runs has it all: the API server and the scheduler took it."""
    asked = scheduling(namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    found = pod["spec"]
    for name in ("nodeSelector", "affinity", "topologySpreadConstraints", "imagePullSecrets"):
        assert found[name] == asked[name]
    assert asked["tolerations"][0] in found["tolerations"]
    assert (found["priorityClassName"], found["priority"]) == (namespace, 1234)
    assert found["preemptionPolicy"] == "Never"
    container = found["containers"][0]
    assert numbers_of(container["startupProbe"]) == (3, 4, 500)
    assert numbers_of(container["livenessProbe"]) == (20, 7, 4)
    assert numbers_of(container["readinessProbe"]) == (1, 6, 2)
    cluster.kubectl("taint", "node", node_name(cluster), f"{LABEL}-")


def is_scheduled_as_usual(cluster: KubernetesCluster, namespace: str) -> None:
    """What nobody asks for any longer is as if nobody ever had."""
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    found = pod["spec"]
    assert not {"nodeSelector", "imagePullSecrets", "priorityClassName"} & found.keys()
    assert found["priority"] == 0
    assert LABEL not in [toleration.get("key") for toleration in found["tolerations"]]
    assert list(found["affinity"]) == ["podAntiAffinity"], "one broker on a node, if it can be"
    (spread,) = found["topologySpreadConstraints"]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    container = found["containers"][0]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert [numbers_of(container[probe]) for probe in probes] == [
        (2, 5, 1800),
        (10, 5, 6),
        (2, 5, 3),
    ]


def supply_what_is_missing(cluster: KubernetesCluster, namespace: str) -> None:
    """What is missing is named, one after the other, and the Broker goes on by itself."""
    refused = cluster.wait_for_condition("orders", namespace, "Degraded", "True")
    assert refused["reason"] == "PodRefused"
    assert 'serviceaccount "robot" not found' in refused["message"]
    assert "correct spec.serviceAccount.name" in refused["message"]
    robot = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}
    cluster.apply(robot, namespace)
    said(cluster, namespace, "didn't match Pod's node affinity/selector")
    taint = f"{LABEL}={namespace}:NoSchedule"
    for command, value in (("taint", taint), ("label", f"{LABEL}={namespace}")):
        cluster.kubectl(command, "node", node_name(cluster), value, "--overwrite")
    ready = said(cluster, namespace, 'secret "words" not found')
    assert ready["reason"] == "PodCannotStart"
    assert "Create the Secret" in ready["message"]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "words"}}
    cluster.apply(secret | {"stringData": {"one": "first"}}, namespace)
    ready = said(cluster, namespace, 'configmap "settings" not found')
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    cluster.apply(settings | {"data": {"COLOUR": "red"}}, namespace)
    cluster.wait_until_ready("orders", namespace)


def look_inside(cluster: KubernetesCluster, namespace: str) -> None:
    """Everything that was asked for is there in the broker's container."""
    program = (
        "import json, os, pathlib;"
        "pathlib.Path('/mnt/scratch/x').write_text('x');"
        "print(json.dumps([os.getuid(), os.getgid(), dict(os.environ),"
        " pathlib.Path('/etc/words/one').read_text(), pathlib.Path('/etc/hosts').read_text(),"
        " pathlib.Path('/etc/resolv.conf').read_text(),"
        " os.path.exists('/var/run/secrets/kubernetes.io'),"
        " os.stat('/var/lib/vespiary/journal').st_gid]))"
    )
    done = cluster.kubectl("-n", namespace, "exec", "orders-0", "--", "python3", "-c", program)
    uid, gid, variables, word, hosts, resolver, has_token, group = json.loads(done.stdout)
    assert (uid, gid, group) == (12345, 12345, 12345)
    assert variables["TZ"] == "Europe/Oslo"
    assert variables["NODE"]
    assert variables["WORD"] == word == "first"
    assert variables["APP_COLOUR"] == "red"
    assert "elsewhere" in hosts
    assert "ndots:2" in resolver
    assert not has_token, "the account's token is not mounted"


def said(
    cluster: KubernetesCluster, namespace: str, words: str, *, name: str = "orders"
) -> dict[str, Any]:
    """Return the condition Ready once its message has these words.

    The longer something was missing, the longer Kubernetes waits before it tries again.
    """

    def look() -> dict[str, Any] | None:
        found = cluster.condition(name, namespace, "Ready")
        return found if words in found.get("message", "") else None

    return wait_for(f"Ready says: {words}", look, 400)


def test_what_keeps_brokers_from_starting_is_named(
    cluster: KubernetesCluster, namespace: str
) -> None:
    """Each of these Brokers waits for something else; all of them are made at once."""
    nobody = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": namespace},
        "provisioner": "nobody.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    no_volume = small_broker("no-volume")
    journal = no_volume["spec"]["storage"]["volumes"]["journal"]
    journal["storageClassName"] = namespace
    no_image = small_broker("no-image", image="vespiary/broker:never-built")
    try:
        for document in (nobody, no_volume, no_image):
            cluster.apply(document, "" if document is nobody else namespace)
        found = said(cluster, namespace, "vespiary/broker:never-built", name="no-image")
        assert found["reason"] == "BrokerStuck"
        assert "Correct spec.image or spec.version" in found["message"]
        found = said(cluster, namespace, "has no volume", name="no-volume")
        assert found["reason"] == "ClaimNotBound"
        wanted = f"The claim journal-no-volume-0 (class {namespace}, 256Mi, ReadWriteOnce)"
        assert wanted in found["message"]
        for name in ("no-image", "no-volume"):
            cluster.wait_for_condition(name, namespace, "Degraded", "True")
    finally:
        cluster.kubectl("delete", "br", "--all", "-n", namespace, "--wait=false")
        cluster.kubectl("delete", "storageclass", namespace, "--ignore-not-found")


def test_a_status_of_nonsense_is_put_right(cluster: KubernetesCluster, namespace: str) -> None:
    cluster.apply(small_broker("orders"), namespace)
    good = at_rest(cluster, "orders", namespace)
    pod = cluster.get("pod", "orders-0", namespace)
    nonsense = {
        "observedGeneration": 99,
        "summary": "7/3",
        "replicas": 44,
        "conditions": [
            {"type": "Ready", "status": "Unknown", "reason": "x"},
            {"type": "Invented", "status": "True", "reason": "y"},
        ],
        "brokers": [{"name": "ghost", "ordinal": 99, "ready": True}],
        "endpoints": [],
        "operation": {"type": "Invented", "step": "none", "target": "nobody"},
    }
    cluster.kubectl(
        "-n", namespace, "patch", "br", "orders", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": nonsense}),
    )  # fmt: skip

    def right() -> dict[str, Any] | None:
        now: dict[str, Any] = cluster.broker("orders", namespace)["status"]
        is_right = all(now.get(name) == good.get(name) for name in ("summary", "replicas")) and [
            (c["type"], c["status"]) for c in now["conditions"]
        ] == [(c["type"], c["status"]) for c in good["conditions"]]
        return now if is_right else None

    now = wait_for("the status is as before", right)
    assert [b["name"] for b in now["brokers"]] == ["orders-0"]
    assert "operation" not in now
    after = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    assert after is not None
    assert after["metadata"]["uid"] == pod["metadata"]["uid"], "nothing was restarted for it"

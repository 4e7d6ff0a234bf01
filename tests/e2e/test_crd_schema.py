"""The generated CRDs on a real API server: what it takes, what it refuses, and in which words.

Works in a namespace of its own, which it deletes; a definition that
was there before stays there. An operator that is installed would make pods of what is only to be
looked at, and write its own status over that of a test, so it is stopped meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.kubernetes_cluster import BROKER, PATIENCE_S, KubernetesCluster
from vespiary_testkit.local_operator import installed_operator_stopped

ROOT = Path(__file__).resolve().parents[2]
API_VERSION = "vespiary.dev/v1beta1"

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.verify]


def kubectl(
    *arguments: str, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["kubectl", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def wait_until_established(definition: str) -> dict[str, Any]:
    """Return the definition's conditions. (`kubectl wait` fails on one without any yet.)"""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = json.loads(kubectl("get", "crd", definition, "-o", "json").stdout).get("status")
        conditions = {c["type"]: c for c in (status or {}).get("conditions") or []}
        if conditions.get("Established", {}).get("status") == "True":
            return conditions
        assert time.monotonic() < deadline, f"{definition} is not served: {conditions}"


@pytest.fixture(scope="module")
def namespace(bare_cluster: KubernetesCluster) -> Iterator[str]:
    definitions = sorted((ROOT / "crds").glob("vespiary.dev_*.yaml"))
    assert len(definitions) == 3
    listed = kubectl("get", "crd", "-o", "name").stdout
    ours = []
    is_installed = bool(bare_cluster.operators())
    stopped: AbstractContextManager[None] = nullcontext()
    if is_installed:
        stopped = installed_operator_stopped(bare_cluster)
    name = f"crd-schema-{uuid.uuid4().hex[:8]}"
    try:
        for path in definitions:
            definition = path.stem.removeprefix("vespiary.dev_") + ".vespiary.dev"
            if definition not in listed:
                ours.append(definition)
            # In Helm's name: what kubectl owns, a later `helm install` may not change.
            manager = ("--field-manager=helm", "--force-conflicts")
            kubectl("apply", "--server-side", *manager, "-f", str(path))
            wait_until_established(definition)
        kubectl("create", "namespace", name)
        with stopped:
            yield name
            kubectl("-n", name, "delete", BROKER, "--all")
    finally:
        kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false")
        for definition in ours:
            kubectl("delete", "crd", definition, "--ignore-not-found", "--timeout=250s")


def broker(name: str, spec: dict[str, Any] | None = None) -> str:
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": name},
    }
    return json.dumps(document if spec is None else document | {"spec": spec})


def applied(namespace: str, document: str) -> dict[str, Any]:
    done = kubectl("apply", "-n", namespace, "-f", "-", "-o", "json", stdin=document)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(namespace: str, document: str) -> str:
    done = kubectl("apply", "-n", namespace, "-f", "-", stdin=document, check=False)
    assert done.returncode != 0, f"the API server took {document}"
    return done.stderr


FULL: dict[str, Any] = {
    "replicas": 2,
    "topology": "Independent",
    "version": "0.1.0",
    "storage": {
        "filesystemPolicy": {"allow": ["xfs", "ext4"], "warn": ["btrfs"]},
        "volumes": {
            "journal": {"size": "10Gi", "storageClassName": "fast"},
            "paging": {"size": 10737418240},
        },
        "retention": {"whenDeleted": "Delete"},
    },
    "config": {
        "journalType": "ASYNCIO",
        "journalMinFiles": 10,
        "journalFileSize": "20Mi",
        "globalMaxSize": "256Mi",
        "minDiskFree": -1,
        "diskScanPeriod": "2s",
    },
    "perBroker": [{"ordinal": 1, "config": {"journalMinFiles": 20, "globalMaxSize": "1Gi"}}],
    "addressSettings": [{"match": "orders.#", "autoDeleteQueues": False}],
    "addresses": [{"name": "orders", "queues": [{"name": "orders", "routingType": "ANYCAST"}]}],
    "acceptors": [
        {"name": "all", "port": 61616, "stomp": {"maxBodySize": "100Ki", "heartBeatMax": "1m"}}
    ],
    "resources": {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": "500m"}},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app": "orders"}},
                    },
                }
            ]
        }
    },
    "shutdownTimeout": "90s",
    "upgrade": {"strategy": "RollingUpdate"},
}


def test_a_broker_needs_only_a_name(namespace: str) -> None:
    found = applied(namespace, broker("bare"))
    assert found["spec"] == {"replicas": 1}, "nothing but replicas is filled in by the API server"


def test_every_part_of_a_full_broker_is_kept(namespace: str) -> None:
    found = applied(namespace, broker("full", FULL))
    assert found["spec"] == FULL


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"acceptors": []}, "should have at least 1 items"),
        ({"config": {"journalFileSize": "16Ki"}}, "allowed: 64Ki to 4Gi"),
        ({"config": {"journalFileSize": 65537}}, "a multiple of 4Ki"),
        ({"config": {"journalFileSize": "10MiB"}}, "should match"),
        ({"config": {"journalMinFiles": 1}}, "greater than or equal to 2"),
        ({"config": {"journalMaxIo": 0}}, "greater than or equal to 1"),
        ({"config": {"journalType": "MAPPED"}}, 'supported values: "ASYNCIO", "NIO", "IO_URING"'),
        ({"config": {"diskScanPeriod": "10ms"}}, "allowed: 100 to 3600000 ms"),
        ({"config": {"globalMaxSize": -2}}, "or -1"),
        (
            {"config": {"journalBufferSize": "1Mi", "journalFileSize": "512Ki"}},
            "larger than journalFileSize",
        ),
        ({"storage": {"volumes": {"journal": {"size": "1Mi"}}}}, "allowed: 64Mi or more"),
        (
            {"storage": {"volumes": {"journal": {"accessMode": "ReadWriteMany"}}}},
            "supported values",
        ),
        ({"upgrade": {"strategy": "OnDelete"}}, 'supported values: "Canary"'),
        ({"upgrade": {"deadline": 5}}, "allowed: 10 to 86400 s"),
        ({"maintenanceWindows": [{"start": "25:00", "duration": 600}]}, "should match"),
        ({"maintenanceWindows": [{"start": "02:00", "duration": 60}]}, "allowed: 300 to 604800 s"),
        ({"replicas": -1}, "greater than or equal to 0"),
        ({"replicas": 2}, "more than one replica needs `topology: Independent`"),
        ({"topology": "Sharded"}, "topology Sharded, one queue over several brokers, comes later"),
        (
            {"acceptors": [{"name": "a", "port": 1}, {"name": "b", "port": 1}]},
            "two acceptors have the same port",
        ),
        ({"acceptors": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}, "Duplicate value"),
        ({"acceptors": [{"name": "a", "port": 8161}]}, "the port of the HTTP listener"),
        (
            {"acceptors": [{"name": "a", "port": 9000}], "admin": {"port": 9000}},
            "the port of the HTTP listener",
        ),
        ({"acceptors": [{"name": "a", "port": 0}]}, "greater than or equal to 1"),
        ({"perBroker": [{"ordinal": 1}]}, "spec.perBroker[0].config: Required value"),
        ({"perBroker": [{"ordinal": 100, "config": {}}]}, "less than or equal to 99"),
        ({"perBroker": [{"ordinal": 1, "config": {"globalMaxSize": "1Mi"}}]}, "allowed: 8Mi"),
        (
            {"perBroker": [{"ordinal": 1, "config": {}}, {"ordinal": 1, "config": {}}]},
            "Duplicate value",
        ),
        (
            {
                "perBroker": [
                    {
                        "ordinal": 0,
                        "config": {"journalBufferSize": "1Mi", "journalFileSize": "512Ki"},
                    }
                ]
            },
            "larger than journalFileSize",
        ),
    ],
)
def test_bad_values_are_refused_in_words(namespace: str, spec: dict[str, Any], words: str) -> None:
    assert words in refused(namespace, broker("bad", spec))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"config": {"journalMaxIoo": 1}}, "spec.config.journalMaxIoo"),
        ({"config": {"journalDirectory": "/x"}}, "spec.config.journalDirectory"),
        ({"config": {"readWholePage": True}}, "spec.config.readWholePage"),
        (
            {"addressSettings": [{"match": "#", "autoCreateJmsQueues": True}]},
            "spec.addressSettings[0].autoCreateJmsQueues",
        ),
        ({"backup": {}}, "spec.backup"),
        (
            {"perBroker": [{"ordinal": 0, "config": {}, "resources": {}}]},
            "spec.perBroker[0].resources",
        ),
        (
            {"perBroker": [{"ordinal": 0, "config": {"journalType": "NIO"}}]},
            "spec.perBroker[0].config.journalType",
        ),
    ],
)
def test_what_does_not_exist_is_named(namespace: str, spec: dict[str, Any], path: str) -> None:
    assert f'unknown field "{path}"' in refused(namespace, broker("bad", spec))


def test_without_strict_validation_unknown_fields_are_dropped_not_kept(namespace: str) -> None:
    document = broker("pruned", {"hibernated": True, "config": {"journalMaxIoo": 1}})
    done = kubectl(
        "apply", "-n", namespace, "--validate=ignore", "-f", "-", "-o", "json", stdin=document
    )
    assert json.loads(done.stdout)["spec"] == {"replicas": 1, "config": {}}


@pytest.mark.parametrize("name", ["1orders", "a.b", "a" * 49])
def test_names_that_no_service_can_have_are_refused(namespace: str, name: str) -> None:
    assert "the name has to be at most 48 characters" in refused(namespace, broker(name))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"storage": {"volumes": {"journal": {"storageClassName": "fast"}}}},
            {"storage": {"volumes": {"journal": {"storageClassName": "slow"}}}},
            "cannot change once the Broker exists",
        ),
        (
            {"storage": {"volumes": {"journal": {"storageClassName": "fast"}}}},
            {"storage": {"volumes": {}}},
            "of the volume journal cannot change",
        ),
        (
            {"storage": {"volumes": {"journal": {"storageClassName": "fast"}}}},
            {},
            "of the volume journal cannot change",
        ),
        (
            {},
            {"storage": {"volumes": {"paging": {"accessMode": "ReadWriteOncePod"}}}},
            "of the volume paging cannot change",
        ),
        (
            {"storage": {"volumes": {"bindings": {"selector": {"matchLabels": {"a": "b"}}}}}},
            {"storage": {"volumes": {"bindings": {"selector": {"matchLabels": {"a": "c"}}}}}},
            "cannot change once the Broker exists",
        ),
        ({}, {"storage": {"ephemeral": True}}, "spec.storage.ephemeral cannot change"),
        ({}, {"storage": {"volumes": {"jms": {}}}}, "can neither be given nor taken out"),
        ({"storage": {"volumes": {"jms": {}}}}, {}, "can neither be given nor taken out"),
        ({}, {"storage": {"volumes": {"retention": {}}}}, "can neither be given nor taken out"),
    ],
)
def test_what_shapes_the_data_cannot_change(
    namespace: str, before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    name = f"kept-{uuid.uuid4().hex[:8]}"
    applied(namespace, broker(name, before))
    assert words in refused(namespace, broker(name, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"storage": {"volumes": {"journal": {"storageClassName": "fast", "size": "1Gi"}}}},
            {"storage": {"volumes": {"journal": {"storageClassName": "fast", "size": "2Gi"}}}},
        ),
        (
            {"config": {"journalFileSize": 10485760}},
            {"config": {"journalFileSize": "10Mi"}},
        ),
        (
            {},
            {"config": {"journalMaxIo": 100}, "replicas": 3, "topology": "Independent"},
        ),
        ({"replicas": 2, "topology": "Independent"}, {"topology": "Independent"}),
        ({}, {"hibernate": True}),
    ],
)
def test_what_may_change_may(namespace: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    name = f"moved-{uuid.uuid4().hex[:8]}"
    applied(namespace, broker(name, before))
    assert applied(namespace, broker(name, after))["spec"] == {"replicas": 1} | after


def test_scale_status_and_columns(namespace: str) -> None:
    applied(namespace, broker("scaled", {"topology": "Independent"}))
    kubectl("scale", "-n", namespace, "broker/scaled", "--replicas=3")
    status = {
        "summary": "1/3",
        "engine": "ASYNCIO",
        "version": "0.1.0",
        "storage": "journal: nfs4",
        "replicas": 1,
        "selector": "app.kubernetes.io/instance=scaled",
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "StorageRefused",
                "message": "The volume journal is on nfs4, which is refused.",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 1,
            },
            {
                "type": "NodeTuned",
                "status": "Unknown",
                "reason": "NotVerified",
                "message": "No broker has looked yet.",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 1,
            },
        ],
        "brokers": [
            {
                "name": "scaled-0",
                "ordinal": 0,
                "ready": False,
                "aio": {"maxNr": 65536, "nr": 0, "demand": 500},
                "volumes": [{"name": "journal", "flushUsP50": 90, "directIo": True}],
            }
        ],
    }
    kubectl(
        "patch", "-n", namespace, "broker/scaled", "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip
    found = json.loads(kubectl("get", "-n", namespace, "br/scaled", "-o", "json").stdout)
    assert found["spec"]["replicas"] == 3
    assert found["status"] == status
    wide = kubectl("get", "-n", namespace, "br", "scaled", "-o", "wide").stdout.splitlines()
    assert wide[0].split() == [
        "NAME", "READY", "BROKERS", "ENGINE", "VERSION", "STORAGE", "AGE", "NODETUNED", "REASON",
    ]  # fmt: skip
    assert "journal: nfs4" in wide[1]
    assert "Unknown" in wide[1], "whether the nodes have room for its requests"
    narrow = kubectl("get", "-n", namespace, "br", "scaled").stdout.splitlines()
    assert narrow[0].split() == wide[0].split()[:-2]
    assert "which is refused" in wide[1]
    assert "scaled" in kubectl("get", "-n", namespace, "all").stdout


def test_scaling_by_its_subresource_needs_a_topology_too(namespace: str) -> None:
    applied(namespace, broker("alone"))
    done = kubectl("scale", "-n", namespace, "broker/alone", "--replicas=2", check=False)
    assert done.returncode != 0
    assert "more than one replica needs `topology: Independent`" in done.stderr
    kubectl("scale", "-n", namespace, "broker/alone", "--replicas=0")


def test_node_tuning(namespace: str) -> None:
    name = f"crd-schema-{uuid.uuid4().hex[:8]}"
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "BrokerNodeTuning",
        "metadata": {"name": name},
        "spec": {"mode": "Off", "floor": 100, "max": 200},
    }
    wrong = document | {"spec": {"mode": "Off", "floor": 300, "max": 200}}
    assert "spec.floor is above spec.max" in refused(namespace, json.dumps(wrong))
    wrong = document | {"spec": {"mode": "Lower"}}
    assert "supported values" in refused(namespace, json.dumps(wrong))
    try:
        assert applied(namespace, json.dumps(document))["spec"] == document["spec"]
    finally:
        kubectl("delete", "brokernodetuning", name, "--ignore-not-found")


def test_the_definitions_settle_without_complaint(namespace: str) -> None:
    for plural in ("brokers", "brokernodetunings", "journalarchives"):
        assert "NonStructuralSchema" not in wait_until_established(f"{plural}.vespiary.dev")

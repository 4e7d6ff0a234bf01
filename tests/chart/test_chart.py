"""The chart: linted, rendered, taken by an API server, and the same as its model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from vespiary_spec.chart_values import ChartValues
from vespiary_spec.conversion import convert
from vespiary_spec.model import Spelling, fields_of
from vespiary_testkit.chart import CHART, ROOT, helm, needs_helm, one, rendered

KUBECTL = shutil.which("kubectl") or ""


def test_the_values_are_those_of_the_model() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert set(values) == {field.spelled(Spelling.CAMEL) for field in fields_of(ChartValues)}
    convert(values, ChartValues, spelling=Spelling.CAMEL)


def test_the_version_is_that_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["version"] == chart["appVersion"] == project["version"]


@needs_helm
def test_it_is_linted() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@needs_helm
def test_the_operator_is_restricted_and_there_is_one() -> None:
    deployment = one(rendered(), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


@needs_helm
def test_more_than_one_replica_stand_by_for_each_other() -> None:
    def environment(documents: list[dict[str, Any]]) -> dict[str, Any]:
        (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
        return {e["name"]: e.get("value", e.get("valueFrom")) for e in container["env"]}

    alone, several = rendered(), rendered("replicas=2")
    kinds = [document["kind"] for document in alone]
    assert "PodDisruptionBudget" not in kinds
    assert not {"VESPIARY_LEASE", "VESPIARY_IDENTITY"} & set(environment(alone))
    assert "affinity" not in one(alone, "Deployment")["spec"]["template"]["spec"]

    deployment = one(several, "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    assert environment(several)["VESPIARY_LEASE"] == "vespiary"
    assert environment(several)["VESPIARY_IDENTITY"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    budget = one(several, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    labels = deployment["spec"]["selector"]["matchLabels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    (term,) = deployment["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": labels},
    }
    term = "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=x"
    given = one(rendered("replicas=2", term), "Deployment")["spec"]["template"]["spec"]
    assert "podAntiAffinity" not in given["affinity"], "the user's own goes before"


@needs_helm
def test_a_digest_wins_over_the_tag() -> None:
    documents = rendered("image.tag=v9", "brokerImage.digest=sha256:abc")
    (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "vespiary/operator:v9"
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["VESPIARY_BROKER_IMAGE"] == "vespiary/broker@sha256:abc"


@needs_helm
def test_scope_namespaces_asks_for_nothing_cluster_wide() -> None:
    documents = rendered("scope=namespaces", "namespaces={one,two}", "crds.install=false")
    kinds = [d["kind"] for d in documents]
    assert not {"ClusterRole", "ClusterRoleBinding", "BrokerNodeTuning"} & set(kinds)
    roles = [d["metadata"]["namespace"] for d in documents if d["kind"] == "Role"]
    assert sorted(roles) == ["one", "one", "two", "two"], "the operator's and that of executors"
    (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert environment["VESPIARY_NAMESPACES"] == "one,two"
    own = rendered("scope=namespaces")
    assert [d["metadata"]["namespace"] for d in own if d["kind"] == "Role"] == ["system"] * 2


@needs_helm
def test_definitions_are_kept_unless_told_otherwise() -> None:
    def policies(*values: str) -> list[Any]:
        return [
            (d["metadata"].get("annotations") or {}).get("helm.sh/resource-policy")
            for d in rendered(*values)
            if d["kind"] == "CustomResourceDefinition"
        ]

    assert policies() == ["keep"] * 3
    assert policies("crds.keep=false") == [None] * 3
    assert policies("crds.install=false") == []


@needs_helm
@pytest.mark.parametrize(
    "value", ["unknown=1", "replicas=6", "nodeTuning.mode=Lower", "logLevel=loud", "image.name=x"]
)
def test_what_the_chart_does_not_have_is_refused(value: str) -> None:
    done = helm("template", "vespiary", str(CHART), "--set", value, check=False)
    assert done.returncode != 0
    assert value.partition(".")[0].partition("=")[0] in done.stderr


@needs_helm
@pytest.mark.skipif(not KUBECTL, reason="kubectl is not on PATH")
@pytest.mark.skipif(not os.environ.get("KUBECONFIG"), reason="KUBECONFIG names no cluster")
@pytest.mark.parametrize(
    "values",
    [
        (),
        ("scope=namespaces",),
        ("scope=namespaces", "replicas=2"),
        ("networkPolicy.enabled=true", "dashboards.enabled=true"),
        ("admissionPolicies.confirmDeletion=true", "admissionPolicies.allowedImages={r/one,r/two}"),
        ("admissionPolicies.restrictOverrides=true", "admissionPolicies.restrictScaleDown=true"),
    ],
)
def test_an_api_server_takes_it(values: tuple[str, ...]) -> None:
    documents = rendered(*values, "nodeTuning.create=false")
    for document in documents:
        if "namespace" in document["metadata"]:  # none of them is there yet
            document["metadata"]["namespace"] = "default"
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    done = subprocess.run(
        [KUBECTL, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""The chart on a real cluster: from the one before it and back, without Helm, and its end."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vespiary_spec.gen import manifests
from vespiary_testkit.chart import CHART
from vespiary_testkit.go_tools import NoTool, tool
from vespiary_testkit.image_variants import PACKAGES, variant
from vespiary_testkit.kubernetes_cluster import (
    BROKER,
    RELEASE,
    ROOT,
    SYSTEM_NAMESPACE,
    TUNING,
    KubernetesCluster,
    small_broker,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.verify]

PREVIOUS = ROOT / "tests" / "chart" / "previous" / "vespiary-0.1.0-alpha.1.tgz"
NEW_FIELD = "topology"
"""A field of Brokers that the chart before this one does not have."""
EVERY_NODE = "kubernetes.io/os"
"""A label that every node has."""

TEMPLATE_FILE = f"{PACKAGES}/vespiary_operator/builders/pod_template.py"
NEWER = {"name": "OF_A_NEWER_OPERATOR", "value": "1"}
"""A variable of brokers that only the newer operator puts into their template."""


# --- schemas for kubeconform ----------------------------------------------------------------------

# JSON schemas for kubeconform, made from what an API server says of its own kinds.

INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def _strict(definition: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields that are not described, where any are."""
    if "properties" in definition and "additionalProperties" not in definition:
        is_open = definition.get("x-kubernetes-preserve-unknown-fields")
        return definition if is_open else {**definition, "additionalProperties": False}
    return definition


def write_schemas(openapi: dict[str, Any], folder: Path) -> int:
    """Write one schema for each kind; return how many there are.

    Args:
        openapi: The answer to `/openapi/v2`.
        folder: Where `KIND-GROUP-VERSION.json` is written, as kubeconform asks for it.
    """
    definitions = {name: _strict(found) for name, found in openapi["definitions"].items()}
    definitions[INT_OR_STRING] = {"type": ["integer", "string"]}
    definitions[QUANTITY] = {"type": ["number", "string"]}
    (folder / "definitions.json").write_text(json.dumps({"definitions": definitions}))
    count = 0
    for name, definition in openapi["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            group = str(kind["group"]).partition(".")[0].lower()
            parts = [str(kind["kind"]).lower(), *([group] if group else []), str(kind["version"])]
            reference = {"$ref": f"definitions.json#/definitions/{name}"}
            (folder / f"{'-'.join(parts)}.json").write_text(json.dumps(reference))
            count += 1
    return count


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(cluster: KubernetesCluster) -> Iterator[str]:
    """Yield a namespace with a Broker `orders` that is ready; the chart is put back afterwards."""
    name = f"e2e-helm-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        cluster.apply(small_broker("orders"), name)
        cluster.wait_until_ready("orders", name)
        yield name
    finally:
        cluster.install()
        cluster.kubectl("delete", "namespace", name, "--wait=false")


def seen_uid(cluster: KubernetesCluster, namespace: str) -> str:
    """Return the UID of the pod; empty while there is none."""
    pod = cluster.get("pod", "orders-0", namespace)
    return "" if pod is None else str(pod["metadata"]["uid"])


def pod_uid(cluster: KubernetesCluster, namespace: str) -> str:
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    statuses = pod["status"]["containerStatuses"]
    return f"{pod['metadata']['uid']} {[s['restartCount'] for s in statuses]}"


def patch(cluster: KubernetesCluster, namespace: str, spec: dict[str, Any]) -> int:
    """Change the Broker `orders`; return its generation."""
    text = json.dumps({"spec": spec})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)
    return int(cluster.broker("orders", namespace)["metadata"]["generation"])


def brokers(cluster: KubernetesCluster) -> list[str]:
    found = json.loads(cluster.kubectl("get", BROKER, "-A", "-o", "json").stdout)["items"]
    return [f"{b['metadata']['namespace']}/{b['metadata']['name']}" for b in found]


def tuning_uid(cluster: KubernetesCluster) -> str:
    found = cluster.get(TUNING, "default")
    assert found is not None
    return str(found["metadata"]["uid"])


def wait_for_tuning(cluster: KubernetesCluster, **fields: Any) -> dict[str, Any]:
    """Return the spec of the tuning `default` once it has these fields."""

    def look() -> dict[str, Any] | None:
        spec: dict[str, Any] = (cluster.get(TUNING, "default") or {}).get("spec") or {}
        return spec if fields.items() <= spec.items() else None

    return wait_for(f"the tuning has {fields}", look)


def has_new_field(cluster: KubernetesCluster) -> bool:
    definition = cluster.get("crd", BROKER)
    assert definition is not None
    (version,) = definition["spec"]["versions"]
    return NEW_FIELD in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def test_it_is_upgraded_from_the_chart_before_and_rolled_back(
    cluster: KubernetesCluster, home: str
) -> None:
    before = pod_uid(cluster, home)
    cluster.uninstall()
    values = [
        f"{prefix}.{name}={value}"
        for prefix, image in (
            ("image", cluster.operator_image),
            ("brokerImage", cluster.broker_image),
        )
        for name, value in zip(("repository", "tag"), image.rsplit(":", 1), strict=True)
    ]
    chosen = [part for value in values for part in ("--set-string", value)]
    cluster.helm(
        *("upgrade", "--install", RELEASE, str(PREVIOUS), "--namespace", SYSTEM_NAMESPACE),
        *("--take-ownership", *chosen),
    )
    assert not has_new_field(cluster), "the definitions are the old chart's"
    edit = {"mode": "Verify", "floor": 70000, "nodeSelector": {EVERY_NODE: "linux"}}
    cluster.kubectl("patch", TUNING, "default", "--type=merge", "-p", json.dumps({"spec": edit}))
    edited = tuning_uid(cluster)
    cluster.install()
    assert has_new_field(cluster), "the definitions moved along"
    cluster.wait_until_ready("orders", home)
    cluster.helm("test", RELEASE, "-n", SYSTEM_NAMESPACE)
    assert pod_uid(cluster, home) == before, "the broker noticed nothing"
    made_whole = wait_for_tuning(cluster, margin=65536)
    assert made_whole == {**edit, "margin": 65536, "max": 4194304}, "edits are kept"
    assert tuning_uid(cluster) == edited, "and it is the same one"
    cluster.helm("rollback", RELEASE, "1", "-n", SYSTEM_NAMESPACE)
    assert not has_new_field(cluster), "the definitions moved back"
    assert cluster.broker("orders", home), "and no Broker went with them"
    assert pod_uid(cluster, home) == before
    cluster.install("nodeTuning.margin=1000", "nodeTuning.nodeSelector.none=such")
    selected = {**edit["nodeSelector"], "none": "such"}
    found = wait_for_tuning(cluster, margin=1000)
    assert found == {**made_whole, "margin": 1000, "nodeSelector": selected}
    cluster.install()
    assert wait_for_tuning(cluster, margin=65536) == made_whole, "what values added, they take away"
    assert tuning_uid(cluster) == edited, "upgraded, rolled back, upgraded twice"
    cluster.kubectl("delete", TUNING, "default")
    made_anew = wait_for_tuning(cluster, floor=65536)
    assert made_anew == {"mode": "Verify", "floor": 65536, "margin": 65536, "max": 4194304}
    assert has_new_field(cluster)
    cluster.wait_until_ready("orders", home)
    assert pod_uid(cluster, home) == before


def test_one_plain_file_does_the_same_without_helm(
    cluster: KubernetesCluster, home: str, tmp_path: Path
) -> None:
    before = pod_uid(cluster, home)
    operator, _, operator_tag = cluster.operator_image.rpartition(":")
    broker, _, broker_tag = cluster.broker_image.rpartition(":")
    path = tmp_path / "install.yaml"
    settings = [
        *("--set", f"image.repository={operator}", "--set", f"image.tag={operator_tag}"),
        *("--set", f"brokerImage.repository={broker}", "--set", f"brokerImage.tag={broker_tag}"),
    ]
    assert manifests.main([str(path), "--chart", str(CHART), *settings]) == 0
    cluster.uninstall()
    try:
        # In Helm's name: definitions that kubectl owns no later installation could change.
        manager = ("--field-manager=helm", "--force-conflicts")
        cluster.kubectl("apply", "--server-side", *manager, "-f", str(path))
        cluster.kubectl(
            *("-n", manifests.NAMESPACE, "rollout", "status", "deployment/vespiary"),
            "--timeout=300s",
            timeout_s=310,
        )
        assert wait_for_tuning(cluster, mode="Verify"), "the tuning comes without Helm, too"
        cluster.apply(small_broker("plain"), home)
        cluster.wait_until_ready("plain", home)
        assert pod_uid(cluster, home) == before
    finally:
        documents = [d for d in yaml.safe_load_all(path.read_text("utf-8")) if d]
        kept = ("CustomResourceDefinition",)  # Brokers would go with them
        items = [d for d in documents if d["kind"] not in kept]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        cluster.kubectl(
            *("delete", "--ignore-not-found", "--timeout=300s", "-f", "-"),
            stdin=text,
            check=False,
            timeout_s=310,
        )
        cluster.install()
    cluster.kubectl("-n", home, "delete", BROKER, "plain", "--timeout=100s")


def test_an_uninstall_that_would_take_brokers_with_it_is_refused(
    cluster: KubernetesCluster, home: str
) -> None:
    wait_for("the Brokers of other tests are gone", lambda: brokers(cluster) == [f"{home}/orders"])
    cluster.install("crds.keep=false")
    try:
        done = cluster.helm("uninstall", RELEASE, "-n", SYSTEM_NAMESPACE, check=False)
        assert done.returncode != 0
        said = cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "logs", f"job/{RELEASE}-uninstall-guard"
        ).stdout
        assert f"{home}/orders" in said
        assert "`helm rollback` the release and `helm upgrade` with crds.keep=true" in said
        assert cluster.broker("orders", home)
    finally:
        cluster.kubectl(
            "-n", SYSTEM_NAMESPACE, "delete", "job", f"{RELEASE}-uninstall-guard", check=False
        )
        history = json.loads(
            cluster.helm("history", RELEASE, "-n", SYSTEM_NAMESPACE, "-o", "json").stdout
        )
        cluster.helm(
            "rollback", RELEASE, str(history[-1]["revision"]), "-n", SYSTEM_NAMESPACE, "--wait"
        )
        cluster.install()
    # The operator works on: it has something to do, and says that it is done.
    generation = patch(cluster, home, {"addresses": [{"name": "later"}]})
    cluster.wait_for_condition("orders", home, "ConfigApplied", "True", generation=generation)


def newer_operator(cluster: KubernetesCluster) -> str:
    """Return an image of an operator that would write another template."""
    changed = f'"env": [{json.dumps(NEWER)}, _ORDINAL, _OWN_CONFIG'.replace("[", r"\[", 1)
    return variant(
        cluster,
        cluster.operator_image,
        "newer",
        rf"""sed -i 's/"env": \[_ORDINAL, _OWN_CONFIG/{changed}/' {TEMPLATE_FILE}""",
        f"grep -q {NEWER['name']} {TEMPLATE_FILE}",
    )


def environment(cluster: KubernetesCluster, namespace: str) -> list[Any]:
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    found: list[Any] = pod["spec"]["containers"][0]["env"]
    return found


def template_pending(cluster: KubernetesCluster, namespace: str) -> str:
    """Return the metric of the Broker, as the one operator that there is shows it."""
    (operator,) = cluster.operators()
    name = operator["metadata"]["name"]
    path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{name}:8080/proxy/metrics"
    page = cluster.kubectl("get", "--raw", path).stdout
    shown = f'vespiary_operator_template_pending{{broker="orders",namespace="{namespace}"}} '
    return next((line[len(shown) :] for line in page.splitlines() if line.startswith(shown)), "")


def test_a_newer_operator_restarts_nobody_until_it_is_asked_to(
    cluster: KubernetesCluster, home: str
) -> None:
    def adopt(when: str | None) -> None:
        patch(cluster, home, {"upgrade": {"adoptOperatorTemplate": when}})

    def up_to_date() -> tuple[str, str]:
        found = cluster.condition("orders", home, "UpToDate")
        return found.get("status", ""), found.get("reason", "")

    before = pod_uid(cluster, home)
    workload = cluster.get("statefulset", "orders", home)
    assert workload is not None
    current = cluster.operator_image
    cluster.operator_image = newer_operator(cluster)
    try:
        cluster.install()
        (operator,) = cluster.operators()
        assert operator["spec"]["containers"][0]["image"] == cluster.operator_image
        wait_for("it is told", lambda: up_to_date() == ("True", "TemplatePending"))
        said = cluster.condition("orders", home, "UpToDate")["message"]
        assert "spec.upgrade.adoptOperatorTemplate: Always" in said
        wait_for("the metric says so", lambda: template_pending(cluster, home) == "1.0")
        now = cluster.get("statefulset", "orders", home)
        assert now is not None
        assert now["spec"] == workload["spec"], "nothing waits for the next restart either"
        assert pod_uid(cluster, home) == before

        adopt("Always")
        wait_for("it is restarted", lambda: seen_uid(cluster, home) not in ("", before.split()[0]))
        wait_for("it is told", lambda: up_to_date() == ("True", "UpToDate"))
        cluster.wait_until_ready("orders", home, without=[before.split()[0]])
        assert NEWER in environment(cluster, home)
        wait_for("the metric says so", lambda: template_pending(cluster, home) == "0.0")
        last = cluster.broker("orders", home)["status"]["restarts"][0]
        assert (last["broker"], last["actor"]) == ("orders-0", "vespiary-operator"), last
    finally:
        adopt(None)
        cluster.operator_image = current
        cluster.install()
    # Nor does one that is older than what the pods have.
    after = pod_uid(cluster, home)
    wait_for("it is told", lambda: up_to_date() == ("True", "TemplatePending"))
    assert pod_uid(cluster, home) == after


def _kubeconform(program: str, folder: Path, document: Any) -> subprocess.CompletedProcess[str]:
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(document))
    location = folder / "{{.ResourceKind}}{{.KindSuffix}}.json"
    return subprocess.run(
        [program, "-strict", "-summary", "-schema-location", str(location), str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_kubeconform_knows_every_object_and_field(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    try:
        program = tool("kubeconform")
    except NoTool as reason:
        pytest.skip(str(reason))
    openapi = json.loads(cluster.kubectl("get", "--raw", "/openapi/v2").stdout)
    assert write_schemas(openapi, tmp_path) > 100
    settings = (
        *("networkPolicy.enabled=true", "dashboards.enabled=true", "crds.keep=false"),
        *("admissionPolicies.confirmDeletion=true", "admissionPolicies.allowedImages={r/one}"),
    )
    chosen = [part for setting in settings for part in ("--set", setting)]
    text = cluster.helm("template", RELEASE, str(CHART), *chosen).stdout
    documents = [d for d in yaml.safe_load_all(text) if d]
    done = _kubeconform(program, tmp_path, documents)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Valid: {len(documents)}, Invalid: 0, Errors: 0, Skipped: 0" in done.stdout
    documents[0]["metadata"]["nmae"] = "a slip"
    assert _kubeconform(program, tmp_path, documents).returncode != 0, "it looks at all"

"""What each switch of the chart makes, object by object."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from vespiary_operator import kinds, rbac
from vespiary_operator.builders import tuning
from vespiary_spec.filesystems import ALLOWED, WARNED
from vespiary_spec.model import Spelling, fields_of
from vespiary_spec.resources import API_VERSION, BrokerNodeTuning, BrokerNodeTuningSpec
from vespiary_testkit.chart import CHART, MONITORING_API, helm, named, needs_helm, one, rendered

pytestmark = needs_helm

ALL_ON = (
    "dashboards.enabled=true",
    "prometheusRule.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "networkPolicy.enabled=true",
    "admissionPolicies.confirmDeletion=true",
    "admissionPolicies.restrictOverrides=true",
    "admissionPolicies.restrictScaleDown=true",
    "admissionPolicies.allowedImages={registry.example.com/team}",
    "crds.keep=false",
)


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the specs of all pods that the objects make."""
    found = []
    for document in documents:
        if document["kind"] == "Pod":
            found.append(document["spec"])
        elif document["kind"] in ("Deployment", "Job"):
            found.append(document["spec"]["template"]["spec"])
    return found


def test_every_pod_keeps_to_the_restricted_profile() -> None:
    found = pods(rendered(*ALL_ON, apis=(MONITORING_API,), tests=True))
    assert len(found) == 3, "the operator, helm test, the guard of an uninstall"
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all("hostPath" not in volume for volume in pod["volumes"])
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }
            assert container["resources"]["limits"]["memory"]


def test_only_the_tuning_has_a_namespace_that_allows_host_files() -> None:
    documents = rendered()
    namespace = one(documents, "Namespace")
    assert namespace["metadata"]["name"] == "vespiary-node-tuning"
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert namespace["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    role = one(documents, "Role")
    assert role["metadata"]["namespace"] == "vespiary-node-tuning"
    assert environment(documents)["VESPIARY_TUNING_NAMESPACE"] == "vespiary-node-tuning"
    other = rendered("nodeTuning.namespace=kube-tuning", "nodeTuning.createNamespace=false")
    assert "Namespace" not in {d["kind"] for d in other}
    assert one(other, "Role")["metadata"]["namespace"] == "kube-tuning"
    assert environment(other)["VESPIARY_TUNING_NAMESPACE"] == "kube-tuning"
    assert "Namespace" not in {d["kind"] for d in rendered("scope=namespaces")}


def environment(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = one(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {e["name"]: e.get("value") for e in container["env"]}


def test_the_values_of_the_default_tuning_reach_the_operator() -> None:
    def spec(*values: str) -> Any:
        return json.loads(environment(rendered(*values))["VESPIARY_DEFAULT_TUNING"])

    numbers = {"floor": 65536, "margin": 65536, "max": 4194304}
    assert spec() == {"mode": "Verify", **numbers}
    chosen = spec(
        *("nodeTuning.mode=Raise", "nodeTuning.floor=131072", "nodeTuning.nodeSelector.pool=b"),
        "nodeTuning.tolerations[0].operator=Exists",
    )
    assert chosen == {
        **numbers,
        "mode": "Raise",
        "floor": 131072,
        "nodeSelector": {"pool": "b"},
        "tolerations": [{"operator": "Exists"}],
    }
    converted = BrokerNodeTuning.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "BrokerNodeTuning",
            "metadata": {"name": "default"},
            "spec": spec(),
        }
    )
    assert converted.spec == BrokerNodeTuningSpec(), "the chart's defaults are the resource's"
    assert {*spec(), "nodeSelector", "tolerations"} == {
        field.spelled(Spelling.CAMEL) for field in fields_of(BrokerNodeTuningSpec)
    }, "a new field of the resource has to be a value of the chart"
    for without in ("nodeTuning.create=false", "scope=namespaces"):
        assert "VESPIARY_DEFAULT_TUNING" not in environment(rendered(without))


def test_the_image_of_archives_reaches_the_operator() -> None:
    own = environment(rendered())
    assert re.fullmatch(r"vespiary/pipeline:\d+\.\d+\.\d+", own["VESPIARY_PIPELINE_IMAGE"])
    chosen = ("repository=r/p", "digest=sha256:00", "pullPolicy=Always")
    other = environment(rendered(*(f"pipelineImage.{value}" for value in chosen)))
    assert other["VESPIARY_PIPELINE_IMAGE"] == "r/p@sha256:00"
    assert other["VESPIARY_PIPELINE_PULL_POLICY"] == "Always"


def test_images_of_archives_come_from_the_places_that_are_allowed_too() -> None:
    documents = rendered("admissionPolicies.allowedImages={r/one}")
    policy = next(d for d in documents if d["metadata"]["name"].endswith("-images"))
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["brokers", "journalarchives"]


def test_no_hook_deletes_the_default_tuning() -> None:
    assert not [d for d in rendered(tests=True) if d["kind"] == "BrokerNodeTuning"]
    done = helm("template", "v", str(CHART), "--set", "nodeTuning.floor=4194305", check=False)
    assert "nodeTuning.floor is 4194305, above nodeTuning.max, which is 4194304" in done.stderr


def test_common_labels_are_on_everything_but_definitions() -> None:
    for document in rendered(*ALL_ON, "commonLabels.team=red", apis=(MONITORING_API,), tests=True):
        if document["kind"] != "CustomResourceDefinition":
            assert document["metadata"]["labels"]["team"] == "red", document["kind"]
    for document in rendered():
        selector = (document.get("spec") or {}).get("selector") or {}
        assert "team" not in json.dumps(selector)


def test_the_network_policy_opens_what_is_used() -> None:
    spec = one(rendered("networkPolicy.enabled=true"), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [p["port"] for p in spec["ingress"][0]["ports"]] == [8080, 8081]
    api, dns, brokers, tuners = spec["egress"]
    assert [p["port"] for p in api["ports"]] == [443, 6443]
    assert {(p["protocol"], p["port"]) for p in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    labels = brokers["to"][0]["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/component"] == "broker"
    assert tuners["ports"] == [{"protocol": "TCP", "port": tuning.PORT}]
    own = one(rendered("networkPolicy.enabled=true", "scope=namespaces"), "NetworkPolicy")
    assert len(own["spec"]["egress"]) == 3, "no nodes are looked after"
    assert "NetworkPolicy" not in {d["kind"] for d in rendered()}


def test_monitoring_needs_its_api_and_says_so() -> None:
    for value in ("prometheusRule.enabled", "metrics.serviceMonitor.enabled"):
        done = helm("template", "x", str(CHART), "--set", f"{value}=true", check=False)
        assert done.returncode != 0
        assert f"{value} needs the API {MONITORING_API}" in done.stderr
        assert rendered(f"{value}=true", apis=(MONITORING_API,))


def test_rules_dashboards_and_monitor_are_what_the_files_say() -> None:
    documents = rendered(
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=prom",
        "metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.interval=15s",
        "dashboards.enabled=true",
        "dashboards.namespace=grafana",
        apis=(MONITORING_API,),
    )
    rule = one(documents, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prom"
    assert rule["spec"] == yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text("utf-8"))
    maps = [d for d in documents if d["kind"] == "ConfigMap"]
    assert len(maps) == 2
    for found in maps:
        assert found["metadata"]["namespace"] == "grafana"
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = found["data"].items()
        assert text == (CHART / "monitoring" / "dashboards" / name).read_text("utf-8")
    monitor = one(documents, "ServiceMonitor")
    service = one(documents, "Service")
    labels = service["metadata"]["labels"].items()
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["interval"] == "15s"
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    off = rendered(
        "metrics.enabled=false", "metrics.serviceMonitor.enabled=true", apis=(MONITORING_API,)
    )
    assert "ServiceMonitor" not in {d["kind"] for d in off}, "there is nothing to scrape"


def test_the_service_leads_to_the_pod() -> None:
    documents = rendered("metrics.port=9100")
    service = one(documents, "Service")["spec"]
    template = one(documents, "Deployment")["spec"]["template"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports[service["ports"][0]["targetPort"]] == 9100
    assert service["ports"][0]["port"] == 8080


# --- admission ------------------------------------------------------------------------------------


def policies(*values: str) -> dict[str, dict[str, Any]]:
    return {
        d["metadata"]["name"].removeprefix("vespiary-"): d
        for d in rendered(*values)
        if d["kind"] == "ValidatingAdmissionPolicy"
    }


def test_each_policy_has_a_binding_and_a_switch() -> None:
    assert set(policies()) == {"filesystem-override"}
    assert set(policies("admissionPolicies.allowedImages={r/one}")) == {
        "filesystem-override",
        "images",
    }
    on = ("admissionPolicies.confirmDeletion=true",)
    assert set(policies(*on)) == {"filesystem-override", "broker-deletion", "claim-deletion"}
    more = ("admissionPolicies.restrictOverrides=true", "admissionPolicies.restrictScaleDown=true")
    assert set(policies(more[0])) == {"filesystem-override", "overrides"}
    assert set(policies(more[1])) == {"filesystem-override", "scale-down"}
    for off in ("admissionPolicies.enabled=false", "scope=namespaces"):
        assert not policies(*on, off)
    documents = rendered(*ALL_ON, apis=(MONITORING_API,))
    bound = {
        d["spec"]["policyName"]: d["spec"]["validationActions"]
        for d in documents
        if d["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    named_ = {d["metadata"]["name"] for d in documents if d["kind"] == "ValidatingAdmissionPolicy"}
    assert set(bound) == named_
    assert all(actions == ["Deny"] for actions in bound.values())


def test_the_default_filesystems_are_those_of_the_model() -> None:
    spec = policies()["filesystem-override"]["spec"]
    (beyond,) = (v["expression"] for v in spec["variables"] if v["name"] == "beyond")
    assert re.findall(r"'(\w+)'", beyond) == [*ALLOWED, *WARNED]


def test_the_verb_of_overrides_is_in_no_role_that_the_cluster_hands_out() -> None:
    documents = rendered()
    role = named(documents, "ClusterRole", "vespiary-override")
    assert [rule["verbs"] for rule in role["rules"]] == [["override"]]
    assert not any("aggregate" in label for label in role["metadata"]["labels"])
    for document in documents:
        if document["kind"] == "ClusterRole" and document is not role:
            assert not any("override" in rule["verbs"] for rule in document["rules"])


def test_places_of_images_may_end_with_a_slash() -> None:
    spec = policies("admissionPolicies.allowedImages={registry.example.com/}")["images"]["spec"]
    (validation,) = spec["validations"]
    assert (
        "[\"registry.example.com\"].exists(place, variables.image.startsWith(place + '/')"
        in (validation["expression"])
    )


# --- rights ---------------------------------------------------------------------------------------


def test_the_roles_are_exactly_the_table() -> None:
    def granted(document: dict[str, Any]) -> set[tuple[str, str, str]]:
        return {
            (group, resource, verb)
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def wanted(*places: rbac.Place) -> set[tuple[str, str, str]]:
        return {
            (rule.kind.group, rule.resource, verb)
            for rule in rbac.RULES
            if rule.place in places
            for verb in rule.verbs
        }

    def bind(kind: str) -> set[tuple[str, str, str]]:
        return {("rbac.authorization.k8s.io", kind, "bind")}

    documents = rendered()
    cluster = named(documents, "ClusterRole", "vespiary")
    everywhere = wanted(rbac.Place.NAMESPACES, rbac.Place.CLUSTER)
    assert granted(cluster) == everywhere | bind("clusterroles")
    assert granted(one(documents, "Role")) == wanted(rbac.Place.TUNING)
    own = rendered("scope=namespaces", "namespaces={one,two}")
    roles = [d for d in own if d["kind"] == "Role"]
    for role in (d for d in roles if d["metadata"]["name"] == "vespiary"):
        assert granted(role) == wanted(rbac.Place.NAMESPACES) | bind("roles")
    assert len(roles) == 4, "two of each namespace"
    assert (kinds.SECRET.group, "secrets", "delete") not in granted(cluster)
    for values in ((), ("scope=namespaces", "namespaces={one,two}")):
        assert "vespiary-lease" not in {d["metadata"]["name"] for d in rendered(*values)}
        lease = named(rendered("replicas=2", *values), "Role", "vespiary-lease")
        assert granted(lease) == wanted(rbac.Place.OWN)
        assert lease["metadata"]["namespace"] == "system"


@pytest.mark.parametrize("scope", ["cluster", "namespaces"])
def test_the_operator_gives_one_role_to_others_and_that_makes_pods_alone(scope: str) -> None:
    documents = rendered(f"scope={scope}")
    kind = {"cluster": "ClusterRole", "namespaces": "Role"}[scope]
    (bound,) = (r for r in named(documents, kind, "vespiary")["rules"] if "bind" in r["verbs"])
    name = environment(documents)["VESPIARY_EXECUTOR_ROLE"]
    assert bound["resourceNames"] == [name], "not any role"
    (rule,) = named(documents, kind, name)["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert tuple(rule["verbs"]) == rbac.EXECUTOR_VERBS


def test_the_test_may_try_a_broker_and_nothing_else() -> None:
    documents = rendered(tests=True)
    role = named(documents, "Role", "vespiary-test")
    assert [(r["resources"], r["verbs"]) for r in role["rules"]] == [(["brokers"], ["create"])]
    for document in documents:
        if document["metadata"]["name"] == "vespiary-test":
            assert document["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_an_uninstall_is_guarded_where_it_takes_brokers_with_it() -> None:
    job = one(rendered("crds.keep=false"), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["check-uninstall"]
    for values in ((), ("crds.install=false", "crds.keep=false")):
        assert "Job" not in {d["kind"] for d in rendered(*values)}

"""What people add to their pods is there, and stays below what the operator sets."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.builders import policies
from vespiary_operator.builders.pod_template import pod_template
from vespiary_spec.configuration import from_broker
from vespiary_spec.errors import ConfigError
from vespiary_testkit.broker_resources import broker


def pod(**spec: Any) -> dict[str, Any]:
    found = broker(**spec)
    from_broker(found)  # as the plan does before it renders anything
    template = pod_template(found, image="b:1", pull_policy="IfNotPresent", config_map="c")
    rendered: dict[str, Any] = template["spec"]
    return rendered


def test_variables_are_the_brokers_alone() -> None:
    spec = pod(
        env=[
            {"name": "TZ", "value": "UTC"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        envFrom=[{"prefix": "APP_", "configMapRef": {"name": "m", "optional": True}}],
    )
    (main,), (verify,) = spec["containers"], spec["initContainers"]
    ours, theirs = main["env"][:2], main["env"][2:]
    assert [variable["name"] for variable in ours] == ["VESPIARY_ORDINAL", "VESPIARY_OWN_CONFIG"]
    assert theirs[0] == {"name": "TZ", "value": "UTC"}
    assert theirs[1]["valueFrom"]["fieldRef"] == {
        "apiVersion": "v1",
        "fieldPath": "spec.nodeName",
    }
    assert theirs[2]["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "k"}}
    assert main["envFrom"] == [{"prefix": "APP_", "configMapRef": {"name": "m", "optional": True}}]
    assert [v["name"] for v in verify["env"]] == ["VESPIARY_ORDINAL", "VESPIARY_ADOPTIONS"]
    assert "envFrom" not in verify


def test_volumes_have_names_that_none_of_ours_has() -> None:
    spec = pod(
        extraVolumes=[
            {"name": "journal", "emptyDir": {}},
            {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "ca", "secret": {"secretName": "company-ca"}},
            {"name": "all", "projected": {"sources": [{"configMap": {"name": "m"}}]}},
            {"name": "mine", "persistentVolumeClaim": {"claimName": "shelf", "readOnly": True}},
        ],
        extraVolumeMounts=[
            {"name": "journal", "mountPath": "/mnt/a"},
            {"name": "cache", "mountPath": "/mnt/b"},
            {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True},
            {"name": "all", "mountPath": "/mnt/c"},
            {"name": "mine", "mountPath": "/mnt/d", "subPath": "x/y"},
        ],
    )
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["extra-journal"] == {"name": "extra-journal", "emptyDir": {}}
    assert volumes["extra-cache"]["emptyDir"] == {"medium": "Memory", "sizeLimit": 8 * 2**20}
    assert volumes["extra-ca"]["secret"] == {"secretName": "company-ca", "defaultMode": 0o440}
    assert volumes["extra-all"]["projected"]["sources"] == [{"configMap": {"name": "m"}}]
    claim = {"claimName": "shelf", "readOnly": True}
    assert volumes["extra-mine"]["persistentVolumeClaim"] == claim
    main = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert main["/mnt/d"] == {"name": "extra-mine", "mountPath": "/mnt/d", "subPath": "x/y"}
    assert main["/etc/ssl/company"]["readOnly"] is True
    verify = {mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]}
    assert not any(name.startswith("extra-") for name in verify)


def test_the_template_is_handed_through_and_stays_restricted() -> None:
    spec = pod(
        podTemplate={
            "schedulerName": "mine",
            "runtimeClassName": "kata",
            "dnsPolicy": "None",
            "dnsConfig": {
                "nameservers": ["10.0.0.1"],
                "options": [{"name": "ndots", "value": "1"}],
            },
            "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["a", "b"]}],
            "securityContext": {
                "runAsUser": 12345,
                "fsGroup": 23456,
                "fsGroupChangePolicy": "Always",
                "supplementalGroups": [5],
                "seLinuxOptions": {"level": "s0:c1"},
                "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"},
            },
        },
        serviceAccount={"name": "robot"},
    )
    assert spec["schedulerName"] == "mine"
    assert spec["runtimeClassName"] == "kata"
    assert spec["dnsPolicy"] == "None"
    assert spec["dnsConfig"]["options"] == [{"name": "ndots", "value": "1"}]
    assert spec["hostAliases"] == [{"ip": "10.1.1.1", "hostnames": ["a", "b"]}]
    assert spec["serviceAccountName"] == "robot"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 12345,
        "runAsGroup": 10001,
        "fsGroup": 23456,
        "fsGroupChangePolicy": "Always",
        "supplementalGroups": [5],
        "seLinuxOptions": {"level": "s0:c1"},
        "seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"},
    }
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert security["runAsUser"] == 12345
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_numbers_of_probes_may_be_given() -> None:
    (main,) = pod(
        probes={"liveness": {"period": "20s", "timeout": 7, "failureThreshold": 9}},
    )["containers"]
    assert main["livenessProbe"]["periodSeconds"] == 20
    assert main["livenessProbe"]["timeoutSeconds"] == 7
    assert main["livenessProbe"]["failureThreshold"] == 9
    assert main["readinessProbe"]["periodSeconds"] == 2


def test_the_budget_takes_the_number() -> None:
    budget = policies.disruption_budget(broker(disruptionBudget={"maxUnavailable": 0}))
    assert budget["spec"]["maxUnavailable"] == 0


MOUNT = {"extraVolumes": [{"name": "a", "emptyDir": {}}]}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"env": [{"name": "VESPIARY_NATIVE", "value": "0"}]}, "spec.env[0].name"),
        ({"env": [{"name": "LD_PRELOAD", "value": "x"}]}, "spec.env[0].name"),
        ({"env": [{"name": "PATH", "value": "x"}]}, "spec.env[0].name"),
        ({"env": [{"name": "A", "value": "x", "valueFrom": {}}]}, "spec.env[0]"),
        ({"env": [{"name": "A", "valueFrom": {}}]}, "spec.env[0].valueFrom"),
        ({"envFrom": [{"prefix": "VESPIARY_", "secretRef": {"name": "s"}}]}, "spec.envFrom[0]"),
        ({"envFrom": [{"prefix": "A_"}]}, "spec.envFrom[0]"),
        ({"extraVolumes": [{"name": "a"}]}, "spec.extraVolumes[0]"),
        (MOUNT, "spec.extraVolumes[0].name"),
        (
            MOUNT | {"extraVolumeMounts": [{"name": "a", "mountPath": "/var/lib"}]},
            "spec.extraVolumeMounts[0].mountPath",
        ),
        (
            MOUNT
            | {"extraVolumeMounts": [{"name": "a", "mountPath": "/var/lib/vespiary/journal"}]},
            "spec.extraVolumeMounts[0].mountPath",
        ),
        ({"extraVolumeMounts": [{"name": "b", "mountPath": "/mnt/b"}]}, "[0].name"),
        (
            {
                "extraVolumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "journal-bills-0"}}
                ]
            },
            "claimName",
        ),
        (
            {"extraVolumes": [{"name": "a", "projected": {"sources": [{}]}}]},
            "projected.sources[0]",
        ),
        (
            {"podTemplate": {"securityContext": {"seccompProfile": {"type": "Localhost"}}}},
            "seccompProfile",
        ),
        ({"serviceAccount": {"name": "a", "annotations": {"b": "c"}}}, "spec.serviceAccount"),
    ],
)
def test_what_the_rules_refuse_is_refused_without_an_api_server(
    spec: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        from_broker(broker(**spec))
    assert path in refused.value.path


@pytest.mark.parametrize("path", ["/", "/a/../b", "mnt", "/mnt/", "/mnt/a:b"])
def test_a_path_has_to_be_absolute_and_plain(path: str) -> None:
    with pytest.raises(ConfigError):
        broker(**MOUNT, extraVolumeMounts=[{"name": "a", "mountPath": path}])

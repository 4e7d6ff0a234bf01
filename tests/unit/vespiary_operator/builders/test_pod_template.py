"""The pod: restricted, without a token, and with the commands that the images have."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from vespiary_broker.cli.checking import check
from vespiary_operator.builders.pod_template import aio_demand, pod_template, verify_command
from vespiary_spec.resources import Broker
from vespiary_testkit.broker_resources import broker


def template(found: Broker) -> dict[str, Any]:
    return pod_template(found, image="b:1", pull_policy="IfNotPresent", config_map="c")


def test_every_container_keeps_to_the_restricted_profile() -> None:
    spec = template(broker())["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["runAsUser"] == 10001
        assert not {"hostPath", "hostPort"} & set(json.dumps(container).split('"'))


def test_the_image_knows_every_option_of_the_verification() -> None:
    """An option that the command does not have ends with exit code 2, before anything is read."""
    command = ["0" if part == "$(VESPIARY_ORDINAL)" else part for part in verify_command(broker())]
    assert command[:2] == ["vespiary", "check"]
    offered = {name for parameter in check.params for name in parameter.opts}
    used = {part for part in command if part.startswith("--")}
    assert used <= offered
    assert "--ephemeral" in verify_command(broker(storage={"ephemeral": True}))
    assert CliRunner().invoke(check, ["--help"]).exit_code == 0


def test_the_owner_and_the_policy_are_told() -> None:
    command = verify_command(broker(storage={"filesystemPolicy": {"deny": ["zfs"]}}))
    told = dict(zip(command[2::2], command[3::2], strict=False))
    assert told["--owner-name"] == "ns/orders"
    assert told["--owner-uid"] == "u-1"
    assert json.loads(told["--filesystem-policy"]) == {"deny": ["zfs"]}


@pytest.mark.parametrize(
    ("config", "demand"),
    [
        ({}, 500),
        ({"journalMaxIo": 7}, 7),
        ({"journalType": "NIO"}, 0),
        ({"journalType": "IO_URING"}, 500),  # its fallback takes them
        ({"persistenceEnabled": False}, 0),
    ],
)
def test_the_demand_is_on_the_pod(config: dict[str, Any], demand: int) -> None:
    assert aio_demand(broker(config=config)) == demand
    annotations = template(broker(config=config))["metadata"]["annotations"]
    assert annotations["vespiary.dev/aio-demand"] == str(demand)


def test_people_cannot_take_over_labels_that_select_pods() -> None:
    found = template(broker(podLabels={"app.kubernetes.io/instance": "other", "team": "x"}))
    labels = found["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "orders"
    assert labels["team"] == "x"


def test_tls_secrets_and_scheduling_reach_the_pod() -> None:
    spec = template(
        broker(
            tls={"secretName": "cert"},
            nodeSelector={"disk": "nvme"},
            tolerations=[{"operator": "Exists"}],
            priorityClassName="high",
            imagePullSecrets=[{"name": "pull"}],
            resources={"limits": {"memory": "1Gi"}},
            shutdownTimeout="90s",
        )
    )["spec"]
    assert {"name": "tls-0", "mountPath": "/etc/vespiary/tls/cert", "readOnly": True} in spec[
        "containers"
    ][0]["volumeMounts"]
    assert spec["nodeSelector"] == {"disk": "nvme"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "high"
    assert spec["terminationGracePeriodSeconds"] == 90
    assert spec["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}


def test_probes_and_prometheus_ask_the_port_without_a_login() -> None:
    made = template(broker(admin={"port": 8161, "probePort": 8162}))
    (main,) = made["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert (ports["http"], ports["probes"]) == (8161, 8162)
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert main[kind]["httpGet"]["port"] == "probes"
        assert main[kind]["httpGet"]["scheme"] == "HTTP"
    assert made["metadata"]["annotations"]["prometheus.io/port"] == "8162"


def test_without_a_probe_port_they_ask_the_port_of_the_api() -> None:
    made = template(broker())
    (main,) = made["spec"]["containers"]
    assert [port["name"] for port in main["ports"]].count("http") == 1
    assert "probes" not in [port["name"] for port in main["ports"]]
    assert main["readinessProbe"]["httpGet"]["port"] == "http"
    assert made["metadata"]["annotations"]["prometheus.io/port"] == "8161"


def test_the_port_of_the_api_over_tls() -> None:
    made = template(broker(admin={"tls": {"secretName": "cert"}}))
    (main,) = made["spec"]["containers"]
    mount = {"name": "tls-0", "mountPath": "/etc/vespiary/tls/cert", "readOnly": True}
    assert mount in main["volumeMounts"]
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert main[kind]["httpGet"]["port"] == "http"
        assert main[kind]["httpGet"]["scheme"] == "HTTPS"
    annotations = made["metadata"]["annotations"]
    assert annotations["prometheus.io/scheme"] == "https"
    assert annotations["vespiary.dev/admin-tls"] == "cert"
    made = template(broker(admin={"probePort": 8162, "tls": {"secretName": "cert"}}))
    (main,) = made["spec"]["containers"]
    assert main["readinessProbe"]["httpGet"]["scheme"] == "HTTP"
    assert "prometheus.io/scheme" not in made["metadata"]["annotations"]
    assert made["metadata"]["annotations"]["vespiary.dev/admin-tls"] == "cert"
    plain = template(broker())["metadata"]["annotations"]
    assert not {"prometheus.io/scheme", "vespiary.dev/admin-tls"} & plain.keys(), "no restart"


def test_an_acceptor_that_is_called_as_the_probe_port_is() -> None:
    acceptors = [{"name": "probes", "port": 61613, "protocols": ["STOMP"]}]
    made = template(broker(admin={"probePort": 8162}, acceptors=acceptors))
    (main,) = made["spec"]["containers"]
    names = [port["name"] for port in main["ports"]]
    assert sorted(names) == ["http", "probes", "probes-8162"]
    assert main["livenessProbe"]["httpGet"]["port"] == "probes-8162"

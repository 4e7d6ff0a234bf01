"""The StatefulSet, and that what is rendered for an unchanged Broker stays as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from vespiary_operator.builders import logins, policies, services, settings_map
from vespiary_operator.builders.statefulset import stateful_set
from vespiary_spec.configuration import from_broker
from vespiary_spec.resources import Broker
from vespiary_testkit.broker_resources import broker

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "broker.yaml"


def rendered(found: Broker, **more: Any) -> dict[str, Any]:
    return stateful_set(
        found, image="b:1", pull_policy="IfNotPresent", config_map="c", partition=2, **more
    )


def test_pods_are_managed_in_parallel_and_changed_by_partition() -> None:
    spec = rendered(broker(replicas=2))["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"]["rollingUpdate"]["partition"] == 2
    assert spec["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


def test_there_is_a_claim_for_each_volume_and_it_is_mounted() -> None:
    spec = rendered(broker(storage={"volumes": {"journal": {"storageClassName": "fast"}}}))["spec"]
    claims = {c["metadata"]["name"]: c["spec"] for c in spec["volumeClaimTemplates"]}
    assert list(claims) == ["bindings", "journal", "paging", "large-messages"]
    assert claims["journal"]["storageClassName"] == "fast"
    assert "storageClassName" not in claims["paging"]
    assert claims["bindings"]["resources"]["requests"]["storage"] == "1Gi"
    for container in (
        *spec["template"]["spec"]["initContainers"],
        *spec["template"]["spec"]["containers"],
    ):
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        for name in claims:
            assert mounts[name] == f"/var/lib/vespiary/{name}"


def test_the_jms_journal_may_have_a_volume_of_its_own() -> None:
    given = broker(storage={"volumes": {"jms": {"size": "2Gi"}}})
    spec = rendered(given)["spec"]
    claims = {c["metadata"]["name"]: c["spec"] for c in spec["volumeClaimTemplates"]}
    assert list(claims) == ["bindings", "journal", "paging", "large-messages", "jms"]
    assert claims["jms"]["resources"]["requests"]["storage"] == "2Gi"
    for container in spec["template"]["spec"]["containers"]:
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert mounts["jms"] == "/var/lib/vespiary/jms"
    assert from_broker(given).directories().jms == Path("/var/lib/vespiary/jms")
    assert from_broker(broker()).directories().jms == Path("/var/lib/vespiary/bindings")


def test_copies_of_journal_files_have_a_volume_of_their_own() -> None:
    given = broker(
        storage={"volumes": {"retention": {"size": "20Gi", "storageClassName": "nfs"}}},
        config={"journalRetentionPeriod": "168h", "journalRetentionStorageLimit": "18Gi"},
    )
    spec = rendered(given)["spec"]
    claims = {c["metadata"]["name"]: c["spec"] for c in spec["volumeClaimTemplates"]}
    assert list(claims) == ["bindings", "journal", "paging", "large-messages", "retention"]
    assert claims["retention"]["resources"]["requests"]["storage"] == "20Gi"
    for container in spec["template"]["spec"]["containers"]:
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        assert mounts["retention"] == "/var/lib/vespiary/retention"
    found = from_broker(given)
    assert found.journal_retention_directory == "/var/lib/vespiary/retention"
    assert found.journal_retention_period == 7 * 86_400_000
    assert found.journal_retention_storage_limit == 18 * 2**30
    assert from_broker(broker()).journal_retention_directory is None


def test_an_ephemeral_broker_claims_nothing() -> None:
    spec = rendered(broker(storage={"ephemeral": True}))["spec"]
    assert "volumeClaimTemplates" not in spec
    empty = {v["name"] for v in spec["template"]["spec"]["volumes"] if "emptyDir" in v}
    assert {"bindings", "journal", "paging", "large-messages"} <= empty


def test_a_new_operator_renders_the_same_pods_for_the_example() -> None:
    """A change of this digest restarts every broker when the operator is upgraded.

    Where that is meant, put the new digest here and say so in the changelog.
    """
    document = yaml.safe_load(EXAMPLE.read_text("utf-8"))
    document["metadata"] |= {"namespace": "ns", "uid": "u-1"}
    found = Broker.from_dict(document)
    template = rendered(found)["spec"]["template"]
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]
    assert digest == "77ef7e51fd230e3e"


def test_the_config_map_is_named_after_its_content() -> None:
    first, second = (
        settings_map.config_map(broker(config={"journalMinFiles": files})) for files in (2, 3)
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["immutable"] is True
    assert "journal-min-files: 3" in second["data"]["broker.yaml"]


def test_a_load_balancer_does_not_show_the_http_listener() -> None:
    assert [p["name"] for p in services.client(broker())["spec"]["ports"]] == [
        "all",
        "amqp",
        "mqtt",
        "stomp",
        "http",
    ]
    outside = services.client(broker(service={"type": "LoadBalancer", "annotations": {"a": "b"}}))
    assert [p["name"] for p in outside["spec"]["ports"]] == ["all", "amqp", "mqtt", "stomp"]
    assert outside["metadata"]["annotations"] == {"a": "b"}


def test_an_acceptor_may_be_called_http() -> None:
    found = broker(acceptors=[{"name": "http", "port": 9000}])
    assert services.admin_port_name(found) == "admin"


def test_the_network_policy_opens_the_acceptors_and_http() -> None:
    (rule,) = policies.network_policy(broker())["spec"]["ingress"]
    assert [p["port"] for p in rule["ports"]] == [61616, 5672, 1883, 61613, 8161]
    (rule,) = policies.network_policy(broker(admin={"probePort": 8162}))["spec"]["ingress"]
    assert [p["port"] for p in rule["ports"]][-2:] == [8161, 8162]


def test_the_network_policy_lets_a_broker_call_its_own_kind_alone() -> None:
    spec = policies.network_policy(broker())["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    names_of_hosts, brokers = spec["egress"]
    assert {(p["protocol"], p["port"]) for p in names_of_hosts["ports"]} == {
        ("UDP", 53),
        ("TCP", 53),
    }
    assert brokers["to"] == [{"podSelector": spec["podSelector"]}], "not those of other Brokers"
    assert [p["port"] for p in brokers["ports"]] == [61616, 5672, 1883, 61613, 8161]


def test_users_and_credentials_are_apart() -> None:
    credentials = logins.credentials(broker(), "pw")
    users = logins.users(broker(), "admin SCRAM\n")
    assert set(credentials["data"]) == {"admin"}
    assert set(users["data"]) == {"users"}

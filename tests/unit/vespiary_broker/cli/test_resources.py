"""A Broker resource on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.resources import is_resource, local_broker
from vespiary_spec import configuration as configurations
from vespiary_spec.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]


def broker(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "vespiary.dev/v1beta1",
        "kind": "Broker",
        "metadata": {"name": "orders"},
        "spec": spec,
    }


def test_the_example_runs_here(tmp_path: Path):
    document = configurations.read_yaml(ROOT / "examples/broker.yaml")
    assert is_resource(document)
    local = local_broker(document, data=tmp_path)
    configuration = local.instance.configuration
    folders = configuration.directories()
    assert folders.journal == tmp_path / "journal"
    assert folders.large_messages == tmp_path / "large-messages"
    assert {a.host for a in configuration.acceptors} == {"127.0.0.1"}
    assert configuration.journal_min_files == 10
    assert configuration.security.allow_anonymous_on_loopback
    assert local.name == "orders"
    assert local.policy.allow == ("xfs", "ext4")
    assert local.remarks == ()


def test_the_settings_are_those_of_the_pod(tmp_path: Path):
    document = broker(config={"journalFileSize": "1Mi"}, acceptors=[{"name": "x", "port": 7000}])
    local = local_broker(document, data=tmp_path).instance.configuration
    pod = configurations.from_broker(configurations.Broker.from_dict(document))
    assert local.journal_file_size == pod.journal_file_size == 1024**2
    assert [a.port for a in local.acceptors] == [a.port for a in pod.acceptors]


def test_the_namespace_is_part_of_the_name(tmp_path: Path):
    document = broker()
    document["metadata"]["namespace"] = "shop"
    assert local_broker(document, data=tmp_path).name == "shop/orders"


def test_without_a_folder_it_is_named_after_the_broker(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_broker(broker()).instance.data == tmp_path / "broker-orders"


def test_what_has_no_effect_here_is_named(tmp_path: Path):
    document = broker(
        replicas=3,
        topology="Independent",
        image="other/broker:1",
        nodeSelector={"disk": "fast"},
        auth={"secretName": "s"},
    )
    first, second, third = local_broker(document, data=tmp_path).remarks
    assert first == "has a meaning in Kubernetes only: spec.topology, spec.image, spec.nodeSelector"
    assert "spec.replicas is 3" in second
    assert "vespiary user add" in third


def test_several_brokers_without_a_topology_are_refused_here_too(tmp_path: Path):
    with pytest.raises(ConfigError, match="topology: Independent"):
        local_broker(broker(replicas=2), data=tmp_path)


def test_users_of_a_secret_are_not_replaced_by_nobody(tmp_path: Path):
    local = local_broker(broker(auth={"secretName": "s"}), data=tmp_path)
    assert not local.instance.configuration.security.allow_anonymous_on_loopback


def test_tls_needs_its_files(tmp_path: Path):
    document = broker(tls={"secretName": "cert"})
    with pytest.raises(ConfigError, match=r"Secret cert.*--tls-folder"):
        local_broker(document, data=tmp_path)
    local_broker(document, data=tmp_path, is_tls_needed=False)
    acceptors = local_broker(
        document, data=tmp_path, tls_folder=tmp_path
    ).instance.configuration.acceptors
    assert acceptors[0].tls is not None
    assert acceptors[0].tls.certificate == f"{tmp_path}/cert/tls.crt"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"colour": "red"}, "spec.colour"),
        ({"config": {"journalType": "FAST"}}, "spec.config.journalType"),
        ({"config": {"jmsDirectory": "x"}}, "spec.config.jmsDirectory"),
        ({"upgrade": {"strategy": "OnDelete"}}, "spec.upgrade.strategy"),
    ],
)
def test_fields_that_cannot_be_had_are_refused_by_name(tmp_path: Path, spec: Any, says: str):
    with pytest.raises(ConfigError) as refusal:
        local_broker(broker(**spec), data=tmp_path)
    assert says in str(refusal.value)


def test_another_kind_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="another kind of resource"):
        local_broker({**broker(), "kind": "Pod"}, data=tmp_path)

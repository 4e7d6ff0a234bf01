"""Broker and BrokerNodeTuning: reading, writing, and what is no such resource."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_spec.configuration import parse_yaml
from vespiary_spec.errors import ConfigError, UnknownSetting
from vespiary_spec.resources import (
    API_VERSION,
    Broker,
    BrokerNodeTuning,
    BrokerSpec,
    RetentionPolicy,
    TuningMode,
)
from vespiary_spec.status import BrokerStatus

MANIFEST = """
apiVersion: vespiary.dev/v1beta1
kind: Broker
metadata: {name: orders, labels: {team: shop}}
spec:
  replicas: 2
  topology: Independent
  storage:
    filesystemPolicy: {allow: [xfs, ext4], warn: [btrfs, zfs, f2fs, jfs]}
    volumes:
      journal: {size: 10Gi, storageClassName: fast, selector: {matchLabels: {disk: nvme}}}
      paging: {size: 50Gi}
  config: {journalType: ASYNCIO, journalMinFiles: 10, globalMaxSize: 256Mi}
  addressSettings: [{match: "orders.#", autoDeleteQueues: false}]
  addresses: [{name: orders, queues: [{name: orders, routingType: ANYCAST}]}]
  resources: {limits: {cpu: 2, memory: 1Gi}}
  tolerations: [{key: disk, operator: Exists, effect: NoSchedule}]
  shutdownTimeout: 2m
"""


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = parse_yaml(MANIFEST)
    return found


def test_the_manifest_as_users_write_it() -> None:
    broker = Broker.from_dict(manifest())
    spec = broker.spec
    assert (broker.metadata.name, broker.metadata.labels) == ("orders", {"team": "shop"})
    assert spec.storage.volumes.journal.size == 10 * 1024**3
    assert spec.storage.volumes.journal.storage_class_name == "fast"
    assert spec.storage.volumes.bindings.size is None
    assert spec.storage.retention.when_deleted is RetentionPolicy.RETAIN
    assert spec.config.journal_min_files == 10
    assert spec.resources is not None
    assert spec.resources.limits == {"cpu": "2", "memory": "1Gi"}
    assert spec.shutdown_timeout == 120
    assert spec.address_settings[0].match == "orders.#"


def test_what_is_written_reads_back() -> None:
    broker = Broker.from_dict(manifest())
    assert Broker.from_dict(broker.to_dict()) == broker


def test_only_the_name_is_needed() -> None:
    for spec in ({}, {"spec": None}, {"spec": {}}):
        broker = Broker.from_dict(
            {"apiVersion": API_VERSION, "kind": "Broker", "metadata": {"name": "orders"}} | spec
        )
        assert broker.spec == BrokerSpec()
        assert broker.to_dict()["spec"] == {}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "BrokerNodeTuning"}, "apiVersion, kind"),
        ({"apiVersion": "v1"}, "apiVersion, kind"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": {"name": 3}}, "metadata"),
        ({"metadata": {"name": "a.b"}}, "metadata.name"),
        ({"metadata": {"name": "a" * 49}}, "metadata.name"),
        ({"specs": {}}, "specs"),
        ({"spec": []}, "spec"),
        ({"spec": {"replica": 2}}, "spec.replica"),
        ({"spec": {"storage": {"volumes": {"journal": {"size": 1}}}}}, "spec.storage.volumes"),
        ({"spec": {"tolerations": [{"keys": "a"}]}}, "spec.tolerations[0].keys"),
        ({"spec": {"affinity": {"nodeAffinty": {}}}}, "spec.affinity.nodeAffinty"),
    ],
)
def test_a_bad_manifest_names_the_place(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Broker.from_dict(manifest() | change)
    assert caught.value.path.startswith(path)


def test_a_misspelt_field_gets_the_right_one() -> None:
    with pytest.raises(UnknownSetting, match="`replicas`"):
        Broker.from_dict(manifest() | {"spec": {"replica": 2}})


def test_the_status_of_another_version_does_no_harm() -> None:
    newer = manifest() | {"status": {"summary": "1/1", "fromTheFuture": {"a": 1}}}
    assert Broker.from_dict(newer).status == BrokerStatus(summary="1/1")
    broken = manifest() | {"status": {"brokers": "none"}}
    assert Broker.from_dict(broken).status == BrokerStatus()


def test_node_tuning() -> None:
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "BrokerNodeTuning",
        "metadata": {"name": "default"},
    }
    assert BrokerNodeTuning.from_dict(document).spec.mode is TuningMode.VERIFY
    made = BrokerNodeTuning.from_dict(document | {"spec": {"mode": "Raise", "floor": 1048576}})
    assert BrokerNodeTuning.from_dict(made.to_dict()) == made
    with pytest.raises(ConfigError, match="above the maximum"):
        BrokerNodeTuning.from_dict(document | {"spec": {"floor": 10, "max": 5}})

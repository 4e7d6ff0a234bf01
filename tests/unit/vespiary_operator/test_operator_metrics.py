"""What the operator says of itself: how old is what it knows, and where upgrades stand."""

from __future__ import annotations

import asyncio
import math

import msgspec

from vespiary_operator import handlers, kinds
from vespiary_operator.cache import Cache
from vespiary_operator.metrics import Metrics
from vespiary_operator.resync import list_into
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import BrokerStatus
from vespiary_spec.upgrade_status import UpgradeStage, UpgradeStatus
from vespiary_testkit.fake_kubernetes import FakeKubernetes

POD = {"metadata": {"name": "orders-0", "namespace": "ns", "uid": "u", "resourceVersion": "1"}}


def test_a_kind_is_fresh_after_an_event_and_after_a_list() -> None:
    cache = Cache()
    assert math.isnan(cache.silence_s(kinds.POD))
    handlers._keep(cache, kinds.POD, {"type": "ADDED", "object": POD})
    assert 0 <= cache.silence_s(kinds.POD) < 5
    assert math.isnan(cache.silence_s(kinds.SECRET))
    asyncio.run(list_into(FakeKubernetes(), cache, kinds.SECRET, ""))
    assert 0 <= cache.silence_s(kinds.SECRET) < 5
    cache.put(kinds.SERVICE, POD)  # what the operator wrote itself says nothing of the watch
    assert math.isnan(cache.silence_s(kinds.SERVICE))


def test_an_upgrade_has_one_stage_at_a_time_and_goes_with_its_broker() -> None:
    metrics = Metrics()
    document = {"apiVersion": API_VERSION, "kind": "Broker"}
    broker = Broker.from_dict({**document, "metadata": {"name": "orders", "namespace": "ns"}})

    def shown(stage: UpgradeStage | None) -> list[str]:
        upgrade = None if stage is None else UpgradeStatus(stage=stage, revision="r")
        metrics.broker(broker, BrokerStatus(upgrade=upgrade))
        lines = metrics.text().decode().splitlines()
        return [line for line in lines if line.startswith("vespiary_operator_broker_upgrade{")]

    name = 'vespiary_operator_broker_upgrade{broker="orders",namespace="ns",stage='
    assert shown(None) == []
    assert shown(UpgradeStage.CANARY) == [f'{name}"Canary"}} 1.0']
    assert shown(UpgradeStage.ROLLED_BACK) == [f'{name}"RolledBack"}} 1.0']
    metrics.forget("ns", "orders")
    assert "stage=" not in metrics.text().decode()
    assert msgspec.to_builtins(UpgradeStage.HALTED) == "Halted"

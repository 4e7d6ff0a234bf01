"""What the operator says of itself: how old is what it knows, and where upgrades stand."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path

import msgspec
import pytest
from kubernetes.client import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError

from vespiary_operator import api_errors, handlers, kinds
from vespiary_operator.api_errors import KindNotServedError, NotLeadingError
from vespiary_operator.cache import Cache
from vespiary_operator.failure_reasons import MEANINGS, FailureReason, reason_of
from vespiary_operator.metrics import Metrics
from vespiary_operator.resync import list_into
from vespiary_operator.work import Key
from vespiary_spec.errors import ReconcileError
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.status import BrokerStatus
from vespiary_spec.upgrade_status import UpgradeStage, UpgradeStatus
from vespiary_testkit.fake_kubernetes import FakeKubernetes

from .test_reconciler import World, in_world

POD = {"metadata": {"name": "orders-0", "namespace": "ns", "uid": "u", "resourceVersion": "1"}}


def test_a_kind_is_fresh_after_an_event_and_after_a_list() -> None:
    cache = Cache()
    assert math.isnan(cache.silence_s(kinds.POD))
    handlers._keep(cache, kinds.POD, {"type": "ADDED", "object": POD})
    assert cache.silence_s(kinds.POD) >= 0
    assert math.isnan(cache.silence_s(kinds.SECRET))
    asyncio.run(list_into(FakeKubernetes(), cache, kinds.SECRET, ""))
    assert cache.silence_s(kinds.SECRET) >= 0
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


def refusal(status: int) -> DynamicApiError:
    error = ApiException(status=status, reason="no")
    error.body = json.dumps({"kind": "Status", "message": "no"})
    return DynamicApiError(error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (refusal(403), "Forbidden"),
        (refusal(404), "NotFound"),
        (refusal(409), "Conflict"),
        (refusal(400), "Invalid"),
        (refusal(422), "Invalid"),
        (refusal(405), "Refused"),
        (refusal(429), "Overloaded"),
        (refusal(503), "ServerError"),
        (OSError("no route"), "NoAnswer"),
        (TimeoutError(), "NoAnswer"),
        (KindNotServedError("no such kind"), "KindNotServed"),
        (NotLeadingError("another one"), "NotLeading"),
        (ReconcileError("a Secret that no Broker names"), "Other"),
        (KeyError("a bug"), "Bug"),
    ],
)
def test_a_failure_has_one_of_few_reasons(error: Exception, reason: str) -> None:
    if isinstance(error, (DynamicApiError, OSError)):
        error = api_errors.explained(error, "get pods orders-0")
    assert reason_of(error) == reason


def test_every_reason_is_explained_where_people_look_for_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "howto" / "monitoring.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", page.partition("### Why passes")[2], re.M))
    del rows["reason"]
    assert rows == {reason.value: MEANINGS[reason] for reason in FailureReason}


def test_failed_passes_are_counted_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        errors = [api_errors.explained(refusal(403), "apply services orders"), KeyError("x")]
        both_failed = asyncio.Event()

        async def reconcile(key: Key) -> float | None:
            if errors:
                raise errors.pop()
            both_failed.set()
            return None

        monkeypatch.setattr(world.reconciler, "reconcile", reconcile)
        for name in ("a", "b", "c"):
            world.queue.add(Key("Broker", "ns", name))
        working = asyncio.create_task(world.reconciler.work())
        await asyncio.wait_for(both_failed.wait(), 60)
        working.cancel()
        text = world.metrics.text().decode()
        for reason in ("Forbidden", "Bug"):
            line = f'{{kind="Broker",reason="{reason}"}} 1.0'
            assert f"vespiary_operator_reconcile_failures_total{line}" in text

    in_world(test)

"""A node that appears, or comes back from a reboot: seen at once, told as unknown, put right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vespiary_operator import handlers, kinds, names
from vespiary_operator.cache import Cache
from vespiary_operator.metrics import Metrics
from vespiary_operator.node_tuning import Tuner
from vespiary_operator.options import Options
from vespiary_operator.reconciler import SOON_S, Reconciler
from vespiary_operator.tuning import NodeReport
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote

OPTIONS = Options(own_namespace="system", operator_image="vespiary/operator:1")
TUNING = Key(kinds.NODE_TUNING.name, "", "default")
FLOOR = 65536


def node(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def raising() -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "BrokerNodeTuning",
        "metadata": {"name": "default"},
        "spec": {"mode": "Raise", "floor": FLOOR, "margin": 1000},
    }


def pod(name: str, place: str, on: str, labels: Mapping[str, str], **notes: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": place,
            "uid": name,
            "labels": dict(labels),
            "annotations": notes,
        },
        "spec": {"nodeName": on, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


# --- events ---------------------------------------------------------------------------------------


def handler(registry: Any, kind: kinds.Kind) -> Callable[..., Any]:
    for found in registry._watching.get_all_handlers():
        if found.selector.any_name == kind.plural or found.selector.plural == kind.plural:
            return found.fn  # type: ignore[no-any-return]
    raise AssertionError(f"nobody watches {kind.plural}")


def test_a_node_that_appears_has_every_tuning_looked_at_within_a_second() -> None:
    async def test() -> None:
        asked: list[tuple[str, float]] = []

        def enqueue(key: Key, after_s: float = 0.0) -> None:
            asked.append((key.name, after_s))

        registry = handlers.registry(enqueue, Cache(), lambda: True, is_cluster_wide=True)
        tuning, nodes = handler(registry, kinds.NODE_TUNING), handler(registry, kinds.NODE)
        for name in ("default", "special"):
            await tuning(name=name, event={"type": "ADDED"})
        asked.clear()
        await nodes(event={"type": "ADDED"})
        assert sorted(asked) == [("default", 1.0), ("special", 1.0)]
        asked.clear()
        await nodes(event={"type": "MODIFIED"})
        assert asked == [], "a node tells of itself all the time"
        await tuning(name="special", event={"type": "DELETED"})
        asked.clear()
        await nodes(event={"type": "ADDED"})
        assert asked == [("default", 1.0)]

    asyncio.run(test())


# --- the operator ---------------------------------------------------------------------------------


class Remote(FakeRemote):
    """Tuning pods that answer one by one.

    Attributes:
        reports: What the pod on a node answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[str, NodeReport] = {}

    async def node_report(self, pod: Mapping[str, Any]) -> NodeReport | None:
        return self.reports.get(pod["spec"]["nodeName"])


def enough(value: int) -> NodeReport:
    return NodeReport(aio_max_nr=value, aio_nr=0, message="Enough.", is_satisfied=True)


class World:
    """An operator that looks after nodes, beside an API server in memory."""

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.remote = Remote()
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            WorkQueue(),
            OPTIONS,
            Metrics(),
            now=lambda: "2026-01-01T00:00:00Z",
        )
        self.cluster.put(raising())
        self.appears("a")

    def appears(self, name: str) -> None:
        self.cluster.put(node(name))

    async def looks(self) -> float | None:
        for _ in range(3):
            again_s = await self.reconciler.reconcile(TUNING)
            self.cluster.settle(steps=2)
        return again_s

    def tuner(self, on: str) -> None:
        daemon_set = self.cluster.one(kinds.DAEMON_SET, "vespiary-node-tuning-default", "system")
        labels = daemon_set["spec"]["template"]["metadata"]["labels"]
        self.cluster.put(pod(f"tuner-{on}", "system", on, labels))

    def orders(self) -> dict[str, Any]:
        found = self.cluster.one(kinds.CONFIG_MAP, "vespiary-node-tuning-default", "system")
        orders: dict[str, Any] = json.loads(found["data"]["nodes.json"])
        return orders["nodes"]  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.one(kinds.NODE_TUNING, "default", "")["status"]
        return found


def test_a_new_node_is_not_known_until_its_own_pod_has_answered() -> None:
    async def test() -> None:
        world = World()
        await world.looks()
        world.tuner("a")
        world.remote.reports["a"] = enough(FLOOR + 1000)
        assert await world.looks() is None
        assert world.status()["conditions"][0]["status"] == "True"

        world.appears("b")
        assert await world.looks() == SOON_S, "nothing else tells when its pod answers"
        status = world.status()
        assert status["summary"] == "1/2"
        ready = status["conditions"][0]
        assert (ready["status"], ready["reason"]) == ("Unknown", "NotKnownYet")
        assert ready["message"] == "b: Its tuning pod has yet to answer."

        labels = {
            names.LABEL_MANAGED_BY: names.MANAGER,
            names.LABEL_COMPONENT: names.COMPONENT_BROKER,
        }
        demand = {names.ANNOTATION_DEMAND: "500"}
        world.cluster.put(pod("orders-0", "ns", "b", labels, **demand))
        world.tuner("b")
        await world.looks()
        assert world.orders()["b"]["demand"] == 500
        assert "a" not in world.orders()
        world.remote.reports["b"] = enough(FLOOR + 1500)
        await world.looks()
        assert world.status()["summary"] == "2/2"
        assert world.status()["conditions"][0]["status"] == "True"

    asyncio.run(test())


# --- the pod on the node --------------------------------------------------------------------------


@pytest.mark.parametrize("has_orders_first", [True, False])
def test_a_node_that_was_started_again_is_put_right_at_the_first_look(
    tmp_path: Path, has_orders_first: bool
) -> None:
    knob, in_use, orders = (tmp_path / name for name in ("aio-max-nr", "aio-nr", "nodes.json"))
    in_use.write_text("0\n")

    def order(nodes: dict[str, Any]) -> None:
        text = {"floor": FLOOR, "margin": 1000, "max": 10**6, "nodes": nodes}
        orders.write_text(json.dumps(text))

    order({"b": {"demand": 70000}} if has_orders_first else {})
    knob.write_text("65536\n")  # what the kernel begins with
    tuner = Tuner(node="b", orders=orders, knob=knob, in_use=in_use)
    tuner.look()
    if not has_orders_first:
        assert knob.read_text() == "65536\n", "it was not told of any broker"
        order({"b": {"demand": 70000}})
        tuner.look()
    assert knob.read_text() == "71000\n"
    knob.write_text("65536\n")
    again = Tuner(node="b", orders=orders, knob=knob, in_use=in_use)
    report = again.look()
    assert (knob.read_text(), report.raised_from) == ("71000\n", 65536)

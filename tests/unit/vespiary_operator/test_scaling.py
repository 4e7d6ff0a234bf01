"""How many brokers there are, which Services they have, and what sleeping keeps."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_operator import kinds, names
from vespiary_operator.builders import services
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.scaling import members_of, scale
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote

KEY = Key("Broker", "ns", "orders")
OPTIONS = Options(own_namespace="system", broker_image="registry:5000/vespiary/broker:1.0.0")


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
        "spec": spec,
    }


def broker(members: int | None = None, **spec: Any) -> Broker:
    status = {} if members is None else {"members": members}
    return Broker.from_dict({**document(**spec), "status": status})


def live(replicas: int, members: str | None = None) -> dict[str, Any]:
    annotations = {} if members is None else {names.ANNOTATION_MEMBERS: members}
    return {"metadata": {"annotations": annotations}, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("found", "stateful_set", "members"),
    [
        (broker(), None, 0),
        (broker(members=2), None, 2),
        (broker(members=2), live(5), 2),
        (broker(members=2), live(5, "4"), 4),
        (broker(), live(5, "rubbish"), 5),
        (broker(), live(5, "12345"), 5),
    ],
)
def test_the_number_of_brokers_is_what_the_operator_noted(
    found: Broker, stateful_set: dict[str, Any] | None, members: int
) -> None:
    assert members_of(found, stateful_set) == members


def test_those_who_sleep_are_still_counted_and_keep_their_claims() -> None:
    asleep = broker(replicas=3, topology="Independent", hibernate=True)
    assert scale(asleep, live(3, "3"))[:3] == (3, 0, True)
    assert scale(broker(replicas=0), live(0, "3"))[:3] == (3, 0, True)
    assert scale(broker(replicas=3, topology="Independent"), live(0, "3"))[:3] == (3, 3, False)


class World:
    """An operator around an API server in memory."""

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.remote = FakeRemote()
        self.reconciler = Reconciler(self.cluster, self.remote, WorkQueue(), OPTIONS, Metrics())

    def ask(self, **spec: Any) -> None:
        key = ("Broker", "ns", "orders")
        if key in self.cluster.objects:
            self.cluster.objects[key]["spec"] = {}
        self.cluster.put(document(**spec))

    async def until_quiet(self) -> None:
        for _ in range(15):
            before = copy.deepcopy(self.cluster.objects)
            await self.reconciler.reconcile(KEY)
            self.cluster.settle(steps=5)
            if self.cluster.objects == before:
                return
        pytest.fail("it does not come to rest")

    def stateful_set(self) -> dict[str, Any]:
        return self.cluster.one(kinds.STATEFUL_SET, "orders")

    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.of(kinds.POD)]

    def services(self) -> list[str]:
        return [found["metadata"]["name"] for found in self.cluster.of(kinds.SERVICE)]

    def conditions(self) -> dict[str, tuple[str, str]]:
        status = self.cluster.one(kinds.BROKER, "orders")["status"]
        return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def in_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(World())

    asyncio.run(run())


def test_several_brokers_without_a_topology_are_not_made() -> None:
    async def test(world: World) -> None:
        world.ask(replicas=1)
        await world.until_quiet()
        for spec in ({"replicas": 2}, {"topology": "Sharded"}):
            world.ask(**spec)
            await world.until_quiet()
            assert world.conditions()["Ready"] == ("False", "TopologyRefused")
            assert world.pods() == ["orders-0"]
        world.ask(replicas=2, topology="Independent")
        await world.until_quiet()
        assert world.conditions()["Ready"] == ("True", "Serving")
        assert world.pods() == ["orders-0", "orders-1"]

    in_world(test)


def test_each_independent_broker_has_a_service_that_leads_to_it_alone() -> None:
    async def test(world: World) -> None:
        world.ask(replicas=2, topology="Independent")
        await world.until_quiet()
        assert world.services() == ["orders", "orders-0", "orders-1", "orders-headless"]
        status = world.cluster.one(kinds.BROKER, "orders")["status"]
        assert [b["host"] for b in status["brokers"]] == ["orders-0.ns.svc", "orders-1.ns.svc"]
        world.cluster.put(
            {"kind": "Service", "metadata": {"name": "orders-7", "namespace": "ns"}, "spec": {}}
        )
        world.ask(replicas=1)
        await world.until_quiet()
        assert world.services() == ["orders", "orders-7", "orders-headless"], "theirs is left"

    in_world(test)


def test_the_service_of_one_broker_selects_its_pod_by_number() -> None:
    found = broker(replicas=2, topology="Independent", service={"type": "LoadBalancer"})
    own = services.per_broker(found, 1)
    assert own["metadata"]["name"] == "orders-1"
    assert own["spec"]["selector"][names.LABEL_ORDINAL] == "1"
    assert own["spec"]["ports"] == services.client(found)["spec"]["ports"]
    assert own["spec"]["type"] == "LoadBalancer"
    assert names.LABEL_ORDINAL not in services.client(found)["spec"]["selector"]


def test_hibernating_stops_all_and_waking_brings_all_back() -> None:
    async def test(world: World) -> None:
        retention = {"storage": {"retention": {"whenScaled": "Delete"}}}
        spec: dict[str, Any] = {"replicas": 3, "topology": "Independent", **retention}
        world.ask(**spec)
        await world.until_quiet()
        policy = world.stateful_set()["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy["whenScaled"] == "Delete"
        services_before = world.services()
        secret = world.cluster.one(kinds.SECRET, "orders-credentials")
        world.ask(**spec, hibernate=True)
        await world.reconciler.reconcile(KEY)
        stateful_set = world.stateful_set()
        assert stateful_set["spec"]["replicas"] == 0
        policy = stateful_set["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy["whenScaled"] == "Retain", "or the claims would go with the pods"
        assert world.conditions()["Ready"] == ("False", "Hibernating")
        assert world.conditions()["Progressing"][0] == "True"
        await world.until_quiet()
        assert world.pods() == []
        assert world.services() == services_before
        found = world.conditions()
        assert found["Ready"] == ("True", "Hibernated")
        assert found["Progressing"] == found["Available"] == ("False", "Hibernated")
        assert found["Degraded"][0] == "False"
        status = world.cluster.one(kinds.BROKER, "orders")["status"]
        assert (status["summary"], status["members"]) == ("0/0", 3)
        world.ask(**spec)
        await world.until_quiet()
        assert world.pods() == ["orders-0", "orders-1", "orders-2"]
        assert world.cluster.one(kinds.SECRET, "orders-credentials") == secret
        policy = world.stateful_set()["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy["whenScaled"] == "Delete"

    in_world(test)


def test_no_replicas_are_no_drain() -> None:
    async def test(world: World) -> None:
        world.ask(replicas=2, topology="Independent")
        await world.until_quiet()
        world.ask(replicas=0, topology="Independent")
        await world.until_quiet()
        assert world.pods() == []
        status = world.cluster.one(kinds.BROKER, "orders")["status"]
        assert status["members"] == 2
        assert world.conditions()["Ready"] == ("False", "ScaledToZero")

    in_world(test)

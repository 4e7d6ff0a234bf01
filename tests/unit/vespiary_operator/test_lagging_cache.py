"""Passes whose cache lags, loses events or is all wrong: what is written never follows from it."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from vespiary_operator import kinds, names
from vespiary_operator.cache import Cache, requirements, watch_selector
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options
from vespiary_operator.reconciler import SOON_S, Reconciler
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION
from vespiary_testkit.broker_resources import GOOD_ANSWER
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote

KEY = Key("Broker", "ns", "orders")
SEEN = (kinds.BROKER, *kinds.WATCHED_CHILDREN)


class World:
    """An operator whose watches tell what happened when the test lets them."""

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.cluster.verification = GOOD_ANSWER
        self.cache = Cache()
        self.queue = WorkQueue()
        self.reconciler = Reconciler(
            self.cluster, FakeRemote(), self.queue, Options(), Metrics(), self.cache
        )
        self._history: dict[tuple[str, str, str], list[dict[str, Any]]] = {}

    def broker(self, **spec: Any) -> None:
        metadata = {"name": "orders", "namespace": "ns", "uid": "4f1c"}
        self.cluster.put(
            {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": spec}
        )

    def happened(self) -> None:
        """Write down what a watch could tell by now."""
        for key, document in self.cluster.objects.items():
            past = self._history.setdefault(key, [])
            if not past or past[-1] != document:
                past.append(copy.deepcopy(document))

    def tell(self, late: random.Random | None = None) -> None:
        """Let the watches tell everything; or each object's past up to some point."""
        self.happened()
        for key, past in self._history.items():
            kind = kinds.BY_NAME[key[0]]
            wanted = watch_selector(kind)
            labels = past[-1]["metadata"].get("labels") or {}
            if wanted is None or not requirements(wanted).items() <= labels.items():
                continue
            is_late = late is not None and late.random() < 0.6
            upto = late.randint(0, len(past) - 1) if late is not None and is_late else len(past)
            for document in past[:upto]:
                self.cache.put(kind, document)
            if key not in self.cluster.objects and not is_late:
                self.cache.delete(kind, past[-1])

    async def until_quiet(self) -> None:
        self.tell()
        for _ in range(20):
            before = copy.deepcopy(self.cluster.objects)
            await self.reconciler.reconcile(KEY)
            self.cluster.settle(steps=3)
            self.tell()
            if self.cluster.objects == before:
                return
        raise AssertionError("it does not come to rest")

    def state(self) -> dict[str, Any]:
        """Return everything but what is made by chance or by the clock."""
        found = {}
        for key, document in self.cluster.objects.items():
            if key[0] not in ("Event", "Secret", "Broker", "ControllerRevision"):
                found[f"{key[0]}/{key[2]}"] = document.get("spec") or document.get("data")
        return found


def test_a_look_at_a_broker_at_rest_asks_for_secrets_alone_and_writes_nothing() -> None:
    async def test() -> None:
        world = World()
        world.broker()
        await world.reconciler.enqueue_all()
        await world.until_quiet()
        world.cluster.calls.clear()
        world.cluster.writes.clear()
        assert await world.reconciler.reconcile(KEY) is None
        assert world.cluster.writes == []
        read = [(verb, kind.name) for verb, kind, _ in world.cluster.calls]
        assert set(read) <= {("get", "Secret"), ("list", "StorageClass")} | {
            ("list", "PersistentVolume")
        }
        assert read.count(("get", "Secret")) == 2

    asyncio.run(test())


def test_an_edit_is_seen_by_the_watch_and_put_right_from_live_reads() -> None:
    async def test() -> None:
        world = World()
        world.broker()
        await world.reconciler.enqueue_all()
        await world.until_quiet()
        service = world.cluster.one(kinds.SERVICE, "orders")
        service["spec"]["selector"] = {"app": "x"}
        world.cluster._stamp(service)
        await world.reconciler.reconcile(KEY)
        assert service["spec"]["selector"] == {"app": "x"}, "nothing was told yet"
        world.tell()
        await world.reconciler.reconcile(KEY)
        selector = world.cluster.one(kinds.SERVICE, "orders")["spec"]["selector"]
        assert selector[names.LABEL_INSTANCE] == "orders"

    asyncio.run(test())


def test_a_deletion_that_no_watch_told_is_found_by_the_next_resync() -> None:
    async def test() -> None:
        world = World()
        world.broker()
        await world.reconciler.enqueue_all()
        await world.until_quiet()
        del world.cluster.objects["Service", "ns", "orders"]
        world.cluster._version += 1
        await world.reconciler.reconcile(KEY)
        assert ("Service", "ns", "orders") not in world.cluster.objects
        await world.reconciler.enqueue_all()
        assert await world.queue.take() == KEY
        await world.reconciler.reconcile(KEY)
        assert ("Service", "ns", "orders") in world.cluster.objects

    asyncio.run(test())


def test_a_volume_made_a_moment_ago_is_seen_before_anything_is_refused() -> None:
    async def test() -> None:
        world = World()
        journal = {"size": "1Gi", "storageClassName": "by-hand"}
        world.broker(storage={"volumes": {"journal": journal}})
        await world.reconciler.enqueue_all()
        await world.reconciler.reconcile(KEY)
        assert _reason(world) == "StorageClassMissing", "and both lists are a moment old now"
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "nfs": {"server": "192.0.2.1", "path": "/export"},
        }
        world.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "disk", "labels": {}},
                "spec": spec,
                "status": {"phase": "Available"},
            }
        )
        world.broker(storage={"volumes": {"journal": journal}}, paused=False)
        world.tell()
        await world.reconciler.reconcile(KEY)
        assert _reason(world) == "VolumeRefused"

    asyncio.run(test())


def test_a_volume_taken_a_moment_ago_is_not_given_twice() -> None:
    async def test() -> None:
        world = World()
        disk = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "disk", "labels": {}},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "by-hand",
            },
            "status": {"phase": "Available"},
        }
        world.cluster.put(disk)
        await world.reconciler._shared.items_if_allowed(kinds.PERSISTENT_VOLUME, 0)
        taken = {"namespace": "ns", "name": "journal-first-0"}
        world.cluster.put(disk | {"spec": {**disk["spec"], "claimRef": taken}})  # type: ignore[dict-item]
        world.broker(storage={"volumes": {"journal": {"storageClassName": "by-hand"}}})
        await world.reconciler.enqueue_all()
        await world.reconciler.reconcile(KEY)
        assert _reason(world) == "NoVolumeFits"
        assert not world.cluster.of(kinds.STATEFUL_SET)

    asyncio.run(test())


def _reason(world: World) -> str:
    found = world.cluster.one(kinds.BROKER, "orders")["status"]["conditions"]
    return next(str(c["reason"]) for c in found if c["type"] == "StorageVerified")


# A failing history is long, and shrinking it takes minutes.
@pytest.mark.ci
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_a_cache_that_lags_changes_nothing_of_what_is_written(
    late: random.Random, replicas: int
) -> None:
    async def test() -> None:
        world, prompt = World(), World()
        for one in (world, prompt):
            one.broker()
            await one.reconciler.enqueue_all()
        await prompt.until_quiet()
        secrets = set()
        spec: dict[str, Any] = {"replicas": replicas, "config": {"journalMinFiles": 3}}
        for step in range(14):
            if step == 7:
                world.broker(**spec)
            before = _unready(world)
            await world.reconciler.reconcile(KEY)
            for write in [w for w in world.cluster.writes if w.startswith("delete")]:
                assert write.startswith("delete ConfigMap/orders-config-"), write
            world.cluster.settle(steps=late.randint(0, 2))
            assert len(_unready(world) - before) <= 1
            world.tell(late)
            for found in world.cluster.of(kinds.SECRET):
                if found["metadata"]["name"] == "orders-credentials":
                    secrets.add(found["data"]["admin"])
        await world.until_quiet()
        assert len(secrets) == 1, "a password is made once"
        prompt.broker(**spec)
        await prompt.until_quiet()
        assert world.state() == prompt.state()

    asyncio.run(test())


def _unready(world: World) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in world.cluster.of(kinds.POD)
        if pod["status"]["conditions"][0]["status"] != "True"
    }


def test_many_brokers_on_their_way_are_looked_at_less_often_each() -> None:
    async def test() -> None:
        world = World()
        world.broker()
        await world.reconciler.enqueue_all()
        assert await world.reconciler.reconcile(KEY) == SOON_S
        moving = world.reconciler._moving
        moving.update(Key("Broker", "ns", f"b{number}") for number in range(500))
        again_s = await world.reconciler.reconcile(KEY)
        assert again_s is not None
        assert 20 < again_s < 30

    asyncio.run(test())

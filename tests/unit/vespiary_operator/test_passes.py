"""What a pass that changes nothing costs: how much is asked, and what of it waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web

from vespiary_operator import kinds, remote
from vespiary_operator.admin_ports import AdminPort
from vespiary_operator.builders import settings_map
from vespiary_operator.builders.pod_template import LIVE_PATH
from vespiary_operator.cache import Cache
from vespiary_operator.kinds import Kind
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer, ConfigurationAnswer
from vespiary_operator.observer import Observer
from vespiary_operator.options import Options
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.remote import Remote
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec import configuration
from vespiary_testkit.broker_resources import GOOD_ANSWER, broker, document
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote, QuickUsers

T = TypeVar("T")

KEY = Key("Broker", "ns", "orders")

EVERYTHING: dict[str, Any] = {
    "auth": {"secretName": "people"},
    "tls": {"secretName": "certificate"},
    "metrics": {"podMonitor": {"credentialsSecretName": "watcher"}},
    "storage": {"volumes": {"journal": {"volumeAttributesClassName": "fast"}}},
    "perBroker": [{"ordinal": 0, "config": {"journalMinFiles": 5}}],
}
"""A spec for which everything has to be read that a Broker at rest may need."""


class Rounds:
    """Holds back every answer until nothing more is asked: then all of them come at once.

    Attributes:
        asked: What was asked in each round.
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self._held: list[asyncio.Future[None]] = []
        self._names: list[str] = []

    async def turn(self, what: str) -> None:
        """Wait for the end of the round."""
        self._names.append(what)
        held = asyncio.get_running_loop().create_future()
        self._held.append(held)
        await held

    async def until_done(self, work: Awaitable[T]) -> T:
        """Answer in rounds until something is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(30):  # more turns of the loop than what begins at once needs to begin
                await asyncio.sleep(0)
            if self._held:
                self.asked.append(sorted(self._names))
                held, self._held, self._names = self._held, [], []
                for each in held:
                    each.set_result(None)
        return task.result()


class HeldKubernetes(FakeKubernetes):
    """An API server that answers in rounds."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__()
        self._rounds = rounds

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        await self._rounds.turn(f"{kind.name} {name}")
        return await super().get(kind, name, namespace)

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        await self._rounds.turn(kind.name)
        return await super().items(kind, namespace, selector, fields)


class HeldRemote(FakeRemote):
    """Brokers that answer in rounds."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__()
        self._rounds = rounds

    async def answer(
        self, pod: Mapping[str, Any], port: AdminPort, password: str
    ) -> BrokerAnswer | None:
        await self._rounds.turn(f"broker {pod['metadata']['name']}")
        return await super().answer(pod, port, password)


def pod(ordinal: int) -> dict[str, Any]:
    labels = {
        "app.kubernetes.io/name": "vespiary",
        "app.kubernetes.io/instance": "orders",
        "app.kubernetes.io/component": "broker",
        "app.kubernetes.io/managed-by": "vespiary-operator",
    }
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"orders-{ordinal}", "namespace": "ns", "labels": labels}
    spec = {"containers": [{"image": "vespiary/broker:1.0.0"}]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    return {**head, "spec": spec, "status": status}


def test_no_read_waits_for_another_that_it_does_not_follow_from() -> None:
    async def test() -> list[list[str]]:
        rounds = Rounds()
        cluster = HeldKubernetes(rounds)
        for ordinal in (0, 1):
            cluster.put(pod(ordinal))
        password = {"data": {"admin": "cHc="}}
        secret = {"kind": "Secret", "metadata": {"name": "people", "namespace": "ns"}, **password}
        cluster.put(secret)
        wanted = broker(replicas=3, **EVERYTHING)
        observer = Observer(cluster, HeldRemote(rounds), QuickUsers())
        found = await rounds.until_done(observer.observe(wanted, now="2026-01-01T00:00:00Z"))
        assert found.credentials.problem == ""
        assert [p["metadata"]["name"] for p in found.pods] == ["orders-0", "orders-1"]
        return rounds.asked

    first, second = asyncio.run(test())
    assert {*first} >= {
        "Pod",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "PodMonitor orders",
        "Secret certificate",
        "Secret orders-users",
        "Secret people",
        "StatefulSet orders",
        "VolumeAttributesClass",
    }
    assert second == [
        "CSINode",
        "ControllerRevision",
        "Event",
        "broker orders-0",
        "broker orders-1",
    ], "what follows from pods, claims and passwords"


class World:
    """An operator over a Broker with settings of every kind, which has become Ready."""

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.cluster.verification = GOOD_ANSWER
        self.remote = FakeRemote()
        self.cache = Cache()
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            WorkQueue(),
            Options(),
            Metrics(),
            self.cache,
            now=lambda: self.cluster.now,
        )

    async def come_to_rest(self) -> None:
        spec = {"perBroker": EVERYTHING["perBroker"], "replicas": 2, "topology": "Independent"}
        self.cluster.put(document(**spec))
        for _ in range(12):
            await self.reconciler.reconcile(KEY)
            self.cluster.settle(steps=3)
        live = self.cluster.one(kinds.CONFIG_MAP, "orders-live-config")["data"]["live.yaml"]
        told = ConfigurationAnswer(digests={LIVE_PATH: settings_map.digest(live)})
        self.remote.broker = BrokerAnswer(engine="ASYNCIO", durability="D2", configuration=told)
        for _ in range(4):
            await self.reconciler.enqueue_all()
            await self.reconciler.reconcile(KEY)
        for asked in (self.cluster.calls, self.cluster.writes, self.remote.passwords):
            asked.clear()


def test_a_pass_without_a_change_asks_for_two_secrets_and_each_broker_once() -> None:
    async def test() -> None:
        world = World()
        await world.come_to_rest()
        for _ in range(3):
            await world.reconciler.reconcile(KEY)
        assert world.cluster.writes == []
        asked = [(verb, kind.name) for verb, kind, _ in world.cluster.calls]
        assert asked == [("get", "Secret")] * 2 * 3
        assert len(world.remote.passwords) == 2 * 3

    asyncio.run(test())


def test_the_settings_are_written_out_once_for_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []
    for name in ("dump", "dump_plain"):
        render = getattr(configuration, name)

        def counted(*given: Any, _render: Any = render, _name: str = name) -> str:
            rendered.append(_name)
            return str(_render(*given))

        monkeypatch.setattr(configuration, name, counted)

    async def test() -> None:
        world = World()
        for render in (settings_map.texts, settings_map.own_texts):
            render(broker(config={"journalMinFiles": 9}))  # another spec than this one's
        rendered.clear()
        await world.come_to_rest()
        assert set(rendered) == {"dump", "dump_plain"}, "both files, and one broker's own"
        rendered.clear()
        await world.reconciler.reconcile(KEY)
        assert rendered == [], "the spec has not changed"

    asyncio.run(test())


def test_settings_that_were_read_anew_are_written_out_anew() -> None:
    first, second = (broker(config={"journalMinFiles": files}) for files in (2, 3))
    assert [settings_map.texts(each) for each in (first, second, first)] == [
        settings_map.texts(first),
        settings_map.texts(second),
        settings_map.texts(first),
    ]
    assert "journal-min-files: 3" in settings_map.texts(second)[0]
    assert "journal-min-files: 3" not in settings_map.texts(first)[0]


def test_a_broker_is_asked_for_its_files_and_its_volumes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 60.0)  # also on a busy machine

    async def test() -> BrokerAnswer | None:
        both = asyncio.Barrier(2)  # neither is answered before the other was asked for
        volume = {"name": "journal", "sizeBytes": 2, "freeBytes": 1, "inodes": 0, "freeInodes": 0}
        users = {"digest": "", "refused": ""}
        files = {"files": [], "refused": "", "users": users, "certificates": []}

        async def brokers(_: web.Request) -> web.Response:
            return web.json_response({"items": [{"engine": "NIO"}]})

        async def held(request: web.Request) -> web.Response:
            await both.wait()
            is_volumes = request.path.endswith("volumes")
            return web.json_response({"items": [volume]} if is_volumes else files)

        application = web.Application()
        application.router.add_get("/api/v1/brokers", brokers)
        application.router.add_get("/api/v1/configuration", held)
        application.router.add_get("/api/v1/volumes", held)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession() as session:
                where = {"status": {"podIP": "127.0.0.1"}}
                return await Remote(session).answer(
                    where, AdminPort(number=runner.addresses[0][1]), "pw"
                )
        finally:
            await runner.cleanup()

    found = asyncio.run(test())
    assert found is not None
    assert found.configuration == ConfigurationAnswer()
    assert found.spaces.keys() == {"journal"}

"""Brokers leave one after the other, and only when nothing is left in them."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_operator import kinds
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_operator.broker_calls import DrainAnswer, StartDrain
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options
from vespiary_operator.reconciler import DRAIN_LOOK_S, Reconciler
from vespiary_operator.remote import drain_answer_of
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION
from vespiary_testkit.certificates import Authority, Signed
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote, without_hashing

KEY = Key("Broker", "ns", "orders")
OPTIONS = Options(own_namespace="system", broker_image="registry:5000/vespiary/broker:1.0.0")
INTO_0 = "into http://orders-0.orders-headless.ns.svc:8161"
DRAINED = DrainAnswer(phase="drained", moved=7)


class World:
    """An operator around an API server in memory, with three brokers that have data."""

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.remote = FakeRemote()
        self.start_operator()

    def start_operator(self) -> None:
        """Start one, or another one: it remembers nothing."""
        self.reconciler = without_hashing(
            Reconciler(self.cluster, self.remote, WorkQueue(), OPTIONS, Metrics())
        )

    def ask(self, replicas: int, **spec: Any) -> None:
        key = ("Broker", "ns", "orders")
        if key in self.cluster.objects:
            self.cluster.objects[key]["spec"] = {}
        self.cluster.put(
            {
                "apiVersion": API_VERSION,
                "kind": "Broker",
                "metadata": {"name": "orders", "namespace": "ns"},
                "spec": {"replicas": replicas, "topology": "Independent", **spec},
            }
        )

    def bind(self, ordinal: int) -> None:
        self.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": f"journal-orders-{ordinal}",
                    "namespace": "ns",
                    "labels": {
                        "app.kubernetes.io/name": "vespiary",
                        "app.kubernetes.io/instance": "orders",
                        "app.kubernetes.io/component": "broker",
                    },
                },
                "spec": {
                    "volumeName": f"pv-{ordinal}",
                    "resources": {"requests": {"storage": "10Gi"}},
                },
            }
        )

    async def made(self, replicas: int = 3, **spec: Any) -> None:
        self.ask(replicas, **spec)
        for ordinal in range(replicas):
            self.bind(ordinal)
        await self.passes(6)
        assert self.pods() == list(range(replicas))

    async def passes(self, count: int = 1) -> float | None:
        again_s = None
        for _ in range(count):
            again_s = await self.reconciler.reconcile(KEY)
            self.cluster.settle(steps=5)
        return again_s

    def says(self, ordinal: int, answer: DrainAnswer | None) -> None:
        if answer is None:
            self.remote.drains.pop(f"orders-{ordinal}", None)
        else:
            self.remote.drains[f"orders-{ordinal}"] = answer

    def pods(self) -> list[int]:
        return [int(pod["metadata"]["name"][-1]) for pod in self.cluster.of(kinds.POD)]

    def status(self) -> dict[str, Any]:
        return dict(self.cluster.one(kinds.BROKER, "orders")["status"])

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["reason"], found["message"]


def in_world(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(World())

    asyncio.run(run())


def test_a_broker_goes_when_it_is_empty_and_its_record_was_written() -> None:
    async def test(world: World) -> None:
        await world.made()
        assert world.condition("Draining")[:2] == ("False", "NobodyLeaves")
        world.ask(1)
        world.says(2, DrainAnswer())
        assert await world.passes() == DRAIN_LOOK_S
        assert world.remote.calls == [f"drain orders-2 {INTO_0}"]
        assert world.status()["scaleDown"]["step"] == "Drain"
        world.says(2, DrainAnswer(phase="draining", moved=3, messages_left=4))
        await world.passes(3)
        assert world.remote.calls == [f"drain orders-2 {INTO_0}"], "it goes on by itself"
        assert world.condition("Draining")[:2] == ("True", "Draining")
        assert "3 messages moved, 4 left" in world.condition("Draining")[2]
        assert world.condition("Progressing")[0] == "True"
        assert world.pods() == [0, 1, 2]
        world.says(2, DRAINED)
        await world.passes()
        assert world.pods() == [0, 1, 2], "the record comes first"
        (record,) = world.status()["scaleDowns"]
        assert (record["broker"], record["target"], record["messages"]) == (
            "orders-2",
            "orders-0",
            7,
        )
        await world.passes()
        assert world.pods() == [0, 1]
        world.says(1, DRAINED)
        await world.passes(4)
        assert world.pods() == [0]
        assert [r["broker"] for r in world.status()["scaleDowns"]] == ["orders-2", "orders-1"]
        assert "scaleDown" not in world.status()
        assert world.status()["members"] == 1
        assert world.condition("Draining")[:2] == ("False", "NobodyLeaves")
        assert world.condition("Ready")[0] == "True"

    in_world(test)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "orders-2 cannot be drained now: it does not answer"),
        (DrainAnswer(phase="failed", reason="a transaction is prepared"), "is prepared"),
    ],
)
def test_what_cannot_be_drained_stays_with_a_sentence(
    answer: DrainAnswer | None, words: str
) -> None:
    async def test(world: World) -> None:
        await world.made()
        world.ask(1)
        world.says(2, answer)
        await world.passes(5)
        assert world.pods() == [0, 1, 2]
        assert world.condition("Draining")[:2] == ("True", "DrainWaits")
        assert words in world.condition("Draining")[2]
        assert world.condition("Degraded")[0] == "True"
        assert "scaleDowns" not in world.status()

    in_world(test)


@pytest.mark.parametrize("receiver", ["unready", "terminating", "missing"])
def test_a_drain_starts_only_when_its_receiver_is_ready(receiver: str) -> None:
    async def test(world: World) -> None:
        await world.made()
        pod = world.cluster.one(kinds.POD, "orders-0")
        if receiver == "unready":
            pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        elif receiver == "terminating":
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            del world.cluster.objects["Pod", "ns", "orders-0"]
        world.ask(1)
        world.says(2, DrainAnswer())
        for _ in range(3):
            await world.reconciler.reconcile(KEY)
        assert world.remote.calls == []
        assert world.condition("Draining")[:2] == ("True", "DrainWaits")
        assert "orders-2 waits for orders-0" in world.condition("Draining")[2]
        assert 2 in world.pods()
        pod["metadata"].pop("deletionTimestamp", None)
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        world.cluster.objects["Pod", "ns", "orders-0"] = pod
        other = world.cluster.one(kinds.POD, "orders-1")
        other["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        await world.reconciler.reconcile(KEY)
        assert world.remote.calls == [f"drain orders-2 {INTO_0}"], "orders-1 receives nothing"

    in_world(test)


def tls_secret(signed: Signed) -> dict[str, Any]:
    data = {"tls.crt": signed.certificate, "tls.key": signed.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "cert", "namespace": "ns"},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def test_a_receiver_that_speaks_tls_is_known_by_its_certificate() -> None:
    tls = {"admin": {"tls": {"secretName": "cert"}}}
    authority = Authority()
    first, second = (authority.sign("orders.ns.svc") for _ in range(2))

    async def test(world: World) -> None:
        world.cluster.put(tls_secret(first))
        await world.made(2, **tls)
        world.ask(1, **tls)
        world.says(1, DrainAnswer())
        await world.passes()
        into = INTO_0.replace("http:", "https:")
        assert world.remote.calls == [f"drain orders-1 {into}"]
        ((call, port),) = world.remote.called
        assert isinstance(call, StartDrain)
        assert call.trust is not None
        assert call.trust.server_name == "orders.ns.svc"
        assert call.trust.authorities.encode() == first.certificate
        assert port.trust == call.trust
        world.says(1, DrainAnswer(phase="draining", messages_left=4))
        await world.passes()
        assert len(world.remote.called) == 1
        # It has another certificate now, which the one that is drained does not know.
        world.cluster.put(tls_secret(second))
        world.says(1, DrainAnswer(phase="draining", messages_left=4, reason="It is not trusted."))
        await world.passes()
        call = world.remote.called[-1][0]
        assert isinstance(call, StartDrain)
        assert call.trust is not None
        assert call.trust.authorities.encode() == second.certificate
        assert world.condition("Draining")[:2] == ("True", "Draining")

    in_world(test)


def test_while_tls_is_rolled_out_each_broker_is_called_as_it_listens() -> None:
    async def test(world: World) -> None:
        world.cluster.put(tls_secret(Authority().sign("orders.ns.svc")))
        await world.made(2)
        speaking = world.cluster.one(kinds.POD, "orders-1")
        speaking["metadata"].setdefault("annotations", {})["vespiary.dev/admin-tls"] = "cert"
        world.cluster.objects["Pod", "ns", "orders-1"] = speaking
        world.ask(1, admin={"tls": {"secretName": "cert"}})
        world.says(1, DrainAnswer())
        await world.reconciler.reconcile(KEY)
        ((call, port),) = world.remote.called
        assert isinstance(call, StartDrain)
        assert (call.target, call.trust) == (INTO_0.removeprefix("into "), None)
        assert port.trust is not None

    in_world(test)


def test_a_receiver_whose_certificate_cannot_be_known_is_waited_for() -> None:
    tls = {"admin": {"tls": {"secretName": "cert"}}}

    async def test(world: World) -> None:
        world.cluster.put(tls_secret(Authority().sign("orders.ns.svc")))
        await world.made(2, **tls)
        leaving = world.cluster.one(kinds.POD, "orders-1")
        del leaving["metadata"]["annotations"]["vespiary.dev/admin-tls"]
        world.cluster.objects["Pod", "ns", "orders-1"] = leaving
        del world.cluster.objects["Secret", "ns", "cert"]
        world.ask(1, **tls)
        world.says(1, DrainAnswer())
        await world.reconciler.reconcile(KEY)
        assert world.remote.calls == []
        assert world.condition("Draining")[:2] == ("True", "DrainWaits")
        assert "whose certificate cannot be known" in world.condition("Draining")[2]

    in_world(test)


def test_what_was_empty_and_is_not_any_more_does_not_go() -> None:
    async def test(world: World) -> None:
        await world.made(2)
        world.ask(1)
        world.says(1, DRAINED)
        await world.passes()
        assert world.status()["scaleDown"]["step"] == "Shrink"
        for answer in (
            None,
            DrainAnswer(phase="cordoned"),
            DrainAnswer(phase="drained", messages_left=1),
            DrainAnswer(phase="drained", prepared=1),
        ):
            world.says(1, answer)
            await world.passes(2)
            assert world.pods() == [0, 1], answer
        world.says(1, DRAINED)
        await world.passes(3)
        assert world.pods() == [0]

    in_world(test)


def test_force_is_written_down_told_and_keeps_the_claims() -> None:
    async def test(world: World) -> None:
        retention = {"storage": {"retention": {"whenScaled": "Delete"}}}
        await world.made()
        world.ask(2, **retention, scaleDown={"force": True})
        await world.passes(2)
        assert world.pods() == [0, 1]
        (record,) = world.status()["scaleDowns"]
        assert (record["broker"], record["forced"]) == ("orders-2", True)
        spec = world.cluster.one(kinds.STATEFUL_SET, "orders")["spec"]
        assert spec["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
        told = {(e["type"], e["reason"]) for e in world.cluster.of(kinds.EVENT)}
        assert ("Warning", "ForcedScaleDown") in told
        assert world.remote.calls == []

    in_world(test)


def test_a_broker_whose_volumes_were_never_bound_holds_nothing() -> None:
    async def test(world: World) -> None:
        await world.made(1)
        world.ask(2)
        await world.passes(2)
        assert world.pods() == [0, 1]
        world.ask(1)
        await world.passes(3)
        assert world.pods() == [0]
        assert "forced" not in world.status()["scaleDowns"][0]

    in_world(test)


def test_brokers_that_stay_after_all_let_clients_in_again() -> None:
    async def test(world: World) -> None:
        await world.made(2)
        world.ask(1)
        world.says(1, DrainAnswer(phase="draining", messages_left=4))
        await world.passes(2)
        world.ask(2)
        pod = world.cluster.one(kinds.POD, "orders-1")
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        await world.passes()
        assert world.remote.calls == ["let clients into orders-1 again"]
        assert "scaleDown" not in world.status()
        assert world.pods() == [0, 1]

    in_world(test)


def test_paused_and_hibernated_brokers_are_not_drained() -> None:
    async def test(world: World) -> None:
        await world.made(3)
        for spec in ({"paused": True}, {"hibernate": True}):
            world.ask(1, **spec)
            world.says(2, DRAINED)
            await world.passes(3)
            assert world.remote.calls == []
            assert world.status()["members"] == 3
        assert world.pods() == []
        world.says(2, None)
        world.ask(1)
        await world.passes(3)
        assert world.pods() == [0, 1, 2], "who wakes up has to be drained first"

    in_world(test)


ANSWERS = (None, DrainAnswer(), DrainAnswer(phase="draining", messages_left=2), DRAINED)


@pytest.mark.ci
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(ANSWERS), st.sampled_from(ANSWERS), st.integers(-1, 3)),
        max_size=14,
    )
)
def test_nobody_goes_who_is_not_empty_whenever_the_operator_dies(
    schedule: list[tuple[DrainAnswer | None, DrainAnswer | None, int]],
) -> None:
    """Each pass may be cut short at any write, by another operator taking over."""

    async def test(world: World) -> None:
        await world.made(3)
        world.ask(1)
        for first, second, cut in schedule:
            world.says(1, first)
            world.says(2, second)
            before = world.pods()
            world.cluster.writes.clear()
            world.cluster.refused_write = cut
            try:
                await world.reconciler.reconcile(KEY)
            except ApiRefusedError:
                world.start_operator()
            world.cluster.refused_write = -1
            world.cluster.settle(steps=5)
            answers = {1: first, 2: second}
            for gone in set(before) - set(world.pods()):
                assert answers[gone] is DRAINED, "it was empty in this very pass"
        world.says(1, DRAINED)
        world.says(2, DRAINED)
        await world.passes(8)
        assert world.pods() == [0]

    in_world(test)


def test_answers_that_are_none_are_not_believed() -> None:
    good = {"phase": "drained", "moved": 1, "messagesLeft": 0, "prepared": 0, "reason": ""}
    assert drain_answer_of(good) == DrainAnswer(phase="drained", moved=1)
    for field in ("phase", "messagesLeft", "prepared"):
        wrong = copy.deepcopy(good)
        del wrong[field]
        assert drain_answer_of(wrong) is None, field
    assert drain_answer_of([]) is None

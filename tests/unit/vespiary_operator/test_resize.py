"""Volumes grow by themselves, whatever else is wrong; the StatefulSet follows, unseen by pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_operator import kinds
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.reconciler import SOON_S
from vespiary_testkit.resize_world import KEY, ResizeWorld

GIB = 1024**3


def in_world(test: Callable[[ResizeWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(ResizeWorld())

    asyncio.run(run())


def template_size(world: ResizeWorld) -> str:
    templates = world.stateful_set()["spec"]["volumeClaimTemplates"]
    (journal,) = (t for t in templates if t["metadata"]["name"] == "journal")
    return str(journal["spec"]["resources"]["requests"]["storage"])


def test_a_volume_grows_in_use_and_the_stateful_set_follows() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", replicas=2)
        await world.until_quiet()
        pods = [world.pod(n)["metadata"]["uid"] for n in (0, 1)]
        before = world.stateful_set()["metadata"]["uid"]
        world.ask(size="2Gi", replicas=2)
        await world.until_quiet()
        assert world.journal(0)["status"]["capacity"]["storage"] == "2Gi"
        assert template_size(world) == "2Gi"
        after = world.stateful_set()["metadata"]["uid"]
        assert after != before
        assert [world.pod(n)["metadata"]["uid"] for n in (0, 1)] == pods, "no broker was restarted"
        owners = [world.pod(n)["metadata"]["ownerReferences"][0]["uid"] for n in (0, 1)]
        assert owners == [after, after]
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        assert world.volume() == {
            "name": "journal",
            "requestedBytes": 2 * GIB,
            "capacityBytes": 2 * GIB,
            "largestBytes": 2 * GIB,
            "claims": "2/2",
        }
        assert "operation" not in world.status()
        assert world.cluster.writes.count("orphan StatefulSet/orders") == 1
        assert "delete StatefulSet/orders" not in world.cluster.writes

    in_world(test)


def test_the_replacement_is_written_down_before_anything_is_deleted() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        uid = world.stateful_set()["metadata"]["uid"]
        world.ask(size="2Gi")
        seen: list[dict[str, Any]] = []
        for _ in range(12):
            was_there = ("StatefulSet", "ns", "orders") in world.cluster.objects
            operation = dict(world.status().get("operation") or {})
            await world.look()
            if was_there and ("StatefulSet", "ns", "orders") not in world.cluster.objects:
                seen.append(operation)
            world.cluster.settle(steps=3)
        (operation,) = seen
        assert (operation["type"], operation["uid"]) == ("ReplaceStatefulSet", uid)
        assert operation["startedAt"]

    in_world(test)


def test_claims_that_would_go_with_the_stateful_set_are_let_go_first() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        storage = world.cluster.one(kinds.BROKER, "orders")["spec"]["storage"]
        storage["retention"] = {"whenDeleted": "Delete"}
        await world.until_quiet()
        uid = world.stateful_set()["metadata"]["uid"]
        owned = [{"uid": uid}]
        world.journal()["metadata"]["ownerReferences"] = owned  # as the controller does
        storage["volumes"]["journal"]["size"] = "2Gi"
        for _ in range(10):
            await world.look()
            world.cluster.settle(steps=3)
        policy = world.stateful_set()["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        assert world.stateful_set()["metadata"]["uid"] == uid, "not while it has the claims"
        world.journal()["metadata"]["ownerReferences"] = []  # as the controller does then
        await world.until_quiet()
        assert world.stateful_set()["metadata"]["uid"] != uid
        assert world.journal()["status"]["capacity"]["storage"] == "2Gi"
        policy = world.stateful_set()["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert policy["whenDeleted"] == "Delete"

    in_world(test)


def test_a_serving_broker_is_given_time_before_it_is_restarted_to_grow() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", storage_class="offline", replicas=2)
        await world.until_quiet()
        pods = [world.pod(n)["metadata"]["uid"] for n in (0, 1)]
        world.ask(size="2Gi", storage_class="offline", replicas=2)
        for _ in range(10):
            await world.look()
            world.cluster.settle(steps=3)
            world.pass_time(5)
        assert [world.pod(n)["metadata"]["uid"] for n in (0, 1)] == pods
        assert world.condition("VolumesSized")[:2] == ("False", "RestartPending")
        assert "when its pod is started again" in world.volume()["message"]
        assert world.volume()["claims"] == "0/2"
        world.pass_time(30)
        away: list[int] = []
        for _ in range(30):
            await world.look()
            there = sum(("Pod", "ns", f"orders-{n}") in world.cluster.objects for n in (0, 1))
            away.append(2 - there)
            world.cluster.settle(steps=1)
            world.pass_time(5)
        assert max(away) == 1, "one broker at a time"
        assert sum(away) == 2, "each of them once"
        assert not {world.pod(n)["metadata"]["uid"] for n in (0, 1)} & set(pods)
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        assert template_size(world) == "2Gi"

    in_world(test)


def test_a_broker_that_cannot_run_gets_its_room_whatever_else_is_wrong() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", storage_class="offline")
        await world.until_quiet()
        pod = world.pod()
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        uid = pod["metadata"]["uid"]
        queue = {"name": "q", "routingType": "ANYCAST"}
        wrong = [{"name": "a", "queues": [queue]}, {"name": "b", "queues": [queue]}]
        world.ask(size="2Gi", storage_class="offline", addresses=wrong)
        await world.until_quiet()
        assert world.condition("Ready")[1] == "InvalidConfiguration"
        assert world.journal()["status"]["capacity"]["storage"] == "2Gi"
        assert world.pod()["metadata"]["uid"] != uid

    in_world(test)


def test_a_restart_that_did_not_help_is_not_repeated() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", storage_class="offline")
        await world.until_quiet()
        world.ask(size="2Gi", storage_class="offline")
        await world.until_quiet(passes=60)
        world.ask(size="3Gi", storage_class="offline")
        for _ in range(60):
            await world.look()
            world.cluster.settle(steps=3)
            world.journal()["status"] = {
                "phase": "Bound",
                "capacity": {"storage": "2Gi"},
                "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
            }
            world.pass_time(5)
        assert world.cluster.writes.count("delete Pod/orders-0") == 2, "once for each size"

    in_world(test)


def test_nobody_is_restarted_to_grow_while_another_broker_is_away() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", storage_class="offline", replicas=2)
        await world.until_quiet()
        world.ask(size="2Gi", storage_class="offline", replicas=2)
        claim = world.journal(1)  # this one grows in use
        claim["status"]["capacity"]["storage"] = "2Gi"
        world.pod(1)["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        for _ in range(40):
            await world.look()
            world.cluster.disks.work(world.cluster)  # type: ignore[union-attr]
            world.pass_time(5)
        assert "delete Pod/orders-0" not in world.cluster.writes
        assert "delete Pod/orders-1" not in world.cluster.writes

    in_world(test)


@pytest.mark.parametrize(
    ("storage_class", "words"),
    [("fixed", "does not allow it"), ("gone", "does not exist")],
)
def test_what_cannot_grow_is_named(storage_class: str, words: str) -> None:
    async def test(world: ResizeWorld) -> None:
        chosen = storage_class if storage_class != "gone" else "online"
        world.ask(size="1Gi", storage_class=chosen)
        await world.until_quiet()
        if storage_class == "gone":
            del world.cluster.objects["StorageClass", "", chosen]
            world.restart()  # classes are listed every few seconds
        world.ask(size="2Gi", storage_class=chosen)
        await world.until_quiet()
        state, reason, message = world.condition("VolumesSized")
        assert (state, reason) == ("False", "GrowthRefused")
        assert message.startswith("The claim journal-orders-0 cannot grow from 1073741824 to")
        assert words in message
        assert world.condition("Degraded")[0] == "True"
        assert template_size(world) == "1Gi", "a claim that cannot grow keeps the templates"

    in_world(test)


def test_a_growth_that_failed_is_reported_and_can_be_taken_back() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", storage_class="stuck")
        await world.until_quiet()
        world.ask(size="9Gi", storage_class="stuck")
        await world.until_quiet()
        state, reason, message = world.condition("VolumesSized")
        assert (state, reason) == ("False", "GrowthFailed")
        assert "no more room in the pool" in message
        assert world.volume()["largestBytes"] == GIB
        world.ask(size="2Gi", storage_class="stuck")
        await world.until_quiet()
        assert world.journal()["spec"]["resources"]["requests"]["storage"] == "2Gi"
        assert "GrowthTakenBack" in {e["reason"] for e in world.cluster.of(kinds.EVENT)}

    in_world(test)


def test_a_claim_that_others_made_larger_is_fine() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        claim = world.journal()
        claim["spec"]["resources"]["requests"]["storage"] = "4Gi"
        claim["metadata"]["managedFields"] = [{"manager": "resizer", "operation": "Update"}]
        world.cluster.writes.clear()
        await world.until_quiet()
        assert world.journal()["status"]["capacity"]["storage"] == "4Gi"
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        assert world.condition("Degraded")[0] == "False"
        assert world.cluster.writes == []

    in_world(test)


def test_a_refused_growth_does_not_stop_anything_else() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        world.ask(size="2Gi", config={"journalMinFiles": 3})
        world.cluster.refused_write = len(world.cluster.writes)  # the claim
        with pytest.raises(Exception, match="refused for the test"):
            await world.reconciler.reconcile(KEY)
        assert world.cluster.writes[-1].startswith("create Event")
        assert "apply StatefulSet/orders" in world.cluster.writes[world.cluster.refused_write :]
        assert world.condition("Degraded")[1] == "ApplyFailed"
        await world.until_quiet()
        assert world.condition("VolumesSized")[0] == "True"

    in_world(test)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("serviceName", "other"),
        ("podManagementPolicy", "OrderedReady"),
        ("selector", {"matchLabels": {"app.kubernetes.io/instance": "orders"}}),
    ],
)
def test_any_fixed_field_is_put_right_without_touching_the_pods(field: str, value: Any) -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        pod = world.pod()["metadata"]["uid"]
        wanted = world.stateful_set()["spec"][field]
        world.stateful_set()["spec"][field] = value
        await world.until_quiet()
        assert world.stateful_set()["spec"][field] == wanted
        assert world.pod()["metadata"]["uid"] == pod

    in_world(test)


def test_a_stateful_set_that_somebody_orphaned_comes_back_with_its_template() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", replicas=2)
        await world.until_quiet()
        foreign = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
        world.stateful_set()["spec"]["template"]["metadata"]["annotations"].update(foreign)
        await world.until_quiet()
        uid = world.stateful_set()["metadata"]["uid"]
        await world.cluster.delete(kinds.STATEFUL_SET, "orders", "ns", uid, orphans=True)
        revisions = {world.pod(n)["metadata"]["labels"]["controller-revision-hash"] for n in (0, 1)}
        world.ask(size="1Gi", replicas=2, config={"journalMinFiles": 3})
        await world.look()
        template = world.stateful_set()["spec"]["template"]
        assert foreign.items() <= template["metadata"]["annotations"].items()
        world.cluster.settle()
        assert world.stateful_set()["status"]["currentRevision"] in revisions
        await world.until_quiet()
        after = {world.pod(n)["metadata"]["labels"]["controller-revision-hash"] for n in (0, 1)}
        assert len(after) == 1, "and then the change is carried out"
        assert not after & revisions

    in_world(test)


def test_a_full_disk_is_looked_at_often_until_there_is_room() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi")
        await world.until_quiet()
        assert await world.look() is None
        world.remote.broker = BrokerAnswer(journal_blocked_reason="no room")
        assert await world.look() == SOON_S
        assert world.condition("Degraded")[:2] == ("True", "ProducersWait")
        assert world.condition("Ready")[0] == "True", "consumers have to reach it"
        world.remote.broker = BrokerAnswer()
        assert await world.look() is None
        assert world.condition("Degraded")[0] == "False"

    in_world(test)

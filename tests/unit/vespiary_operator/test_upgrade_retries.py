"""What is tried again and what is not: settings, a version that failed, an explicit word; and which
restarts the ledger calls the operator's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from vespiary_operator import kinds, maintenance, templates
from vespiary_testkit.resize_world import ResizeWorld
from vespiary_testkit.upgrade_world import NEW, NEWER, OLD, UpgradeWorld, says

LIVE = {"addressSettings": [{"match": "orders.#", "maxDeliveryAttempts": 3}]}
"""A change that running brokers take."""
STATIC = {"podLabels": {"team": "orders"}}
"""A change for which pods are restarted."""


def in_world(test: Callable[[UpgradeWorld], Awaitable[None]], **spec: Any) -> None:
    async def run() -> None:
        world = UpgradeWorld(**spec)
        await world.running()
        await test(world)

    asyncio.run(run())


async def rolled_back(world: UpgradeWorld) -> None:
    world.cluster.bad_images.add(NEW)
    world.put(version="1.1.0")
    await world.until_stage("RolledBack")
    world.stages.clear()
    world.restarted.clear()


def labels(world: UpgradeWorld) -> list[str]:
    return [pod["metadata"]["labels"].get("team", "") for pod in world.pods()]


def test_live_settings_do_not_try_a_version_again_that_failed() -> None:
    async def test(world: UpgradeWorld) -> None:
        await rolled_back(world)
        world.cluster.bad_images.clear()
        world.put(**LIVE)
        await world.turns(30, seconds=60)
        assert world.stages == ["RolledBack"], "nothing went on"
        assert (world.restarted, world.images()) == ([], [OLD] * 3)
        assert world.condition("UpToDate")[:2] == ("False", "RolledBack")
        assert "1.1.0" in world.condition("UpToDate")[2]
        told = [event for event in world.events() if event == "UpgradeRolledBack"]
        assert len(told) == 1
        texts = [str(found["data"]) for found in world.cluster.of(kinds.CONFIG_MAP)]
        assert any("max-delivery-attempts" in text for text in texts), "they are taken"

    in_world(test, upgrade={"deadline": 30})


def test_settings_after_a_rollback_reach_the_version_before() -> None:
    async def test(world: UpgradeWorld) -> None:
        await rolled_back(world)
        world.put(**STATIC)
        await world.until(lambda: labels(world) == ["orders"] * 3)
        await world.turns(10, seconds=60)
        assert world.stages == ["RolledBack"]
        assert world.images() == [OLD] * 3
        assert world.restarted == ["orders-2", "orders-1", "orders-0"], "one after the other"
        assert [r["reason"] for r in world.status()["restarts"][:3]] == ["SettingsChanged"] * 3
        world.put(version="1.2.0")
        await world.until_stage("Complete")
        assert world.images() == [NEWER] * 3

    in_world(test, upgrade={"deadline": 30})


def test_settings_after_a_rollback_wait_for_their_window() -> None:
    async def test(world: UpgradeWorld) -> None:
        await rolled_back(world)
        world.put(
            maintenanceWindows=[{"start": "01:00", "duration": 3600, "timeZone": "UTC"}], **STATIC
        )
        await world.turns(20, seconds=30)
        assert world.restarted == []

    in_world(test, upgrade={"deadline": 30})


def test_settings_during_a_rollback_do_not_turn_it_round() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RollingBack")
        world.put(**LIVE)
        await world.until_stage("RolledBack")
        await world.turns(20, seconds=60)
        assert world.stages == ["Checking", "Canary", "RollingBack", "RolledBack"]
        assert world.images() == [OLD] * 3

    in_world(test, upgrade={"deadline": 30})


def test_live_settings_give_a_failing_version_no_more_time() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("Canary")
        began = world.now
        for number in range(40):
            if world.stage() == "RolledBack":
                break
            world.put(addressSettings=[{"match": "#", "maxDeliveryAttempts": number + 2}])
            await world.turn(10)
        assert world.stage() == "RolledBack"
        assert (world.now - began).total_seconds() < 200
        assert world.images() == [OLD] * 3

    in_world(test, upgrade={"deadline": 60})


def test_live_settings_do_not_set_a_halted_upgrade_going() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("Halted")
        world.put(**LIVE)
        await world.turns(10, seconds=60)
        assert world.stages[-1] == "Halted"
        assert world.stages.count("Canary") == 1
        assert world.condition("Degraded")[:2] == ("True", "UpgradeHalted")
        assert world.restarted == ["orders-2"]

    in_world(test, upgrade={"deadline": 30, "allowFormatChange": True})


def test_live_settings_leave_a_soak_time_as_it_is() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("Soaking")
        since = world.upgrade()["stageSince"]
        world.put(**LIVE)
        await world.turn()
        assert (world.stage(), world.upgrade()["stageSince"]) == ("Soaking", since)
        await world.until_stage("Complete")
        assert world.stages == ["Checking", "Canary", "Soaking", "Rolling", "Complete"]

    in_world(test)


@pytest.mark.parametrize("is_better", [True, False])
def test_a_word_tries_the_version_again_once(is_better: bool) -> None:
    async def test(world: UpgradeWorld) -> None:
        await rolled_back(world)
        if is_better:
            world.cluster.bad_images.clear()
        world.annotations[maintenance.ANNOTATION_RETRY] = "2026-11-23T04:00:00Z"
        world.put()
        if is_better:
            await world.until_stage("Complete")
            assert world.images() == [NEW] * 3
            return
        await world.until_stage("Canary")
        await world.until_stage("RolledBack")
        world.stages.clear()
        await world.turns(20, seconds=60)
        assert world.stages == ["RolledBack"], "the same word counts once"
        world.annotations[maintenance.ANNOTATION_RETRY] = "2026-11-23T05:00:00Z"
        world.put()
        await world.until_stage("Canary")

    in_world(test, upgrade={"deadline": 30})


def test_a_word_from_before_the_failure_does_not_count() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.annotations[maintenance.ANNOTATION_RETRY] = "2026-01-01T00:00:00Z"
        await rolled_back(world)
        await world.turns(20, seconds=60)
        assert world.stages == ["RolledBack"]

    in_world(test, upgrade={"deadline": 30})


# --- the copy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["Halted", "Complete"])
@pytest.mark.parametrize("is_told", [True, False])
def test_a_copy_that_was_put_back_lets_the_version_before_in(stage: str, is_told: bool) -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        if stage == "Halted":
            world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage(stage)
        annotation = world.cluster.one(kinds.STATEFUL_SET, "orders")["metadata"]["annotations"]
        name = msgspec.json.decode(annotation[templates.ANNOTATION])["snapshot"]
        world.put(hibernate=True)
        await world.until(lambda: not world.pods())
        world.annotations[maintenance.ANNOTATION_RESTORED] = name if is_told else "another"
        world.put(version="1.0.0")
        if not is_told:
            await world.until_stage("Refused")
            assert world.condition("UpToDate")[1] == "FormatUnreadable"
            return
        await world.turns(6)
        world.put(hibernate=False)
        await world.until(lambda: world.images() == [OLD] * 3)
        await world.until(lambda: world.condition("Ready")[0] == "True")
        assert world.condition("UpToDate")[0] == "True"
        assert world.condition("Degraded")[0] == "False"

    in_world(test, upgrade={"deadline": 30, "allowFormatChange": True})


# --- the ledger -----------------------------------------------------------------------------------


def test_a_restart_to_grow_is_called_so() -> None:
    async def test() -> None:
        world = ResizeWorld()
        world.ask(size="1Gi", storage_class="offline", replicas=2)
        await world.until_quiet()
        world.ask(size="2Gi", storage_class="offline", replicas=2)
        await world.until_quiet()
        found = world.status()["restarts"]
        assert [(r["broker"], r["reason"], r["actor"]) for r in found] == [
            ("orders-0", "Restarted", "vespiary-operator"),
            ("orders-1", "Restarted", "vespiary-operator"),
        ]
        assert "journal-orders-0 grows to" in found[0]["message"]
        del world.cluster.objects["Pod", "ns", "orders-0"]
        await world.until_quiet()
        latest = world.status()["restarts"][0]
        assert (latest["broker"], latest["reason"], latest["actor"]) == (
            "orders-0",
            "Replaced",
            "unknown",
        )

    asyncio.run(test())

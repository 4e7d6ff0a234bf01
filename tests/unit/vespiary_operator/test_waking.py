"""Brokers that wake with another version: nobody wakes with the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from vespiary_operator import kinds, maintenance, templates
from vespiary_testkit.interruptions import interruptions
from vespiary_testkit.upgrade_world import NEW, OLD, UpgradeWorld, says


class WakingWorld(UpgradeWorld):
    """A world that notes with which images brokers ran.

    Attributes:
        woken: Images of the brokers of each turn.
    """

    def __init__(self, **spec: Any) -> None:
        self.woken: set[str] = set()
        super().__init__(**spec)

    def end_turn(self, seconds: float = 5) -> None:
        super().end_turn(seconds)
        self.woken = self.woken | set(self.images())

    async def asleep(self) -> None:
        self.put(hibernate=True)
        await self.until(lambda: not self.pods())
        await self.turns(2)
        self.woken = set()
        self.stages.clear()

    async def awake(self, image: str) -> None:
        await self.until(
            lambda: (
                self.images() == [image] * self.spec["replicas"]
                and self.condition("Ready")[1] == "Serving"
                and self.condition("UpToDate")[0] == "True"
            )
        )


def in_world(test: Callable[[WakingWorld], Awaitable[None]], **spec: Any) -> None:
    async def run() -> None:
        upgrade = {"deadline": 30, "soakTime": 6, "allowFormatChange": True}
        world = WakingWorld(**{"replicas": 2, "upgrade": upgrade, **spec})
        await world.running()
        await test(world)

    asyncio.run(run())


async def with_a_copy(world: WakingWorld, stage: str) -> str:
    """Have an upgrade to files of another format behind it; return the name of the copy."""
    world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
    if stage == "Halted":
        world.cluster.bad_images.add(NEW)
    world.put(version="1.1.0")
    await world.until_stage(stage)
    annotation = world.cluster.one(kinds.STATEFUL_SET, "orders")["metadata"]["annotations"]
    name: str = msgspec.json.decode(annotation[templates.ANNOTATION])["snapshot"]
    await world.asleep()
    return name


@pytest.mark.parametrize("stage", ["Halted", "Complete"])
@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_copy_that_was_put_back_is_opened_by_no_newer_version(
    stage: str, is_at_once: bool
) -> None:
    async def test(world: WakingWorld) -> None:
        name = await with_a_copy(world, stage)
        world.annotations[maintenance.ANNOTATION_RESTORED] = name
        if not is_at_once:
            world.put(version="1.0.0")
            await world.until_stage("Complete")
        world.put(version="1.0.0", hibernate=False)
        await world.awake(OLD)
        assert world.woken == {OLD}
        assert world.stage() == "Complete"
        assert world.condition("Degraded")[0] == "False"

    in_world(test)


def test_a_version_that_is_refused_leaves_them_asleep_until_there_is_an_answer() -> None:
    async def test(world: WakingWorld) -> None:
        name = await with_a_copy(world, "Complete")
        world.put(version="1.0.0", hibernate=False)
        await world.until_stage("Refused")
        await world.turns(5)
        assert world.pods() == []
        status, reason, sentence = world.condition("Ready")
        assert (status, reason) == ("False", "KeptAsleep")
        assert "sleep on" in sentence
        assert "Version 1.0.0 reads journal files of format 1" in sentence
        world.annotations[maintenance.ANNOTATION_RESTORED] = name
        world.put()
        await world.awake(OLD)
        assert world.woken == {OLD}

    in_world(test)


def test_they_wake_with_the_version_they_have_when_it_is_asked_for_again() -> None:
    async def test(world: WakingWorld) -> None:
        world.cluster.compatibility[NEW] = "Killed"
        await world.asleep()
        world.put(version="1.1.0", hibernate=False)
        await world.until_stage("Refused")
        world.put(version="1.0.0")
        await world.awake(OLD)
        assert world.woken == {OLD}

    in_world(test)


@pytest.mark.parametrize("strategy", ["Canary", "Supervised", "RollingUpdate"])
def test_all_wake_with_the_newer_version(strategy: str) -> None:
    async def test(world: WakingWorld) -> None:
        await world.asleep()
        world.put(version="1.1.0", hibernate=False)
        await world.awake(NEW)
        assert world.woken == {NEW}
        assert world.stages == ["Checking", "Rolling", "Complete"]

    in_world(test, upgrade={"strategy": strategy, "deadline": 30})


def test_a_version_that_fails_as_they_wake_is_taken_back() -> None:
    async def test(world: WakingWorld) -> None:
        await world.asleep()
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0", hibernate=False)
        await world.until_stage("RolledBack")
        await world.until(lambda: world.condition("Ready")[1] == "Serving")
        assert world.images() == [OLD] * 2
        assert world.stages == ["Checking", "Rolling", "RollingBack", "RolledBack"]

    in_world(test)


def test_a_window_keeps_nobody_asleep() -> None:
    async def test(world: WakingWorld) -> None:
        await world.asleep()
        window = [{"start": "12:00", "duration": 1800, "timeZone": "UTC"}]
        world.put(version="1.1.0", hibernate=False, maintenanceWindows=window)
        await world.awake(NEW)
        assert world.woken == {NEW}

    in_world(test)


def test_those_that_are_too_many_wake_and_are_drained() -> None:
    async def test(world: WakingWorld) -> None:
        await world.asleep()
        world.put(version="1.1.0", hibernate=False, replicas=1)
        await world.until(lambda: world.images() == [NEW] * 2)
        assert world.woken == {NEW}
        assert world.condition("Draining")[0] == "True"

    in_world(test)


def test_a_version_that_was_taken_back_keeps_nobody_asleep() -> None:
    async def test(world: WakingWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RolledBack")
        await world.asleep()
        world.put(hibernate=False)
        await world.until(lambda: world.condition("Ready")[1] == "Serving")
        assert world.woken == {OLD}

    in_world(test)


@pytest.mark.parametrize("is_back", [True, False])
def test_an_operator_that_is_killed_wakes_nobody_with_another_version(is_back: bool) -> None:
    async def test(first: WakingWorld) -> None:
        if is_back:
            name = await with_a_copy(first, "Complete")
            first.annotations[maintenance.ANNOTATION_RESTORED] = name
        else:
            await first.asleep()
        image, version = (OLD, "1.0.0") if is_back else (NEW, "1.1.0")
        first.put(version=version, hibernate=False)
        first.woken = set()
        forks = await interruptions(first, first.awake(image))
        assert len(forks) > 8
        for world in forks:
            world.end_turn()
            await world.awake(image)
            assert world.woken == {image}, world.cluster.writes[-6:]

    in_world(test)

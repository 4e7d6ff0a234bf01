"""A version that was refused is looked at again: by itself after a pause, at once when asked to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from vespiary_operator import maintenance
from vespiary_operator.kubectl import upgrade_view
from vespiary_testkit.upgrade_world import NEW, OLD, UpgradeWorld, says

NONSENSE = "Killed"
"""What is left of an image's answer whose container ran out of memory."""


def in_world(test: Callable[[UpgradeWorld], Awaitable[None]], **spec: Any) -> None:
    async def run() -> None:
        world = UpgradeWorld(replicas=2, upgrade={"deadline": 30, "soakTime": 6, **spec})
        await world.running()
        await test(world)

    asyncio.run(run())


async def refused(world: UpgradeWorld) -> None:
    world.cluster.compatibility[NEW] = NONSENSE
    world.put(version="1.1.0")
    await world.until_stage("Refused")
    await world.turns(2)


def checks(world: UpgradeWorld) -> int:
    return sum(write.startswith("create Pod/orders-check-") for write in world.cluster.writes)


def pause_s(world: UpgradeWorld) -> float:
    return (datetime.fromisoformat(world.upgrade()["nextCheckAt"]) - world.now).total_seconds()


def test_what_goes_away_by_itself_is_found_after_a_pause() -> None:
    async def test(world: UpgradeWorld) -> None:
        await refused(world)
        assert world.condition("UpToDate")[:2] == ("False", "ImageSaysNothing")
        assert world.upgrade()["nextCheckAt"] in world.condition("UpToDate")[2]
        assert 0 < pause_s(world) <= 60
        world.cluster.compatibility[NEW] = says("1.1.0")
        made = checks(world)
        await world.turns(5)
        assert (world.stage(), checks(world)) == ("Refused", made), "not before its time"
        await world.until_stage("Complete")
        assert world.images() == [NEW] * 2
        assert world.stages == ["Checking", "Refused", "Canary", "Soaking", "Rolling", "Complete"]
        assert not {"nextCheckAt", "checkedFor"} & world.upgrade().keys()

    in_world(test)


def test_what_stays_wrong_is_looked_at_ever_more_seldom_and_told_once() -> None:
    async def test(world: UpgradeWorld) -> None:
        await refused(world)
        made = checks(world)
        await world.turns(24 * 6, seconds=600)
        assert 16 <= checks(world) - made <= 32, "in a day"
        assert world.stages == ["Checking", "Refused"]
        assert world.events().count("UpgradeRefused") == 1
        assert world.images() == [OLD] * 2
        assert world.check_pods() == []

    in_world(test)


def test_another_reason_is_said() -> None:
    async def test(world: UpgradeWorld) -> None:
        await refused(world)
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        await world.until(lambda: world.condition("UpToDate")[1] == "FormatChange")
        assert world.stage() == "Refused"
        world.put(upgrade={**world.spec["upgrade"], "allowFormatChange": True})
        await world.turn()
        assert world.stage() == "Checking", "a change of the Broker is looked at at once"
        await world.until_stage("Complete")

    in_world(test)


def test_a_window_that_is_closed_leaves_it_refused() -> None:
    async def test(world: UpgradeWorld) -> None:
        await refused(world)
        world.put(
            maintenanceWindows=[{"start": "03:00", "duration": 1800, "timeZone": "UTC"}],
        )
        await world.turn()
        await world.until_stage("Refused")
        world.cluster.compatibility[NEW] = says("1.1.0")
        world.now = world.now.replace(hour=4)
        made = checks(world)
        await world.turns(30)
        assert (world.stage(), checks(world)) == ("Refused", made)
        assert pause_s(world) > 0, "the next look is still to come"
        assert world.condition("UpToDate")[1] == "ImageSaysNothing"

    in_world(test)


@pytest.mark.parametrize(
    "word", ["", maintenance.ANNOTATION_RETRY, maintenance.ANNOTATION_RESTORED]
)
def test_a_word_has_it_looked_at_at_once(word: str) -> None:
    async def test(world: UpgradeWorld) -> None:
        await refused(world)
        world.cluster.compatibility[NEW] = says("1.1.0")
        if word:
            world.annotations[word] = "now"
            world.put()
        await world.turns(2, seconds=1)
        assert world.stages.count("Checking") == (2 if word else 1)

    in_world(test)


@pytest.mark.parametrize("is_asked_again", [False, True])
def test_a_version_tried_again_that_is_refused_is_looked_at_like_any_other(
    is_asked_again: bool,
) -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RolledBack")
        world.cluster.bad_images.clear()
        world.cluster.compatibility[NEW] = NONSENSE
        world.annotations[maintenance.ANNOTATION_RETRY] = "first"
        world.put()
        await world.until_stage("Refused")
        world.cluster.compatibility[NEW] = says("1.1.0")
        if is_asked_again:
            change = upgrade_view.retry(world.cluster.objects["Broker", "ns", "orders"], "second")
            world.annotations |= change.patch["metadata"]["annotations"]
            world.put()
            await world.turn()
            assert world.stage() == "Checking"
        await world.until_stage("Complete")
        assert world.images() == [NEW] * 2

    in_world(test)

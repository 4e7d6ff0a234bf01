"""The table of stages: complete, walked by real passes, and resumed after a cut anywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_operator import maintenance, upgrade_stages
from vespiary_operator.observation import BrokerAnswer
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_testkit.interruptions import interruptions
from vespiary_testkit.upgrade_world import NEW, NEWER, OLD, UpgradeWorld, says

WAYS = {(way.stage.value, way.following.value) for way in upgrade_stages.TRANSITIONS}


def test_every_stage_can_be_reached_and_every_one_but_the_last_can_be_left() -> None:
    reached = {upgrade_stages.FIRST}
    for _ in Stage:
        reached |= {way.following for way in upgrade_stages.TRANSITIONS if way.stage in reached}
    assert reached == set(Stage)
    left = {way.stage for way in upgrade_stages.TRANSITIONS}
    for_good = upgrade_stages.FINAL - {Stage.ROLLED_BACK}  # whence it is tried again on request
    assert left == set(Stage) - for_good
    assert set(upgrade_stages.MEANINGS) == set(Stage)
    assert len({(way.stage, way.cause) for way in upgrade_stages.TRANSITIONS}) == len(
        upgrade_stages.TRANSITIONS
    )


def test_the_page_draws_every_way() -> None:
    page = upgrade_stages.page()
    for stage, following in WAYS:
        assert f"    {stage} --> {following}: " in page


CHANGES = ("nothing", "bad", "good", "fenced", "unwell", "approve", "new", "newer", "old", "later")


async def change(world: UpgradeWorld, what: str) -> None:
    match what:
        case "bad":
            world.cluster.bad_images.add(NEW)
        case "good":
            world.cluster.bad_images.clear()
            world.remote.by_image.clear()
        case "fenced":
            world.remote.by_image[NEW] = BrokerAnswer(journal_failed_reason="EIO")
        case "unwell":
            world.remote.by_image[NEW] = BrokerAnswer(not_ready_reason="it reads")
        case "approve":
            world.annotations[maintenance.ANNOTATION_APPROVE] = world.upgrade().get("revision", "")
            world.put()
        case "new" | "newer" | "old":
            versions = {"new": "1.1.0", "newer": "1.2.0", "old": "1.0.0"}
            world.put(version=versions[what])
        case "later":
            world.now = world.now.replace(minute=(world.now.minute + 7) % 60)


@pytest.mark.ci
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["Canary", "Supervised", "RollingUpdate"]),
    st.booleans(),
    st.lists(st.sampled_from(CHANGES), max_size=14),
)
def test_passes_go_by_the_table_and_come_to_rest(
    strategy: str, is_format_new: bool, changes: list[str]
) -> None:
    async def run() -> None:
        world = UpgradeWorld(
            upgrade={
                "strategy": strategy,
                "deadline": 20,
                "soakTime": 10,
                "allowFormatChange": True,
            }
        )
        if is_format_new:
            world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
            world.cluster.compatibility[NEWER] = says("1.2.0", writes=2, reads=(1, 2))
        await world.running()
        seen: list[tuple[str, str]] = []
        for what in changes:
            await change(world, what)
            for _ in range(3):
                before = (world.upgrade().get("revision"), world.stage())
                unready = [p for p in world.pods() if not _is_ready(p)]
                await world.turn(6)
                after = (world.upgrade().get("revision"), world.stage())
                if before[0] == after[0] and before[1] != after[1]:
                    seen.append((before[1], after[1]))
                assert len([p for p in world.pods() if not _is_ready(p)]) <= len(unready) + 1
        allowed = WAYS | {
            (stage, "Checking") for stage in ("Refused", "Complete", "RolledBack", "")
        }
        assert set(seen) <= allowed, set(seen) - allowed

    asyncio.run(run())


def _is_ready(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["conditions"][0]["status"] == "True")


@pytest.mark.verify
@pytest.mark.parametrize(("is_bad", "end"), [(False, "Complete"), (True, "RolledBack")])
def test_an_operator_that_is_killed_at_any_write_goes_on(is_bad: bool, end: str) -> None:
    def is_over(world: UpgradeWorld) -> bool:
        return world.stage() == end and world.condition("UpToDate")[1] != "RollingOut"

    async def test() -> None:
        first = UpgradeWorld(upgrade={"deadline": 20, "soakTime": 10})
        await first.running()
        if is_bad:
            first.cluster.bad_images.add(NEW)
        first.put(version="1.1.0")
        forks = await interruptions(first, first.until(lambda: is_over(first)))
        assert len(forks) > 15
        for world in forks:
            at = world.cluster.writes[-4:]
            world.end_turn()
            await world.until(lambda world=world: is_over(world))
            await world.turns(4)
            assert world.stage() == end, at
            assert world.images() == [OLD if is_bad else NEW] * 3, at
            assert world.check_pods() == [], at
            if is_bad:
                assert set(world.restarted) <= {"orders-2"}, "nobody else is touched"

    asyncio.run(test())

"""An operator that is killed at any write, before it or after it, is followed by one that goes on.

Every write of every scenario is tried; what is reached in the end is what an operator that nobody
killed reaches, and on the way no claim is deleted and no broker restarted that need not be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from vespiary_operator import kinds, maintenance, templates
from vespiary_testkit.fake_kubernetes import plain_copy
from vespiary_testkit.interruptions import interruptions
from vespiary_testkit.resize_world import ResizeWorld
from vespiary_testkit.upgrade_world import NEW, NEWER, OLD, UpgradeWorld, says

Change = Callable[[ResizeWorld], None]


def fill_up(world: ResizeWorld) -> None:
    """Let the journals fill up that may grow by themselves to 2Gi."""
    world.ask(size="1Gi", replicas=2, auto_grow={"maxSize": "2Gi"}, storage_class=world.class_now)
    world.remote.spaces = world.filled(used_bytes=1000 * 1024**2)


SCENARIOS: dict[str, Change] = {
    "grown by itself": fill_up,
    "changed": lambda world: world.ask(size="1Gi", replicas=2, config={"journalMinFiles": 3}),
    "scaled": lambda world: world.ask(size="1Gi", replicas=3),
    "grown": lambda world: world.ask(size="2Gi", replicas=2),
    "grown and changed": lambda world: world.ask(
        size="2Gi", replicas=2, config={"journalMinFiles": 3}
    ),
    "fixed field": lambda world: world.stateful_set()["spec"].update(serviceName="other"),
    "opened": lambda world: world.ask(size="1Gi", replicas=2, networkPolicy={"enabled": True}),
}

OFFLINE: dict[str, Change] = {
    "grown by itself at rest": fill_up,
    "grown at rest": lambda world: world.ask(size="2Gi", replicas=2, storage_class="offline"),
}
RESTARTS_NOBODY = ("grown", "grown by itself", "fixed field", "opened")


def begun(storage_class: str) -> ResizeWorld:
    """Return a world with a Broker of two brokers at rest."""
    world = ResizeWorld()
    world.ask(size="1Gi", replicas=2, storage_class=storage_class)
    return world


def reached(world: ResizeWorld) -> dict[str, Any]:
    """Return everything that a scenario leaves but what is different each time."""
    found = {}
    for (kind, _, name), document in world.cluster.objects.items():
        if kind in ("Event", "ControllerRevision", "Broker"):
            continue
        plain = plain_copy({k: v for k, v in document.items() if k != "metadata"})
        if kind == "Secret":
            plain = {"data": sorted(plain["data"])}
        if kind == "StatefulSet":
            plain["status"].pop("observedGeneration")
        found[f"{kind}/{name}"] = (plain, document["metadata"].get("labels"))
    found["conditions"] = {c["type"]: c["status"] for c in world.status()["conditions"]}
    found["operation"] = world.status().get("operation")
    return found


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def uids(world: ResizeWorld) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.cluster.of(kinds.POD)}


@pytest.mark.parametrize(
    "name",
    ["made", *SCENARIOS, *(pytest.param(name, marks=pytest.mark.ci) for name in OFFLINE)],
)
def test_an_operator_killed_at_any_write_is_followed_by_one_that_goes_on(name: str) -> None:
    async def test() -> None:
        change = {**SCENARIOS, **OFFLINE}.get(name)
        whole = begun("offline" if name in OFFLINE else "online")
        if change is not None:
            await whole.until_quiet()
            change(whole)
        begin, first = len(whole.cluster.writes), uids(whole)
        forks = await interruptions(whole, whole.until_quiet())
        wanted = reached(whole)
        for world in forks:
            at = f"after {world.cluster.writes[begin:][-6:]}"
            await world.go_on()
            assert reached(world) == wanted, at
            assert not any("delete PersistentVolumeClaim" in w for w in world.cluster.writes), at
            if name in RESTARTS_NOBODY:
                assert len(first & uids(world)) == 2, f"{at}: a broker was restarted"
            if name in OFFLINE:
                deleted = [w for w in world.cluster.writes if w.startswith("delete Pod")]
                assert sorted(deleted) == ["delete Pod/orders-0", "delete Pod/orders-1"], at

    run(test)


def test_a_replaced_statefulset_keeps_the_templates_that_were_written_down() -> None:
    async def test() -> None:
        world = begun("online")
        await world.until_quiet()
        kept = dict(world.stateful_set()["metadata"]["annotations"])
        uid = world.stateful_set()["metadata"]["uid"]
        # What an older operator would have rendered: the new one is not to forget it.
        was = msgspec.json.decode(kept[templates.ANNOTATION])
        was["failure"] = "1.1.0 was taken back: it did not start."
        kept[templates.ANNOTATION] = msgspec.json.encode(was, order="sorted").decode()
        world.stateful_set()["metadata"]["annotations"] = kept
        SCENARIOS["fixed field"](world)
        await world.until_quiet()
        assert world.stateful_set()["metadata"]["uid"] != uid
        assert world.stateful_set()["metadata"]["annotations"] == kept
        assert "operation" not in world.status()

    run(test)


# --- upgrades -------------------------------------------------------------------------------------


async def come_to_rest(world: UpgradeWorld) -> None:
    """Make passes until an upgrade is over and nothing is written any more."""
    quiet = 0
    for _ in range(100):
        writes = world.cluster.all_writes
        await world.turn(20)
        is_over = world.stage() in ("Complete", "RolledBack")
        quiet = quiet + 1 if is_over and world.cluster.all_writes == writes else 0
        if quiet == 2:
            return
    raise AssertionError(f"it does not end: {world.stages}, {world.upgrade()}")


@pytest.mark.ci
@pytest.mark.parametrize("is_bad", [False, True])
def test_an_upgrade_goes_on_whichever_write_was_the_operators_last(is_bad: bool) -> None:
    async def test() -> None:
        whole = UpgradeWorld(replicas=2)
        await whole.running()
        if is_bad:
            whole.cluster.bad_images.add(NEW)
        whole.put(version="1.1.0")
        forks = await interruptions(whole, come_to_rest(whole))
        assert whole.stages[-1] == ("RolledBack" if is_bad else "Complete")
        assert len(forks) > 10
        noted = [(r["broker"], r["reason"]) for r in whole.status()["restarts"]]
        for world in forks:
            at = f"after {world.cluster.writes[-4:]}"
            world.end_turn(20)
            await come_to_rest(world)
            where = f"{at}: {world.stages}"
            assert world.stages[-1] == whole.stages[-1], where
            assert world.images() == [OLD if is_bad else NEW] * 2, where
            assert world.check_pods() == [], where
            assert world.condition("Ready")[0] == "True", where
            assert world.restarted == whole.restarted, where
            ledger = [(r["broker"], r["reason"]) for r in world.status()["restarts"]]
            assert ledger == noted, where
            assert not any("delete PersistentVolumeClaim" in w for w in world.cluster.writes), where

    run(test)


class Course(NamedTuple):
    """An upgrade, and what it comes to.

    Attributes:
        begin: What sets it going.
        stage: Where it ends.
        images: Images of the brokers then.
        restarted: Brokers that may be restarted for it, and how often at most.
    """

    begin: Callable[[UpgradeWorld], Awaitable[None]]
    stage: str
    images: list[str]
    restarted: dict[str, int]


async def to_new(world: UpgradeWorld) -> None:
    world.put(version="1.1.0")


async def to_what_does_not_start(world: UpgradeWorld) -> None:
    world.cluster.bad_images.add(NEW)
    world.put(version="1.1.0")


async def to_another_format_and_failing(world: UpgradeWorld) -> None:
    world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
    await to_what_does_not_start(world)


async def settings_after_a_rollback(world: UpgradeWorld) -> None:
    await to_what_does_not_start(world)
    await world.until_stage("RolledBack")
    world.restarted.clear()
    world.put(podLabels={"team": "orders"})


async def again_after_a_rollback(world: UpgradeWorld) -> None:
    await to_what_does_not_start(world)
    await world.until_stage("RolledBack")
    world.restarted.clear()
    world.cluster.bad_images.clear()
    world.annotations[maintenance.ANNOTATION_RETRY] = "now"
    world.put()


async def refused_at_first(world: UpgradeWorld) -> None:
    world.cluster.compatibility[NEW] = "Killed"
    await to_new(world)
    await world.until_stage("Refused")
    world.cluster.compatibility[NEW] = says("1.1.0")


async def another_on_the_way(world: UpgradeWorld) -> None:
    await to_new(world)
    await world.until_stage("Soaking")
    world.restarted.clear()
    world.put(version="1.2.0")


COURSES: dict[str, Course] = {
    "halted": Course(to_another_format_and_failing, "Halted", [OLD, NEW], {"orders-1": 1}),
    "settings after a rollback": Course(
        settings_after_a_rollback, "RolledBack", [OLD] * 2, {"orders-0": 1, "orders-1": 1}
    ),
    "tried again": Course(
        again_after_a_rollback, "Complete", [NEW] * 2, {"orders-0": 1, "orders-1": 1}
    ),
    "refused at first": Course(
        refused_at_first, "Complete", [NEW] * 2, {"orders-0": 1, "orders-1": 1}
    ),
    "another one": Course(
        another_on_the_way, "Complete", [NEWER] * 2, {"orders-0": 1, "orders-1": 1}
    ),
}


async def begun_course(course: Course) -> UpgradeWorld:
    """Return a world in which an upgrade was just asked for."""
    world = UpgradeWorld(
        replicas=2, upgrade={"soakTime": 6, "deadline": 12, "allowFormatChange": True}
    )
    await world.running()
    await course.begin(world)
    return world


async def finish(world: UpgradeWorld, course: Course) -> None:
    """Let an upgrade come to its end, and to rest."""
    quiet = 0
    for _ in range(80):
        writes = world.cluster.all_writes
        await world.turn()
        is_there = world.stage() == course.stage and world.images() == course.images
        quiet = quiet + 1 if is_there and world.cluster.all_writes == writes else 0
        if quiet == 3:
            return
    raise AssertionError(f"no end: {world.stages}, {world.images()}, {world.upgrade()}")


@pytest.mark.verify
@pytest.mark.parametrize("name", COURSES)
def test_an_operator_killed_in_an_upgrade_is_followed_by_one_that_goes_on(name: str) -> None:
    async def test() -> None:
        course = COURSES[name]
        whole = await begun_course(course)
        forks = await interruptions(whole, finish(whole, course))
        assert len(forks) >= 5
        assert {pod: whole.restarted.count(pod) for pod in course.restarted} == course.restarted
        for world in forks:
            at = f"after {world.cluster.writes[-4:]}"
            world.end_turn()
            await finish(world, course)
            assert world.condition("UpToDate")[:2] == whole.condition("UpToDate")[:2], at
            assert world.condition("Ready")[0] == whole.condition("Ready")[0], at
            assert world.check_pods() == [], at
            assert not any("delete PersistentVolumeClaim" in w for w in world.cluster.writes), at
            for pod in world.uids():
                times = world.restarted.count(pod)
                assert times <= course.restarted.get(pod, 0), f"{at}: {world.restarted}"

    run(test)

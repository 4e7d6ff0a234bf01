"""The ledger of restarts: an operator that ends at any of its writes leaves the reason behind.

What a whole run says is what every run says in which the operator was killed at one of its writes:
the same brokers, reasons, actors and sentences, each restart once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from vespiary_operator import kinds, maintenance
from vespiary_testkit.fake_kubernetes import Killed
from vespiary_testkit.interruptions import interruptions
from vespiary_testkit.own_world import LIVE, OwnWorld
from vespiary_testkit.upgrade_world import NEW, OLD, UpgradeWorld

Entry = tuple[str, str, str, str]


def entries(status: dict[str, Any]) -> list[Entry]:
    """Return the restarts, broker by broker: those of a look that comes late have one time."""
    found = [
        (found["broker"], found["reason"], found["actor"], found["message"])
        for found in status.get("restarts", ())
        if found["actor"] != "kubelet"
    ]
    return sorted(found, key=lambda entry: entry[0])


def to_grow(world: OwnWorld) -> None:
    world.ask(size="2Gi", storage_class="offline", replicas=2)


def own_settings(world: OwnWorld) -> None:
    world.own({"ordinal": 1, "config": {"journalMinFiles": 5}}, storage_class="offline")


def other_settings(world: OwnWorld) -> None:
    world.ask(size="1Gi", storage_class="offline", replicas=2, podLabels={"team": "orders"})


CHANGES: dict[str, tuple[Callable[[OwnWorld], None], list[tuple[str, str]]]] = {
    "to grow": (to_grow, [("orders-0", "Restarted"), ("orders-1", "Restarted")]),
    "own settings": (own_settings, [("orders-1", "Restarted")]),
    "settings": (
        other_settings,
        [("orders-0", "SettingsChanged"), ("orders-1", "SettingsChanged")],
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", CHANGES)
def test_a_restart_has_its_reason_whichever_write_was_the_operators_last(name: str) -> None:
    async def test() -> None:
        whole = OwnWorld()
        whole.own(storage_class="offline")
        await whole.until_quiet()
        CHANGES[name][0](whole)
        forks = await interruptions(whole, whole.until_quiet())
        wanted = entries(whole.status())
        assert [entry[:2] for entry in wanted] == CHANGES[name][1]
        assert {entry[2] for entry in wanted} == {"vespiary-operator"}
        for world in forks:
            at = world.cluster.writes[-4:]
            await world.go_on()
            assert entries(world.status()) == wanted, at

    asyncio.run(test())


def test_a_reason_that_is_no_longer_one_is_forgotten() -> None:
    async def test() -> None:
        world = OwnWorld()
        world.own()
        await world.until_quiet()
        world.own({"ordinal": 1, "config": {"journalMinFiles": 5}})
        delete = world.cluster.delete

        async def killed(*_: Any, **__: Any) -> None:
            raise Killed

        world.cluster.delete = killed
        for _ in range(20):
            await world.look()
            world.cluster.settle(steps=3)
            if world.killed:
                break
            world.pass_time(5)
        (noted,) = (pod for pod in world.status()["knownPods"] if pod["name"] == "orders-1")
        assert "journal-min-files" in noted["leavesFor"], "written down before it is done"
        assert world.status().get("restarts", []) == []
        world.cluster.delete = delete
        world.own()
        del world.cluster.one(kinds.CONFIG_MAP, LIVE)["data"]["broker-1.yaml"]
        await world.until_quiet()
        assert world.status().get("restarts", []) == [], "it is asked for no more"
        del world.cluster.objects["Pod", "ns", "orders-1"]
        await world.until_quiet()
        (found,) = entries(world.status())
        assert found[:3] == ("orders-1", "Replaced", "unknown")

    asyncio.run(test())


async def begun() -> UpgradeWorld:
    world = UpgradeWorld(replicas=2, upgrade={"soakTime": 6, "deadline": 12})
    await world.running()
    world.cluster.all_writes = 0
    return world


async def upgrade(world: UpgradeWorld, *, is_bad: bool) -> None:
    """Have another version; try it again if it fails; then change a setting."""
    if is_bad:
        world.cluster.bad_images.add(NEW)
    end = "RolledBack" if is_bad else "Complete"
    world.put(version="1.1.0")
    await world.until_stage(end)
    await world.turns(3)
    if is_bad:
        world.annotations[maintenance.ANNOTATION_RETRY] = "again"
        world.put()
        await world.until_stage("Canary")
        await world.until_stage(end)
        await world.turns(3)
    world.put(podLabels={"team": "orders"})
    await world.until(
        lambda: [p["metadata"]["labels"].get("team") for p in world.pods()] == ["orders"] * 2
    )
    await world.turns(3)


UPGRADES = {
    False: [
        *(("orders-0", "SettingsChanged"), ("orders-0", "Upgrade")),
        *(("orders-1", "SettingsChanged"), ("orders-1", "Upgrade")),
    ],
    True: [
        *(("orders-0", "SettingsChanged"), ("orders-1", "SettingsChanged")),
        *(("orders-1", "Rollback"), ("orders-1", "Upgrade")),
        *(("orders-1", "Rollback"), ("orders-1", "Upgrade")),
    ],
}


@pytest.mark.verify
@pytest.mark.parametrize("is_bad", [False, True])
def test_upgrades_have_their_reason_whichever_write_was_the_operators_last(is_bad: bool) -> None:
    async def test() -> None:
        first = await begun()
        whole = first.copied()
        await upgrade(whole, is_bad=is_bad)
        found = entries(whole.status())
        assert [entry[:2] for entry in found] == UPGRADES[is_bad]
        (said,) = {entry[3] for entry in found if entry[1] == "Upgrade"}
        assert said == f"It goes from {OLD} to {NEW}."
        wanted = [entry[:3] for entry in found]
        for at in range(0, whole.cluster.all_writes, 3):
            world = first.copied()
            world.cluster.killed_at, world.cluster.kills_before = at, at % 2 == 0
            await upgrade(world, is_bad=is_bad)
            assert world.killed == 1, f"write {at} was not reached"
            found = entries(world.status())
            assert [e[:3] for e in found] == wanted, f"write {at}: {world.cluster.writes[-4:]}"

    asyncio.run(test())

"""Room on volumes: numbers that stay while little changes, and a sentence when it gets short."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_operator import kinds, volume_space
from vespiary_operator.observation import BrokerAnswer, Space
from vespiary_operator.remote import spaces_of
from vespiary_spec.settings import BrokerSettings
from vespiary_spec.status import BrokerInstance, VolumeStatus
from vespiary_testkit.resize_world import ResizeWorld

GIB = 1024**3
SETTINGS = BrokerSettings()


def space(free: float, inodes: int = 1000, free_inodes: int = 900) -> Space:
    return Space(
        size_bytes=100 * GIB,
        free_bytes=int(free * GIB),
        inodes=inodes,
        free_inodes=free_inodes,
    )


def after(*seen: Space, settings: BrokerSettings = SETTINGS) -> VolumeStatus:
    """Return the status of a volume after a broker has said these things, one after the other."""
    status: VolumeStatus | None = None
    for each in seen:
        numbers: dict[str, Any] = volume_space.steady(status, each, settings)
        status = VolumeStatus(name="large-messages", **numbers)
    assert status is not None
    return status


def said(volume: VolumeStatus, settings: BrokerSettings = SETTINGS) -> str:
    instance = BrokerInstance(name="orders-0", ordinal=0, ready=True, volumes=(volume,))
    found = volume_space.finding([instance], settings)
    return "" if found is None else found[2]


@pytest.mark.parametrize(
    ("seen", "free"),
    [
        ((80, 78, 76, 79), 80),
        ((80, 74.9), 74.9),
        ((80, 76, 74), 74),
        ((16, 14.9), 14.9),  # nearly full begins at 15
        ((14.9, 15.1, 16.9), 14.9),  # and ends at 17
        ((14.9, 17.1), 17.1),
    ],
)
def test_a_number_is_written_anew_in_steps_and_where_it_counts(
    seen: tuple[float, ...], free: float
) -> None:
    assert after(*map(space, seen)).free_bytes == int(free * GIB)


def test_inodes_have_steps_too_and_another_size_is_told_at_once() -> None:
    assert after(space(80), space(80, free_inodes=860)).free_inodes == 900
    assert after(space(80), space(80, free_inodes=850)).free_inodes == 850
    assert after(space(80), space(80, inodes=2000, free_inodes=1901)).free_inodes == 1901
    none = after(space(80, inodes=0, free_inodes=0))
    assert (none.inodes, none.free_inodes) == (0, None)
    silent: dict[str, Any] = volume_space.steady(after(space(80)), None, SETTINGS)
    assert silent["free_bytes"] == 80 * GIB, "a broker that is silent has not lost its room"
    assert volume_space.steady(None, None, SETTINGS) == {}


def test_the_sentence_has_the_numbers_and_what_to_do() -> None:
    assert said(after(space(20))) == ""
    assert said(after(space(14.9))) == (
        "The volume large-messages of orders-0 is nearly full: 14.9 GiB of 100 GiB are free, and "
        "at 10% producers wait (maxDiskUsage). Have consumers take messages, or make "
        "spec.storage.volumes.largeMessages.size larger."
    )
    assert "40 of its 1000 inodes are free" in said(after(space(50, free_inodes=40)))
    own = BrokerSettings(min_disk_free=2 * GIB)
    assert said(after(space(8), settings=own), own) == ""
    assert "below 2 GiB producers wait (minDiskFree)" in said(after(space(6.9), settings=own), own)


def test_what_brokers_say_is_taken_as_far_as_it_can_be_read() -> None:
    good = {"name": "journal", "sizeBytes": 9, "freeBytes": 5, "inodes": 0, "freeInodes": 0}
    assert spaces_of({"items": [good, good | {"freeBytes": -1}]})["journal"].free_bytes == 5
    for bad in (None, [], {}, {"items": 3}, {"items": [{}]}, {"items": [good | {"inodes": "x"}]}):
        assert spaces_of(bad) == {}


def test_a_broker_at_rest_causes_no_writes_and_a_full_one_is_degraded() -> None:
    async def run() -> None:
        world = ResizeWorld()
        remote = world.reconciler._remote
        world.ask(size="1Gi")
        await world.until_quiet()

        async def say(free: float) -> int:
            remote.broker = BrokerAnswer(engine="ASYNCIO", spaces={"journal": space(free)})
            before = world.cluster.all_writes
            await world.look()
            return world.cluster.all_writes - before

        assert await say(80) > 0
        for free in (79, 77, 81, 76, 84):
            assert await say(free) == 0, free
        (journal,) = (v for v in world.status()["brokers"][0]["volumes"] if v["name"] == "journal")
        assert journal["freeBytes"] == 80 * GIB
        assert world.condition("Degraded")[0] == "False"
        assert await say(14) > 0
        state, reason, sentence = world.condition("Degraded")
        assert (state, reason) == ("True", "VolumeNearlyFull")
        assert "journal of orders-0 is nearly full: 14 GiB of 100 GiB are free" in sentence
        assert world.condition("Ready")[0] == "True", "it serves all the same"
        assert await say(15.5) == 0, "it does not flap"
        await say(60)
        assert world.condition("Degraded")[0] == "False"
        assert world.cluster.of(kinds.BROKER)

    asyncio.run(run())

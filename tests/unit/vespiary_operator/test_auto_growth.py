"""Claims that grow by themselves: when, how far, and what is never done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from vespiary_operator import auto_growth, kinds, names
from vespiary_operator.observation import BrokerAnswer, Observed, Space
from vespiary_spec import configuration
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_spec.verification import AioResult, VolumeResult, encode, summarise
from vespiary_testkit.resize_world import ResizeWorld

MIB = 1024**2
GIB = 1024**3
GROWS = {"maxSize": "20Gi", "growthStep": "1Gi"}


def in_world(test: Callable[[ResizeWorld], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(ResizeWorld())

    asyncio.run(run())


def growths(world: ResizeWorld) -> list[str]:
    """Return what Events say of claims that grow by themselves."""
    found = [e for e in world.cluster.of(kinds.EVENT) if e["reason"] == "AutoGrowing"]
    return [
        e["message"] for e in sorted(found, key=lambda e: int(e["metadata"]["resourceVersion"]))
    ]


def asks(world: ResizeWorld, ordinal: int = 0) -> str:
    return str(world.journal(ordinal)["spec"]["resources"]["requests"]["storage"])


def told(pods: dict[str, Space]) -> Callable[[str], Mapping[str, Space]]:
    return lambda pod: {"journal": pods[pod]}


def space(size_bytes: int, free_bytes: int) -> Space:
    return Space(size_bytes=size_bytes, free_bytes=free_bytes, inodes=0, free_inodes=0)


# --- what is done -------------------------------------------------------------------------------


def test_a_claim_grows_in_steps_until_there_is_room_and_nothing_else_changes() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        world.remote.spaces = world.filled(used_bytes=5 * GIB)
        await world.until_quiet()
        before = (world.pod()["metadata"]["uid"], world.stateful_set()["metadata"]["uid"])
        spec = world.cluster.one(kinds.BROKER, "orders")["spec"]
        assert growths(world) == []
        world.remote.spaces = world.filled(used_bytes=9 * GIB)
        await world.until_quiet()
        assert world.journal()["status"]["capacity"]["storage"] == "12Gi"
        assert growths(world) == [
            "The claim journal-orders-0 grows by itself from 10 GiB to 11 GiB, and to 20 GiB at "
            "most (autoGrow): 1008 MiB of 9.98 GiB are free.",
            "The claim journal-orders-0 grows by itself from 11 GiB to 12 GiB, and to 20 GiB at "
            "most (autoGrow): 1.98 GiB of 11 GiB are free.",
        ]
        after = (world.pod()["metadata"]["uid"], world.stateful_set()["metadata"]["uid"])
        assert after == before, "neither the broker nor the StatefulSet was replaced"
        assert world.cluster.one(kinds.BROKER, "orders")["spec"] == spec
        (grown,) = world.volume()["grown"]
        assert grown["message"] == growths(world)[-1]
        assert (grown["fromBytes"], grown["toBytes"]) == (11 * GIB, 12 * GIB)
        assert world.volume()["requestedBytes"] == 10 * GIB
        assert world.volume()["claims"] == "1/1"
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        # Nothing is kept but on the claim: neither another operator nor a lost status changes it.
        del world.cluster.one(kinds.BROKER, "orders")["status"]
        world.restart()
        await world.until_quiet()
        assert asks(world) == "12Gi"
        assert world.volume()["grown"] == [grown]

    in_world(test)


def test_a_claim_does_not_grow_unless_it_is_asked_for() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi")
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "10Gi"
        assert world.condition("Degraded")[1] == "VolumeNearlyFull"
        assert "make spec.storage.volumes.journal.size larger" in world.condition("Degraded")[2]

    in_world(test)


def test_each_claim_grows_by_itself() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", replicas=2, auto_grow=GROWS)
        full = world.filled(used_bytes=9 * GIB)
        empty = world.filled(used_bytes=GIB)
        world.remote.spaces = lambda pod: (full if pod == "orders-1" else empty)(pod)
        await world.until_quiet()
        assert [asks(world, n) for n in (0, 1)] == ["10Gi", "12Gi"]
        assert [g["claim"] for g in world.volume()["grown"]] == ["journal-orders-1"]
        world.ask(size="10Gi", replicas=3, auto_grow=GROWS)
        await world.until_quiet()
        assert asks(world, 2) == "10Gi", "a new broker begins with what was asked for"

    in_world(test)


def test_it_ends_at_the_largest_size_and_says_so_while_room_is_short() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="1Gi", auto_grow={"maxSize": "2500Mi"})
        world.remote.spaces = world.filled(used_bytes=2484 * MIB - 300 * MIB)
        await world.until_quiet()
        assert asks(world) == "2500Mi", "the last step is as small as it has to be"
        state, reason, message = world.condition("VolumesSized")
        assert (state, reason) == ("False", "MaxSizeReached")
        assert message == (
            "The claim journal-orders-0 has reached the 2.44 GiB that it grows to by itself, and "
            "its room is short again. Have consumers take messages, or make "
            "spec.storage.volumes.journal.autoGrow.maxSize larger."
        )
        assert world.volume()["message"] == message
        warned = [e for e in world.cluster.of(kinds.EVENT) if e["reason"] == "MaxSizeReached"]
        assert [e["type"] for e in warned] == ["Warning"]
        assert "grows by itself to 2.44 GiB at most" in world.condition("Degraded")[2]
        # Twenty percent have to be free; it is no longer short with two more.
        world.remote.spaces = world.filled(used_bytes=2484 * MIB * 79 // 100)
        await world.until_quiet()
        assert world.condition("VolumesSized")[1] == "MaxSizeReached", "it does not flap"
        world.remote.spaces = world.filled(used_bytes=2484 * MIB * 77 // 100)
        await world.until_quiet()
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        world.remote.spaces = world.filled(used_bytes=2484 * MIB * 79 // 100)
        await world.until_quiet()
        assert world.condition("VolumesSized")[1] == "AsAsked", "nor in the other direction"
        world.remote.spaces = world.filled(used_bytes=2400 * MIB)
        world.ask(size="1Gi", auto_grow={"maxSize": "20Gi"})
        await world.until_quiet()
        assert world.condition("VolumesSized")[1] == "AsAsked"
        assert asks(world) == "3524Mi"

    in_world(test)


@pytest.mark.parametrize(
    ("storage_class", "why"),
    [
        (
            "fixed",
            "its storage class fixed does not allow it. Set allowVolumeExpansion: true there, if "
            "its driver can, or take autoGrow out.",
        ),
        (
            "gone",
            "its storage class gone does not exist. Only a class with allowVolumeExpansion lets "
            "claims grow: take autoGrow out.",
        ),
    ],
)
def test_a_class_that_cannot_grow_is_named_before_room_is_short(
    storage_class: str, why: str
) -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", storage_class="online", auto_grow=GROWS)
        await world.until_quiet()
        world.journal()["spec"]["storageClassName"] = storage_class
        await world.until_quiet()
        state, reason, message = world.condition("VolumesSized")
        assert (state, reason) == ("False", "GrowthRefused")
        assert message == (
            "The claim journal-orders-0 cannot grow by itself, as "
            f"spec.storage.volumes.journal.autoGrow asks: {why}"
        )
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "10Gi"

    in_world(test)


def test_a_growth_that_fails_is_not_followed_by_another_and_can_be_bounded() -> None:
    async def test(world: ResizeWorld) -> None:
        allowed = {"maxSize": "50Gi", "growthStep": "10Gi"}
        world.ask(size="10Gi", storage_class="stuck", auto_grow=allowed)
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "20Gi"
        assert len(growths(world)) == 1
        state, reason, message = world.condition("VolumesSized")
        assert (state, reason) == ("False", "GrowthFailed")
        assert "no more room in the pool" in message
        assert "Make autoGrow.maxSize less" in message
        allowed["maxSize"] = "15Gi"
        world.ask(size="10Gi", storage_class="stuck", auto_grow=allowed)
        await world.until_quiet()
        assert asks(world) == "15Gi"
        assert "GrowthTakenBack" in {e["reason"] for e in world.cluster.of(kinds.EVENT)}

    in_world(test)


def test_a_claim_on_its_way_to_a_size_of_the_broker_is_asked_for_nothing_else() -> None:
    async def test(world: ResizeWorld) -> None:
        allowed = {"maxSize": "50Gi", "growthStep": "10Gi"}
        world.ask(size="10Gi", storage_class="stuck", auto_grow=allowed)
        await world.until_quiet()
        world.ask(size="12Gi", storage_class="stuck", auto_grow=allowed)
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "12Gi"
        assert growths(world) == []

    in_world(test)


def test_a_growth_that_fails_holds_up_no_replacement_of_the_stateful_set() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", storage_class="stuck", auto_grow=GROWS)
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert world.condition("VolumesSized")[1] == "GrowthFailed"
        before, pod = world.stateful_set()["metadata"]["uid"], world.pod()["metadata"]["uid"]
        world.stateful_set()["spec"]["serviceName"] = "other"
        await world.until_quiet()
        assert world.stateful_set()["metadata"]["uid"] != before
        assert world.pod()["metadata"]["uid"] == pod

    in_world(test)


def test_a_filesystem_that_grows_at_rest_has_its_broker_restarted_for_each_growth() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", storage_class="offline", replicas=2, auto_grow=GROWS)
        world.remote.spaces = world.filled(used_bytes=7 * GIB)
        await world.until_quiet()
        for used in (8500, 9500):
            world.cluster.writes.clear()
            world.remote.spaces = world.filled(used_bytes=used * MIB)
            await world.until_quiet()
            deleted = [write for write in world.cluster.writes if write.startswith("delete Pod")]
            assert sorted(deleted) == ["delete Pod/orders-0", "delete Pod/orders-1"]
        assert [asks(world, n) for n in (0, 1)] == ["12Gi", "12Gi"]
        assert world.condition("VolumesSized")[1] == "AsAsked"

    in_world(test)


def test_a_claim_that_grows_while_another_waits_has_a_clock_of_its_own() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", storage_class="offline", replicas=2, auto_grow=GROWS)
        await world.until_quiet()
        full, empty = world.filled(used_bytes=8500 * MIB), world.filled(used_bytes=GIB)
        world.remote.spaces = lambda pod: (full if pod == "orders-1" else empty)(pod)
        for _ in range(11):
            await world.look()
            world.cluster.settle(steps=1)
            world.pass_time(5)
        world.cluster.writes.clear()
        uid = world.pod(0)["metadata"]["uid"]
        world.remote.spaces = full
        for _ in range(8):  # the first is restarted now, and the other is not: not for a minute
            await world.look()
            world.cluster.settle(steps=3)
            world.pass_time(5)
        assert "delete Pod/orders-1" in world.cluster.writes
        assert world.pod(0)["metadata"]["uid"] == uid
        await world.until_quiet()
        assert world.pod(0)["metadata"]["uid"] != uid

    in_world(test)


def test_restarts_wait_for_a_maintenance_window_and_growth_does_not() -> None:
    async def test(world: ResizeWorld) -> None:
        windows = [{"start": "22:00", "duration": "1h"}]  # the world begins at midnight
        world.ask(size="10Gi", storage_class="offline", auto_grow=GROWS, maintenanceWindows=windows)
        await world.until_quiet()
        uid = world.pod()["metadata"]["uid"]
        world.remote.spaces = world.filled(used_bytes=8500 * MIB)
        await world.until_quiet()
        assert asks(world) == "11Gi"
        assert world.condition("VolumesSized")[1] == "RestartPending"
        assert world.pod()["metadata"]["uid"] == uid
        world.pass_time(22 * 3600)
        await world.until_quiet()
        assert world.pod()["metadata"]["uid"] != uid
        assert world.condition("VolumesSized")[1] == "AsAsked"

    in_world(test)


@pytest.mark.parametrize("how", [{"paused": True}, {"hibernate": True}])
def test_nothing_grows_while_a_broker_is_paused_or_sleeps(how: dict[str, Any]) -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        await world.until_quiet()
        world.ask(size="10Gi", auto_grow=GROWS, **how)
        await world.until_quiet()
        if "hibernate" in how:
            assert not world.cluster.of(kinds.POD)
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "10Gi"
        (name,) = how
        world.ask(size="10Gi", auto_grow=GROWS, **{name: False})
        await world.until_quiet()
        assert asks(world) == "13Gi"

    in_world(test)


def test_a_shared_claim_grows_as_the_volume_that_has_it_says() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        broker = world.cluster.one(kinds.BROKER, "orders")
        broker["spec"]["storage"]["volumes"]["paging"] = {"shareWith": "journal"}
        await world.until_quiet()
        filled = world.filled(used_bytes=9 * GIB)
        world.remote.spaces = lambda pod: {"paging": filled(pod)["journal"], **filled(pod)}
        await world.until_quiet()
        assert asks(world) == "12Gi"
        assert len(growths(world)) == 2

    in_world(test)


# --- beside sizes that people ask for -------------------------------------------------------------


def test_a_larger_size_wins_and_one_in_between_takes_nothing_back() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        world.remote.spaces = world.filled(used_bytes=9900 * MIB)
        await world.until_quiet()
        assert asks(world) == "13Gi"
        world.cluster.writes.clear()
        world.ask(size="11Gi", auto_grow=GROWS)
        await world.until_quiet()
        assert asks(world) == "13Gi"
        assert "apply PersistentVolumeClaim/journal-orders-0" not in world.cluster.writes
        assert world.condition("VolumesSized")[:2] == ("True", "AsAsked")
        assert world.condition("Degraded")[0] == "False"
        (template,) = (
            t
            for t in world.stateful_set()["spec"]["volumeClaimTemplates"]
            if t["metadata"]["name"] == "journal"
        )
        assert template["spec"]["resources"]["requests"]["storage"] == "11Gi"
        world.ask(size="15Gi", auto_grow=GROWS)
        await world.until_quiet()
        assert world.journal()["status"]["capacity"]["storage"] == "15Gi"
        assert "grown" not in world.volume(), "it has what was asked for"
        del world.cluster.one(kinds.BROKER, "orders")["spec"]["storage"]["volumes"]["journal"][
            "autoGrow"
        ]
        world.remote.spaces = world.filled(used_bytes=15000 * MIB)
        await world.until_quiet()
        assert asks(world) == "15Gi", "taken out, it does nothing, and what there is stays"

    in_world(test)


# --- brokers that do not serve, and measures that mislead -----------------------------------------


def looked_at(size_bytes: int, free_bytes: int) -> str:
    """Return what the verification of a pod says of its volumes."""
    volumes = tuple(
        VolumeResult(name=name, filesystem="ext4", size_bytes=size_bytes, free_bytes=free_bytes)
        for name in ("bindings", "journal", "paging", "large-messages")
    )
    return encode(summarise(volumes, AioResult(), engine="ASYNCIO")).decode()


def test_a_broker_that_cannot_start_for_want_of_room_gets_some_once() -> None:
    async def test(world: ResizeWorld) -> None:
        world.cluster.verification = looked_at(9 * GIB, 10 * MIB)
        world.ask(size="10Gi", auto_grow=GROWS)
        await world.until_quiet(is_ready=False)
        assert asks(world) == "11Gi"
        await world.until_quiet(is_ready=False)
        assert asks(world) == "11Gi", "what was seen before it grew does not count again"

    in_world(test)


def test_what_was_seen_before_a_broker_served_does_not_count_when_it_is_away() -> None:
    async def test(world: ResizeWorld) -> None:
        world.cluster.verification = looked_at(9 * GIB, 10 * MIB)
        world.ask(size="10Gi")
        await world.until_quiet()
        status = world.pod()["status"]
        (looked,) = status["initContainerStatuses"]
        looked["state"]["terminated"]["finishedAt"] = "2026-01-01T00:00:10Z"
        away = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T01:00:00Z"}
        status["conditions"] = [away]
        world.ask(size="10Gi", auto_grow=GROWS)
        for _ in range(5):
            await world.look()
        assert asks(world) == "10Gi"
        away["lastTransitionTime"] = "2026-01-01T00:00:05Z"
        await world.look()
        assert asks(world) == "11Gi", "this one never served"

    in_world(test)


def test_no_claim_grows_on_where_its_filesystem_did_not_follow() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        world.remote.spaces = told({"orders-0": space(9 * GIB, 100 * MIB)})
        await world.until_quiet()
        assert asks(world) == "11Gi"
        assert world.condition("VolumesSized")[:2] == ("False", "GrowthRefused")
        assert world.volume()["message"] == (
            "The claim journal-orders-0 has 11 GiB, but its filesystem still has the 9 GiB of "
            "before it grew."
        )

    in_world(test)


def test_a_filesystem_that_is_not_the_claims_alone_is_not_grown_for() -> None:
    async def test(world: ResizeWorld) -> None:
        world.ask(size="10Gi", auto_grow=GROWS)
        world.remote.spaces = told({"orders-0": space(900 * GIB, 10 * GIB)})
        await world.until_quiet()
        assert asks(world) == "10Gi"
        assert world.condition("VolumesSized")[:2] == ("False", "GrowthRefused")
        assert "is not the claim's alone" in world.volume()["message"]

    in_world(test)


@pytest.mark.parametrize("note", ["", "{", '{"toBytes": "much"}', "[]"])
def test_a_note_that_somebody_else_wrote_is_none(note: str) -> None:
    claim = {"metadata": {"annotations": {names.ANNOTATION_GROWN: note}}}
    assert auto_growth.noted(claim) is None


# --- when -----------------------------------------------------------------------------------------


def due(found: Space, allowed: dict[str, Any], **spec: Any) -> int | None:
    """Return what the claim of a journal of 100Gi grows to."""
    volumes = {"journal": {"size": "100Gi", "autoGrow": {"maxSize": "200Gi", **allowed}}}
    broker = Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns"},
            "spec": {"storage": {"volumes": volumes}, **spec},
        }
    )
    pod = {
        "metadata": {"name": "orders-0", "labels": {names.LABEL_ORDINAL: "0"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    answers = {"orders-0": BrokerAnswer(spaces={"journal": found})}
    observed = Observed(broker=broker, pods=(pod,), answers=answers)
    claim = {"metadata": {"name": "journal-orders-0"}}
    growth = auto_growth.outlook(observed, claim, "journal", 0, 100 * GIB).growth
    return None if growth is None else growth.to_bytes // GIB


@pytest.mark.parametrize(
    ("free", "allowed", "spec", "to"),
    [
        (20, {}, {}, None),  # producers wait at 10 %
        (19.9, {}, {}, 125),
        (19.9, {"growthStep": "5Gi"}, {}, 105),
        (19.9, {"growthStep": "500Gi"}, {}, 200),
        (39.9, {"minFreePercent": 40}, {}, 125),
        (40, {"minFreePercent": 40}, {}, None),
        (10.1, {"minFreePercent": 1}, {"config": {"journalFileSize": "10Mi"}}, None),
        (10.001, {"minFreePercent": 1}, {"config": {"journalFileSize": "10Mi"}}, 125),
        (30.1, {}, {"config": {"maxDiskUsage": 80}}, None),
        (29.9, {}, {"config": {"maxDiskUsage": 80}}, 125),
        (15.1, {}, {"config": {"minDiskFree": "5Gi"}}, None),
        (14.9, {}, {"config": {"minDiskFree": "5Gi"}}, 125),
        (9.9, {}, {"config": {"maxDiskUsage": 100}}, 125),
        (29.9, {}, {"perBroker": [{"ordinal": 0, "config": {"maxDiskUsage": 80}}]}, 125),
        (29.9, {}, {"perBroker": [{"ordinal": 1, "config": {"maxDiskUsage": 80}}]}, None),
    ],
)
def test_room_is_short_before_producers_wait(
    free: float, allowed: dict[str, Any], spec: dict[str, Any], to: int | None
) -> None:
    assert due(space(100 * GIB, int(free * GIB)), allowed, **spec) == to


def test_a_volume_without_inodes_grows_too() -> None:
    few = Space(size_bytes=100 * GIB, free_bytes=90 * GIB, inodes=1000, free_inodes=49)
    assert due(few, {}) == 125


@pytest.mark.parametrize(
    ("volumes", "path"),
    [
        ({"journal": {"size": "2Gi", "autoGrow": {"maxSize": "1Gi"}}}, "journal.autoGrow.maxSize"),
        ({"largeMessages": {"autoGrow": {"maxSize": "9Gi"}}}, "largeMessages.autoGrow.maxSize"),
        ({"bindings": {"autoGrow": {"maxSize": "1023Mi"}}}, "bindings.autoGrow.maxSize"),
        ({"jms": {"autoGrow": {"maxSize": "1023Mi"}}}, "jms.autoGrow.maxSize"),
        ({"paging": {"shareWith": "journal", "autoGrow": {"maxSize": "9Gi"}}}, "volumes.paging"),
    ],
)
def test_a_bound_below_the_size_is_refused_without_an_api_server_too(
    volumes: dict[str, Any], path: str
) -> None:
    document = {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns"},
        "spec": {"storage": {"volumes": volumes}},
    }
    with pytest.raises(ConfigError, match=path):
        configuration.from_broker(Broker.from_dict(document))
    for volume in volumes.values():
        volume["autoGrow"]["maxSize"] = "10Gi"
        volume.pop("shareWith", None)
    configuration.from_broker(Broker.from_dict(document))

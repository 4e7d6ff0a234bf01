"""Upgrades against an API server in memory: checks, canary, soak, rollback, and what holds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from vespiary_operator import kinds, maintenance, templates
from vespiary_operator.broker_calls import DrainAnswer
from vespiary_operator.builders import journal_snapshot, settings_map
from vespiary_operator.builders.pod_template import pod_template
from vespiary_operator.observation import BrokerAnswer, Space
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_testkit.upgrade_world import NEW, NEWER, OLD, UpgradeWorld, says

GIB = 1 << 30


def in_world(test: Callable[[UpgradeWorld], Awaitable[None]], **spec: Any) -> None:
    async def run() -> None:
        world = UpgradeWorld(**spec)
        await world.running()
        await test(world)

    asyncio.run(run())


def test_the_first_broker_is_watched_and_the_others_follow_one_by_one() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("Soaking")
        assert world.restarted == ["orders-2"]
        began = world.now
        await world.until_stage("Rolling")
        assert (world.now - began).total_seconds() >= 60
        assert world.restarted == ["orders-2", "orders-1"]
        await world.until_stage("Complete")
        await world.turns(3)
        assert world.restarted == ["orders-2", "orders-1", "orders-0"]
        assert world.stages == ["Checking", "Canary", "Soaking", "Rolling", "Complete"]
        assert world.images() == [NEW] * 3
        assert world.condition("UpToDate")[:2] == ("True", "UpToDate")
        assert world.check_pods() == []
        upgrade = world.upgrade()
        assert (upgrade["fromVersion"], upgrade["toVersion"]) == ("1.0.0", "1.1.0")
        told = [e for e in world.events() if e.startswith("Upgrade")]
        assert sorted(told) == sorted(f"Upgrade{stage}" for stage in world.stages)
        ledger = world.status()["restarts"]
        assert [(r["broker"], r["reason"], r["actor"]) for r in ledger] == [
            (f"orders-{n}", "Upgrade", "vespiary-operator") for n in (0, 1, 2)
        ]
        assert all(r["fromRevision"] != r["toRevision"] for r in ledger)
        writes = len(world.cluster.writes)
        await world.turns(3)
        assert len(world.cluster.writes) == writes, "it is at rest"

    in_world(test)


def test_a_rolling_update_waits_for_health_and_for_nothing_else() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("Complete", seconds=1)
        assert world.stages == ["Checking", "Rolling", "Complete"]
        assert world.restarted == ["orders-2", "orders-1", "orders-0"]

    in_world(test, upgrade={"strategy": "RollingUpdate"})


def test_a_first_broker_that_does_not_start_is_taken_back_and_not_tried_again() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RolledBack")
        await world.turns(30, seconds=60)
        assert world.stages == ["Checking", "Canary", "RollingBack", "RolledBack"]
        assert set(world.restarted) == {"orders-2"}, "the others were never touched"
        assert world.images() == [OLD] * 3
        status, reason, message = world.condition("UpToDate")
        assert (status, reason) == ("False", "RolledBack")
        assert "CrashLoopBackOff" in message
        assert "spec.upgrade.deadline" in message
        assert world.condition("Ready")[0] == "True"
        assert any("delete Pod/orders-2" in write for write in world.cluster.writes)
        assert world.status()["image"] == OLD
        assert world.status()["restarts"][0]["reason"] == "Rollback"
        world.put(version="1.2.0")
        await world.until_stage("Complete")
        assert world.images() == [NEWER] * 3

    in_world(test, upgrade={"deadline": 30})


def test_what_was_asked_for_before_can_be_asked_for_again_after_a_rollback() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RolledBack")
        world.put(version="1.0.0")
        await world.until(lambda: world.condition("UpToDate")[0] == "True")
        assert world.images() == [OLD] * 3
        world.cluster.bad_images.clear()
        world.put(version="1.1.0")
        await world.until_stage("Complete")
        assert world.images() == [NEW] * 3

    in_world(test, upgrade={"deadline": 30})


def test_a_fenced_journal_is_a_failure_at_once() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.remote.by_image[NEW] = BrokerAnswer(journal_failed_reason="EIO in file 3")
        world.put(version="1.1.0")
        await world.until_stage("RolledBack", seconds=1)
        assert "EIO in file 3" in world.condition("UpToDate")[2]

    in_world(test)


def test_a_broker_that_serves_nobody_is_taken_back_at_the_end_of_its_soak_time() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.remote.by_image[NEW] = BrokerAnswer(messages_in=5)
        world.put(version="1.1.0")
        await world.until_stage("Soaking")
        world.remote.by_image[NEW] = BrokerAnswer(messages_in=500, messages_out=50)
        await world.until_stage("RolledBack")
        assert "none was acknowledged" in world.condition("UpToDate")[2]

    async def start() -> None:
        world = UpgradeWorld()
        world.remote.broker = BrokerAnswer(uptime_s=60, messages_acknowledged=6000)
        await world.running()
        await test(world)

    asyncio.run(start())


def test_a_failure_of_a_later_broker_takes_all_of_them_back() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until(lambda: world.restarted == ["orders-2", "orders-1"])
        world.remote.by_image[NEW] = BrokerAnswer(not_ready_reason="it reads its journal")
        await world.until_stage("RolledBack")
        assert world.images() == [OLD] * 3
        assert world.restarted.count("orders-0") == 0

    in_world(test, upgrade={"deadline": 30})


@pytest.mark.parametrize("is_status_lost", [False, True])
def test_a_rollback_goes_on_from_the_cluster_alone(is_status_lost: bool) -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("RollingBack")
        if is_status_lost:
            world.cluster.one(kinds.BROKER, "orders")["status"] = {}
        world.start_operator()
        await world.until_stage("RolledBack")
        assert world.images() == [OLD] * 3

    in_world(test, upgrade={"deadline": 30})


def test_a_version_that_does_not_read_the_files_is_refused_and_nothing_changes() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(2,))
        before = world.cluster.one(kinds.STATEFUL_SET, "orders")["metadata"]["generation"]
        world.put(version="1.1.0")
        await world.until_stage("Refused")
        await world.turns(5)
        status, reason, message = world.condition("UpToDate")
        assert (status, reason) == ("False", "FormatUnreadable")
        assert "1.1.0" in message
        assert "format 2" in message
        after = world.cluster.one(kinds.STATEFUL_SET, "orders")["metadata"]["generation"]
        assert (before, world.restarted, world.images()) == (after, [], [OLD] * 3)
        assert world.check_pods() == []

    in_world(test)


def test_a_downgrade_is_taken_where_the_older_version_reads_the_files() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.0.0")
        await world.until_stage("Complete")
        assert world.images() == [OLD] * 3

    in_world(test, version="1.1.0")


def test_a_format_change_needs_a_word_and_copies_the_journals() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        world.put(version="1.1.0")
        await world.until_stage("Refused")
        assert world.condition("UpToDate")[1] == "FormatChange"
        assert "allowFormatChange" in world.condition("UpToDate")[2]
        world.put(upgrade={"allowFormatChange": True})
        await world.until_stage("Soaking")
        assert world.upgrade()["formatChange"] is True
        template = world.cluster.one(kinds.STATEFUL_SET, "orders")["spec"]["template"]
        containers = [c["name"] for c in template["spec"]["initContainers"]]
        assert containers == ["verify", journal_snapshot.CONTAINER]
        await world.until_stage("Complete")
        assert world.condition("UpToDate")[1] == "UpToDate", "the copy is no newer template"
        world.put(version="1.0.0")
        await world.until_stage("Refused")
        assert "Version 1.0.0 reads journal files of format 1" in world.condition("UpToDate")[2]

    in_world(test)


def test_a_copy_that_has_no_room_is_not_begun() -> None:
    async def test(world: UpgradeWorld) -> None:
        def says_free(free_bytes: int) -> None:
            spaces = {
                "journal": Space(size_bytes=GIB, free_bytes=free_bytes, inodes=0, free_inodes=0)
            }
            world.remote.broker = replace(world.remote.broker, spaces=spaces)

        says_free(GIB * 2 // 5)  # 55 % are files, 5 % are kept for root
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        world.put(version="1.1.0")
        await world.turns(6)
        assert (world.upgrade()["stage"], world.restarted) == ("Checking", [])
        status, reason, sentence = world.condition("UpToDate")
        assert (status, reason) == ("False", "NoRoomForCopy")
        assert "journal of orders-0 has no room" in sentence
        assert "563 MiB are used and 410 MiB free" in sentence
        assert "spec.storage.volumes.journal.size" in sentence
        says_free(GIB // 2)
        await world.until_stage("Soaking")

    in_world(test, upgrade={"allowFormatChange": True})


def test_a_version_that_copies_nothing_needs_no_room_for_it() -> None:
    async def test(world: UpgradeWorld) -> None:
        spaces = {"journal": Space(size_bytes=GIB, free_bytes=GIB // 9, inodes=0, free_inodes=0)}
        world.remote.broker = replace(world.remote.broker, spaces=spaces)
        world.put(version="1.1.0")
        await world.until_stage("Complete")
        assert world.images() == [NEW] * 3

    in_world(test)


def test_a_format_change_that_fails_stands_still_once_the_journal_was_opened() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        world.cluster.bad_images.add(NEW)
        world.put(version="1.1.0")
        await world.until_stage("Halted")
        await world.turns(10, seconds=60)
        assert world.restarted == ["orders-2"]
        assert world.images() == [OLD, OLD, NEW]
        assert world.condition("Degraded")[:2] == ("True", "UpgradeHalted")
        assert "restore" in world.condition("Degraded")[2]
        world.cluster.bad_images.clear()
        world.cluster.compatibility[NEWER] = says("1.2.0", writes=2, reads=(1, 2))
        world.put(version="1.2.0")
        await world.until_stage("Complete")
        assert world.images() == [NEWER] * 3

    in_world(test, upgrade={"deadline": 30, "allowFormatChange": True})


def test_the_others_wait_for_a_word_when_supervised() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("AwaitingApproval")
        await world.turns(20, seconds=60)
        assert world.restarted == ["orders-2"]
        assert world.upgrade()["revision"] in world.condition("UpToDate")[2]
        world.annotations[maintenance.ANNOTATION_APPROVE] = "another"
        world.put()
        await world.turns(3)
        assert world.stage() == "AwaitingApproval"
        world.annotations[maintenance.ANNOTATION_APPROVE] = world.upgrade()["revision"]
        world.put()
        await world.until_stage("Complete")

    in_world(test, upgrade={"strategy": "Supervised"})


def test_nobody_is_restarted_while_the_strategy_is_paused() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.turns(5)
        assert world.stage() == "Checking"
        assert world.condition("UpToDate")[1] == "RestartsHeld"
        world.put(version="1.0.0", podLabels={"a": "b"})
        await world.turns(5)
        assert world.restarted == []
        assert "strategy is Paused" in world.condition("UpToDate")[2]
        world.put(upgrade={"strategy": "Canary"})
        await world.until(lambda: world.condition("UpToDate")[0] == "True")
        assert world.restarted == ["orders-2", "orders-1", "orders-0"]
        assert {r["reason"] for r in world.status()["restarts"]} == {"SettingsChanged"}

    in_world(test, upgrade={"strategy": "Paused"})


def test_a_pause_by_annotation_stops_an_upgrade_where_it_stands() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("Soaking")
        world.annotations[maintenance.ANNOTATION_PAUSED] = "true"
        world.put()
        writes = len([w for w in world.cluster.writes if "Event" not in w])
        await world.turns(30, seconds=60)
        assert len([w for w in world.cluster.writes if "Event" not in w]) == writes
        assert world.condition("Paused")[0] == "True"
        assert world.stage() == "Soaking"
        world.annotations.clear()
        world.put()
        await world.until_stage("Complete")

    in_world(test)


def test_restarts_wait_for_a_maintenance_window() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.turns(10)
        assert world.restarted == []
        assert "2026-11-23T05:00:00Z" in world.condition("UpToDate")[2]
        await world.until_stage("Complete", seconds=120)
        assert world.now.hour == 5

    windows = [{"start": "06:00", "duration": 7200, "timeZone": "Europe/Berlin"}]
    in_world(test, maintenanceWindows=windows)


def test_a_newer_operator_restarts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from vespiary_operator.builders import statefulset

    render = statefulset.pod_template

    def newer(*arguments: Any, **named: Any) -> dict[str, Any]:
        found = render(*arguments, **named)
        found["spec"]["containers"][0]["command"].append("--new-option")
        return found

    def commands(world: UpgradeWorld) -> set[str]:
        return {pod["spec"]["containers"][0]["command"][-1] for pod in world.pods()}

    async def test(world: UpgradeWorld) -> None:
        monkeypatch.setattr(statefulset, "pod_template", newer)
        writes = len(world.cluster.writes)
        await world.turns(3)
        assert [w for w in world.cluster.writes[writes:] if "Event" not in w] == []
        assert world.condition("UpToDate")[:2] == ("True", "TemplatePending")
        assert b'template_pending{broker="orders",namespace="ns"} 1.0' in world.metrics.text()
        world.put(replicas=2)
        await world.turns(3)
        assert commands(world) == {"--json"}
        world.put(podLabels={"a": "b"})
        await world.until(lambda: world.condition("UpToDate")[1] == "UpToDate")
        assert commands(world) == {"--new-option"}
        assert b'template_pending{broker="orders",namespace="ns"} 0.0' in world.metrics.text()

    async def at_once(world: UpgradeWorld) -> None:
        world.put(upgrade={"adoptOperatorTemplate": "Always"})
        await world.until(lambda: commands(world) == {"--new-option"})

    in_world(test)
    in_world(at_once)


def test_an_edit_of_the_statefulset_is_put_back_to_what_was_kept() -> None:
    async def test(world: UpgradeWorld) -> None:
        found = world.cluster.one(kinds.STATEFUL_SET, "orders")
        found["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
        found["metadata"]["generation"] += 1
        await world.turns(3)
        found = world.cluster.one(kinds.STATEFUL_SET, "orders")
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == OLD
        assert world.restarted == []

    in_world(test)


def test_an_image_that_cannot_be_pulled_changes_nothing() -> None:
    async def test(world: UpgradeWorld) -> None:
        world.put(image="vespiary/broker:none")
        await world.turns(10)
        assert world.stage() == "Checking"
        assert "ImagePullBackOff" in world.condition("UpToDate")[2]
        assert world.restarted == []
        world.put(image=NEW)
        await world.until_stage("Complete")
        assert world.check_pods() == []

    in_world(test)


def test_a_first_image_that_never_ran_is_replaced_without_a_check_of_it() -> None:
    async def run() -> None:
        world = UpgradeWorld(image="vespiary/broker:none")
        world.cluster.missing_images.add("vespiary/broker:none")
        await world.turns(3)
        world.put(image=NEW)
        await world.until_stage("Complete")
        assert world.images() == [NEW] * 3

    asyncio.run(run())


def test_no_version_comes_while_a_broker_is_drained_or_the_statefulset_replaced() -> None:
    async def drained(world: UpgradeWorld) -> None:
        world.put(version="1.1.0", replicas=2)
        await world.turns(10)
        assert (world.restarted, world.stage()) == ([], "Checking")
        assert "orders-2 cannot be drained" in world.condition("UpToDate")[2]
        world.remote.drains["orders-2"] = DrainAnswer(phase="drained")
        await world.until_stage("Complete")
        assert world.restarted == ["orders-1", "orders-0"]

    async def replaced(world: UpgradeWorld) -> None:
        world.put(version="1.1.0")
        await world.until_stage("Soaking")
        found = world.cluster.one(kinds.STATEFUL_SET, "orders")
        found["spec"]["serviceName"], uid = "other", found["metadata"]["uid"]
        while world.stage() != "Complete":
            assert "operation" not in world.status(), "one thing after the other"
            assert world.cluster.one(kinds.STATEFUL_SET, "orders")["metadata"]["uid"] == uid
            await world.turn()
        await world.turns(10)
        found = world.cluster.one(kinds.STATEFUL_SET, "orders")
        assert found["spec"]["serviceName"] == "orders-headless"
        assert found["metadata"]["uid"] != uid
        assert world.restarted == ["orders-2", "orders-1", "orders-0"]
        assert (world.stage(), world.condition("UpToDate")[1]) == ("Complete", "UpToDate")

    in_world(drained, storage={"ephemeral": True})
    in_world(replaced)


def test_fields_that_no_template_depends_on_ask_for_no_other_pods() -> None:
    head = {
        "apiVersion": API_VERSION,
        "kind": "Broker",
        "metadata": {"name": "orders", "namespace": "ns"},
    }
    plain = Broker.from_dict(head)
    values: dict[str, Any] = {
        "brokerServices": {"type": "LoadBalancer"},
        "disruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": True},
        "scaleDown": {"force": True},
        "service": {"type": "NodePort"},
        "replicas": 3,
    }
    for name, value in values.items():
        other = Broker.from_dict({**head, "spec": {name: value}})
        assert other.spec != plain.spec
        assert settings_map.config_map(other) == settings_map.config_map(plain), name
        template = [
            pod_template(broker, image=OLD, pull_policy="Always", config_map="c")
            for broker in (plain, other)
        ]
        assert template[0] == template[1], name
        assert templates.revision_of(other, OLD) == templates.revision_of(plain, OLD), name

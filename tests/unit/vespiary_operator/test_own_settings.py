"""Settings of one broker alone: its own file, its own restart, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_operator import kinds
from vespiary_operator.builders import pod_template, settings_map
from vespiary_spec.resources import API_VERSION, Broker
from vespiary_testkit.own_world import LIVE, OwnWorld


def broker(*entries: dict[str, Any], **spec: Any) -> Broker:
    metadata = {"name": "orders", "namespace": "ns", "uid": "u"}
    whole = {**spec, "perBroker": list(entries)}
    return Broker.from_dict(
        {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": whole}
    )


FEW = {"ordinal": 1, "config": {"journalMinFiles": 5}}
LOUD = {"ordinal": 1, "config": {"logLevel": "debug"}}


def test_each_broker_finds_the_file_of_its_number_and_the_template_stays() -> None:
    plain, own = broker(), broker(FEW, {"ordinal": 3, "config": {"logLevel": "debug"}})
    assert settings_map.live_map(own)["data"].keys() == {
        "live.yaml",
        "broker-1.yaml",
        "broker-3.yaml",
    }
    assert settings_map.live_map(own)["data"]["broker-1.yaml"] == "journal-min-files: 5\n"
    assert settings_map.config_map(own) == settings_map.config_map(plain)
    made = [
        pod_template.pod_template(each, image="i", pull_policy="Never", config_map="c")
        for each in (plain, own)
    ]
    assert made[0] == made[1], "no other pod is touched"
    env = {e["name"]: e for e in made[0]["spec"]["containers"][0]["env"]}
    assert env["VESPIARY_OWN_CONFIG"]["value"] == pod_template.own_path(7).replace(
        "7", "$(VESPIARY_ORDINAL)"
    )
    assert list(env)[:2] == ["VESPIARY_ORDINAL", "VESPIARY_OWN_CONFIG"], "in the order of use"


def test_settings_of_one_broker_restart_it_alone_and_go_back() -> None:
    async def run() -> None:
        world = OwnWorld()
        world.own()
        await world.until_quiet()
        first = world.uids()
        world.own(FEW)
        await world.until_quiet()
        second = world.uids()
        assert second[0] == first[0]
        assert second[1] != first[1]
        assert world.condition("ConfigApplied")[:2] == ("True", "Applied")
        (record,) = world.status()["restarts"]
        assert (record["broker"], record["reason"]) == ("orders-1", "Restarted")
        assert record["actor"] == "vespiary-operator"
        assert "journal-min-files" in record["message"]
        world.own(LOUD)
        del world.cluster.one(kinds.CONFIG_MAP, LIVE)["data"]["broker-1.yaml"]
        await world.until_quiet()
        third = world.uids()
        assert third[0] == first[0]
        assert third[1] != second[1], "back to the files that all have"
        world.own()
        del world.cluster.one(kinds.CONFIG_MAP, LIVE)["data"]["broker-1.yaml"]
        await world.until_quiet()
        assert world.uids() == third, "the level of the log needs no restart, nor does its way back"

    asyncio.run(run())


def test_a_restart_waits_for_its_window_and_for_brokers_that_are_away() -> None:
    async def run() -> None:
        world = OwnWorld()
        world.own()
        await world.until_quiet()
        first = world.uids()
        world.own(FEW, upgrade={"strategy": "Paused"})
        for _ in range(8):
            await world.look()
            world.cluster.settle(steps=3)
        state, reason, sentence = world.condition("ConfigApplied")
        assert (state, reason) == ("False", "RestartPending")
        assert "orders-1 has to be started again for journal-min-files" in sentence
        assert "spec.upgrade.strategy is Paused" in sentence
        assert world.uids() == first
        del world.cluster.one(kinds.BROKER, "orders")["spec"]["upgrade"]
        world.pod(0)["status"]["conditions"] = []
        for _ in range(5):
            await world.look()
        assert world.uids() == first, "the other one does not serve"

    asyncio.run(run())


def test_a_broker_of_before_says_nothing_of_its_own_file() -> None:
    async def run() -> None:
        world = OwnWorld()
        world.remote.is_old = True
        world.own()
        await world.until_quiet()
        assert world.condition("ConfigApplied")[1] == "Applied"
        world.own(FEW)
        for _ in range(8):
            await world.look()
            world.cluster.settle(steps=3)
        state, reason, sentence = world.condition("ConfigApplied")
        assert (state, reason) == ("False", "Unsupported")
        assert "orders-1" in sentence

    asyncio.run(run())


@pytest.mark.parametrize(
    ("entry", "spec", "said"),
    [
        (
            {"ordinal": 0, "config": {"journalFileSize": "512Ki"}},
            {"config": {"journalBufferSize": "1Mi"}},
            "spec.perBroker[0].config.journalBufferSize: one record has to fit",
        ),
        (
            {"ordinal": 0, "config": {"maxQueues": 1}},
            {"addresses": [{"name": "a", "queues": [{"name": "a"}, {"name": "b"}]}]},
            "spec.perBroker[0].config.maxQueues",
        ),
    ],
)
def test_what_contradicts_the_settings_of_all_is_named(
    entry: dict[str, Any], spec: dict[str, Any], said: str
) -> None:
    async def run() -> None:
        world = OwnWorld()
        world.own(entry, **spec)
        await world.look()
        assert world.condition("Ready")[1] == "InvalidConfiguration"
        assert said in world.condition("Ready")[2]

    asyncio.run(run())

"""`kubectl vespiary upgrade` beside an operator in memory: what it says is what then happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from vespiary_operator import kinds
from vespiary_operator.kubectl.program import program
from vespiary_testkit.upgrade_world import NEW, OLD, UpgradeWorld, says


class WorldApi:
    """The API server of an `UpgradeWorld`, as the plugin sees it.

    Attributes:
        tried: Patches that were to be checked alone.
        patches: Patches that were to be kept.
    """

    namespace = "ns"

    def __init__(self, world: UpgradeWorld) -> None:
        self.world = world
        self.tried: list[Any] = []
        self.patches: list[Any] = []

    def get(self, path: str, accept: str = "application/json", **query: str) -> bytes:
        assert path.endswith("/brokers/orders")
        return json.dumps(self.world.cluster.one(kinds.BROKER, "orders")).encode()

    def merge(self, path: str, body: Any, *, is_tried: bool = False) -> None:
        found = self.world.cluster.one(kinds.BROKER, "orders")
        assert body["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
        (self.tried if is_tried else self.patches).append(body)
        if is_tried:
            return
        for name, value in body["metadata"].get("annotations", {}).items():
            if value is None:
                del self.world.annotations[name]
            else:
                self.world.annotations[name] = value
        self.world.put(**body.get("spec", {}))

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(program, ["upgrade", "orders", *arguments], obj=lambda *_: self)

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("-o", "json").output)
        return found

    def good(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.output


def in_world(test: Callable[[UpgradeWorld, WorldApi], Awaitable[None]], **spec: Any) -> None:
    async def run() -> None:
        world = UpgradeWorld(**spec)
        await world.running()
        await test(world, WorldApi(world))

    asyncio.run(run())


def test_an_upgrade_is_started_watched_approved_and_complete() -> None:
    async def test(world: UpgradeWorld, api: WorldApi) -> None:
        assert "has had no upgrade" in api.good()
        said = api.good("--to", "1.1.0", "--dry-run")
        assert "orders goes from" in said
        assert "orders-2 is the first, and is watched for 60 s." in said
        assert "Then it waits for --approve" in said
        assert "would be changed (dry run)" in said
        assert (len(api.tried), api.patches) == (1, [])
        api.good("--to", "1.1.0")
        assert api.patches == api.tried
        await world.until_stage("Soaking")
        found = api.shown()
        assert (found["stage"], found["good"], found["canary"]) == ("Soaking", True, "orders-2")
        states = {gate["stage"]: gate["state"] for gate in found["gates"]}
        assert states == {
            "Checking": "passed",
            "Canary": "passed",
            "Soaking": "now",
            "AwaitingApproval": "waits",
            "Rolling": "waits",
            "Complete": "waits",
        }
        assert api.run("--approve").exit_code == 1, "nothing waits for it yet"
        await world.until_stage("AwaitingApproval")
        assert api.shown()["next"].startswith("kubectl vespiary -n ns upgrade orders --approve")
        assert "The other brokers get 1.1.0" in api.good("--approve")
        await world.until_stage("Complete")
        text = api.good()
        assert "1.0.0 -> 1.1.0" in text
        assert {gate["state"] for gate in api.shown()["gates"]} == {"passed"}
        assert world.images() == [NEW] * 3

    in_world(test, upgrade={"strategy": "Supervised"})


def test_a_version_that_failed_is_bad_and_can_be_tried_again_or_left() -> None:
    async def test(world: UpgradeWorld, api: WorldApi) -> None:
        assert api.run("--retry").exit_code == 1
        assert api.run("--back").exit_code == 1, "there is nothing before"
        world.cluster.bad_images.add(NEW)
        api.good("--to", "1.1.0")
        await world.until_stage("RolledBack")
        done = api.run()
        assert done.exit_code == 1
        assert "1.1.0 was taken back" in done.output
        assert "upgrade orders --retry" in done.output
        again = api.run("--to", "1.1.0")
        assert (again.exit_code, len(api.patches)) == (1, 1)
        assert "--retry" in again.output
        world.cluster.bad_images.clear()
        api.good("--retry")
        await world.until_stage("Canary")
        api.good("--back")
        assert api.patches[-1]["spec"] == {"version": "1.0.0"}
        await world.until(lambda: world.condition("UpToDate")[0] == "True")
        assert world.images() == [OLD] * 3

    in_world(test, upgrade={"deadline": 30})


def test_an_upgrade_is_paused_and_goes_on() -> None:
    async def test(world: UpgradeWorld, api: WorldApi) -> None:
        assert api.run("--resume").exit_code == 1
        api.good("--to", "1.1.0")
        await world.until_stage("Soaking")
        api.good("--pause")
        assert api.run("--pause").exit_code == 1
        await world.turns(20, seconds=60)
        assert world.stage() == "Soaking"
        found = api.shown()
        assert "vespiary.dev/paused" in found["pausedBy"]
        assert found["next"].endswith("upgrade orders --resume")
        api.good("--resume")
        await world.until_stage("Complete")

    in_world(test)


def test_there_is_no_way_back_once_files_may_have_another_format() -> None:
    async def test(world: UpgradeWorld, api: WorldApi) -> None:
        world.cluster.compatibility[NEW] = says("1.1.0", writes=2, reads=(1, 2))
        world.cluster.bad_images.add(NEW)
        api.good("--to", "1.1.0")
        await world.until_stage("Halted")
        done = api.run()
        assert done.exit_code == 1
        assert "stands still" in done.output
        done = api.run("--back")
        assert done.exit_code == 1
        assert "restore the copy" in done.output

    in_world(test, upgrade={"deadline": 30, "allowFormatChange": True})


def test_an_image_goes_before_a_version() -> None:
    async def test(world: UpgradeWorld, api: WorldApi) -> None:
        done = api.run("--to", "1.1.0")
        assert done.exit_code == 1
        assert "give --image" in done.output
        api.good("--image", NEW)
        await world.until_stage("Complete")
        api.good("--back")
        assert api.patches[-1]["spec"] == {"image": OLD}

    in_world(test, image=OLD)


@pytest.mark.parametrize(
    "arguments",
    [["--to", "1", "--image", "b:1"], ["--to", "1", "--back"], ["--dry-run"], ["--to"]],
)
def test_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(program, ["upgrade", "orders", *arguments]).exit_code == 2

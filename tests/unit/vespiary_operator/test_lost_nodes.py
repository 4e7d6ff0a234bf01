"""A node that is lost: who says so, since when, what to do, and that nothing is forced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from vespiary_operator import kinds
from vespiary_testkit.resize_world import ResizeWorld

SINCE = "2026-01-01T00:10:00Z"


def node(name: str, ready: str) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": ready,
        "lastTransitionTime": SINCE,
        "message": "Kubelet stopped posting node status.",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": [condition]},
    }


async def silent_world(*nodes: dict[str, Any]) -> ResizeWorld:
    """Return a world whose broker was marked as not ready at `SINCE`, 5 s ago."""
    world = ResizeWorld()
    world.ask(size="1Gi", replicas=1)
    await world.until_quiet()
    for found in nodes:
        world.cluster.put(found)
    pod = world.pod()
    pod["spec"]["nodeName"] = "node-7"
    pod["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": SINCE}
    ]
    world.cluster.now = "2026-01-01T00:10:05Z"
    return world


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def lists_of_nodes(world: ResizeWorld) -> int:
    return sum((verb, kind) == ("list", kinds.NODE) for verb, kind, _ in world.cluster.calls)


def test_a_node_that_is_silent_is_named_with_its_time_and_what_to_do() -> None:
    async def test() -> None:
        world = await silent_world(node("node-7", "Unknown"), node("other", "True"))
        await world.look()
        assert world.condition("Ready")[1] != "NodeLost", "a pod may be not ready for a moment"
        assert lists_of_nodes(world) == 0, "and no node is read for it"
        world.pass_time(30)
        await world.look()
        for kind, state in (("Ready", "False"), ("Degraded", "True")):
            found = world.condition(kind)
            assert found[:2] == (state, "NodeLost")
            for words in (
                "orders-0 is on the node node-7, which is not ready since 2026-01-01T00:10:00Z",
                "Kubelet stopped posting node status",
                "node-7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
                "two brokers would write to one volume",
            ):
                assert words in found[2]
        assert "node-7" in world.status()["brokers"][0]["message"]

    run(test)


def test_a_pod_that_never_ends_on_a_node_that_is_gone_is_said_and_never_forced() -> None:
    async def test() -> None:
        world = await silent_world(node("other", "True"))
        world.pod()["metadata"]["deletionTimestamp"] = SINCE
        world.cluster.writes.clear()
        world.pass_time(30)
        for _ in range(5):
            await world.look()
            world.pass_time(600)
        state, reason, message = world.condition("Ready")
        assert (state, reason) == ("False", "NodeLost")
        assert "the node node-7, which the cluster no longer has" in message
        assert "kubectl delete pod orders-0 --force" in message
        assert not any(write.startswith("delete") for write in world.cluster.writes)

    run(test)


def test_a_node_that_is_well_is_not_blamed() -> None:
    async def test() -> None:
        world = await silent_world(node("node-7", "True"))
        world.pass_time(60)
        await world.look()
        assert world.condition("Ready")[1] != "NodeLost"
        assert world.condition("Degraded")[1] != "NodeLost"

    run(test)


def test_an_operator_that_may_not_read_nodes_says_nothing_of_them() -> None:
    async def test() -> None:
        world = await silent_world(node("node-7", "Unknown"))
        world.cluster.forbidden.add("Node")
        world.pass_time(60)
        await world.look()
        assert world.condition("Ready")[:2] == ("False", "Starting")

    run(test)


def test_it_is_well_again_when_the_node_is_back() -> None:
    async def test() -> None:
        world = await silent_world(node("node-7", "Unknown"))
        world.pass_time(60)
        await world.look()
        assert world.condition("Ready")[1] == "NodeLost"
        world.cluster.one(kinds.NODE, "node-7", "")["status"] = node("node-7", "True")["status"]
        world.pod()["status"]["conditions"][0]["status"] = "True"
        await world.look()
        assert world.condition("Ready")[:2] == ("True", "Serving")
        assert world.condition("Degraded")[0] == "False"

    run(test)

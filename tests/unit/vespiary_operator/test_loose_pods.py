"""Pods whose Broker went while nothing held them are ended; every other pod is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vespiary_operator import kinds
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_testkit.resize_world import KEY, ResizeWorld


def in_world(test: Callable[[ResizeWorld], Awaitable[None]]) -> None:
    """Run a test with a Broker of two brokers that serve."""

    async def run() -> None:
        world = ResizeWorld()
        world.ask(size="1Gi", replicas=2)
        await world.until_quiet()
        await test(world)

    asyncio.run(run())


def tell(world: ResizeWorld) -> None:
    """Let the watch of pods say what there is now."""
    for pod in world.cluster.of(kinds.POD):
        world.cache.put(kinds.POD, pod)


def left(world: ResizeWorld) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.cluster.of(kinds.POD)]


def test_a_broker_deleted_while_its_stateful_set_is_replaced_leaves_no_pod_behind() -> None:
    async def test(world: ResizeWorld) -> None:
        claims = world.cluster.of(kinds.CLAIM)
        world.ask(size="2Gi", replicas=2)
        for _ in range(20):
            await world.look()
            if ("StatefulSet", "ns", "orders") not in world.cluster.objects:
                break
            world.cluster.settle(steps=3)
        else:
            pytest.fail("the StatefulSet was never replaced")
        assert left(world) == ["orders-0", "orders-1"]
        world.cluster.remove(kinds.BROKER, "orders")
        tell(world)
        assert await world.look() is None
        assert left(world) == []
        assert [c["metadata"]["uid"] for c in world.cluster.of(kinds.CLAIM)] == [
            c["metadata"]["uid"] for c in claims
        ]

    in_world(test)


def test_pods_that_have_an_owner_are_left_to_it() -> None:
    async def test(world: ResizeWorld) -> None:
        world.cluster.remove(
            kinds.BROKER, "orders", orphans=True
        )  # kubectl delete --cascade=orphan
        tell(world)
        await world.look()
        assert left(world) == ["orders-0", "orders-1"]
        assert world.stateful_set()

    in_world(test)


def test_a_cache_that_lags_ends_no_pod_that_has_an_owner_by_now() -> None:
    async def test(world: ResizeWorld) -> None:
        world.cluster.remove(kinds.STATEFUL_SET, "orders", orphans=True)
        tell(world)
        await world.until_quiet()
        assert world.stateful_set()
        world.cluster.remove(kinds.BROKER, "orders", orphans=True)
        await world.look()
        assert left(world) == ["orders-0", "orders-1"]

    in_world(test)


def test_what_the_api_server_refuses_is_tried_again() -> None:
    async def test(world: ResizeWorld) -> None:
        world.cluster.remove(kinds.STATEFUL_SET, "orders", orphans=True)
        world.cluster.remove(kinds.BROKER, "orders")
        tell(world)
        delete = world.cluster.delete

        async def refuse(*_: object, **__: object) -> None:
            raise ApiRefusedError("no", where="delete pods", status=403)

        world.cluster.delete = refuse  # type: ignore[method-assign]
        with pytest.raises(ApiRefusedError):
            await world.reconciler.reconcile(KEY)
        world.cluster.delete = delete  # type: ignore[method-assign]
        await world.look()
        assert left(world) == []

    in_world(test)

"""Operators that are killed at each of their writes: one run, from which a world forks at each.

All that a killed operator leaves is in the cluster. So the run goes on undisturbed, and every state
that a write found or left is copied; a new operator goes on in each copy. Nothing is run twice up
to the write, and states that are equal are copied once: between two writes of a pass, nothing else
changes.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, Self, TypeVar

from vespiary_testkit.fake_kubernetes import FakeKubernetes


class World(Protocol):
    """What a fork needs of a world."""

    cluster: FakeKubernetes

    def moment(self) -> Any:
        """Return what tells two moments apart."""

    def killed_now(self) -> Self:
        """Return a copy of the world whose operator was killed at this moment."""


W = TypeVar("W", bound=World)


async def interruptions(world: W, run: Awaitable[None]) -> list[W]:
    """Run to the end; return a world for each moment in which the operator could be killed.

    Args:
        world: Where it runs.
        run: What makes the writes.
    """
    forks: list[W] = []
    latest: Any = None

    def fork() -> None:
        nonlocal latest
        moment = world.moment()
        if moment != latest:
            forks.append(world.killed_now())
            latest = moment

    writes = world.cluster.all_writes
    world.cluster.at_write = fork
    await run
    world.cluster.at_write = None
    assert len(forks) > 1, "each scenario writes something"
    assert len(forks) <= 2 * (world.cluster.all_writes - writes)
    return forks

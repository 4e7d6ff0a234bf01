"""Fences for their writers and for administrators: deciding on batches, and looking.

Owns the order of a decision: branches durable, decision durable, commits durable, answer. Must
never hold a rule of its own: `engine.fences` has those. Called by the HTTP API; owner: the event
loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.fences import Fence, StagedTask, fence_and_batch
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.server.cycle import Cycle

_SPACE_S: Final = 1.0
_TRIES: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceState:
    """A fence.

    Attributes:
        name: Its name.
        batch: The highest batch that is decided; -1 for none.
        decided_at_ms: When that was, in milliseconds since 1970; 0 for never.
        pending: Batches that are decided and not all committed yet.
        undecided: Prepared branches that nobody has decided on.
        undecided_s: Age of the oldest of them.
        accepted: The call decided on its batch; false if another one had before.
    """

    name: str
    batch: int
    decided_at_ms: int
    pending: int
    undecided: int
    undecided_s: float
    accepted: bool = True


class Fencing:
    """The calls on fences.

    Args:
        engine: The engine.
        cycle: What all connections share.
    """

    def __init__(self, engine: Engine, cycle: Cycle) -> None:
        self._engine = engine
        self._fences = engine.fences
        self._cycle = cycle
        self._change = asyncio.Lock()

    def names(self) -> list[str]:
        """Return the names of all fences, also of those that have only staged something, sorted."""
        staged = {(fence_and_batch(b.xid) or ("", 0))[0] for b in self._fences.undecided()}
        return sorted(self._fences.by_name.keys() | staged)

    def get(self, name: str) -> FenceState | None:
        """Return the state of a fence, or None if there is none of that name."""
        if name not in self._fences.by_name and not self._fences.undecided(name):
            return None
        return self._state(name)

    def _state(self, name: str, *, accepted: bool = True) -> FenceState:
        fence = self._fences.by_name.get(name)
        undecided = self._fences.undecided(name)
        branches = self._engine.branches
        return FenceState(
            name=name,
            batch=fence.batch if fence else -1,
            decided_at_ms=fence.decided_ms if fence else 0,
            pending=len(fence.pending) if fence else 0,
            undecided=len(undecided),
            undecided_s=max((branches.age_s(branch) for branch in undecided), default=0.0),
            accepted=accepted,
        )

    async def decide(
        self, name: str, batch: int, tasks: tuple[tuple[str, int], ...], *, is_last: bool
    ) -> FenceState:
        """Have the branches of a try committed, if the batch was not decided before.

        Args:
            name: The fence; it is made if it is not there.
            batch: The batch, 0 or more.
            tasks: Names of the tasks that count, and how many branches each has.
            is_last: No other batch comes.

        Raises:
            RemoteProtocolError: A name cannot be one, or a branch is not prepared.
            WriterFailed: A journal has failed.

        Durability: on return the decision survives a power loss, and what could be staged of it
            does: the rest is committed when there is room, or at the next start.
        """
        async with self._change:
            staged = tuple(StagedTask(*task) for task in tasks)
            await self._wait_prepared(name, batch, staged)
            accepted = await self._fences.decide(name, batch, staged, is_last=is_last)
            ended = await self._carry_out()
            state = self._state(name, accepted=accepted)
            for fence in ended:
                await self._fences.remove(fence.name)
        return state

    async def finish(self) -> None:
        """Carry out what was decided before a crash; to be called at the start."""
        async with self._change:
            for fence in await self._carry_out():
                await self._fences.remove(fence.name)

    async def _wait_prepared(self, name: str, batch: int, tasks: tuple[StagedTask, ...]) -> None:
        """Wait until the branches are durable; a decision must never be so before them."""
        fence = self._fences.by_name.get(name)
        if fence is not None and batch <= fence.batch:
            return
        branches = self._engine.branches
        found = self._fences.check(name, batch, tasks)
        while not all(branches.is_durable(branch.xid) for branch in found):
            await self._cycle.durable()

    async def _carry_out(self) -> list[Fence]:
        """Commit what is decided, and wait for it; give up waiting when there is no room.

        Returns:
            The fences that are over.
        """
        for _ in range(_TRIES):
            try:
                self._fences.carry_out()
                break
            except NoRoom:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._cycle.space(), _SPACE_S)
        done = self._fences.carried_out()
        await self._cycle.durable()
        return self._fences.settle(done)

    async def remove(self, name: str) -> None:
        """Forget a fence, and roll back what it has staged and nobody decided.

        Raises:
            RemoteProtocolError: There is none, or what it decided is not committed yet.

        Durability: on return neither comes back after a power loss.
        """
        async with self._change:
            if self.get(name) is None:
                raise RemoteProtocolError(f"there is no fence {name}")
            await self._fences.remove(name)
            await self._cycle.durable()

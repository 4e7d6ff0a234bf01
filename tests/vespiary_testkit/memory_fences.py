"""Fences of a broker in memory, for the HTTP listener's tests.

Owns `MemoryFences`, part of `admin_rig.MemoryBroker`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vespiary_broker.app.fencing import FenceState
from vespiary_spec.errors import RemoteProtocolError


def fence_state(name: str, **changes: Any) -> FenceState:
    """A fence whose last batch is decided, with two branches of the next one."""
    values: dict[str, Any] = {
        "name": name,
        "batch": 7,
        "decided_at_ms": 1_700_000_000_000,
        "pending": 0,
        "undecided": 2,
        "undecided_s": 4.5,
    }
    return FenceState(**values | changes)


class MemoryFences:
    """Fences in a dictionary."""

    def __init__(self) -> None:
        self.states: dict[str, FenceState] = {}
        self.asked: list[tuple[Any, ...]] = []

    def names(self) -> list[str]:
        return sorted(self.states)

    def get(self, name: str) -> FenceState | None:
        return self.states.get(name)

    async def decide(
        self, name: str, batch: int, tasks: tuple[tuple[str, int], ...], *, is_last: bool
    ) -> FenceState:
        self.asked.append((batch, tasks, is_last))
        state = self.states.get(name) or fence_state(name, batch=-1)
        if any(task == "gone" for task, _ in tasks):
            raise RemoteProtocolError(f"batch {batch} of {name} is not prepared whole")
        accepted = batch > state.batch
        self.states[name] = replace(state, batch=max(batch, state.batch), accepted=accepted)
        return self.states[name]

    async def remove(self, name: str) -> None:
        if self.states[name].pending:
            raise RemoteProtocolError(f"what the fence {name} decided is not committed yet")
        del self.states[name]

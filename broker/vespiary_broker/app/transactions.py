"""Branches of distributed transactions for administrators: what is in doubt, and deciding on it.

Owns how their state is gathered, and that a decision is carried out before it is reported. Must
never hold a rule of its own: `engine.branches` has those. Called by the HTTP API; owner: the event
loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vespiary_broker.engine.branches import Branch
from vespiary_broker.engine.xa_states import IN_DOUBT, UNPREPARED
from vespiary_codec.journal.branch import Xid, parse_xid

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.server.cycle import Cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchMembers:
    """What a branch holds in one queue.

    Attributes:
        queue: Name of the queue; `#ID` if there is no such queue.
        added: Messages that it adds.
        acknowledged: Messages that it acknowledges.
    """

    queue: str
    added: int
    acknowledged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchState:
    """A branch that is in doubt or was decided.

    Attributes:
        xid: Its name: format id, global id and branch qualifier.
        state: `prepared`, `quarantined`, or `heuristic-` and the outcome.
        user: Whose it is.
        prepared_at_ms: When it was prepared, in milliseconds since 1970.
        age_s: Seconds since then.
        reason: Why it is in quarantine; empty otherwise.
        members: What it holds, by queue; nothing once it is decided.
    """

    xid: str
    state: str
    user: str
    prepared_at_ms: int
    age_s: float
    reason: str
    members: tuple[BranchMembers, ...]


class TransactionAdministration:
    """Branches for administrators.

    Args:
        engine: The engine.
        cycle: What all connections share.
    """

    def __init__(self, engine: Engine, cycle: Cycle) -> None:
        self._engine = engine
        self._cycle = cycle

    def names(self) -> list[str]:
        """Return the XIDs of branches that are in doubt or decided, sorted."""
        branches = self._engine.branches.all()
        return sorted(str(branch.xid) for branch in branches if branch.state not in UNPREPARED)

    def get(self, name: str) -> BranchState | None:
        """Return the state of a branch; None if none of that XID is in doubt or decided."""
        try:
            branch = self._engine.branches.get(parse_xid(name))
        except ValueError:
            return None
        if branch is None or branch.state in UNPREPARED:
            return None
        return self._state(branch)

    def _state(self, branch: Branch) -> BranchState:
        return BranchState(
            xid=str(branch.xid),
            state=str(branch.state),
            user=branch.user,
            prepared_at_ms=branch.prepared_ms,
            age_s=self._engine.branches.age_s(branch),
            reason=branch.reason,
            members=self._members(branch) if branch.state in IN_DOUBT else (),
        )

    def _members(self, branch: Branch) -> tuple[BranchMembers, ...]:
        added: Counter[int] = Counter()
        acknowledged: Counter[int] = Counter()
        for member in self._engine.core.branch_members(branch.number):
            (acknowledged if member.is_acknowledgement else added)[member.queue_id] += 1
        queues = self._engine.registry.queues_by_id
        return tuple(
            BranchMembers(
                queue=queues[number].name if number in queues else f"#{number}",
                added=added[number],
                acknowledged=acknowledged[number],
            )
            for number in sorted(added.keys() | acknowledged.keys())
        )

    async def decide(self, name: str, *, is_commit: bool) -> BranchState:
        """Commit or roll back a prepared branch without its coordinator.

        Raises:
            XaError: There is no such branch, or it is not prepared.
            WriterFailed: The journal has failed.

        Durability: on return the decision survives a power loss, and what could be staged of its
            outcome does.
        """
        xid = parse_xid(name)
        await self._engine.branches.decide(xid, is_commit=is_commit)
        await self._cycle.durable()
        return self._state(self._branch(xid))

    def _branch(self, xid: Xid) -> Branch:
        branch = self._engine.branches.get(xid)
        assert branch is not None
        return branch

    async def forget(self, name: str) -> None:
        """Forget what was decided on a branch.

        Raises:
            XaError: There is no such branch, or nothing was decided.

        Durability: on return it does not come back after a power loss.
        """
        await self._engine.branches.forget(parse_xid(name))

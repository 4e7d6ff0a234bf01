"""Fences: which of the staged tries of a batch counts, decided once and durably.

Owns the table of fences and what became of their branches. A writer that runs in many tasks stages
each task's messages in prepared branches; a task may run twice, and a batch may be run again after
a crash. Of all these tries one counts: the first that is decided. Called by `app.fencing` and by
the scan for timeouts; owner: the event loop.

The branches of a fence are those with the format id `FORMAT_ID` and the global id `NAME:BATCH`;
the qualifier is `TASK.NUMBER`, numbers from 0 on. A decision names the tasks that count, and how
many branches each has.

    batch above the fence   the decision is written into the bindings, then the branches are
                            committed; after a crash in between the next start commits them
    batch at or below it    was decided before; what this try has staged is rolled back
    no decision             rolled back when a higher batch is decided, after a day, or when the
                            fence is deleted

Durability: the decision is the only thing that counts. It is written when all its branches are
prepared durably, and nobody can end one of them from there on, also not when that write fails: it
may be in the journal all the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vespiary_broker.engine.branches import Branch, Branches
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.ports import Bindings, JsonObject
from vespiary_broker.engine.restoration import reading
from vespiary_broker.engine.xa_states import IN_DOUBT, XaState
from vespiary_codec.journal.branch import PART_BYTES_MAX, Xid
from vespiary_spec.errors import RemoteProtocolError

FENCE_PREFIX: Final = "fence/"
FORMAT_ID: Final = 0x46454E43
"""`FENC`: the format id of branches that belong to a fence."""

NAME_CHARACTERS_MAX: Final = 43
"""With `:` and a batch of up to 20 digits it fits into a global id."""

TASK_CHARACTERS_MAX: Final = 53
"""With `.` and a number of up to 10 digits it fits into a qualifier."""

BATCH_MAX: Final = 2**63 - 1
UNDECIDED_S_MAX: Final = 86_400.0
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
log = logging.getLogger(__name__)


class StagedTask(NamedTuple):
    """A task whose branches count.

    Attributes:
        name: Its name, unique among all tries of all tasks.
        branches: How many it prepared, numbered from 0 on.
    """

    name: str
    branches: int


@dataclass(eq=False, slots=True)
class Fence:
    """One fence.

    Attributes:
        name: Its name, unique in the broker.
        batch: The highest batch that is decided; -1 for none.
        decided_ms: When that was, in milliseconds since 1970.
        is_last: No other batch comes: it goes when all is committed.
        pending: Tasks by batch that were decided and may not be committed durably yet.
    """

    name: str
    batch: int = -1
    decided_ms: int = 0
    is_last: bool = False
    pending: dict[int, tuple[StagedTask, ...]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return f"{FENCE_PREFIX}{self.name}"

    def to_binding(self) -> JsonObject:
        """Return its value in the bindings."""
        return {
            "batch": str(self.batch),
            "decided-ms": self.decided_ms,
            "last": self.is_last,
            "pending": {
                str(batch): [[task.name, task.branches] for task in tasks]
                for batch, tasks in self.pending.items()
            },
        }

    def xids(self) -> Iterator[Xid]:
        """Yield the branches that were decided and may not be committed yet."""
        for batch, tasks in self.pending.items():
            yield from _xids(self.name, batch, tasks)


def _xids(name: str, batch: int, tasks: Iterable[StagedTask]) -> Iterator[Xid]:
    for task in tasks:
        for number in range(task.branches):
            yield branch_xid(name, batch, task.name, number)


def branch_xid(name: str, batch: int, task: str, number: int) -> Xid:
    """Return the XID of a task's branch.

    Args:
        name: The fence.
        batch: The batch, 0 or more.
        task: The task.
        number: Which of its branches, from 0 on.
    """
    return Xid(FORMAT_ID, f"{name}:{batch}".encode(), f"{task}.{number}".encode())


def fence_and_batch(xid: Xid) -> tuple[str, int] | None:
    """Return whose branch it is, and of which batch; None if it belongs to no fence."""
    if xid.format_id != FORMAT_ID:
        return None
    name, _, batch = xid.global_id.decode("ascii", "replace").rpartition(":")
    if not _NAME.fullmatch(name) or not re.fullmatch(r"[0-9]{1,19}", batch):
        return None
    return name, int(batch)


class Fences:
    """The fences of a broker.

    Args:
        branches: Branches of distributed transactions.
        bindings: Where decisions are kept.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(self, branches: Branches, bindings: Bindings, clock_ms: Callable[[], int]) -> None:
        self.by_name: dict[str, Fence] = {}
        self.timed_out = 0
        self._branches = branches
        self._bindings = bindings
        self._clock_ms = clock_ms

    def restore(self) -> None:
        """Take the decisions from the bindings; branches are there. Nobody else ends those decided.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        snapshot = self._bindings.snapshot()
        for key in sorted(snapshot):
            if not key.startswith(FENCE_PREFIX):
                continue
            with reading(key):
                fence = _restored(key.removeprefix(FENCE_PREFIX), snapshot[key])
            self.by_name[fence.name] = fence
            for xid in fence.xids():
                self._hold(xid)

    def _hold(self, xid: Xid) -> None:
        branch = self._branches.get(xid)
        if branch is not None:
            branch.is_being_decided = True

    # --- deciding ---------------------------------------------------------------------------------

    def check(self, name: str, batch: int, tasks: tuple[StagedTask, ...]) -> list[Branch]:
        """Return the branches of a try that can be decided.

        Args:
            name: The fence.
            batch: The batch.
            tasks: The tasks that count.

        Raises:
            RemoteProtocolError: A name cannot be one, or a branch is not prepared.
        """
        check_fence_name(name, "fence", NAME_CHARACTERS_MAX)
        found = []
        for task in tasks:
            check_fence_name(task.name, "task", TASK_CHARACTERS_MAX)
        if len({task.name for task in tasks}) < len(tasks):
            raise RemoteProtocolError(f"a task of batch {batch} of {name} is named twice")
        for xid in _xids(name, batch, tasks):
            branch = self._branches.get(xid)
            if branch is None or branch.state is not XaState.PREPARED:
                state = "not there" if branch is None else f"{branch.state} {branch.reason}".strip()
                raise RemoteProtocolError(
                    f"batch {batch} of {name} is not prepared whole",
                    where=xid.qualifier.decode(),
                    measured=state,
                    cure="run the batch again",
                )
            if branch.is_being_decided:
                raise RemoteProtocolError(
                    f"somebody else decides on batch {batch} of {name}",
                    where=xid.qualifier.decode(),
                    cure="try again in a moment",
                )
            found.append(branch)
        return found

    async def decide(
        self, name: str, batch: int, tasks: tuple[StagedTask, ...], *, is_last: bool = False
    ) -> bool:
        """Decide on a batch, if nobody has yet.

        One decision at a time: the caller sees to that, and to the branches being durable.

        Args:
            name: The fence; it is made if it is not there.
            batch: The batch, 0 or more.
            tasks: The tasks that count, all of them prepared.
            is_last: No other batch comes: forget the fence when all is committed.

        Returns:
            Whether these tasks count; False: the batch was decided before.

        Raises:
            RemoteProtocolError: A name cannot be one, or a branch is not prepared.

        Durability: on return the decision survives a power loss. It is carried out by `carry_out`,
            at the next start otherwise.
        """
        fence = self.by_name.get(name)
        if fence is not None and batch <= fence.batch:
            return False
        for branch in self.check(name, batch, tasks):
            branch.is_being_decided = True
        decided = Fence(name, batch, self._clock_ms(), is_last)
        if fence is not None:
            decided.pending.update(fence.pending)
        decided.pending[batch] = tasks
        await self._bindings.put(decided.key, decided.to_binding())
        self.by_name[name] = decided
        return True

    def carry_out(self) -> bool:
        """Stage what is decided: commits, and the ends of tries that do not count.

        Returns:
            Whether something was staged.

        Raises:
            NoRoom: There is no room in the journal for all of it now; what did fit is staged.

        Durability: none by itself, and none is needed: the decision is durable.
        """
        return self._commit_decided() | self._drop_undecided()

    def tick(self) -> bool:
        """Carry out what there is room for; return whether something may have been staged."""
        try:
            return self.carry_out()
        except NoRoom:
            return True

    def _commit_decided(self) -> bool:
        is_staged = False
        for fence in self.by_name.values():
            for xid in fence.xids():
                is_staged |= self._commit(xid)
        return is_staged

    def _commit(self, xid: Xid) -> bool:
        """Stage the commit of a branch, if that can be done now; return whether it was.

        Raises:
            NoRoom: There is no room in the journal now; nothing was changed.
        """
        branch = self._branches.get(xid)
        if branch is None:
            return False  # committed: nothing else can end it
        if branch.state is not XaState.PREPARED:  # in quarantine: an administrator may decide
            branch.is_being_decided = False
            return False
        if not self._branches.is_durable(xid):
            return False
        branch.is_being_decided = False
        try:
            self._branches.commit(xid, branch.user)
        except NoRoom:
            branch.is_being_decided = True
            raise
        return True

    def carried_out(self) -> list[tuple[Fence, int]]:
        """Return the fences and batches of which every branch has ended, durably or not."""
        return [
            (fence, batch)
            for fence in self.by_name.values()
            for batch, tasks in fence.pending.items()
            if not any(self._branches.get(xid) for xid in _xids(fence.name, batch, tasks))
        ]

    def settle(self, done: Iterable[tuple[Fence, int]]) -> list[Fence]:
        """Forget what `carried_out` returned, and has become durable since.

        A decision must not be forgotten earlier: a crash would bring the branch back, and nobody
        would know that it counts.

        Returns:
            The fences that expect no other batch and have committed all: they can be removed.
        """
        for fence, batch in done:
            fence.pending.pop(batch, None)
        return [fence for fence in self.by_name.values() if fence.is_last and not fence.pending]

    def _drop_undecided(self) -> bool:
        """Roll back what does not count: of decided batches, and what nobody decided in a day.

        Raises:
            NoRoom: There is no room in the journal for all of them now.
        """
        is_staged = False
        for branch in self.undecided():
            name, batch = fence_and_batch(branch.xid) or ("", 0)
            fence = self.by_name.get(name)
            is_late = self._branches.age_s(branch) > UNDECIDED_S_MAX
            is_void = fence is not None and batch <= fence.batch
            if not (is_void or is_late) or not self._branches.is_durable(branch.xid):
                continue
            self._branches.rollback(branch.xid, branch.user)
            self.timed_out += not is_void
            log.info("staged branch dropped fence=%s batch=%d xid=%s reason=%s", name, batch,
                     branch.xid, "decided without it" if is_void else "never decided")  # fmt: skip
            is_staged = True
        return is_staged

    def undecided(self, name: str = "") -> list[Branch]:
        """Return prepared branches of fences that are not decided: of one fence, or of all."""
        found = []
        for branch in self._branches.all():
            owner = fence_and_batch(branch.xid)
            if owner is None or (name and owner[0] != name):
                continue
            if branch.state in IN_DOUBT and not branch.is_being_decided and not branch.reason:
                found.append(branch)
        return found

    # --- the end of a fence -----------------------------------------------------------------------

    async def remove(self, name: str) -> None:
        """Forget a fence: what it decided is committed, what it has staged is rolled back.

        Raises:
            RemoteProtocolError: Decided branches are not committed yet.

        Durability: on return it does not come back after a power loss.
        """
        fence = self.by_name.get(name)
        if fence is not None and fence.pending:
            raise RemoteProtocolError(
                f"what the fence {name} decided is not committed yet",
                measured=f"batches {', '.join(map(str, sorted(fence.pending)))}",
                cure="wait a moment; if the journal is full, make room",
            )
        if fence is not None:
            await self._bindings.remove(fence.key)
            self.by_name.pop(name, None)
        for branch in self.undecided(name):
            if self._branches.is_durable(branch.xid):
                self._branches.rollback(branch.xid, branch.user)


def _restored(name: str, value: JsonObject) -> Fence:
    pending = {
        int(batch): tuple(StagedTask(str(task), int(count)) for task, count in tasks)
        for batch, tasks in value["pending"].items()
    }
    decided_ms = int(value["decided-ms"])
    return Fence(name, int(value["batch"]), decided_ms, bool(value["last"]), pending)


def check_fence_name(name: str, what: str, characters_max: int) -> None:
    """Refuse a name that would not fit into an XID.

    Raises:
        RemoteProtocolError: It has other characters, or too many.
    """
    if not _NAME.fullmatch(name) or len(name) > characters_max:
        raise RemoteProtocolError(
            f"the {what} cannot be called {name[:100]!a}",
            allowed=f"1 to {characters_max} of A-Z a-z 0-9 . _ -",
        )


assert NAME_CHARACTERS_MAX + 21 <= PART_BYTES_MAX

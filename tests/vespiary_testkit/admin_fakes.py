"""Parts of the broker in memory that the HTTP listener's tests ask: branches, messages, acts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vespiary_broker.app.browsing import BrowsedMessage, BrowsedPage
from vespiary_broker.app.counting import Counted
from vespiary_broker.app.counting_messages import CounterState, state_of
from vespiary_broker.app.draining import DrainPhase, DrainState
from vespiary_broker.app.queue_groups import GroupOwner
from vespiary_broker.app.tasks import Task
from vespiary_broker.app.transactions import BranchMembers, BranchState
from vespiary_broker.engine.message_counters import Counts, MessageCounter
from vespiary_broker.engine.transfers import Origin, Taken
from vespiary_broker.engine.wanted import Act, Wanted
from vespiary_spec.errors import InvalidSelector, RemoteProtocolError, VespiaryError, XaError

if TYPE_CHECKING:
    from vespiary_testkit.admin_rig import MemoryBroker


class MemoryDraining:
    """A drain that stands where it is put."""

    def __init__(self) -> None:
        self.broker_id = ""
        self.now = DrainState()
        self.asked: list[tuple[str, str, str]] = []

    @property
    def is_cordoned(self) -> bool:
        return self.now.phase is not DrainPhase.NONE

    def state(self) -> DrainState:
        return self.now

    async def start(self, target: str, user: str, password: str, **_: str) -> DrainState:
        if self.now.target not in ("", target):
            raise RemoteProtocolError(f"this broker is being drained into {self.now.target}")
        self.asked.append((target, user, password))
        self.now = DrainState(phase=DrainPhase.DRAINING, target=target, messages_left=7)
        return self.now

    async def cancel(self) -> DrainState:
        self.now = DrainState()
        return self.now


class MemoryTransfers:
    """Takes everything, and remembers it."""

    def __init__(self) -> None:
        self.taken: list[tuple[Origin, str, bytes]] = []

    async def make_queue(self, binding: dict[str, Any], *, is_durable: bool) -> bool:
        return bool(binding) and is_durable

    async def take(self, origin: Origin, queue: str, data: bytes) -> Taken:
        self.taken.append((origin, queue, data))
        return Taken(1, 0)

    async def take_large(
        self, origin: Origin, queue: str, data: bytes, body: AsyncIterator[bytes]
    ) -> Taken:
        pieces = [piece async for piece in body]
        return await self.take(origin, queue, data + b"".join(pieces))


class MemoryTransactions:
    """Branches in a dictionary, by XID."""

    def __init__(self) -> None:
        self.states: dict[str, BranchState] = {}

    def names(self) -> list[str]:
        return sorted(self.states)

    def get(self, name: str) -> BranchState | None:
        return self.states.get(name)

    async def decide(self, name: str, *, is_commit: bool) -> BranchState:
        state = self.states[name]
        if state.state != "prepared":
            raise XaError(f"XAER_PROTO: a branch that is {state.state}", xa_code="XAER_PROTO")
        outcome = "heuristic-commit" if is_commit else "heuristic-rollback"
        self.states[name] = replace(state, state=outcome, members=())
        return self.states[name]

    async def forget(self, name: str) -> None:
        if not self.states[name].state.startswith("heuristic"):
            raise XaError("XAER_PROTO: nothing was decided", xa_code="XAER_PROTO")
        del self.states[name]


def branch_state(xid: str, **changes: Any) -> BranchState:
    """A prepared branch that adds two messages to a queue and acknowledges one."""
    values: dict[str, Any] = {
        "xid": xid,
        "state": "prepared",
        "user": "amy",
        "prepared_at_ms": 1_700_000_000_000,
        "age_s": 61.5,
        "reason": "",
        "members": (BranchMembers(queue="orders", added=2, acknowledged=1),),
    }
    return BranchState(**values | changes)


class MemoryActs:
    """Acts that take the ready messages of queues of a `MemoryBroker` away, when `gate` is open."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.wanted: list[Wanted] = []
        self.is_open = True
        self.failure: VespiaryError | None = None

    def start(self, wanted: Wanted) -> Task:
        if wanted.filter_text == "n =":
            raise InvalidSelector("the filter is none", selector=wanted.filter_text)
        if wanted.act is Act.DEAD_LETTER and not self._broker.dead_letter_address:
            raise RemoteProtocolError(f"the queue {wanted.queue} has no dead letter address")
        if wanted.to and wanted.to not in self._broker.queue_states:
            raise RemoteProtocolError(f"there is no queue {wanted.to}")
        self.wanted.append(wanted)
        ready = self._broker.queue_states[wanted.queue].ready
        task = Task(act=str(wanted.act), queue=wanted.queue, to=wanted.to, total=ready)
        return self._broker.tasks.start(task, self._work)

    async def _work(self, task: Task) -> None:
        while not self.is_open:
            task.check()
            await asyncio.sleep(0.001)
        if self.failure is not None:
            raise self.failure
        queues = self._broker.queue_states
        state = queues[task.queue]
        queues[task.queue] = replace(state, messages=state.delivering, ready=0)
        task.messages = task.looked = state.ready


class MemoryGroups:
    """Message groups in lists, by queue."""

    def __init__(self) -> None:
        self.owned: dict[str, list[GroupOwner]] = {}

    def owners(self, name: str, *, start: int, limit: int) -> list[GroupOwner]:
        return self.owned.get(name, [])[start : start + limit]

    def release(self, name: str) -> int:
        return len(self.owned.pop(name, []))


class MemoryBrowsing:
    """Messages in lists, by queue; knows no filter but that of nothing."""

    def __init__(self) -> None:
        self.messages: dict[str, list[BrowsedMessage]] = {}
        self.failure: Exception | None = None
        self.user = ""

    async def page(
        self,
        name: str,
        *,
        after: int,
        limit: int | None,
        filter_text: str,
        body_bytes: int | None,
        states: frozenset[str] = frozenset(),
        user: str = "",
    ) -> BrowsedPage:
        self.user = user
        if self.failure is not None:
            raise self.failure
        if filter_text:
            raise InvalidSelector("the filter is none", selector=filter_text)
        limit, body_bytes = limit or 200, 256 if body_bytes is None else body_bytes
        left = self._left(name, after)
        if states:
            left = [message for message in left if message.state in states]
        items = tuple(replace(m, body=m.body[:body_bytes]) for m in left[:limit])
        return BrowsedPage(items, items[-1].sequence if len(left) > limit else None)

    async def count(self, name: str, *, after: int, filter_text: str) -> Counted:
        """Count at most two in one answer."""
        if self.failure is not None:
            raise self.failure
        if filter_text:
            raise InvalidSelector("the filter is none", selector=filter_text)
        left = self._left(name, after)
        return Counted(len(left[:2]), left[1].sequence if len(left) > 2 else None)

    def _left(self, name: str, after: int) -> list[BrowsedMessage]:
        return [m for m in self.messages.get(name, ()) if m.sequence > after]


def browsed(sequence: int, body: bytes = b"hello", **changes: Any) -> BrowsedMessage:
    """A message that is ready."""
    values: dict[str, Any] = {
        "id": f"1-{sequence}",
        "sequence": sequence,
        "state": "ready",
        "deliveries": 0,
        "priority": 4,
        "time_ms": 1_700_000_000_000,
        "is_persistent": True,
        "is_large": False,
        "body_bytes": len(body),
        "headers": {"n": str(sequence)},
        "body": body,
    }
    return BrowsedMessage(**values | changes)


class MemoryCounters:
    """Counters of a `MemoryBroker`: those of queues and addresses that it has, all alike."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.is_enabled = True
        self.resets: list[str] = []

    def queue(self, name: str) -> CounterState | None:
        return self._state(name, self._broker.queue_states)

    def address(self, name: str) -> CounterState | None:
        return self._state(name, self._broker.address_types)

    def reset_queue(self, name: str) -> bool:
        return self._reset(name, self._broker.queue_states)

    def reset_address(self, name: str) -> bool:
        return self._reset(name, self._broker.address_types)

    def reset_all(self) -> None:
        self._check()
        self.resets.append("all")

    def _state(self, name: str, known: Container[str]) -> CounterState | None:
        self._check()
        counter = MessageCounter()
        counter.enter(Counts(9, 8, 7, 6, 5), 1_700_000_000_000)
        counter.hours[472_222] = Counts(9, 8, 7, 6, 5)
        return state_of(name, counter) if name in known else None

    def _reset(self, name: str, known: Container[str]) -> bool:
        self._check()
        self.resets.append(name)
        return name in known

    def _check(self) -> None:
        if not self.is_enabled:
            raise RemoteProtocolError("there are no message counters")

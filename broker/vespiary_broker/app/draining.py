"""Draining this broker into another one: nobody comes in, and everything goes.

Owns the cordon, which is written down, so that a broker that was killed meanwhile lets nobody in
when it comes back; and the moving of all messages, with the other broker's word that they are
flushed there before they are ended here. Must never end a message that the other has not confirmed.
What is under way is set aside, in memory alone: after a kill it is in its queue again, is sent
again, and the other one knows it by its id. Called by the HTTP API and by `broker`; owner: the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.app import states
from vespiary_broker.app.drained_queue import DrainedQueue
from vespiary_broker.app.transfer_client import (
    Receiver,
    Target,
    TransferClient,
    Unreachable,
    trusting,
)
from vespiary_broker.engine.xa_states import IN_DOUBT
from vespiary_spec.errors import RemoteProtocolError, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.app.queue_walk import Pages
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.ports import Bindings, Spawn
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.store.journal import Journal

_KEY: Final = "drain"
_QUEUES_AT_ONCE: Final = 4
_AGAIN_S: Final = 1.0
_GONE_S: Final = 2.0
_SETTLE_S: Final = 5.0
_LOOK_S: Final = 0.05
CORDONED: Final = "the broker is being drained and takes no clients; connect to another one"

log = logging.getLogger(__name__)


class DrainPhase(StrEnum):
    """How far a drain is."""

    NONE = "none"  # clients are served
    CORDONED = "cordoned"  # nobody comes in, and nothing is moved now
    DRAINING = "draining"
    DRAINED = "drained"  # nobody comes in, and nothing is left
    FAILED = "failed"  # nobody comes in, and something cannot be moved


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainState:
    """Where a drain stands.

    Attributes:
        phase: See `DrainPhase`.
        target: URL of the other broker; empty if none was named since the start.
        reason: What it waits for or why it failed, as a sentence; empty otherwise.
        moved: Messages moved since the drain began or was resumed.
        moved_bytes: Bytes of these, headers included.
        seen_before: Messages of these that the other broker had already.
        messages_left: Messages in all queues.
        queues_left: Queues that hold some.
        prepared: Distributed transactions that wait for their decision.
        started_ms: When it began or was resumed, milliseconds since 1970; 0: not since the start.
        ended_ms: When it ended; 0 while it runs.
    """

    phase: DrainPhase = DrainPhase.NONE
    target: str = ""
    reason: str = ""
    moved: int = 0
    moved_bytes: int = 0
    seen_before: int = 0
    messages_left: int = 0
    queues_left: int = 0
    prepared: int = 0
    started_ms: int = 0
    ended_ms: int = 0


class _Stopped(Exception):  # noqa: N818  (a state, not a fault)
    """The drain is to end."""


class Draining:
    """The cordon and the drain of one broker.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The message journal.
        pages: Opens pages; None: there are none.
        bindings: Where the cordon is written down.
        listeners: Returns the listeners.
        spawn: Runs a coroutine in the background.
        journal_id: Id of the message journal. Another journal gives sequences anew, which the
            other broker must not take for those it knows: this broker gets another id with it.
        make_client: Makes what talks to the other broker.

    Attributes:
        broker_id: By which another broker knows what this one hands over; empty until the cordon.
    """

    def __init__(
        self,
        engine: Engine,
        cycle: Cycle,
        journal: Journal,
        pages: Pages | None,
        bindings: Bindings,
        *,
        listeners: Callable[[], Iterable[Listener]],
        spawn: Spawn,
        journal_id: str = "",
        make_client: Callable[[Target], Receiver] = TransferClient,
    ) -> None:
        self._engine = engine
        self._cycle = cycle
        self._journal = journal
        self._pages = pages
        self._bindings = bindings
        self._listeners = listeners
        self._spawn = spawn
        self._make_client = make_client
        self._state = DrainState()
        self._is_stopping = False
        self._client: Receiver | None = None
        self._work: asyncio.Task[Any] | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        self._change = asyncio.Lock()
        kept = bindings.snapshot().get(_KEY, {})
        self._journal_id = journal_id
        is_of_journal = kept.get("journal-id", journal_id) == journal_id
        self.broker_id: str = str(kept.get("broker-id", "")) if is_of_journal else ""
        if kept.get("cordoned"):
            cycle.cordon = CORDONED

    @property
    def is_cordoned(self) -> bool:
        """Whether nobody comes in."""
        return bool(self._cycle.cordon)

    def state(self) -> DrainState:
        """Return where it stands now; whether anything is left is looked at each time."""
        left = self._left() if self.is_cordoned else {}
        phase = self._state.phase
        if not self.is_cordoned:
            phase = DrainPhase.NONE
        elif phase in (DrainPhase.NONE, DrainPhase.CORDONED) or (
            phase is DrainPhase.DRAINED and (left or self._in_doubt())
        ):
            phase = DrainPhase.CORDONED
        return replace(
            self._state,
            phase=phase,
            messages_left=sum(left.values()),
            queues_left=len(left),
            prepared=self._in_doubt(),
        )

    async def start(
        self,
        target: str,
        user: str,
        password: str,
        *,
        authorities: str = "",
        server_name: str = "",
    ) -> DrainState:
        """Let nobody in any more, and move everything to another broker; resumes what was begun.

        A drain into the same host and port goes on, with what is given now: the other broker may
        have another certificate or password, or speak TLS meanwhile.

        Args:
            target: URL of its HTTP listener.
            user: An administrator there; empty for nobody.
            password: The user's.
            authorities: Certificates to trust, as PEM; empty: those of the system's authorities.
            server_name: Name that its certificate has to be for; empty: the URL's host.

        Raises:
            ConfigError: `authorities` are no certificates.
            RemoteProtocolError: It is being drained into another broker.

        Durability: on return the cordon survives a power loss.
        """
        wanted = Target(
            url=target,
            login=(user, password) if user else None,
            tls=trusting(authorities),
            server_name=server_name,
        )
        async with self._change:
            if not self._ended.is_set():
                if self._client is None or self._client.target.place != wanted.place:
                    raise RemoteProtocolError(
                        f"this broker is being drained into {self._state.target}",
                        cure="end that first (`vespiary drain --cancel`)",
                    )
                self._client.target = wanted
                self._state = replace(self._state, target=target)
                return self.state()
            await self._cordon()
            self._state = DrainState(
                phase=DrainPhase.DRAINING, target=target, started_ms=time.time_ns() // 1_000_000
            )
            self._is_stopping = False
            self._ended.clear()
            self._client = self._make_client(wanted)
            self._spawn(self._run(self._client))
            return self.state()

    async def cancel(self) -> DrainState:
        """Let clients in again; what has moved stays where it is.

        Durability: on return a restart lets them in too.
        """
        async with self._change:
            await self.stop()
            if self.is_cordoned:
                await self._write(is_cordoned=False)
                self._cycle.cordon = ""
                log.info("cordon lifted")
            self._state = DrainState()
            return self.state()

    def abort(self) -> None:
        """End what runs at once: the broker stops. What is under way is sent again one day."""
        if self._work is not None:
            self._work.cancel()

    async def stop(self) -> None:
        """End what runs, as soon as nothing is under way; the cordon stays."""
        self._is_stopping = True
        await self._ended.wait()

    async def _cordon(self) -> None:
        self.broker_id = self.broker_id or uuid.uuid4().hex
        await self._write(is_cordoned=True)
        if not self._cycle.cordon:
            log.info("cordoned: no client is let in")
        self._cycle.cordon = CORDONED

    async def _write(self, *, is_cordoned: bool) -> None:
        value = {"broker-id": self.broker_id, "journal-id": self._journal_id}
        await self._bindings.put(_KEY, value | ({"cordoned": True} if is_cordoned else {}))

    # --- the work -------------------------------------------------------------------------------

    async def _run(self, client: Receiver) -> None:
        phase, reason = DrainPhase.FAILED, "a defect of the broker; its log has the details"
        self._work = asyncio.current_task()
        try:
            async with client:
                await self._turn_out()
                await self._move_all(client)
            reason = await self._settled()
            phase = DrainPhase.FAILED if reason else DrainPhase.DRAINED
        except* _Stopped:
            phase, reason = DrainPhase.CORDONED, "it was ended before all had moved"
        except* VespiaryError as group:
            reason = str(_first(group))
        finally:
            now_ms = time.time_ns() // 1_000_000
            self._work = None
            self._state = replace(self._state, phase=phase, reason=reason, ended_ms=now_ms)
            self._ended.set()
            log.info(
                "drain ended phase=%s moved=%d target=%s reason=%r",
                *(phase, self._state.moved, self._state.target, reason),
            )

    def check(self) -> None:
        """Go on.

        Raises:
            _Stopped: The drain is to end.
        """
        if self._is_stopping or self._cycle.is_stopping:
            raise _Stopped

    async def _turn_out(self) -> None:
        """Disconnect all clients, with a sentence; what they held is in its queue again then."""
        for listener in self._listeners():
            for connection in list(listener.connections):
                connection.refuse(CORDONED)
        end_s = self._cycle.loop.time() + _GONE_S
        while left := [c for listener in self._listeners() for c in listener.connections]:
            self.check()
            if self._cycle.loop.time() > end_s:
                for connection in left:
                    connection.abort()
            await asyncio.sleep(_LOOK_S)

    async def _move_all(self, client: Receiver) -> None:
        """Move what is there, in passes, as long as a pass moves something."""
        carried: set[int] = set()
        while True:
            before = self._state.moved
            queues = iter([queue for queue in self._queues() if self._is_wanted(queue, carried)])

            failures: list[VespiaryError] = []

            async def work(
                queues: Iterator[Queue] = queues, failures: list[VespiaryError] = failures
            ) -> None:
                for queue in queues:
                    try:
                        await self._move_queue(queue, client, carried)
                    except _Stopped:
                        return  # the others end what they have under way, too
                    except VespiaryError as error:
                        failures.append(error)  # what else there is can go nevertheless

            async with asyncio.TaskGroup() as group:
                for _ in range(_QUEUES_AT_ONCE):
                    group.create_task(work())
            self.check()
            if failures:
                raise failures[0]
            if not self._left() or self._state.moved == before:
                return

    def _queues(self) -> list[Queue]:
        """Return the queues that go along: neither the broker's own nor temporary ones."""
        queues = self._engine.registry.queues.values()
        return [q for q in queues if not q.traits.is_internal and not q.is_temporary]

    def _is_wanted(self, queue: Queue, carried: set[int]) -> bool:
        """Whether a queue has messages, or is a durable subscription, which has to go along."""
        has_messages = bool(states.queue_state(self._engine, queue).messages)
        return has_messages or (bool(queue.client_id) and queue.id not in carried)

    async def _move_queue(self, queue: Queue, client: Receiver, carried: set[int]) -> None:
        if queue.is_deleted:
            return
        if queue.id not in carried:
            await self._insist(lambda: client.make_queue(queue.to_binding(), queue.is_durable))
            carried.add(queue.id)
        moving = DrainedQueue(
            self._engine, self._cycle, self._journal, self._pages, queue, self.check
        )
        try:
            await moving.move(client, self.broker_id, self._insist, self._note)
        except RemoteProtocolError:
            if not queue.is_deleted:  # else it went by itself, since it is empty
                raise

    async def _insist(self, call: Callable[[], Any]) -> Any:
        """Call the other broker until it answers; what it refuses for good is raised."""
        while True:
            self.check()
            try:
                found = await call()
            except Unreachable as error:
                if self._state.reason != str(error):
                    log.warning("drain waits for the other broker reason=%r", str(error))
                self._state = replace(self._state, reason=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                if self._state.reason:
                    self._state = replace(self._state, reason="")
                return found

    def _note(self, moved: int, moved_bytes: int, seen: int) -> None:
        state = self._state
        self._state = replace(
            state,
            moved=state.moved + moved,
            moved_bytes=state.moved_bytes + moved_bytes,
            seen_before=state.seen_before + seen,
        )

    # --- what is left ---------------------------------------------------------------------------

    def _left(self) -> dict[str, int]:
        """Return the messages that are left, by queue: everything, wherever it stands."""
        found = {}
        for queue in self._queues():
            state = states.queue_state(self._engine, queue)
            count = state.messages + state.prepared
            if count:
                found[queue.name] = count
        return found

    def _in_doubt(self) -> int:
        return sum(branch.state in IN_DOUBT for branch in self._engine.branches.all())

    async def _settled(self) -> str:
        """Return what cannot be moved, as a sentence; empty when everything has.

        Durability: on return of nothing, all of it is ended here after a power loss too.
        """
        await self._journal.wait_durable()
        end_s = self._cycle.loop.time() + _SETTLE_S
        while not self._in_doubt() and self._left() and self._cycle.loop.time() < end_s:
            self.check()
            await asyncio.sleep(_LOOK_S)  # those on their way to another queue arrive
        branches = self._in_doubt()
        if branches:
            return (
                f"{branches} distributed transactions are prepared here and belong to their "
                "coordinator: have it end them, or decide with `vespiary transaction commit` or "
                "`rollback`; `vespiary transaction list` names them."
            )
        left = self._left()
        if not left:
            return ""
        name, count = next(iter(left.items()))
        return (
            f"{sum(left.values())} messages in {len(left)} queues cannot be moved now, such as "
            f"{count} in {name}; the log says what is wrong with them, and the drain can be "
            "begun again."
        )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

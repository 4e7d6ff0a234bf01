"""What administrators do to the messages that wait in a queue: move, copy, change, end.

Owns the choice of messages (all, by selector, by id, so many) and the walk, in bounded turns of the
event loop, as a task in the background. The rules are the engine's: `restaging` moves and changes,
`departures` retries, expires and makes dead letters. Messages that consumers hold stay, and so do
those that wait for their redelivery; scheduled ones go with the others. Called by the HTTP API;
owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from vespiary_broker.app.queue_walk import QueueWalk, Step
from vespiary_broker.app.retrying import OriginsMissing, Retry
from vespiary_broker.app.tasks import Task, Tasks
from vespiary_broker.app.wanted_messages import WantedMessages
from vespiary_broker.engine.address_memory import Verdict
from vespiary_broker.engine.core import MessageView, NoRoom
from vespiary_broker.engine.departures import check_departure, leave
from vespiary_broker.engine.message_times import is_scheduled
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.names import meant_queue
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.restaging import Restager, Rewrite, Staged
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.engine.wanted import Act, Wanted
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.app.queue_walk import Pages
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

_AT_ONCE: Final = 64
"""Messages that are done with in one turn of the loop."""
_AT_ONCE_FILTERED: Final = 256
"""Messages that are looked at in one turn, when a selector passes over some."""
_PENDING_MAX: Final = 512
"""Messages on their way out of a queue, before more are set aside."""
_LOOK_AGAIN_S: Final = 0.01
_SPACE_S: Final = 1.0


_REASONS: Final = {
    Act.RETRY: Reason.RETRIED,
    Act.DEAD_LETTER: Reason.DELIVERIES,
    Act.EXPIRE: Reason.EXPIRED,
}


class _Choice:
    """Which messages of a queue are wanted.

    Args:
        queue: The queue.
        wanted: What was asked for.
        end: Sequence behind the last message that there was when it was asked for.
        takes: Whether the act may have a message at all.
        turn_time: What a turn of the loop has for filters.

    Raises:
        InvalidSelector: The filter is none.
        RemoteProtocolError: An id is none of this queue's.
    """

    def __init__(
        self,
        queue: Queue,
        wanted: Wanted,
        end: int,
        takes: Callable[[MessageView], bool],
        turn_time: TurnTime,
    ) -> None:
        self._takes = takes
        self._messages = WantedMessages(queue, wanted.filter_text, turn_time)
        self.selector = self._messages.selector
        self._left = wanted.limit or end
        sequences = sorted({_sequence(queue, text) for text in wanted.ids})
        self._spans = [(0, end)]
        if wanted.ids:
            self._spans = [(sequence, sequence + 1) for sequence in sequences if sequence < end]

    @property
    def total(self) -> int:
        """Sequences in all spans."""
        return sum(end - start for start, end in self._spans)

    @property
    def at_once(self) -> int:
        """Messages to look at in one turn."""
        return _AT_ONCE if self.selector is None else _AT_ONCE_FILTERED

    @property
    def is_done(self) -> bool:
        """Whether as many were taken as were asked for."""
        return self._left <= 0

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield (first sequence, sequence behind the last) of what is to be looked at."""
        yield from self._spans

    def of(self, step: Step, end: int) -> tuple[list[MessageView], int]:
        """Return those messages of a step that are wanted, and where to go on behind them.

        As many as may be done with at once, and as this turn of the loop has time for.
        """
        found: list[MessageView] = []
        most = min(self._left, _AT_ONCE)

        def take(view: MessageView) -> bool:
            found.append(view)
            return len(found) == most

        def takes(view: MessageView) -> bool:
            return view.sequence < end and self._takes(view)

        messages = step.messages
        seen = self._messages.look(messages, take, takes)
        if len(found) == most:
            return found, found[-1].sequence + 1
        return found, step.next_sequence if seen == len(messages) else messages[seen].sequence

    def take(self, count: int) -> None:
        """Note that so many of the wanted messages were done with."""
        self._left -= count


def _sequence(queue: Queue, text: str) -> int:
    """Return the sequence that a `message-id` names."""
    number, _, sequence = text.partition("-")
    is_id = number == str(queue.id) and sequence.isascii() and sequence.isdigit()
    if not is_id or len(sequence) > 19:
        raise RemoteProtocolError(
            f"this is no message-id of the queue {queue.name}",
            measured=ascii(text[:60]),
            allowed=f"{queue.id}-NUMBER, as vespiary browse shows it",
        )
    return int(sequence)


class _TargetFull(Exception):  # noqa: N818  (a state, not a fault)
    """The address that messages go to is full, and has its senders wait."""


Stage = Callable[[QueueWalk, list[MessageView]], Staged]
"""Does with the first of some messages of the last step of a walk what is wanted."""


class MessageActs:
    """Begins tasks on the messages of queues.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The message journal.
        pages: Opens pages; None: there are none.
        tasks: Runs them.
    """

    def __init__(
        self, engine: Engine, cycle: Cycle, journal: Journal, pages: Pages | None, tasks: Tasks
    ) -> None:
        self._engine = engine
        self._core = engine.core
        self._cycle = cycle
        self._journal = journal
        self._pages = pages
        self._tasks = tasks

    def start(self, wanted: Wanted) -> Task:
        """Begin to do something with messages that wait in a queue now.

        Args:
            wanted: What, and with which.

        Returns:
            The task; it ends by itself.

        Raises:
            InvalidSelector: The filter is none.
            NotPermitted: Who asks may not send where they would go. Where that is another place
                for each message (RETRY), those stay that may not go, and the task tells it.
            RemoteProtocolError: There is no such queue, nowhere to go, an id is of another queue,
                or too many tasks are running.

        Durability: when the task is done, all is at its new place, also after a power loss. After a
            crash before that each message is at its old place or at its new one, once.
        """
        queue = self._queue(wanted.queue)
        available = self._core.queue_statistics(queue.id).available
        choice = _Choice(
            queue,
            wanted,
            available,
            partial(self._is_there_for, queue, wanted.act),
            self._engine.turn_time,
        )
        task = Task(
            act=str(wanted.act), queue=queue.name, to=wanted.to, filter_string=wanted.filter_text
        )
        task.to = task.to or self._departs_to(queue, wanted.act)
        self._tasks.check_room()
        target = queue
        reason = _REASONS.get(wanted.act)
        if reason is Reason.RETRIED:
            stage: Stage = Retry(self._engine, queue, task, wanted.user).stage
        elif reason is not None:
            self._check_send(wanted, task.to)
            check_departure(self._engine.fates.mover, queue, reason)
            stage = partial(self._set_aside, queue, reason)
        elif wanted.act is Act.REMOVE:
            stage = partial(self._remove, queue)
        else:
            rewrite = self._rewrite(queue, wanted)
            target, stage = rewrite.target, self._restager(queue, rewrite)
            if target is not queue:
                self._check_send(wanted, target.address.name)
        facts = self._core.queue_statistics(queue.id)
        scheduled = self._engine.fates.schedule.waiting.count(queue.id)
        task.total = min(choice.total, facts.ready + facts.paged + scheduled)

        async def work(run: Task) -> None:
            await self._engine.registry.write_queue(target)  # else a crash would remove it
            before = 0 if reason is None else queue.departed(reason)
            await self._walk(run, queue, choice, stage)
            await self._thin_out(run, queue, most=0)
            if reason is not None:  # some may have had nowhere to go; others may have left too
                left = min(queue.departed(reason) - before, run.messages)
                run.kept, run.messages = run.kept + run.messages - left, left
            await self._journal.wait_durable()

        return self._tasks.start(task, work)

    def _check_send(self, wanted: Wanted, address: str) -> None:
        """Refuse to let messages go where the one who asks may not send to.

        Args:
            wanted: Says who asks.
            address: Where they go; empty: nowhere.

        Raises:
            NotPermitted: It may not.
        """
        if wanted.user and address:
            permissions = self._engine.registry.permissions
            permissions.check(wanted.user, Permission.SEND, address)

    def _departs_to(self, queue: Queue, act: Act) -> str:
        """Return the address that dead or expired messages of a queue go to; empty: none."""
        settings = self._engine.registry.settings_for(queue.address.name)
        if act is Act.DEAD_LETTER:
            return settings.dead_letter_address or ""
        address = settings.expiry_address or ""
        return address if act is Act.EXPIRE and address != queue.address.name else ""

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue

    def _cure_of(self, missing: str) -> str:
        """Return what to do about a target that is not there."""
        meant = meant_queue(missing)
        return f"name it {meant}" if meant in self._engine.registry.queues else "create it first"

    def _rewrite(self, queue: Queue, wanted: Wanted) -> Rewrite:
        if wanted.act in (Act.MOVE, Act.COPY):
            target = self._engine.registry.queues.get(wanted.to)
            if target is None:
                raise RemoteProtocolError(
                    f"there is no queue {wanted.to} to {wanted.act} messages to",
                    cure=self._cure_of(wanted.to),
                )
            if target is queue:
                raise RemoteProtocolError(
                    f"the messages of {queue.name} are to go to the queue that they are in",
                    cure="name another one",
                )
            is_move = wanted.act is Act.MOVE
            return Rewrite(target=target, is_move=is_move, is_copy=not is_move)
        return Rewrite(
            target=queue,
            expires_ms=wanted.expires_ms,
            priority=wanted.priority,
            is_due=wanted.act is Act.DELIVER,
        )

    def _is_there_for(self, queue: Queue, act: Act, view: MessageView) -> bool:
        """Whether an act may have a message: it waits for a consumer, or is scheduled."""
        if view.is_held:
            return False
        fates = self._engine.fates
        if not view.is_aside:
            return act is not Act.DELIVER or is_scheduled(view, fates.clock_ms())
        is_free = is_scheduled(view, fates.clock_ms())
        return is_free and not fates.mover.is_leaving(queue.id, view.sequence)

    def _discard_left(self, queue: Queue, views: list[MessageView]) -> None:
        """Forget when those of some messages are due that are scheduled here no more."""
        fates = self._engine.fates
        for view in views:
            look = self._core.look(queue.id, view.sequence, 1, everything=True)
            found = look.messages[0] if look.messages else None
            is_here = found is not None and found.sequence == view.sequence and found.is_aside
            if not is_here or fates.mover.is_leaving(queue.id, view.sequence):
                fates.schedule.discard_left(queue.id, [view.sequence])

    # --- the walk -------------------------------------------------------------------------------

    async def _walk(self, task: Task, queue: Queue, choice: _Choice, stage: Stage) -> None:
        walk = QueueWalk(
            self._core,
            self._journal,
            self._pages,
            queue,
            task.check,
            selector=choice.selector,
        )
        try:
            await self._walk_spans(task, queue, walk, choice, stage)
        finally:
            walk.leave()

    async def _walk_spans(
        self, task: Task, queue: Queue, walk: QueueWalk, choice: _Choice, stage: Stage
    ) -> None:
        for start, end in choice.spans():
            at = start
            while at < end and not choice.is_done:
                task.check()
                step = await walk.step(at, min(choice.at_once, end - at), everything=True)
                chosen, behind = choice.of(step, end)
                try:
                    done = stage(walk, chosen) if chosen else Staged(0, 0, False, None)
                except NoRoom:
                    await self._wait_for_room()
                    continue  # what was seen may have been given to a consumer meanwhile
                except _TargetFull:
                    self._cycle.touch()
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    continue
                except OriginsMissing as missing:
                    await missing.make()
                    continue
                self._discard_left(queue, [one for one in chosen[: done.looked] if one.is_aside])
                if done.looked < len(chosen):
                    behind = chosen[done.looked].sequence
                at = behind
                choice.take(done.messages)
                task.messages += done.messages
                task.kept += done.looked - done.messages
                task.looked += sum(view.sequence < behind for view in step.messages)
                if done.has_times:
                    self._engine.fates.special_sent()
                self._cycle.touch()
                if done.absent is not None:
                    await walk.load(*done.absent)
                await asyncio.sleep(0)
                await self._thin_out(task, queue, most=_PENDING_MAX)

    async def _wait_for_room(self) -> None:
        try:
            await asyncio.wait_for(self._cycle.space(), _SPACE_S)
        except TimeoutError:
            return  # time to look whether the task was cancelled

    async def _thin_out(self, task: Task, queue: Queue, *, most: int) -> None:
        """Wait until at most so many messages are on their way out of a queue."""
        while self._engine.fates.mover.pending(queue.id) > most and not queue.is_deleted:
            task.check()
            self._cycle.touch()
            await asyncio.sleep(_LOOK_AGAIN_S)

    # --- what is done with messages -------------------------------------------------------------

    def _restager(self, queue: Queue, rewrite: Rewrite) -> Stage:
        registry = self._engine.registry
        room_bytes = registry.transaction_room_bytes

        def restage(walk: QueueWalk, views: list[MessageView]) -> Staged:
            if rewrite.target.is_deleted:
                raise RemoteProtocolError(f"the queue {rewrite.target.name} was deleted meanwhile")
            if not self._takes(queue, rewrite.target):
                return Staged(len(views), 0, False, None)
            route = registry.queue_route(rewrite.target)
            restager = Restager(self._core, queue, rewrite, route, walk, room_bytes=room_bytes)
            return restager.restage(views)

        return restage

    def _takes(self, queue: Queue, target: Queue) -> bool:
        """Return whether the address of a queue has room; False: it drops, so messages stay.

        Raises:
            AddressFull: Its policy is FAIL.
            _TargetFull: Its policy is BLOCK.
        """
        if target.address is queue.address:
            return True
        verdict, state = self._engine.memory.decide(target.address)
        if state is not None and verdict is Verdict.WAIT:
            raise _TargetFull
        return state is None or verdict is not Verdict.DROP

    def _set_aside(
        self, queue: Queue, reason: Reason, walk: QueueWalk, views: list[MessageView]
    ) -> Staged:
        mover = self._engine.fates.mover
        walk.take_in(view.sequence for view in views)
        count = sum(leave(self._core, mover, queue, view, reason) for view in views)
        return Staged(len(views), count, False, None)

    def _remove(self, queue: Queue, walk: QueueWalk, views: list[MessageView]) -> Staged:
        """End messages.

        Raises:
            NoRoom: For the first one already.

        Durability: journalled as acknowledgements are.
        """
        sequences = [view.sequence for view in views]
        walk.take_in(sequences)
        queue.note_left(GapReason.REMOVED, sequences)
        before = self._core.queue_statistics(queue.id).acknowledged
        try:
            self._core.finish(queue.id, sequences)
        except NoRoom:
            count = self._core.queue_statistics(queue.id).acknowledged - before
            if not count:
                raise
            return Staged(count, count, False, None)
        return Staged(len(views), len(views), False, None)

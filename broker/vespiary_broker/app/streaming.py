"""Streams: what their readers call, and what administrators see of them.

Owns the calls: `claim`, `head`, `range`, `acknowledge`, `body`, and the ending of what is
acknowledged. Must never let a call through that `engine.streams` refuses. Called by the HTTP API;
owner: the event loop.

Two things are durable before an answer. How far a stream is acknowledged, and then the ends of the
messages up to there: a crash in between has the rest of them ended at the next start, and none is
given again. And the queue's next sequence, before a head is told: no message that comes later, also
after a crash, has a sequence at or below a head that somebody knows.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.app.queue_walk import Pages, QueueWalk
from vespiary_broker.app.stream_ranges import Range, RangeReading
from vespiary_broker.engine.core import LargeBody, NoRoom
from vespiary_broker.engine.kept_tails import keep_tail
from vespiary_broker.engine.streams import Stream
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

PREPARED: Final = "prepared-transaction"
PAUSED: Final = "paused"
JOURNAL_FULL: Final = "journal-full"
_ENDED_AT_ONCE: Final = 8192
_SPACE_S: Final = 1.0


class Head(NamedTuple):
    """How far a stream can be read.

    Attributes:
        sequence: All up to this one is visible and durable, and nothing new comes at or below it.
        cap: Why it is not all that is in the queue: `prepared-transaction`, `paused` or
            `journal-full`; empty if it is.
        capped_by: The XID of the transaction; empty for none.
        capped_s: How long that one has been prepared; 0 for none.
    """

    sequence: int
    cap: str = ""
    capped_by: str = ""
    capped_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream.

    Attributes:
        name: Its name.
        queue: The queue that it reads.
        queue_id: Its number; another one: not the same queue, whatever its name.
        address: The address of the queue.
        owner: Who claimed it last.
        epoch: Number of that claim.
        lease_s: Seconds that nobody else may claim it after a call.
        lease_left_s: What is left of them.
        acknowledged: All up to this sequence is acknowledged.
        head: All up to this sequence can be read.
        lag: Sequences between the two.
        cap: Why not all that is in the queue can be read; empty if all can.
        capped_by: The XID of the transaction that is in the way; empty for none.
        capped_s: How long that one has been prepared.
    """

    name: str
    queue: str
    queue_id: int
    address: str
    owner: str
    epoch: int
    lease_s: float
    lease_left_s: float
    acknowledged: int
    head: int
    lag: int
    cap: str
    capped_by: str
    capped_s: float


class Streaming:
    """The calls on streams.

    Args:
        engine: The engine.
        cycle: Has the work of a turn done.
        journal: The message journal.
        pages: What is known of pages; None: there are none.
    """

    def __init__(
        self, engine: Engine, cycle: Cycle, journal: Journal, pages: Pages | None = None
    ) -> None:
        self._engine = engine
        self._streams = engine.streams
        self._core = engine.core
        self._cycle = cycle
        self._journal = journal
        self._pages = pages
        self._change = asyncio.Lock()  # of what a stream is: claims and deletions
        self._ending = asyncio.Lock()  # of messages

    # --- looking ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return sorted(self._streams.by_name)

    def get(self, name: str) -> StreamState | None:
        """Return the state of a stream, or None if there is none of that name."""
        stream = self._streams.by_name.get(name)
        return None if stream is None else self._state(stream, self._head(stream))

    def _state(self, stream: Stream, head: Head) -> StreamState:
        return StreamState(
            name=stream.name,
            queue=stream.queue.name,
            queue_id=stream.queue.id,
            address=stream.queue.address.name,
            owner=stream.owner,
            epoch=stream.epoch,
            lease_s=stream.lease_s,
            lease_left_s=self._streams.lease_left_s(stream),
            acknowledged=stream.acknowledged,
            head=head.sequence,
            lag=max(0, head.sequence - stream.acknowledged),
            cap=head.cap,
            capped_by=head.capped_by,
            capped_s=head.capped_s,
        )

    # --- claims -----------------------------------------------------------------------------------

    async def claim(self, name: str, queue: str, owner: str, lease_s: float) -> StreamState:
        """Make a stream, or claim one that is there.

        Args:
            name: Its name.
            queue: The queue that it reads.
            owner: Who claims it.
            lease_s: Seconds that nobody else may claim it after a call.

        Raises:
            StreamHeld: It is another owner's, and its lease has not run out.
            RemoteProtocolError: There is no queue that a stream of this name can read.

        Durability: on return the claim survives a power loss, and the run before it does nothing
            more.
        """
        async with self._change, self._ending:
            stream = await self._streams.claim(name, queue, owner, lease_s)
            # What a consumer could not be given is a message like any other here.
            self._engine.quarantine.release(stream.queue.id)
        return self._state(stream, self._head(stream))

    async def remove(self, name: str) -> None:
        """Delete a stream; what is not acknowledged stays in its queue, for anybody.

        Raises:
            RemoteProtocolError: There is none of that name.

        Durability: on return it does not come back after a power loss, nor what it acknowledged.
        """
        async with self._change:
            stream = self._streams.by_name.get(name)
            if stream is None:
                raise RemoteProtocolError(f"there is no stream {name}")
            await self._settle(stream)
            async with self._ending:
                await self._streams.remove(stream)
        self._engine.dispatcher.poke(stream.queue.id)
        self._cycle.touch()

    # --- reading ----------------------------------------------------------------------------------

    async def head(self, name: str, epoch: int) -> StreamState:
        """Return how far a stream can be read, and begin its lease anew.

        Raises:
            StreamFenced: Another run has claimed it.
            WriterFailed: The journal has failed.

        Durability: on return no message that comes later has a sequence at or below the head, also
            after a power loss.
        """
        stream = self._streams.use(name, epoch)
        head = self._head(stream)
        if head.sequence >= stream.fenced_tail:
            head = await self._fence(stream, head)
        self._streams.use(name, epoch)
        stream.reported = max(stream.reported, head.sequence)
        return self._state(stream, head)

    def _head(self, stream: Stream) -> Head:
        """Return how far a stream can be read, as of now."""
        if stream.queue.is_held:
            return Head(max(stream.reported, stream.acknowledged), PAUSED)
        return self._readable(stream)

    def _readable(self, stream: Stream) -> Head:
        """Return how far a stream can be read, also while its queue is paused."""
        core, queue_id = self._core, stream.queue.id
        statistics = core.queue_statistics(queue_id)
        last, held_by = statistics.available - 1, 0
        if not (statistics.prepared or statistics.paged_prepared):
            return Head(last)
        for facts in core.branches():
            for member in core.branch_members(facts.transaction):
                is_here = member.queue_id == queue_id and not member.is_missing
                if is_here and member.sequence <= last:
                    last, held_by = member.sequence - 1, facts.transaction
        if not held_by:
            return Head(last)
        branches = self._engine.branches
        for branch in branches.all():
            if branch.number == held_by:
                return Head(last, PREPARED, str(branch.xid), branches.age_s(branch))
        return Head(last, PREPARED)  # it is ending

    async def _fence(self, stream: Stream, head: Head) -> Head:
        """Have the queue's next sequence be durable; return a lower head if that is not possible.

        Durability: on return the head that it returns is below the next sequence after any crash.
        """
        try:
            tail = keep_tail(self._core, stream.queue.id)
        except NoRoom:
            self._journal.request_space()
            known = max(stream.acknowledged, stream.fenced_tail - 1)
            return Head(min(known, head.sequence), JOURNAL_FULL)
        await self._cycle.durable()
        stream.fenced_tail = max(stream.fenced_tail, tail)
        return head

    async def range(self, name: str, epoch: int, after: int, to: int, max_bytes: int) -> Range:
        """Read the messages behind one sequence up to another; nothing is changed.

        Args:
            name: The stream.
            epoch: That of the caller's claim.
            after: Begin behind this sequence.
            to: The last one, at most a head that was told.
            max_bytes: Bound of the answer; the first message comes in any case.

        Raises:
            StreamFenced: Another run has claimed it.
            RemoteProtocolError: The end is not readable yet, or lies before the begin.
            PageDamaged: Messages stand in a page that is.
        """
        stream = self._streams.use(name, epoch)
        self._check_readable(stream, to)
        if to < after:
            raise RemoteProtocolError(
                "a range ends before it begins", measured=f"after {after} to {to}"
            )
        reading = RangeReading(self._core, self._journal, self._pages, stream, max_bytes)
        found = await reading.read(after, to)
        self._streams.use(name, epoch)
        return found

    def _check_readable(self, stream: Stream, sequence: int) -> None:
        head = self._readable(stream).sequence
        if sequence > head:
            raise RemoteProtocolError(
                f"the stream {stream.name} cannot be read that far",
                measured=sequence,
                allowed=f"at most its head, {head}",
                cure="ask for the head, and read up to it",
            )

    async def body(
        self, name: str, epoch: int, sequence: int, offset: int, max_bytes: int
    ) -> bytes:
        """Return a piece of a large message's body; nothing behind its end.

        Args:
            name: The stream.
            epoch: That of the caller's claim.
            sequence: The message, whose record has flag 4.
            offset: First byte of the body.
            max_bytes: Most bytes.

        Raises:
            StreamFenced: Another run has claimed it.
            RemoteProtocolError: There is no large message of that sequence.
            LargeMessageDamaged: Its file is missing or damaged.
        """
        stream = self._streams.use(name, epoch)
        reference = await self._reference(stream, sequence)
        bodies = self._cycle.large
        if reference is None or bodies is None:
            raise RemoteProtocolError(
                f"the stream {name} has no large message of this sequence", measured=sequence
            )
        reader = await bodies.read(reference)
        try:
            return await reader.read_at(offset, max_bytes)
        finally:
            reader.close()

    async def _reference(self, stream: Stream, sequence: int) -> LargeBody | None:
        """Return where the body of a large message is; None: there is no such message."""
        walk = QueueWalk(self._core, self._journal, self._pages, stream.queue)
        try:
            while stream.acknowledged < sequence <= self._readable(stream).sequence:
                step = await walk.step(sequence, 1, everything=True)
                view = step.messages[0] if step.messages else None
                if view is None and step.next_sequence <= sequence:
                    await asyncio.sleep(0)
                    continue
                if view is None or view.sequence != sequence or not view.is_large:
                    return None
                stored = walk.body(sequence)
                if stored is not None:
                    found = decode_large_reference(stored)
                    return LargeBody(found.large_id, found.size_bytes, found.crc)
                await walk.load(*self._core.absent_for(stream.queue.id, sequence))
        finally:
            walk.leave()
        return None

    # --- acknowledging ----------------------------------------------------------------------------

    async def acknowledge(self, name: str, epoch: int, sequence: int) -> StreamState:
        """Acknowledge all messages up to a sequence; a lower one than before changes nothing.

        Raises:
            StreamFenced: Another run has claimed it.
            RemoteProtocolError: The sequence is above the head.
            WriterFailed: A journal has failed.

        Durability: on return none of these messages comes back after a power loss.
        """
        async with self._ending:
            stream = self._streams.use(name, epoch)
            self._check_readable(stream, sequence)
            if sequence > stream.acknowledged:
                await self._streams.acknowledge(stream, sequence)
        await self._settle(stream)
        self._streams.use(name, epoch)
        return self._state(stream, self._head(stream))

    async def settle_all(self) -> None:
        """End what streams have acknowledged and a crash has left; to be called at the start."""
        for name in self.names():
            stream = self._streams.by_name.get(name)
            if stream is not None:
                await self._settle(stream)

    async def _settle(self, stream: Stream) -> None:
        """End the messages that a stream has acknowledged.

        Durability: on return they do not come back after a power loss.
        """
        async with self._ending:
            through = stream.acknowledged
            if through <= stream.settled or stream.queue.is_deleted:
                return
            while await self._end_some(stream, through):
                pass
            await self._cycle.durable()
            stream.settled = through
            stream.gaps.forget(through)

    async def _end_some(self, stream: Stream, through: int) -> bool:
        """End some of the messages up to a sequence; return whether there are more."""
        is_more = True
        try:
            done = self._core.finish_below(stream.queue.id, through + 1, _ENDED_AT_ONCE)
            is_more = done >= _ENDED_AT_ONCE
        except NoRoom:
            self._journal.request_space()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._cycle.space(), _SPACE_S)
        self._cycle.touch()
        await asyncio.sleep(0)
        return is_more

"""Streams: queues that one outside reader reads by ranges, and acknowledges apart from reading.

Owns the table of streams, whose each is (owner, epoch, lease), how far it is acknowledged, and the
rule that nobody else is given the messages of its queue. Must never read or end a message: that is
`app.streaming`'s. Called by `app.streaming`, by `subscriptions`, and by those through whom messages
leave a queue; owner: the event loop.

Fences. Each claim gets an epoch that is higher than all before, of any stream, also of deleted
ones; it is durable before it is answered. Calls with another epoch than the latest are refused. The
owner of a stream gets a new one at any time; others do when its lease has run out. The lease is a
time of the monotonic clock, anew in full with every call and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.names import check_name
from vespiary_broker.engine.ports import Bindings, JsonObject
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.restoration import reading
from vespiary_broker.engine.stream_gaps import Gap, GapReason, StreamGaps
from vespiary_spec.errors import RemoteProtocolError, StreamFenced, StreamHeld

if TYPE_CHECKING:
    from vespiary_broker.engine.registry import Registry

STREAM_PREFIX: Final = "stream/"
EPOCH_COUNTER: Final = "counter/stream-epoch"
OWNER_CHARACTERS_MAX: Final = 255


@dataclass(eq=False, slots=True)
class Stream:
    """One stream.

    Attributes:
        name: Its name, unique in the broker.
        queue: The queue that it reads.
        owner: Who claimed it last.
        epoch: Number of that claim; calls name it.
        lease_s: Seconds that nobody else may claim it after a call.
        acknowledged: All up to this sequence is acknowledged.
        lease_end_s: The monotonic clock when the lease runs out.
        settled: All up to this sequence is ended in the queue, durably.
        fenced_tail: The queue's next sequence is not below this one after any crash.
        reported: The highest head that was answered since the start.
        begin: The queue's last sequence when the stream was made: what is gone up to there may
            have been so then.
        gaps: Why messages are gone.
    """

    name: str
    queue: Queue
    owner: str
    epoch: int
    lease_s: float
    acknowledged: int = 0
    lease_end_s: float = 0.0
    settled: int = 0
    fenced_tail: int = 0
    reported: int = 0
    begin: int = 0
    gaps: StreamGaps = field(default_factory=StreamGaps)

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return f"{STREAM_PREFIX}{self.name}"

    def to_binding(self) -> JsonObject:
        """Return its value in the bindings."""
        return {
            "queue-id": self.queue.id,
            "owner": self.owner,
            "epoch": self.epoch,
            "lease-ms": round(self.lease_s * 1000),
            "acknowledged": self.acknowledged,
            "begin": self.begin,
        }

    def note_left(self, reason: GapReason, sequences: Iterable[int]) -> None:
        """Take note of why messages leave its queue; called by `Queue.note_left`."""
        self.gaps.note(sequences, reason)

    def explain(self, first: int, last: int) -> list[Gap]:
        """Return a run of sequences without messages, with reasons."""
        found: list[Gap] = []
        for gap in self.gaps.explain(first, last):
            for end, reason in (
                (self.acknowledged, GapReason.ACKNOWLEDGED),
                (self.begin if gap.reason == GapReason.UNKNOWN else 0, GapReason.BEFORE),
                (gap.last, gap.reason),
            ):
                end = min(end, gap.last)
                if first <= end:
                    found.append(Gap(first, end, reason))
                    first = end + 1
        return found


class Streams:
    """The streams of a broker.

    Args:
        core: The core.
        bindings: Where streams are kept.
        registry: Addresses and queues.
        clock_s: The monotonic clock.
    """

    def __init__(
        self, core: Core, bindings: Bindings, registry: Registry, clock_s: Callable[[], float]
    ) -> None:
        self.by_name: dict[str, Stream] = {}
        self._core = core
        self._bindings = bindings
        self._registry = registry
        self._clock_s = clock_s
        self._epoch = 1

    def restore(self) -> None:
        """Take the streams from the bindings; the queues are there. All leases begin anew.

        One whose queue is gone is left out.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        snapshot = self._bindings.snapshot()
        self._epoch = snapshot.get(EPOCH_COUNTER, {"next": 1})["next"]
        for key in sorted(snapshot):
            if not key.startswith(STREAM_PREFIX):
                continue
            with reading(key):
                self._restore(key.removeprefix(STREAM_PREFIX), snapshot[key])

    def _restore(self, name: str, value: JsonObject) -> None:
        queue = self._registry.queues_by_id.get(value["queue-id"])
        if queue is None:
            return
        acknowledged = int(value["acknowledged"])
        stream = Stream(
            name,
            queue,
            str(value["owner"]),
            int(value["epoch"]),
            value["lease-ms"] / 1000,
            acknowledged,
            fenced_tail=self._core.queue_statistics(queue.id).tail,
            reported=acknowledged,
            begin=int(value["begin"]),
        )
        self._renew(stream)
        self._enter(stream)

    def _enter(self, stream: Stream) -> None:
        self.by_name[stream.name] = stream
        stream.queue.stream = stream
        self._registry.usage.open_or_close(stream.queue)

    def _renew(self, stream: Stream) -> None:
        stream.lease_end_s = self._clock_s() + stream.lease_s

    def lease_left_s(self, stream: Stream) -> float:
        """Return the seconds until others may claim a stream; 0: they may now."""
        return max(0.0, stream.lease_end_s - self._clock_s())

    # --- claims -----------------------------------------------------------------------------------

    async def claim(self, name: str, queue_name: str, owner: str, lease_s: float) -> Stream:
        """Make a stream, or claim one that is there: its earlier run is out from now on.

        One claim at a time: the caller sees to that.

        Args:
            name: Its name.
            queue_name: The queue that it reads, a durable one without consumers.
            owner: Who claims it, such as the id of a Spark query; 1 to 255 characters.
            lease_s: Seconds that nobody else may claim it after a call, more than 0.

        Raises:
            StreamHeld: It is another owner's, and its lease has not run out.
            RemoteProtocolError: It reads another queue, or there is none that a stream can read.

        Durability: on return the claim survives a power loss.
        """
        known = self.by_name.get(name)
        if known is None:
            queue = self._check_queue(name, queue_name)
            stream = Stream(name, queue, owner, 0, lease_s)
        else:
            self._check_claim(known, queue_name, owner)
            stream = known
        epoch = self._epoch
        await self._bindings.put(EPOCH_COUNTER, {"next": epoch + 1})
        self._epoch = epoch + 1
        if known is None:  # others may have come while that was written
            self._check_queue(name, queue_name)
            stream.queue.stream = stream
            statistics = self._core.queue_statistics(stream.queue.id)
            stream.acknowledged = stream.reported = statistics.head - 1
            stream.begin = statistics.available - 1
        else:
            self._check_claim(known, queue_name, owner)
        before = stream.owner, stream.epoch, stream.lease_s
        stream.owner, stream.epoch, stream.lease_s = owner, epoch, lease_s
        try:
            await self._bindings.put(stream.key, stream.to_binding())
        except BaseException:
            # It may be in the journal or not. The older run stays out: what it did is done anyway.
            if known is None:
                stream.queue.stream = None
            else:
                stream.owner, _, stream.lease_s = before
            raise
        self._renew(stream)
        if known is None:
            self._enter(stream)
        return stream

    def _check_claim(self, stream: Stream, queue_name: str, owner: str) -> None:
        if self.by_name.get(stream.name) is not stream:
            raise RemoteProtocolError(f"the stream {stream.name} was deleted meanwhile")
        if stream.queue.name != queue_name:
            raise RemoteProtocolError(
                f"the stream {stream.name} reads the queue {stream.queue.name}",
                measured=queue_name,
                cure="take another name, or delete the stream first",
            )
        left_s = self.lease_left_s(stream)
        if stream.owner != owner and left_s > 0:
            raise StreamHeld(
                f"the stream {stream.name} is held by {stream.owner}",
                measured=f"its lease runs for another {left_s:.1f} s",
                cure="stop that reader and wait, or delete the stream",
            )

    def _check_queue(self, name: str, queue_name: str) -> Queue:
        """Return a queue that a new stream can read.

        Raises:
            RemoteProtocolError: There is none; says why.
        """
        check_name(name, "stream")
        queue = self._registry.queues.get(queue_name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {queue_name}")
        if queue.stream is not None:
            raise StreamHeld(
                f"the queue {queue_name} is read by the stream {queue.stream.name}",
                cure="claim that one, or delete it first",
            )
        if queue.consumers:
            raise RemoteProtocolError(
                f"the queue {queue_name} has consumers, and a stream wants it for itself",
                measured=len(queue.consumers),
                cure="close them first, or give the stream a queue of its own",
            )
        if not queue.is_durable or queue.is_temporary:
            raise RemoteProtocolError(
                f"the queue {queue_name} does not survive a restart, and a stream has to",
                cure="make a durable queue",
            )
        if queue.traits.is_internal or queue.views is not None:
            raise RemoteProtocolError(
                f"the queue {queue_name} is one that no stream can read",
                measured="internal" if queue.traits.is_internal else "non-destructive",
                cure="have a divert or a subscription feed a queue of its own",
            )
        return queue

    def use(self, name: str, epoch: int) -> Stream:
        """Return a stream for a call of its owner, and begin its lease anew.

        Args:
            name: Its name.
            epoch: What `claim` gave the caller.

        Raises:
            StreamFenced: Somebody has claimed it since, or it was deleted.
        """
        stream = self.by_name.get(name)
        if stream is None:
            raise StreamFenced(f"there is no stream {name} any more", cure="claim it again")
        if epoch != stream.epoch:
            raise StreamFenced(
                f"the stream {name} was claimed by another run, of {stream.owner}",
                measured=f"epoch {epoch}",
                allowed=f"epoch {stream.epoch}",
                cure="end this reader: the newer one goes on where it was",
            )
        self._renew(stream)
        return stream

    # --- changes ----------------------------------------------------------------------------------

    async def acknowledge(self, stream: Stream, sequence: int) -> None:
        """Move how far a stream is acknowledged.

        Durability: on return the position survives a power loss. The messages up to it are ended
            by `app.streaming`, after a restart again.
        """
        before, stream.acknowledged = stream.acknowledged, max(stream.acknowledged, sequence)
        try:
            await self._bindings.put(stream.key, stream.to_binding())
        except BaseException:
            stream.acknowledged = before
            raise

    async def remove(self, stream: Stream) -> None:
        """Delete a stream: its queue is like any other again, with what is not acknowledged.

        Durability: on return it does not come back after a power loss.
        """
        await self._bindings.remove(stream.key)
        self.by_name.pop(stream.name, None)
        queue = stream.queue
        queue.stream = None
        queue.idle_since_s = self._clock_s()
        self._registry.usage.open_or_close(queue)

    # --- what others tell -------------------------------------------------------------------------

    def note_purge(self, queue: Queue) -> None:
        """Take note that a queue is about to be purged."""
        stream = queue.stream
        if stream is not None:
            last = self._core.queue_statistics(queue.id).available - 1
            stream.gaps.note_run(stream.acknowledged + 1, last, GapReason.PURGED)

    def note_ending(self, transaction: int, is_commit: bool) -> None:
        """Take note of what a prepared branch that ends leaves without a message.

        Args:
            transaction: Number of the branch.
            is_commit: Whether it is committed.
        """
        if not self.by_name:
            return
        reason = GapReason.TRANSACTION if is_commit else GapReason.ROLLED_BACK
        queues = self._registry.queues_by_id
        for member in self._core.branch_members(transaction):
            queue = queues.get(member.queue_id)
            if queue is not None and member.is_acknowledgement is is_commit:
                queue.note_left(reason, (member.sequence,))


def check_not_streamed(queue: Queue) -> None:
    """Refuse a consumer of a queue that a stream reads, and its deletion.

    Raises:
        StreamHeld: A stream reads it.
    """
    stream = queue.stream
    if stream is not None:
        raise StreamHeld(
            f"the queue {queue.name} is read by the stream {stream.name} of {stream.owner}",
            cure=f"take a queue of your own, or delete the stream (`vespiary stream delete "
            f"{stream.name}`)",
        )

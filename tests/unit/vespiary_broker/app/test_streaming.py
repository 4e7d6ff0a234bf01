"""Calls on streams: what is durable before an answer, what a head covers, what is told of gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.app.streaming import Streaming
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_broker.engine.streams import Stream
from vespiary_codec.journal.ranges import decode_range, encode_trailer
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_spec.errors import RemoteProtocolError, StreamFenced
from vespiary_spec.settings import RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import ServerRig

KIB = 1024


class StreamRig(ServerRig):
    """A server with a queue, and a stream that reads it. `flush` writes what is staged."""

    queue: Queue
    stream: Stream

    def __init__(self, **options: Any) -> None:
        super().__init__(journal=MemoryJournal(**options))
        self.streams = Streaming(self.engine, self.cycle, self.journal)  # type: ignore[arg-type]

    async def begin(self, messages: int = 0) -> None:
        registry = self.engine.registry
        self.queue = await registry.create_queue("q", "q", RoutingType.ANYCAST)
        self.route = registry.queue_route(self.queue).next_handle()
        self.put(*range(1, messages + 1))
        await self.flush()
        await self.streams.claim("s", "q", "query", 60)
        self.stream = self.engine.streams.by_name["s"]

    def put(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            self.core.publish(
                self.route, b"n:1\n", b"%d" % number, **{"persistent": True} | options
            )

    def exhaust(self) -> None:
        """Fill the journal's last file to its last page."""
        for size in (15 * KIB, 3000, 0):
            with pytest.raises(NoRoom):  # noqa: PT012  (until it comes)
                while True:
                    self.core.append_record(40, bytes(size))
                    self.journal.flush()

    def call(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)

    async def done(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have a call done, with the writes that it waits for."""
        task = self.call(work)
        while not task.done():
            await self.flush()
        return task.result()

    async def head(self) -> Any:
        return await self.done(self.streams.head("s", self.stream.epoch))

    async def acknowledge(self, sequence: int) -> Any:
        return await self.done(self.streams.acknowledge("s", self.stream.epoch, sequence))

    async def range(self, after: int, to: int, max_bytes: int = 1 << 20) -> Any:
        work = self.streams.range("s", self.stream.epoch, after, to, max_bytes)
        return await self.done(work)

    async def told(self, after: int, to: int) -> tuple[list[int], list[tuple[int, int, str]]]:
        """Return the sequences and the gaps of a range."""
        found = await self.range(after, to)
        assert found.through == to
        return sequences(found, self.queue.id), [tuple(gap) for gap in found.gaps]


def sequences(found: Any, queue_id: int) -> list[int]:
    data = found.blocks + encode_trailer(found.through, found.messages, found.gaps)
    result = []
    for payload, count in decode_range(data, len(found.blocks), queue_id).payloads:
        for raw in walk_records(payload, count):
            record = decode_record(raw)
            assert isinstance(record, AddRecord)
            result.append(record.places[0].sequence)
    return result


def on_rig(
    test: Callable[[StreamRig], Coroutine[Any, Any, None]], messages: int = 5, **options: Any
) -> None:
    async def run() -> None:
        rig = StreamRig(**options)
        await rig.begin(messages)
        await test(rig)
        await rig.close()

    product_loop.run(run())


# --- durability ---------------------------------------------------------------------------------


def test_an_acknowledgement_is_answered_when_its_ends_are_durable():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        answer = rig.call(rig.streams.acknowledge("s", rig.stream.epoch, 3))
        await rig.settle(100)
        assert rig.core.queue_statistics(rig.queue.id).ready == 2, "they are staged"
        assert not answer.done(), "and not durable"
        await rig.flush()
        assert (await answer).acknowledged == 3

    on_rig(check)


def test_nothing_ends_before_its_position_is_durable():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        rig.bindings.gate = asyncio.Event()
        answer = rig.call(rig.streams.acknowledge("s", rig.stream.epoch, 3))
        await rig.flush()
        assert rig.core.queue_statistics(rig.queue.id).ready == 5
        assert rig.bindings.values["stream/s"]["acknowledged"] == 0
        rig.bindings.gate.set()
        while not answer.done():
            await rig.flush()
        assert rig.bindings.values["stream/s"]["acknowledged"] == 3

    on_rig(check)


def test_what_a_crash_left_between_position_and_ends_is_ended_at_the_start():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        await rig.engine.streams.acknowledge(rig.stream, 3)  # and then the lights went out
        assert (await rig.told(0, 5)) == ([4, 5], [(1, 3, "acknowledged")])
        await rig.done(rig.streams.settle_all())
        assert rig.core.queue_statistics(rig.queue.id).head == 4
        assert rig.core.queue_statistics(rig.queue.id).ready == 2

    on_rig(check)


def test_a_head_is_told_when_no_later_message_can_have_its_sequence():
    async def check(rig: StreamRig) -> None:
        rig.journal.written = []
        answer = rig.call(rig.streams.head("s", rig.stream.epoch))
        await rig.settle(100)
        assert not answer.done(), "the queue's next sequence is not durable"
        await rig.flush()
        assert (await answer).head == 5
        assert rig.stream.fenced_tail == 6
        writes = len(rig.journal.written)
        assert (await rig.head()).head == 5
        assert len(rig.journal.written) == writes, "what was told once costs nothing"
        rig.put(6)
        assert (await rig.head()).head in (5, 6), "only what is durable is there"
        await rig.flush()
        assert (await rig.head()).head == 6
        assert rig.stream.fenced_tail == 7

    on_rig(check)


def test_without_room_for_that_the_head_stays_where_it_was():
    async def check(rig: StreamRig) -> None:
        assert (await rig.head()).head == 5
        rig.put(6)
        await rig.flush()
        rig.exhaust()
        state = await rig.head()
        assert (state.head, state.cap) == (5, "journal-full")
        assert rig.journal.space_requests
        assert (await rig.told(0, 5))[0] == [1, 2, 3, 4, 5]
        rig.journal.add_file()
        state = await rig.head()
        assert (state.head, state.cap) == (6, "")

    on_rig(check, files=1, file_bytes=64 * KIB, record_bytes_max=30 * KIB)


def test_an_acknowledgement_without_room_goes_on_when_there_is_some():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        rig.exhaust()
        answer = rig.call(rig.streams.acknowledge("s", rig.stream.epoch, 5))
        await rig.flush()
        assert not answer.done()
        assert rig.journal.space_requests
        rig.journal.add_file()
        while not answer.done():
            await rig.flush()
        assert (await answer).lag == 0
        assert rig.core.queue_statistics(rig.queue.id).ready == 0

    on_rig(check, files=1, file_bytes=64 * KIB, record_bytes_max=30 * KIB)


def test_a_stream_that_is_deleted_leaves_nothing_that_it_acknowledged():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        await rig.engine.streams.acknowledge(rig.stream, 3)
        await rig.done(rig.streams.remove("s"))
        assert rig.core.queue_statistics(rig.queue.id).ready == 2
        assert "stream/s" not in rig.bindings.values
        with pytest.raises(RemoteProtocolError, match="no stream s"):
            await rig.streams.remove("s")

    on_rig(check)


# --- fences -------------------------------------------------------------------------------------


def test_a_run_that_was_replaced_while_it_waited_is_told_so():
    async def check(rig: StreamRig) -> None:
        old = rig.stream.epoch
        head = rig.call(rig.streams.head("s", old))
        await rig.settle()
        await rig.streams.claim("s", "q", "query", 60)
        await rig.flush()
        with pytest.raises(StreamFenced):
            await head
        for call in (rig.streams.acknowledge("s", old, 3), rig.streams.range("s", old, 0, 3, 9)):
            with pytest.raises(StreamFenced):
                await rig.done(call)
        assert rig.stream.acknowledged == 0

    on_rig(check)


def test_a_claim_waits_for_the_acknowledgement_that_is_under_way():
    async def check(rig: StreamRig) -> None:
        await rig.head()
        put, gate = rig.bindings.put, asyncio.Event()

        async def slow_put(key: str, value: dict[str, Any]) -> None:
            rig.bindings.put = put  # type: ignore[method-assign]
            await gate.wait()
            await put(key, value)

        rig.bindings.put = slow_put  # type: ignore[method-assign]
        done = rig.call(rig.streams.acknowledge("s", rig.stream.epoch, 3))
        await rig.settle()
        claim = rig.call(rig.streams.claim("s", "q", "query", 60))
        await rig.settle()
        assert not claim.done()
        gate.set()
        while not (done.done() and claim.done()):
            await rig.flush()
        assert (await claim).acknowledged == 3, "the next run begins behind it"
        assert isinstance(done.exception(), StreamFenced | None)

    on_rig(check)


# --- ranges -------------------------------------------------------------------------------------


def test_a_range_is_read_in_parts_that_fit_together():
    async def check(rig: StreamRig) -> None:
        whole = await rig.range(0, 5)
        assert sequences(whole, rig.queue.id) == [1, 2, 3, 4, 5]
        at, found = 0, []
        while at < 5:
            part = await rig.range(at, 5, 1)
            found += sequences(part, rig.queue.id)
            assert part.gaps == []
            assert part.through > at
            at = part.through
        assert found == [1, 2, 3, 4, 5]
        assert (await rig.range(0, 5)).blocks == whole.blocks
        assert (await rig.range(3, 3)) == (b"", 0, 3, [])

    on_rig(check)


def test_ranges_that_are_none_are_refused():
    async def check(rig: StreamRig) -> None:
        for after, to in ((4, 3), (0, 6)):
            with pytest.raises(RemoteProtocolError):
                await rig.range(after, to)
        with pytest.raises(RemoteProtocolError, match="at most its head, 5"):
            await rig.acknowledge(6)
        assert rig.stream.acknowledged == 0

    on_rig(check)


def test_gaps_have_their_reasons_in_order():
    async def check(rig: StreamRig) -> None:
        rig.put(*range(6, 11))
        await rig.flush()
        rig.core.finish(rig.queue.id, [7, 9, 10])
        rig.queue.note_left(GapReason.EXPIRED, [7])
        assert await rig.told(0, 10) == (
            [1, 2, 3, 4, 5, 6, 8], [(7, 7, "expired"), (9, 10, "unknown")],
        )  # fmt: skip
        rig.engine.streams.note_purge(rig.queue)
        rig.core.purge_queue(rig.queue.id)
        await rig.flush()
        rig.put(11)
        await rig.flush()
        assert await rig.told(0, 11) == (
            [11], [(1, 6, "purged"), (7, 7, "expired"), (8, 10, "purged")],
        )  # fmt: skip

    on_rig(check)


def test_a_paused_queue_has_no_more_than_was_told():
    async def check(rig: StreamRig) -> None:
        assert (await rig.head()).head == 5
        rig.put(6)
        await rig.flush()
        pausing = rig.engine.registry.pausing
        await pausing.pause_queue(rig.queue, is_paused=True)
        state = await rig.head()
        assert (state.head, state.cap) == (5, "paused")
        assert (await rig.told(0, 5))[0] == [1, 2, 3, 4, 5], "what was told can be read"
        await pausing.pause_queue(rig.queue, is_paused=False)
        assert (await rig.head()).head == 6

    on_rig(check)


def test_a_scheduled_message_is_given_in_its_place_and_holds_nobody_up():
    async def check(rig: StreamRig) -> None:
        rig.put(6, special=True)
        await rig.flush()
        rig.core.set_aside(rig.queue.id, 6)
        rig.put(7)
        await rig.flush()
        assert (await rig.head()).head == 7
        assert await rig.told(0, 7) == ([1, 2, 3, 4, 5, 6, 7], [])
        await rig.acknowledge(7)
        assert rig.core.queue_statistics(rig.queue.id).aside == 0

    on_rig(check)


def test_more_than_one_turn_of_messages_is_read_and_ended():
    async def check(rig: StreamRig) -> None:
        rig.put(*range(6, 20_001))
        await rig.flush()
        assert (await rig.head()).head == 20_000
        assert (await rig.range(0, 20_000, 64 << 20)).messages == 20_000
        state = await rig.acknowledge(20_000)
        assert (state.acknowledged, state.lag) == (20_000, 0)
        assert rig.core.queue_statistics(rig.queue.id).ready == 0

    on_rig(check)


def test_state_without_a_call_leaves_the_lease_alone():
    async def check(rig: StreamRig) -> None:
        rig.stream.lease_end_s -= 10
        state = rig.streams.get("s")
        assert state is not None
        assert state.lease_left_s < 51
        assert rig.streams.names() == ["s"]
        assert rig.streams.get("t") is None

    on_rig(check)

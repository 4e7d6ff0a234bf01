"""A queue on its way to another broker: what is durable before the other is told of a message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.app.drained_queue import DrainedQueue
from vespiary_broker.engine.core import NoRoom
from vespiary_codec.journal.transfer import decode_batch
from vespiary_spec.settings import RoutingType
from vespiary_testkit import product_loop
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import ServerRig

KIB = 1024


class Told:
    """Another broker, which notes what it is told."""

    def __init__(self) -> None:
        self.sequences: list[int] = []

    async def send(self, _broker: str, _queue_id: int, _queue: str, data: bytes) -> int:
        self.sequences += [message.sequence for message in decode_batch(data)]
        return 0


class MovingRig(ServerRig):
    """A server with a queue that is moved. `flush` writes what is staged."""

    def __init__(self) -> None:
        super().__init__(journal=MemoryJournal())
        self.other = Told()

    async def begin(self, *, is_durable: bool = True) -> None:
        registry = self.engine.registry
        self.queue = await registry.create_queue(
            "q", "q", RoutingType.ANYCAST, is_durable=is_durable
        )
        self.route = registry.queue_route(self.queue).next_handle()
        await self.flush()

    def put(self, count: int, **options: Any) -> None:
        for _ in range(count):
            self.core.publish(self.route, b"n:1\n", b"x", **options)

    def move(self) -> asyncio.Task[None]:
        async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
            return await call()

        moving = DrainedQueue(
            self.engine,
            self.cycle,
            self.journal,  # type: ignore[arg-type]
            None,
            self.queue,
            lambda: None,
        )
        work = moving.move(self.other, "id", insist, lambda *_: None)  # type: ignore[arg-type]
        return asyncio.get_running_loop().create_task(work)

    def exhaust(self) -> None:
        """Fill the journal's last file to its last page."""
        for size in (15 * KIB, 3000, 0):
            with pytest.raises(NoRoom):  # noqa: PT012  (until it comes)
                while True:
                    self.core.append_record(40, bytes(size))
                    self.journal.flush()


def on_rig(test: Callable[[MovingRig], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        rig = MovingRig()
        await rig.begin(**options)
        await test(rig)
        await rig.close()

    product_loop.run(run())


@pytest.mark.parametrize("is_persistent", [False, True])
def test_no_sequence_is_told_before_the_next_one_of_the_queue_is_durable(is_persistent: bool):
    async def check(rig: MovingRig) -> None:
        rig.put(3, persistent=is_persistent)
        await rig.flush()
        work = rig.move()
        await rig.settle(100)
        assert rig.other.sequences == [], "a later message could have the same ones"
        await rig.flush()
        await work
        assert rig.other.sequences == [1, 2, 3]

    on_rig(check)


def test_without_room_for_that_nothing_is_told_until_there_is_some():
    async def check(rig: MovingRig) -> None:
        rig.put(3, persistent=False)
        rig.exhaust()
        work = rig.move()
        await rig.settle(100)
        assert rig.journal.space_requests
        assert (rig.other.sequences, rig.core.queue_statistics(rig.queue.id).tail) == ([], 4)
        rig.journal.add_file()
        while not work.done():
            await rig.flush()
        await work
        assert rig.other.sequences == [1, 2, 3]

    on_rig(check)


def test_a_queue_that_a_restart_takes_away_has_nothing_written_of_it():
    async def check(rig: MovingRig) -> None:
        rig.put(3, persistent=False)
        await rig.flush()
        rig.journal.written = []
        await rig.move()
        assert rig.other.sequences == [1, 2, 3]
        assert rig.journal.written == []

    on_rig(check, is_durable=False)

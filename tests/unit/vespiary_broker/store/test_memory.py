"""The journal without a disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vespiary_broker.store.journal import open_journal
from vespiary_broker.store.memory import NullJournal
from vespiary_broker.store.options import Durability, JournalOptions
from vespiary_native.abc import AckMode, NoRoom
from vespiary_spec.errors import JournalError
from vespiary_testkit import product_loop

SLAB = 64 * 1024


def options(folder: Path) -> JournalOptions:
    return JournalOptions(
        directory=folder / "journal",
        is_persistent=False,
        slab_bytes=SLAB,
        memory_bytes=16 * SLAB,
        record_bytes_max=16 * 1024,
    )


def test_it_confirms_in_the_next_turn_and_writes_nothing(tmp_path: Path):
    async def live() -> None:
        journal = await open_journal(options(tmp_path))
        assert isinstance(journal, NullJournal)
        assert (journal.engine_name, journal.durability) == ("MEMORY", Durability.D0)
        calls: list[int] = []
        journal.on_durable = lambda: calls.append(1)
        core = journal.core
        core.open_queue(1)
        route = core.open_route([1])
        core.publish(route, b"", b"x", persistent=True)
        journal.kick()
        journal.kick()
        assert calls == []
        assert core.queue_statistics(1).available == 1
        await asyncio.sleep(0)
        assert calls == [1]
        assert core.queue_statistics(1).available == 2
        core.publish(route, b"", b"x", persistent=True)
        await journal.wait_durable()
        assert core.queue_statistics(1).available == 3
        with pytest.raises(JournalError, match="no disk"):
            await journal.load_slab(1, 0)
        assert journal.statistics().durability is Durability.D0
        await journal.close()

    product_loop.run(live())
    assert list(tmp_path.iterdir()) == []


def test_it_is_full_when_memory_is_and_goes_on_when_messages_go(tmp_path: Path):
    async def live() -> None:
        journal = NullJournal(options(tmp_path))
        core = journal.core
        core.open_queue(1)
        route = core.open_route([1])
        connection = core.open_connection()
        consumer = core.open_consumer(connection, 1, AckMode.AUTO, 1_000_000, b"s", 12)
        spaces: list[int] = []
        journal.on_space = lambda: spaces.append(1)
        sent = 0
        with pytest.raises(NoRoom):  # noqa: PT012 (when is the question)
            for _ in range(1000):
                core.publish(route, b"", bytes(4000), persistent=True)
                sent += 1
                await journal.wait_durable()
        assert 50 < sent < 16 * SLAB // 4000, "it stops before memory would have to be given up"
        assert journal.blocked is not None
        journal.request_space()
        received = 0
        while received < sent:
            status, count, _ = core.deliver(consumer, 1000, 1 << 30)
            assert count, f"nothing was evicted ({status})"
            received += count
        await journal.wait_durable()
        journal.request_space()
        await asyncio.sleep(0)
        assert journal.blocked is None
        core.publish(route, b"", bytes(4000), persistent=True)
        assert journal.statistics().files_reclaimed > 5
        await journal.close()

    product_loop.run(live())

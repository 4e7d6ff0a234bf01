"""Records that Python keeps in the message journal survive their file, and then let it go."""

from __future__ import annotations

import asyncio
from pathlib import Path

from vespiary_broker.store.kept import NothingKept
from vespiary_native.abc import Core, NoRoom
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import FILE_BYTES, Client, open_memory, run, until

# --- an owner of records --------------------------------------------------------------------------

# An owner of records in the message journal, for tests of the store: one record for each name.

TYPE = 100


class NamedRecords:
    """Names, each in one live record of a type that the core does not know.

    Attributes:
        core: Set it when the journal is open.
        restored: The names that a recovery found, in order.
    """

    def __init__(self) -> None:
        self.core: Core | None = None
        self.restored: list[bytes] = []
        self._files: dict[bytes, int] = {}

    def add(self, name: bytes) -> None:
        """Append the record of a name; an older one of it is dead from now on."""
        assert self.core is not None
        self.core.append_record(TYPE, name, urgent=False)
        self._files[name] = self.core.current_file()

    def restore(self, file_id: int, type_: int, body: bytes) -> None:
        if type_ == TYPE:
            self.restored.append(body)
            self._files[body] = file_id

    def live_records(self, file_id: int) -> int:
        return list(self._files.values()).count(file_id)

    def live_bytes(self, file_id: int) -> int:
        return sum(len(name) + 8 for name, file in self._files.items() if file == file_id)

    def rewrite(self, file_id: int, limit_bytes: int) -> bool:
        for name in [name for name, file in self._files.items() if file == file_id]:
            if limit_bytes <= 0:
                return False
            try:
                self.add(name)
            except NoRoom:
                return False
            limit_bytes -= len(name) + 8
        return True

    def forget_file(self, file_id: int) -> None:
        assert not self.live_records(file_id)


# --- the tests ------------------------------------------------------------------------------------


async def _pass_by(client: Client, messages: int) -> None:
    """Send and acknowledge messages, so that files fill and hold nothing."""
    for _ in range(messages):
        await client.send(1)
        await client.receive()
        await client.acknowledge(len(client.held))
        await asyncio.sleep(0)


@run
async def test_few_records_are_moved_and_let_their_file_go(tmp_path: Path):
    kept = NamedRecords()
    journal = await open_memory(tmp_path, disk := MemoryDisk(), kept=kept)
    kept.core = journal.core
    client = Client(journal, disk, 1)
    kept.add(b"orders")
    first = journal.core.current_file()
    await _pass_by(client, 60)
    await until(lambda: journal.statistics().files_reclaimed >= 2)
    await until(lambda: first not in journal._pool.active_ids)
    await journal.close()
    again = NamedRecords()
    other = await open_memory(tmp_path, disk, kept=again)
    assert set(again.restored) == {b"orders"}
    await other.close()


@run
async def test_many_records_hold_their_file_until_they_are_rewritten(tmp_path: Path):
    kept = NamedRecords()
    journal = await open_memory(tmp_path, disk := MemoryDisk(), kept=kept)
    kept.core = journal.core
    client = Client(journal, disk, 1)
    kept.add(bytes(FILE_BYTES // 4))
    first = journal.core.current_file()
    await _pass_by(client, 60)
    await until(lambda: journal.statistics().files_reclaimed >= 2)
    assert first in journal._pool.active_ids, "moving it would cost too much"
    assert kept.live_records(first) == 1
    assert kept.rewrite(first, 1 << 20)
    await until(lambda: first not in journal._pool.active_ids)
    await journal.close()


@run
async def test_a_recovery_hands_over_what_the_core_does_not_know(tmp_path: Path):
    disk = MemoryDisk()
    kept = NamedRecords()
    journal = await open_memory(tmp_path, disk, kept=kept)
    kept.core = journal.core
    kept.add(b"orders")
    kept.add(b"bills")
    await journal.wait_durable()
    await journal.close()
    again = NamedRecords()
    other = await open_memory(tmp_path, disk, kept=again)
    assert again.restored == [b"orders", b"bills"]
    assert again.live_records(1) == 2, "the file that they stand in is told"
    await other.close()


def test_the_owner_of_nothing_holds_no_file():
    nothing = NothingKept()
    nothing.restore(1, 100, b"")
    assert (nothing.live_records(1), nothing.live_bytes(1)) == (0, 0)
    assert nothing.rewrite(1, 0)

"""The JMS journal: no file before its first use, its own files after that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.bindings import BindingsJournal
from vespiary_broker.store.jms import JmsJournal
from vespiary_spec.errors import CorruptRecord, ForeignJournal, JournalError, JournalLocked
from vespiary_testkit import product_loop


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        product_loop.run(test(*args, **kwargs))

    return wrapper


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(folder.glob(pattern))


@run
async def test_looking_makes_no_file(tmp_path: Path):
    journal = JmsJournal(tmp_path / "jms")
    await journal.open_existing()
    assert journal.snapshot() == {}
    assert not journal.exists
    await journal.remove("queue/never")
    await journal.close()
    assert files(tmp_path) == []


@run
async def test_it_exists_from_its_first_use_on(tmp_path: Path):
    journal = JmsJournal(tmp_path)
    await asyncio.gather(journal.put("queue/a", {"n": 1}), journal.put("topic/b", {"n": 2}))
    assert journal.exists
    await journal.close()
    assert files(tmp_path, "*.jms")[0].name == "activemq-jms-1.jms"
    assert {path.stat().st_size for path in files(tmp_path, "*.jms")} == {1_048_576}
    again = JmsJournal(tmp_path)
    await again.open_existing()
    assert again.snapshot() == {"queue/a": {"n": 1}, "topic/b": {"n": 2}}
    await again.remove("queue/a")
    await again.close()
    third = JmsJournal(tmp_path)
    await third.open_existing()
    assert third.snapshot() == {"topic/b": {"n": 2}}
    await third.close()


@run
async def test_it_shares_a_folder_with_the_bindings(tmp_path: Path):
    bindings = await BindingsJournal.open(tmp_path)
    journal = JmsJournal(tmp_path)
    await journal.put("queue/a", {"from": "jms"})
    await bindings.put("queue/1", {"from": "bindings"})
    await journal.close()
    await bindings.close()
    again = await BindingsJournal.open(tmp_path)
    assert again.snapshot() == {"queue/1": {"from": "bindings"}}
    jms = JmsJournal(tmp_path)
    await jms.open_existing()
    assert jms.snapshot() == {"queue/a": {"from": "jms"}}
    await jms.close()
    await again.close()


@run
async def test_a_second_broker_is_told_who_has_it(tmp_path: Path):
    journal = JmsJournal(tmp_path)
    await journal.put("queue/a", {})
    other = JmsJournal(tmp_path)
    with pytest.raises(JournalLocked):
        await other.open_existing()
    with pytest.raises(JournalLocked):
        await other.put("queue/b", {})
    await other.close()
    await journal.close()


@run
async def test_files_of_another_journal_are_refused(tmp_path: Path):
    bindings = await BindingsJournal.open(tmp_path)
    await bindings.put("queue/1", {})
    await bindings.close()
    (tmp_path / "activemq-bindings-1.bindings").rename(tmp_path / "activemq-jms-1.jms")
    with pytest.raises(ForeignJournal):
        await JmsJournal(tmp_path).open_existing()


@run
async def test_damage_stops_it_with_file_and_offset(tmp_path: Path):
    journal = JmsJournal(tmp_path)
    for number in range(3):
        await journal.put(f"queue/{number}", {})
    await journal.close()
    path = tmp_path / "activemq-jms-1.jms"
    data = bytearray(path.read_bytes())
    data[4096 + 80] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecord, match=r"activemq-jms-1\.jms:4096"):
        await JmsJournal(tmp_path).open_existing()


@run
async def test_a_missing_folder_is_made_only_if_wanted(tmp_path: Path):
    refusing = JmsJournal(tmp_path / "own", create_directory=False)
    await refusing.open_existing()
    with pytest.raises(JournalError, match="JMS journal's folder does not exist"):
        await refusing.put("queue/a", {})
    making = JmsJournal(tmp_path / "own")
    await making.put("queue/a", {})
    await making.close()
    with pytest.raises(JournalError, match="is closed"):
        await making.put("queue/b", {})

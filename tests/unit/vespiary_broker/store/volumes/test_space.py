"""How full volumes are, asked while the broker runs."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.volumes import space
from vespiary_broker.store.volumes.space import SpaceLook
from vespiary_testkit import product_loop
from vespiary_testkit.waiting import WAIT_S


def test_the_numbers_are_those_of_the_filesystem(tmp_path: Path) -> None:
    (found,) = product_loop.run(
        SpaceLook([("journal", str(tmp_path)), ("paging", str(tmp_path / "gone"))]).look()
    )
    facts = os.statvfs(tmp_path)
    assert found.name == "journal"
    assert found.size_bytes == facts.f_blocks * facts.f_frsize
    assert abs(found.free_bytes - facts.f_bavail * facts.f_frsize) < 1 << 30
    assert found.inodes == facts.f_files
    assert product_loop.run(SpaceLook([]).look()) == ()


def test_a_filesystem_that_hangs_holds_up_one_thread_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, goes_on = threading.Event(), threading.Event()
    read = space.read

    def hang(volumes: Any) -> Any:
        is_asked.set()
        assert goes_on.wait(WAIT_S)
        return read(volumes)

    others = set(threading.enumerate())

    def looking() -> list[threading.Thread]:
        """Return the threads of looks that have not come to an end."""
        threads = set(threading.enumerate()) - others
        return [thread for thread in threads if thread.name == "vespiary-space"]

    async def run() -> None:
        look = SpaceLook([("journal", str(tmp_path))])
        assert await look.look() == ()
        assert await asyncio.to_thread(is_asked.wait, WAIT_S)
        assert await look.look() == (), "the same look is waited for"
        assert len(looking()) == 1
        goes_on.set()
        async with asyncio.timeout(WAIT_S):
            while not await look.look():
                pass

    monkeypatch.setattr(space, "read", hang)
    monkeypatch.setattr(space, "LOOK_S", 0.05)
    product_loop.run(run())

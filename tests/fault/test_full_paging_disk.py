"""A broker whose pages lie on a volume of their own that is full: nobody waits, nothing is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_calls import metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.numbered_messages import send_numbered, take_numbered
from vespiary_testkit.small_disk import MIB, small_disk
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=256KiB",
    "journal-file-size=1MiB",
    "disk-scan-period=200",
    "max-disk-usage=100",
)
COUNT = 2000
QUEUE = "/queue/orders"


def fill(volume: Path) -> Path:
    """Take all the room of a volume; return the file that has it."""
    ballast = volume / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 64 * 1024, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return ballast


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16 * MIB) as mount:
        yield mount


@pytest.mark.parametrize("end", ["goes on", "kill"])
def test_messages_stay_in_the_journal_until_pages_can_be_written(
    volume: Path, tmp_path: Path, end: str
) -> None:
    setting = f"paging-directory={volume / 'paging'}"
    broker = BrokerProcess(tmp_path / "data", *SETTINGS, setting)
    with broker:
        send_numbered(broker.port(), QUEUE, range(COUNT))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 3)
        ballast = fill(volume)
        send_numbered(broker.port(), QUEUE, range(COUNT, 2 * COUNT))  # all of it is confirmed
        wait_for(lambda: metrics(broker)["vespiary_paging_blocked"] == 1)
        assert metrics(broker)["vespiary_journal_blocked"] == 0
        assert "no page can be written" in broker.log_text()
        if end == "kill":
            broker.kill()
            broker.start()
            assert metrics(broker)["vespiary_ready"] == 1, "a full volume hinders no start"
        ballast.unlink()
        wait_for(lambda: metrics(broker)["vespiary_paging_blocked"] == 0)
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 10)
        assert take_numbered(broker.port(), QUEUE, 2 * COUNT) == list(range(2 * COUNT))
        wait_for(lambda: not list((volume / "paging").glob("*/*.page")))

"""How long compaction keeps a sender waiting: `python -m benchmarks.bench_compaction --folder DIR`.

Owns: one journal in a folder of its own below the one given, removed at the end. Must never: be a
test's verdict. Called by people; docs/internals/compaction.md leans on it.

A journal is filled with 1-KiB messages of which one in twenty stays. Then one message after another
is sent and its confirm waited for, for some seconds without compaction and for some with it. What
is printed is the time of one confirm: median, 99th percentile, longest.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import AckMode, NoRoom

_BODY = bytes(1024)
_MIB = 1024 * 1024


async def _fill(journal: MessageJournal, route: int, messages: int) -> None:
    """Send messages and acknowledge nineteen of twenty."""
    core = journal.core
    connection = core.open_connection()
    consumer = core.open_consumer(connection, 1, AckMode.INDIVIDUAL, 2**31 - 1, b"s", 12)
    for start in range(1, messages, 1000):
        for _ in range(1000):
            while True:
                try:
                    core.publish(route, b"", _BODY, persistent=True)
                    break
                except NoRoom:
                    journal.request_space()
                    await asyncio.sleep(0.001)
        await journal.wait_durable()
        core.deliver(consumer, 1000, 1 << 30)
        for sequence in range(start, start + 1000):
            if sequence % 20:
                core.acknowledge(consumer, sequence)
        await journal.wait_durable()
    core.close_consumer(consumer)


async def _confirms(journal: MessageJournal, route: int, seconds: float) -> list[float]:
    """Send one message after another; return the milliseconds that each took."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        journal.core.publish(route, b"", _BODY, persistent=True)
        await journal.wait_durable()
        taken.append((time.perf_counter() - begun) * 1000)
    return sorted(taken)


def _show(name: str, taken: list[float]) -> None:
    print(
        f"{name:<20} {len(taken):>7} confirms, median {taken[len(taken) // 2]:.2f} ms, "
        f"p99 {taken[len(taken) * 99 // 100]:.2f} ms, longest {taken[-1]:.2f} ms"
    )


async def _measure(folder: Path, mib: int, seconds: float) -> None:
    options = JournalOptions(
        directory=folder, compact_min_files=0, memory_bytes=64 * _MIB, max_disk_usage_percent=100
    )
    journal = await MessageJournal.open(options, queue_ids=[1])
    route = journal.core.open_route([1])
    await _fill(journal, route, mib * 1000)
    before = journal.statistics()
    print(f"{journal.engine_name}, {journal.durability}; {before.files.active} files")
    print(f"{before.live_percent:.1f} % live")
    _show("without compaction", await _confirms(journal, route, seconds))
    compaction = asyncio.create_task(journal.compact())
    _show("with compaction", await _confirms(journal, route, seconds))
    await compaction
    await asyncio.sleep(2)
    after = journal.statistics()
    counts = after.compaction
    print(f"moved {counts.moved_messages} messages out of {counts.files} files")
    print(f"{after.files.active} files, {after.live_percent:.1f} % live")
    await journal.close()


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk measured")
    parser.add_argument("--mib", type=int, default=400, help="messages of 1 KiB, in MiB")
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        asyncio.run(_measure(Path(folder) / "journal", arguments.mib, arguments.seconds))


if __name__ == "__main__":
    main()

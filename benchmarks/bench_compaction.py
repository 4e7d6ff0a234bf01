"""How long compaction keeps a sender waiting: `python -m benchmarks.bench_compaction --folder DIR`.

Owns: one journal in a folder of its own below the one given, removed at the end. Must never: be a
test's verdict. Called by people; docs/internals/compaction.md leans on it.

A journal is filled with messages of which one in twenty stays. Then one message after another is
sent and its confirm waited for, in short stretches without compaction and with it by turns, so that
both see the same disk. What is printed is the time of one confirm (median, 99th percentile,
longest), and the longest time for which a step of the compaction held the event loop, beside the
10 ms that it may.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from vespiary_broker.app import event_loop
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import AckMode, NoRoom

_MIB = 1024 * 1024
_FLOOR_MS = 10.0
"""What compaction may stop the appender for at most."""


async def _fill(journal: MessageJournal, route: int, messages: int, body: bytes) -> None:
    """Send messages and acknowledge nineteen of twenty."""
    core = journal.core
    connection = core.open_connection()
    consumer = core.open_consumer(connection, 1, AckMode.INDIVIDUAL, 2**31 - 1, b"s", 12)
    for start in range(1, messages, 1000):
        for _ in range(1000):
            while True:
                try:
                    core.publish(route, b"", body, persistent=True)
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


async def _confirms(
    journal: MessageJournal, route: int, seconds: float, body: bytes
) -> list[float]:
    """Send one message after another; return the milliseconds that each took."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        journal.core.publish(route, b"", body, persistent=True)
        await journal.wait_durable()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


def _show(name: str, taken: list[float]) -> None:
    taken = sorted(taken)
    print(
        f"{name:<20} {len(taken):>7} confirms, median {taken[len(taken) // 2]:.2f} ms, "
        f"p99 {taken[len(taken) * 99 // 100]:.2f} ms, longest {taken[-1]:.2f} ms"
    )


async def _measure(folder: Path, mib: int, body_size: int, stretches: int, seconds: float) -> None:
    body = bytes(body_size)
    options = JournalOptions(
        directory=folder, compact_min_files=0, memory_bytes=64 * _MIB, max_disk_usage_percent=100
    )
    journal = await MessageJournal.open(options, queue_ids=[1])
    route = journal.core.open_route([1])
    await _fill(journal, route, mib * _MIB // (body_size + 80) // 1000 * 1000, body)
    before = journal.statistics()
    print(f"{journal.engine_name}, {journal.durability}; {before.files.active} files")
    print(f"{before.live_percent:.1f} % live")
    without: list[float] = []
    with_it: list[float] = []
    for _ in range(stretches):
        without += await _confirms(journal, route, seconds, body)
        compaction = asyncio.create_task(journal.compact())
        taken = await _confirms(journal, route, seconds, body)
        if compaction.done():
            break  # it came to its end in this stretch: part of it was without
        with_it += taken
        compaction.cancel()
        await asyncio.wait([compaction])
    else:
        await journal.compact()
    _show("without compaction", without)
    if with_it:
        _show("with compaction", with_it)
    await asyncio.sleep(2)
    after = journal.statistics()
    counts = after.compaction
    print(f"moved {counts.moved_messages} messages out of {counts.files} files")
    print(f"{after.files.active} files, {after.live_percent:.1f} % live")
    longest_ms = counts.step_us_max / 1000
    verdict = "kept" if longest_ms <= _FLOOR_MS else "BROKEN"
    steps = sum(counts.step_us.counts)
    print(f"{steps} steps on the loop, longest {longest_ms:.2f} ms of {_FLOOR_MS:g} ms: {verdict}")
    await journal.close()


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="a folder on the disk measured")
    parser.add_argument("--mib", type=int, default=400, help="size of all messages, in MiB")
    parser.add_argument("--body-size", type=int, default=1024, help="of one message, in bytes")
    parser.add_argument("--stretches", type=int, default=6, help="pairs of stretches")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one stretch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        event_loop.run(
            _measure(
                Path(folder) / "journal",
                arguments.mib,
                arguments.body_size,
                arguments.stretches,
                arguments.seconds,
            )
        )


if __name__ == "__main__":
    main()

"""Ways to make one journal write durable, side by side: `python -m benchmarks.bench_ring`.

Owns: one zero-filled file in the folder measured, removed at the end.
Must never: write to a device or to a file that it did not make, or compare across runs.
Called by people; docs/decisions/0001-durable-write.md leans on it.

One write in flight at consecutive offsets of a zero-filled file opened with O_DIRECT, waited for
on the ring's eventfd as the broker's loop does. A disk and a processor shared with others drift by
the second, so the ways take turns of a few writes in an order shuffled each time, and only the
ratios within one round mean something. Before a turn the file is flushed, untimed, so that no way
pays for another. The last two columns are what the block device counted per write, with everyone's
traffic.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.machine import Machine, describe, find_mount
from vespiary_native.abc_ring import Ring
from vespiary_native.aio import AioRing
from vespiary_native.memory import AlignedBuffer
from vespiary_native.threads import Request, RequestKind, ThreadRing, perform
from vespiary_native.uring import UringRing
from vespiary_spec.errors import NativeError

FILE_BYTES = 64 << 20
SIZES_BYTES = (4096, 65_536, 262_144)
REFERENCE = "aio-dsync"
WRITES_PER_TURN = 16


def _thread_dsync(request: Request) -> int:
    """Write with RWF_DSYNC in the thread: one system call in place of two."""
    if request.kind is not RequestKind.DURABLE_WRITE:
        return perform(request)
    return os.pwritev(request.fd, [request.view], request.offset, os.RWF_DSYNC)


# Name -> (maker of a ring, are its writes durable, what it does).
WAYS: dict[str, tuple[Callable[[], Ring], bool, str]] = {
    "aio-dsync": (lambda: AioRing(1), True, "AIO write with RWF_DSYNC"),
    "aio-fdsync": (
        lambda: AioRing(1, write_then_sync=True),
        True,
        "AIO write, then AIO IOCB_CMD_FDSYNC",
    ),
    "uring-dsync": (lambda: UringRing(1), True, "io_uring write with RWF_DSYNC"),
    "uring-fdsync": (
        lambda: UringRing(1, write_then_sync=True),
        True,
        "io_uring write, then io_uring fdatasync",
    ),
    "thread-fdatasync": (lambda: ThreadRing(1), True, "thread: pwritev, then fdatasync"),
    "thread-dsync": (
        lambda: ThreadRing(1, perform_request=_thread_dsync),
        True,
        "thread: pwritev2 with RWF_DSYNC",
    ),
    "aio-volatile": (lambda: AioRing(1), False, "AIO write without a flush: not durable (D1)"),
}


def drop_io_uring() -> None:
    """Leave io_uring out, and say so, where the kernel or a container's profile forbids it."""
    try:
        UringRing(1).close()
    except NativeError as error:
        for name in [way for way in WAYS if way.startswith("uring")]:
            del WAYS[name]
        print(f"io_uring is left out: {error}", file=sys.stderr)


class Sample(msgspec.Struct, frozen=True):
    """One way at one size in one round."""

    way: str
    size_bytes: int
    round: int
    count: int
    p50_us: float
    p99_us: float
    submit_p50_us: float
    cpu_us: float
    device_kib: float | None
    device_flushes: float | None


class Report(msgspec.Struct, frozen=True):
    """A whole run, as JSON."""

    machine: Machine
    folder: str
    file_bytes: int
    in_flight: int
    writes_per_turn: int
    round_s: float
    rounds: int
    hog_cpus: list[int]
    ways: dict[str, str]
    samples: list[Sample]


class DeviceCounters:
    """KiB written and flushes done by the device below a folder (Documentation/block/stat)."""

    def __init__(self, folder: Path) -> None:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        number = find_mount(folder.resolve(), mountinfo)[3]
        self._path = Path("/sys/dev/block") / number / "stat"

    def read(self) -> tuple[float, int] | None:
        """Return (KiB written, flushes) since boot, or None where the kernel does not tell."""
        try:
            fields = self._path.read_text().split()
        except OSError:
            return None
        return (int(fields[6]) / 2, int(fields[15])) if len(fields) > 15 else None


def zero_filled(path: Path) -> None:
    """Make the file, written and flushed, so that no write allocates."""
    with path.open("xb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())


def percentile(sorted_values: list[int], fraction: float) -> float:
    """Return a percentile of nanoseconds in microseconds."""
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * fraction))] / 1e3


class Way:
    """One way under measurement: its ring, its buffer and what it has shown so far."""

    def __init__(self, name: str, size_bytes: int, fd: int, counters: DeviceCounters) -> None:
        make, self._durable, _ = WAYS[name]
        self.name = name
        self._size_bytes = size_bytes
        self._fd = fd
        self._counters = counters
        self._ring = make()
        self._buffer = AlignedBuffer(size_bytes, populate=True)
        self._buffer.memoryview[:] = os.urandom(4096) * (size_bytes // 4096)
        self._poll = select.poll()
        self._poll.register(self._ring.fileno(), select.POLLIN)
        self._whole_ns: list[int] = []
        self._submit_ns: list[int] = []
        self._cpu_ns = 0
        self._device: list[float] | None = [0.0, 0.0]

    def turn(self, offset: int) -> int:
        """Write a turn from `offset` on and return where the next one begins."""
        os.fdatasync(self._fd)
        before = self._counters.read()
        cpu = time.process_time_ns()
        for _ in range(WRITES_PER_TURN):
            offset = (offset + self._size_bytes) % FILE_BYTES
            self._write(offset)
        self._cpu_ns += time.process_time_ns() - cpu
        after = self._counters.read()
        if before is None or after is None or self._device is None:
            self._device = None
        else:
            self._device[0] += after[0] - before[0]
            self._device[1] += after[1] - before[1]
        return offset

    def _write(self, offset: int) -> None:
        begin = time.perf_counter_ns()
        self._ring.submit_write(
            self._fd, self._buffer.address, self._size_bytes, offset, 1, durable=self._durable
        )
        submitted = time.perf_counter_ns()
        taken: list[tuple[int, int]] = []
        while not taken:
            self._poll.poll()
            taken = self._ring.completions()
        end = time.perf_counter_ns()
        if taken != [(1, self._size_bytes)]:
            raise OSError(-taken[0][1], f"{self.name}: {self._size_bytes} bytes gave {taken}")
        self._whole_ns.append(end - begin)
        self._submit_ns.append(submitted - begin)

    def close(self, number: int) -> Sample:
        """End the round and return its figures."""
        self._ring.close()
        self._buffer.close()
        count = len(self._whole_ns)
        whole, submit = sorted(self._whole_ns), sorted(self._submit_ns)
        return Sample(
            way=self.name,
            size_bytes=self._size_bytes,
            round=number,
            count=count,
            p50_us=percentile(whole, 0.50),
            p99_us=percentile(whole, 0.99),
            submit_p50_us=percentile(submit, 0.50),
            cpu_us=self._cpu_ns / count / 1e3,
            device_kib=self._device[0] / count if self._device else None,
            device_flushes=self._device[1] / count if self._device else None,
        )


def run_round(
    size_bytes: int, number: int, fd: int, seconds: float, counters: DeviceCounters
) -> list[Sample]:
    """Let all ways take turns at one size for so many seconds; each has one turn at least."""
    order = random.Random(number)
    ways = [Way(name, size_bytes, fd, counters) for name in WAYS]
    offset = 0
    end = time.perf_counter() + seconds
    while True:
        order.shuffle(ways)
        for way in ways:
            offset = way.turn(offset)
        if time.perf_counter() >= end:
            return [way.close(number) for way in ways]


@contextmanager
def hogs(cpus: list[int]) -> Iterator[None]:
    """Keep these processors busy with one spinning process each, as a neighbour would."""
    spin = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", spin, str(cpu)]) for cpu in cpus]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(folder: Path, rounds: int, round_s: float, hog_cpus: list[int]) -> Report:
    """Measure every way at every size."""
    path = folder / f"bench-ring-{os.getpid()}.bin"
    zero_filled(path)
    counters = DeviceCounters(folder)
    samples: list[Sample] = []
    try:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        try:
            for number in range(rounds):
                for size in SIZES_BYTES:
                    samples += run_round(size, number, fd, round_s, counters)
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
        finally:
            os.close(fd)
    finally:
        path.unlink()
    return Report(
        machine=describe(folder),
        folder=str(folder),
        file_bytes=FILE_BYTES,
        in_flight=1,
        writes_per_turn=WRITES_PER_TURN,
        round_s=round_s,
        rounds=rounds,
        hog_cpus=hog_cpus,
        ways={way: text for way, (_, _, text) in WAYS.items()},
        samples=samples,
    )


def _spread(values: list[float], digits: int) -> str:
    """Return "median (first quartile-third quartile)"."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def table(report: Report) -> str:
    """Return the report for people."""
    m = report.machine
    lines = [
        f"machine: {m.cpu}, {m.cores} cores, Linux {m.kernel}, Python {m.python}; "
        f"commit {m.commit}",
        f"disk: {m.filesystem} on {m.device} ({m.mount_options}), write cache {m.write_cache}, "
        f"FUA {m.fua}",
        f"settings: {report.folder}, zero-filled file of {report.file_bytes >> 20} MiB, O_DIRECT, "
        f"{report.in_flight} in flight, turns of {report.writes_per_turn} writes, "
        f"{report.rounds} rounds of {report.round_s} s a size, "
        f"processors kept busy: {report.hog_cpus or 'none'}",
        f"ratio: median latency against {REFERENCE} of the same round; "
        "all figures: median of the rounds (quartiles)",
        "",
        f"{'way':17} {'KiB':>4} {'ratio':>18} {'p50 us':>18} {'p99 us':>20} {'submit us':>16} "
        f"{'CPU us':>7} {'KiB':>7} {'flushes':>8}",
    ]
    by_case: dict[tuple[str, int], list[Sample]] = {}
    for one in report.samples:
        by_case.setdefault((one.way, one.size_bytes), []).append(one)
    for size in SIZES_BYTES:
        reference = {one.round: one.p50_us for one in by_case[REFERENCE, size]}
        for way in WAYS:
            found = by_case[way, size]

            def mean(values: list[float | None]) -> str:
                known = [value for value in values if value is not None]
                return f"{statistics.fmean(known):.2f}" if known else "unknown"

            lines.append(
                f"{way:17} {size >> 10:>4} "
                f"{_spread([one.p50_us / reference[one.round] for one in found], 2):>18} "
                f"{_spread([one.p50_us for one in found], 0):>18} "
                f"{_spread([one.p99_us for one in found], 0):>20} "
                f"{_spread([one.submit_p50_us for one in found], 0):>16} "
                f"{statistics.median(one.cpu_us for one in found):>7.0f} "
                f"{mean([one.device_kib for one in found]):>7} "
                f"{mean([one.device_flushes for one in found]):>8}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--round-s", type=float, default=1.0, help="seconds a size and round")
    parser.add_argument(
        "--hog", type=int, action="append", default=[], metavar="CPU", help="keep it busy meanwhile"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    drop_io_uring()
    with hogs(options.hog):
        report = run(options.folder.resolve(), options.rounds, options.round_s, options.hog)
    print(msgspec.json.encode(report).decode() if options.json else table(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())

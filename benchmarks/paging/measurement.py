"""What is measured of paging: a backlog that goes to pages and comes back, and a lazy subscriber.

Owns: the loads, and what is read off them. Must never: print, or judge. Called by
`benchmarks.paging`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from benchmarks import generator
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.generator import Latency, Load, LoadReport

_WINDOW = 500
_PREFETCH = 500
_SECONDS_MAX = 3600.0
_FAST, _OTHER, _LAZY = "bench.0::fast", "bench.0::other", "bench.0::lazy"


class PagingError(Exception):
    """A load did not end as it should."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """One backlog, in and out.

    `in_per_second` and `out_per_second` are messages of each second, the last one cut off where
    the load ended. `disk_bytes` is what lay in the paging folder when the last message was
    confirmed.
    """

    messages: int
    in_per_s: float
    out_per_s: float
    rss_peak_bytes: int
    disk_bytes: int
    cpu_us_per_message: float
    in_per_second: list[int]
    out_per_second: list[int]

    @property
    def in_last_per_first_tenth(self) -> float:
        """`last_per_first_tenth` of what came in."""
        return last_per_first_tenth(self.in_per_second)

    @property
    def out_last_per_first_tenth(self) -> float:
        """`last_per_first_tenth` of what went out."""
        return last_per_first_tenth(self.out_per_second)


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What a fast consumer got: messages a second, and how long they took."""

    per_s: float
    end_to_end_us: Latency


class Lazy(msgspec.Struct, frozen=True, kw_only=True):
    """A fast consumer alone, beside another fast one, and beside a queue that nobody reads.

    `rate` is what the producer offered a second; 0: as fast as it was confirmed. The address pages
    beside the lazy queue alone.
    """

    rate: float
    alone: Beside
    beside_other: Beside
    beside_lazy: Beside

    @property
    def ratio(self) -> float:
        """What is left of the speed."""
        return self.beside_lazy.per_s / self.alone.per_s

    @property
    def ratio_to_other(self) -> float:
        """What is left of the speed that it has beside another fast one: what being lazy costs."""
        return self.beside_lazy.per_s / self.beside_other.per_s


def last_per_first_tenth(per_second: Sequence[int]) -> float:
    """Return the speed of the last tenth of a load against that of its first.

    Args:
        per_second: Messages of each whole second; the first second, in which the load begins, does
            not count.

    Raises:
        PagingError: The load was shorter than four seconds: that tells nothing.
    """
    steady = per_second[1:]
    if len(steady) < 3:
        raise PagingError(f"the load took {len(per_second)} s; take more messages")
    tenth = max(1, len(steady) // 10)
    first, last = steady[:tenth], steady[-tenth:]
    return (sum(last) / len(last)) / (sum(first) / len(first))


def _check(report: LoadReport, wanted: int) -> LoadReport:
    checks = report.checks
    spoilt = checks.duplicates + checks.out_of_order + checks.corrupt + checks.misrouted
    if spoilt or max(report.totals.confirmed, report.totals.delivered) != wanted:
        raise PagingError(f"{wanted} messages were to go through, and it ended with {report}")
    return report


def measure_backlog(folder: Path, binary: Path, messages: int, settings: Sequence[str]) -> Backlog:
    """Fill one queue with 1 KiB messages, then drain it, one producer and one consumer.

    Args:
        folder: Where the broker's data goes; removed by the caller.
        binary: What `generator.build` returned.
        messages: How many.
        settings: Of the broker.

    Raises:
        PagingError: Messages were lost, doubled or out of order.
        BrokerError: The broker did not run.
        GeneratorError: The load did not.
    """
    with running_broker(folder / "data", settings=settings) as broker:
        begin = broker.usage()
        bounds = {"seconds": _SECONDS_MAX, "warmup": 0.0}
        fill = Load(window=_WINDOW, messages=messages, **bounds)  # type: ignore[arg-type]
        into = _check(generator.run_load(binary, broker.port, fill), messages)
        disk_bytes = sum(p.stat().st_size for p in (folder / "data/paging").glob("*/*.page"))
        drain = Load(producers=0, consumers=1, prefetch=_PREFETCH, **bounds)  # type: ignore[arg-type]
        out = _check(generator.run_load(binary, broker.port, drain), messages)
        used = broker.usage().since(begin)
    in_per_second = _whole_seconds([row[0] for row in into.per_second])
    out_per_second = _whole_seconds([row[1] for row in out.per_second])
    return Backlog(
        messages=messages,
        in_per_s=_rate(in_per_second, into.confirmed_per_s),
        out_per_s=_rate(out_per_second, out.delivered_per_s),
        rss_peak_bytes=used.rss_peak_bytes,
        disk_bytes=disk_bytes,
        cpu_us_per_message=(used.user_s + used.system_s) * 1e6 / messages,
        in_per_second=in_per_second,
        out_per_second=out_per_second,
    )


def _whole_seconds(counts: list[int]) -> list[int]:
    """Return the counts of whole seconds: without the last one that moved anything."""
    end = max((at for at, count in enumerate(counts) if count), default=-1)
    return counts[:end]


def _rate(per_second: Sequence[int], reported_per_s: float) -> float:
    """Return the mean of the whole seconds: a drain also counts the second in which none came."""
    return sum(per_second) / len(per_second) if per_second else reported_per_s


# --- a lazy subscriber --------------------------------------------------------------------------


def measure_lazy(
    folder: Path, binary: Path, seconds: float, settings: Sequence[str], *, rate: float = 0
) -> Lazy:
    """Measure a multicast address with a fast queue: alone, beside a fast one, beside a lazy one.

    Args:
        folder: Where the data of the brokers goes; removed by the caller.
        binary: What `generator.build` returned.
        seconds: How long each runs.
        settings: Of the brokers.
        rate: Messages a second that the producer offers; 0: as fast as it is confirmed.

    Raises:
        PagingError: Messages were doubled or out of order, or the address did not page.
        BrokerError: A broker did not run.
        GeneratorError: A load did not.
    """
    settings = (*settings, "address-settings.#.auto-delete-queues=false")
    found = []
    for other in (None, _OTHER, _LAZY):
        data = folder / f"{rate:.0f}-{str(other).rpartition(':')[2]}"
        with running_broker(data, settings=settings) as broker:
            for queue in (_FAST,) if other is None else (other, _FAST):
                _make(broker, binary, queue)
            consumed = [_FAST, _OTHER] if other == _OTHER else [_FAST]
            found.append(_fast(broker, binary, seconds, rate, consumed))
            pages = len(list((data / "paging").glob("*/*.page")))
        if other == _LAZY and not pages:
            raise PagingError("no page was written beside a lazy queue: this says nothing")
    return Lazy(rate=rate, alone=found[0], beside_other=found[1], beside_lazy=found[2])


def _consume(
    broker: RunningBroker, binary: Path, queue: str, load: Load, idle_s: float
) -> LoadReport:
    arguments = ["--destination", queue, "--destination-type", "MULTICAST", "--idle", str(idle_s)]
    return generator.run_load(binary, broker.port, load, extra_arguments=arguments)


def _make(broker: RunningBroker, binary: Path, queue: str) -> None:
    """Make a subscription's queue: somebody subscribes, and goes."""
    load = Load(producers=0, consumers=1, prefetch=1, warmup=0, seconds=1, drain_seconds=0.1)
    _consume(broker, binary, queue, load, 0.1)


def _fast(
    broker: RunningBroker, binary: Path, seconds: float, rate: float, queues: Sequence[str]
) -> Beside:
    """Return what a consumer of the first of these queues gets; each of them has one."""
    produce = Load(window=_WINDOW, rate=rate, warmup=0, seconds=seconds, drain_seconds=1)
    arguments = ["--destination", "bench.0", "--destination-type", "MULTICAST"]
    bounds = Load(producers=0, consumers=1, prefetch=_PREFETCH, warmup=1, seconds=seconds - 2)
    with ThreadPoolExecutor(len(queues) + 1) as pool:
        sent = pool.submit(
            generator.run_load, binary, broker.port, produce, extra_arguments=arguments
        )
        taken = [pool.submit(_consume, broker, binary, queue, bounds, 2.0) for queue in queues]
        sent.result()
        reports = [one.result() for one in taken]
    for report in reports:
        if report.checks.duplicates or report.checks.out_of_order:
            raise PagingError(f"messages were doubled or out of order: {report.checks}")
    return Beside(per_s=reports[0].delivered_per_s, end_to_end_us=reports[0].end_to_end_latency_us)

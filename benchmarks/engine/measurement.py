"""What is measured of breadth: many queues beside few, and one message for many subscribers.

Owns: the loads, and what is read off them. Must never: print, or judge. Called by
`benchmarks.engine.__main__`.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import generator
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.generator import Latency, Load, LoadReport
from benchmarks.usage import Usage

_CONNECTIONS = 10
_IDLE_S = 3.0
_WARMUP_S = 1.0
_QUIET_S = 2.0
"""A load that only consumes ends after so long without a message."""
_PREFETCH = 100
_FAN = "fan::subscription-%d"
_LASTING = ("address-settings.#.auto-delete-queues=false",)


class BreadthError(Exception):
    """A load did not end as it should."""


class ManyQueues(msgspec.Struct, frozen=True, kw_only=True):
    """One broker with so many queues, each with a consumer, at a rate over all of them.

    `queues_rss_bytes` is what the process took once each queue had a message, above what it took
    at its start; `idle_cores` is its CPU time per second while all stay and nothing is sent.
    """

    queues: int
    delivered_per_s: float
    end_to_end_us: Latency
    cores: float
    idle_cores: float
    queues_rss_bytes: int
    restart_s: float


class FanOut(msgspec.Struct, frozen=True, kw_only=True):
    """One producer and so many durable subscribers of one address.

    `memory_bytes_each` and `written_bytes_each` belong to a message that all subscribers still have
    to get: what the process took more, and what it wrote to its disk.
    """

    subscribers: int
    delivered_per_s: float
    cpu_us_per_delivery: float
    memory_bytes_each: float
    written_bytes_each: float


def _check(report: LoadReport) -> LoadReport:
    checks = report.checks
    spoilt = checks.lost + checks.duplicates + checks.out_of_order + checks.corrupt
    if report.reason or spoilt + checks.misrouted:
        raise BreadthError(f"a load did not go through: {report.reason} {checks}")
    return report


# --- many queues ----------------------------------------------------------------------------------


def measure_queues(
    folder: Path, binary: Path, queues: int, rate: float, seconds: float
) -> ManyQueues:
    """Measure a rate of messages over so many queues, all of them with a consumer.

    Args:
        folder: Where the broker's data goes; removed by the caller.
        binary: What `generator.build` returned.
        queues: How many; at least 10.
        rate: Messages a second in all.
        seconds: How long.

    Raises:
        BreadthError: Messages were lost, doubled, out of order or in a wrong queue.
        BrokerError: The broker did not run.
        GeneratorError: The load did not.
    """
    samples: list[tuple[Usage, float]] = []
    with running_broker(folder / "data", settings=_LASTING) as broker:
        start = broker.usage()

        def look() -> None:
            samples.append((broker.usage(), time.monotonic()))

        each = Load(
            producers=_CONNECTIONS, consumers=_CONNECTIONS, queues=queues, warmup=0, window=10,
            messages=queues, seconds=600,
        )  # fmt: skip
        _check(generator.run_load(binary, broker.port, each))
        filled = broker.usage().rss_bytes - start.rss_bytes
        load = Load(
            producers=_CONNECTIONS, consumers=_CONNECTIONS, queues=queues, rate=rate,
            warmup=2 * _WARMUP_S,
            seconds=seconds,
        )  # fmt: skip
        report = _check(
            generator.run_load(binary, broker.port, load, on_measuring=look, on_measured=look)
        )
        idle = broker.usage()
        time.sleep(_IDLE_S)
        idle = broker.usage().since(idle)
    with running_broker(folder / "data", settings=_LASTING) as broker:
        restart_s = broker.ready_s
    (begin, begin_s), (end, end_s) = samples
    used = end.since(begin)
    return ManyQueues(
        queues=queues,
        delivered_per_s=report.delivered_per_s,
        end_to_end_us=report.end_to_end_latency_us,
        cores=(used.user_s + used.system_s) / (end_s - begin_s),
        idle_cores=(idle.user_s + idle.system_s) / _IDLE_S,
        queues_rss_bytes=filled,
        restart_s=restart_s,
    )


# --- many subscribers -----------------------------------------------------------------------------


def measure_fan_out(
    folder: Path, binary: Path, subscribers: int, seconds: float, backlog: int
) -> FanOut:
    """Measure durable subscribers of one address, and what a message costs that all of them have.

    Args:
        folder: Where the broker's data goes; removed by the caller.
        binary: What `generator.build` returned.
        subscribers: How many.
        seconds: How long messages are sent.
        backlog: Messages whose memory and bytes on disk are measured, while nobody consumes.

    Raises:
        BreadthError: Messages were doubled or out of order, or not all came.
        BrokerError: The broker did not run.
        GeneratorError: A load did not.
    """
    with running_broker(folder / "data", settings=_LASTING) as broker:
        _consume(broker, binary, subscribers, Load(seconds=0.1, warmup=0), 0.1)
        before, written = broker.usage(), _written_bytes(broker.pid)
        _produce(broker, binary, Load(window=100, messages=backlog, warmup=0, seconds=600))
        memory = broker.usage().rss_bytes - before.rss_bytes
        written = _written_bytes(broker.pid) - written
        rest = _consume(broker, binary, subscribers, Load(seconds=600, warmup=0), _QUIET_S)
        _check_all(rest.totals.delivered, backlog, subscribers)
        delivered_per_s, cpu_us = _deliver(broker, binary, subscribers, seconds)
    return FanOut(
        subscribers=subscribers,
        delivered_per_s=delivered_per_s,
        cpu_us_per_delivery=cpu_us,
        memory_bytes_each=memory / backlog,
        written_bytes_each=written / backlog,
    )


def _check_all(delivered: int, messages: int, subscribers: int, again: int = 0) -> None:
    """Raise unless each subscriber got each message; at most `again` may have come twice."""
    if not 0 <= delivered - messages * subscribers <= again:
        raise BreadthError(f"{messages} messages for {subscribers} subscribers became {delivered}")


def _written_bytes(pid: int) -> int:
    """Return what a process has written to disks."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _produce(broker: RunningBroker, binary: Path, load: Load) -> LoadReport:
    arguments = ["--destination", "fan", "--destination-type", "MULTICAST"]
    return _check(generator.run_load(binary, broker.port, load, extra_arguments=arguments))


def _consume(
    broker: RunningBroker, binary: Path, subscribers: int, load: Load, idle_s: float
) -> LoadReport:
    load = msgspec.structs.replace(
        load, producers=0, consumers=min(_CONNECTIONS, subscribers), queues=subscribers,
        prefetch=_PREFETCH,
    )  # fmt: skip
    arguments: Sequence[str] = (
        "--destination", _FAN, "--destination-type", "MULTICAST", "--fan", "1",
        "--idle", str(idle_s),
    )  # fmt: skip
    return _check(generator.run_load(binary, broker.port, load, extra_arguments=arguments))


def _deliver(
    broker: RunningBroker, binary: Path, subscribers: int, seconds: float
) -> tuple[float, float]:
    """Return deliveries a second while one producer sends as fast as it is confirmed."""
    sent: list[LoadReport] = []
    failures: list[Exception] = []

    def send() -> None:
        try:
            sent.append(_produce(broker, binary, Load(window=100, warmup=0, seconds=seconds)))
        except (BreadthError, generator.GeneratorError) as error:
            failures.append(error)

    sender = threading.Thread(target=send, name="producer")
    sender.start()
    begin = broker.usage()
    window = Load(seconds=max(seconds - 2 * _WARMUP_S, 0.1), warmup=_WARMUP_S)
    try:
        report = _consume(broker, binary, subscribers, window, _QUIET_S)
    finally:
        sender.join()
    if failures:
        raise failures[0]
    rest = _consume(broker, binary, subscribers, Load(seconds=600, warmup=0), _QUIET_S)
    used = broker.usage().since(begin)
    delivered = report.totals.delivered + rest.totals.delivered
    # What the first consumers held unacknowledged when they went comes again to the second.
    _check_all(delivered, sent[0].totals.confirmed, subscribers, again=_PREFETCH * subscribers)
    return report.delivered_per_s, (used.user_s + used.system_s) * 1e6 / delivered

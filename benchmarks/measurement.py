"""Runs scenarios, each on a fresh broker, and turns them into numbers.

Owns: the store folders, one a run, removed at its end. Must never: compare or judge (that is
`benchmarks.table`). Called by `benchmarks.__main__` and by tests.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import disk, generator, perf_profile, usage
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.generator import LoadReport
from benchmarks.scenarios import Scenario

_FREE_BYTES = 4 << 30
_IDLE_S = 1.0


class MeasurementError(Exception):
    """The surroundings don't allow a measurement."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure; `seconds` and `warmup` None leave what the scenario says."""

    directory: Path
    command: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()
    seconds: float | None = None
    warmup: float | None = None
    profiles: bool = False
    raw_write_s: float = 1.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one scenario; `metrics` are what tables show, all else is kept for the record."""

    scenario: str
    engine: str
    durability: str
    command: tuple[str, ...]
    metrics: dict[str, float]
    report: LoadReport | None = None
    profile: perf_profile.Profile | None = None

    @property
    def is_void(self) -> bool:
        """Whether the generator's checks failed: the figures count for nothing."""
        return self.report is not None and not self.report.passed


class Spread(msgspec.Struct, frozen=True):
    """A metric over all rounds."""

    median: float
    low: float
    high: float


def _memory(broker: RunningBroker) -> dict[str, float]:
    return {"rss_peak_mb": broker.usage().rss_peak_bytes / 1e6}


def _load_metrics(report: LoadReport, used: usage.Usage) -> dict[str, float]:
    """Figures of one load; a message is one confirmed and, with consumers, delivered."""
    consumes = report.settings["consumers"] != 0
    count = report.window.delivered if consumes else report.window.confirmed
    each_us = 1e6 / max(count, 1)
    metrics = {
        "confirmed_per_s": report.confirmed_per_s,
        "confirm_p50_us": report.confirm_latency_us.p50,
        "confirm_p99_us": report.confirm_latency_us.p99,
        "cpu_us_per_message": (used.user_s + used.system_s) * each_us,
        "cpu_user_us_per_message": used.user_s * each_us,
        "cpu_system_us_per_message": used.system_s * each_us,
        "switches_per_message": (used.voluntary_switches + used.involuntary_switches)
        / max(count, 1),
        "generator_us_per_message": report.generator.user_us_per_message
        + report.generator.system_us_per_message,
        "generator_cores": report.generator.cores,
    }
    if consumes:
        metrics["delivered_per_s"] = report.delivered_per_s
        metrics["end_to_end_p50_us"] = report.end_to_end_latency_us.p50
        metrics["end_to_end_p99_us"] = report.end_to_end_latency_us.p99
    return metrics


def _measure_load(
    scenario: Scenario, broker: RunningBroker, plan: Plan, binary: Path, work: Path
) -> tuple[LoadReport, dict[str, float], perf_profile.Profile | None]:
    assert scenario.load is not None
    load = scenario.load
    if plan.seconds is not None:
        load = msgspec.structs.replace(load, seconds=plan.seconds)
    if plan.warmup is not None:
        load = msgspec.structs.replace(load, warmup=plan.warmup)
    raw: list[disk.DiskLatency] = []
    samples: list[usage.Usage] = []
    recorder = perf_profile.Recorder(broker.pid, work / "perf.data") if plan.profiles else None

    def on_measuring() -> None:
        samples.append(broker.usage())
        if recorder is not None:
            recorder.start()

    def on_measured() -> None:
        samples.append(broker.usage())
        if recorder is not None:
            recorder.stop()

    # The device changes its pace from minute to minute: look before and after.
    if scenario.needs_raw_write:
        raw.append(disk.raw_write_latency(work, plan.raw_write_s / 2))
    report = generator.run_load(
        binary, broker.port, load, on_measuring=on_measuring, on_measured=on_measured
    )
    if scenario.needs_raw_write:
        raw.append(disk.raw_write_latency(work, plan.raw_write_s / 2))
    if len(samples) != 2:  # ended before or inside the window; the report says why
        samples = [broker.usage()] * 2
    metrics = _load_metrics(report, samples[1].since(samples[0]))
    if raw:
        metrics["raw_write_p50_us"] = statistics.mean(r.p50_us for r in raw)
        metrics["raw_write_p99_us"] = statistics.mean(r.p99_us for r in raw)
        metrics["confirm_p50_per_raw_write"] = (
            metrics["confirm_p50_us"] / metrics["raw_write_p50_us"]
        )
    return report, metrics, None if recorder is None else recorder.result()


def measure(scenario: Scenario, plan: Plan, binary: Path) -> Run:
    """Run one scenario once, on a fresh broker with an empty store.

    Args:
        scenario: What to measure.
        plan: Where and how.
        binary: The built stompload.

    Raises:
        MeasurementError: Less than 4 GiB are free where the store would lie.
        BrokerError, GeneratorError, DiskError: A part of the measurement could not run.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(plan.directory).free
    if free < _FREE_BYTES:
        raise MeasurementError(
            f"{plan.directory}: {free / 1e9:.1f} GB free, {_FREE_BYTES / 1e9:.1f} GB needed for "
            "the store of a run; name another folder with --directory"
        )
    with tempfile.TemporaryDirectory(prefix="store-", dir=plan.directory) as folder:
        work = Path(folder)
        with running_broker(
            work / "data",
            command=plan.command,
            settings=plan.settings,
            environment=scenario.environment,
        ) as broker:
            report, profile = None, None
            if scenario.load is None:
                time.sleep(_IDLE_S)
                idle = broker.usage()
                metrics = {
                    "ready_s": broker.ready_s,
                    "ready_reported_s": broker.ready.seconds,
                    "idle_rss_mb": idle.rss_bytes / 1e6,
                }
            else:
                report, metrics, profile = _measure_load(scenario, broker, plan, binary, work)
            metrics |= _memory(broker)
            return Run(
                scenario=scenario.name,
                engine=broker.ready.engine,
                durability=broker.ready.durability,
                command=broker.command,
                metrics=metrics,
                report=report,
                profile=profile,
            )


def summarize(runs: Sequence[Run]) -> dict[str, dict[str, Spread]]:
    """Return the spread of each metric of each scenario, void runs left out."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        for metric, value in run.metrics.items() if not run.is_void else ():
            values.setdefault(run.scenario, {}).setdefault(metric, []).append(value)
    return {
        scenario: {
            metric: Spread(statistics.median(found), min(found), max(found))
            for metric, found in metrics.items()
        }
        for scenario, metrics in values.items()
    }

"""The benchmark of breadth: its floors, and one short run of each load with real brokers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks import generator
from benchmarks.engine import measurement
from benchmarks.engine.__main__ import fan_out_figures, queue_figures
from benchmarks.generator import Latency

LATENCY = Latency(count=1, mean=1, p50=1, p90=1, p99=1, p999=1, max=1)


@pytest.fixture
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generator.build(tmp_path_factory.mktemp("bin") / "stompload")


def test_figures_are_held_against_the_floors() -> None:
    few = measurement.ManyQueues(
        queues=10, delivered_per_s=5000, end_to_end_us=LATENCY, cores=0.4, idle_cores=0,
        queues_rss_bytes=0, restart_s=0.3,
    )  # fmt: skip
    many = msgspec.structs.replace(few, queues=100, cores=0.6, idle_cores=0.1)
    missed = [f.name for f in queue_figures([few], [many], 5000) if f.verdict == "MISSED"]
    assert missed == ["processors, many per few", "processors, 100 queues idle"]
    fan = measurement.FanOut(
        subscribers=100, delivered_per_s=299_999, cpu_us_per_delivery=1, memory_bytes_each=1,
        written_bytes_each=11 * 1024,
    )  # fmt: skip
    missed = [figure.name for figure in fan_out_figures([fan]) if figure.verdict == "MISSED"]
    assert missed == ["1 to 100: deliveries a second", "KiB on disk, 1 KiB for 100"]


@pytest.mark.verify
def test_many_queues_go_through(
    tmp_path: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "_WARMUP_S", 0.1)
    monkeypatch.setattr(measurement, "_IDLE_S", 0.1)
    run = measurement.measure_queues(tmp_path, binary, 20, 500, 0.5)
    assert run.end_to_end_us.count > 0
    assert run.queues_rss_bytes > 0


@pytest.mark.verify
def test_each_subscriber_gets_each_message(
    tmp_path: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "_WARMUP_S", 0.1)
    monkeypatch.setattr(measurement, "_QUIET_S", 0.5)
    run = measurement.measure_fan_out(tmp_path, binary, 3, 0.6, 50)
    assert run.written_bytes_each >= 1024


def test_what_does_not_come_is_found() -> None:
    with pytest.raises(measurement.BreadthError, match="2 messages for 3 subscribers became 5"):
        measurement._check_all(5, 2, 3)
    with pytest.raises(measurement.BreadthError):
        measurement._check_all(8, 2, 3, again=1)

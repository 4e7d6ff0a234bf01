"""The paging benchmark: its arithmetic, its picture, and one short run with real brokers."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import generator
from benchmarks.generator import Latency
from benchmarks.paging import measurement, plot
from benchmarks.paging.__main__ import backlog_figures, lazy_figures, step_figures
from benchmarks.paging.steps import measure_steps


def test_tenths_leave_out_the_first_second() -> None:
    assert measurement.last_per_first_tenth([5, *[100] * 10, *[90] * 10]) == pytest.approx(0.9)
    with pytest.raises(measurement.PagingError, match="take more messages"):
        measurement.last_per_first_tenth([1, 2, 3])


def test_figures_are_held_against_the_floors() -> None:
    run = measurement.Backlog(
        messages=10, in_per_s=119_000, out_per_s=100_000, rss_peak_bytes=200 << 20, disk_bytes=5,
        cpu_us_per_message=3, in_per_second=[9, 10, 10, 10], out_per_second=[9, 10, 10, 8],
    )  # fmt: skip
    missed = [figure.name for figure in backlog_figures([run]) if figure.verdict == "MISSED"]
    assert missed == ["in a second", "out, last tenth per first"]


def test_a_lazy_queue_may_cost_a_tenth() -> None:
    latency = Latency(count=1, mean=1, p50=1, p90=1, p99=1, p999=1, max=1)

    def beside(per_s: float) -> measurement.Beside:
        return measurement.Beside(per_s=per_s, end_to_end_us=latency)

    kept = measurement.Lazy(
        rate=100, alone=beside(100), beside_other=beside(95), beside_lazy=beside(91)
    )
    slow = measurement.Lazy(
        rate=100, alone=beside(100), beside_other=beside(95), beside_lazy=beside(89)
    )
    assert [f.verdict for f in lazy_figures([kept], has_floor=True) if f.verdict] == ["kept"]
    assert [f.verdict for f in lazy_figures([slow], has_floor=True) if f.verdict] == ["MISSED"]
    assert not any(figure.verdict for figure in lazy_figures([slow], has_floor=False))


def test_each_call_is_timed() -> None:
    slow, quick = step_figures([measure_steps(2, 1, rounds=1, places=100)])[:2]
    assert {slow.name[:7], quick.name[:7]} == {"ms to f", "ms to c"}
    assert 0 < slow.values[0] < 1000
    assert slow.bound == 1


def test_the_picture_is_svg() -> None:
    root = ET.fromstring(plot.draw("a < b", [("in", [1, 2, 3]), ("out", [3, 0])]))
    lines = [element for element in root if element.tag.endswith("polyline")]
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]
    assert not any(element.tag.endswith("rect") for element in root), "no ground of its own"
    assert all("fill" in element.attrib for element in root if element.tag.endswith("text"))


@pytest.mark.verify
def test_a_backlog_goes_through(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    binary = generator.build(tmp_path_factory.mktemp("bin") / "stompload")
    settings = (
        "address-settings.#.max-size-bytes=1MiB",
        "address-settings.#.page-size-bytes=1MiB",
        "journal-file-size=2MiB",
    )
    run = measurement.measure_backlog(tmp_path, binary, 5000, settings)
    assert sum(run.in_per_second) <= 5000
    assert run.in_per_s > 0
    assert run.out_per_s > 0
    assert run.disk_bytes % 4096 == 0

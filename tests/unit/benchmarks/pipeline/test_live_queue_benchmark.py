"""The benchmark of live queues: a run that lost, doubled or changed something gives no figure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.pipeline import live_queues, sinking, streaming
from benchmarks.pipeline.processes import SparkProcesses, SparkUsage
from benchmarks.pipeline.scanning import ScanError
from benchmarks.pipeline.sinking import SinkPlan
from benchmarks.usage import Usage

EXPECTED = {"rows": 5, "sum": 15, "squares": 55, "bytes": 500}
USED = streaming.Used(200_000, SparkUsage(0.8, 0.4, 200 << 20), Usage(0.1, 0.1, 0, 0, 0, 0))


def progress(count: int, took_ms: int, **seen: int) -> dict[str, Any]:
    """Return what Spark tells of a batch."""
    return {
        "numInputRows": count,
        "durationMs": {"triggerExecution": took_ms, "addBatch": took_ms - 50},
        "observedMetrics": {"seen": {name: seen.get(name) for name in EXPECTED}},
    }


def test_what_a_query_has_to_see_is_known_by_its_queues() -> None:
    assert streaming._expected({"a": 5}, 100) == EXPECTED
    two = streaming._expected({"a": 2, "b": 3}, 100)
    assert two == {"rows": 5, "sum": 9, "squares": 19, "bytes": 500}


@pytest.mark.parametrize("wrong", EXPECTED)
def test_a_query_that_saw_something_else_gives_no_figure(wrong: str) -> None:
    halves = [progress(2, 900, rows=2, sum=3, squares=5, bytes=200)]
    halves.append(progress(3, 900, rows=3, sum=12, squares=50, bytes=300))
    streaming.check_seen(halves, EXPECTED)
    halves[1]["observedMetrics"]["seen"][wrong] += 1
    with pytest.raises(ScanError, match="the query saw"):
        streaming.check_seen(halves, EXPECTED)


def test_the_first_batch_does_not_count() -> None:
    batches = [progress(100_000, 6000), progress(100_000, 500), progress(100_000, 500)]
    run = streaming.run_of(batches, 8.0, USED, "D2")
    assert run.rows_per_s == 200_000
    assert run.rows_per_s_by_clock == 37_500
    assert run.phase_ms["addBatch"] == 450
    assert (run.jvm_us, run.python_us, run.broker_us) == pytest.approx((4.0, 2.0, 1.0))
    with pytest.raises(ScanError, match="1 batches"):
        streaming.run_of(batches[:1], 8.0, USED, "D2")
    with pytest.raises(ScanError, match="no measurement"):
        streaming.run_of(batches, 8.0, USED._replace(rows=0), "D2")


def test_streams_have_a_floor_and_workers_a_bound() -> None:
    batches = [progress(100_000, 6000), progress(100_000, 500)]
    fast = streaming.run_of(batches, 8.0, USED, "D2")
    slow = msgspec.structs.replace(fast, batch_s=[6.0, 1.01], worker_peak_bytes=600 << 20)
    verdicts = [
        [figure.verdict for figure in live_queues.figures_of([run], has_floor=has_floor)]
        for run, has_floor in ((fast, True), (slow, True), (slow, False))
    ]
    assert [(one[0], one[-1]) for one in verdicts] == [
        ("kept", "kept"),
        ("MISSED", "MISSED"),
        ("", "MISSED"),
    ]


def test_rows_that_are_missing_doubled_or_changed_give_no_figure() -> None:
    plan = SinkPlan(batches=1, body_bytes=30)
    bodies = [b"%020d" % number + b"x" * 10 for number in range(plan.rows)]
    sinking.check_bodies(bodies, plan)
    for wrong in (
        bodies[1:],
        [*bodies, bodies[0]],
        [bodies[1], *bodies[1:]],
        [b"0" * 20, *bodies[1:]],
    ):
        with pytest.raises(ScanError, match="in the queue"):
            sinking.check_bodies(wrong, plan)


def test_without_a_jvm_there_is_nothing_to_look_at() -> None:
    with pytest.raises(RuntimeError, match="JVM"):
        SparkProcesses()

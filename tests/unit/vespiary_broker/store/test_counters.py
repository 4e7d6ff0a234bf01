"""The histogram of flush times."""

from __future__ import annotations

from vespiary_broker.store.counters import FLUSH_BOUNDS_US, FlushHistogram


def test_times_fall_into_their_buckets():
    histogram = FlushHistogram()
    for elapsed_us in (0, 50, 51, 100, 1_000_000, 1_000_001, 99_000_000):
        histogram.add(elapsed_us)
    counts = histogram.counts()
    assert len(counts) == len(FLUSH_BOUNDS_US) + 1
    assert counts[:3] == (2, 2, 0)
    assert counts[-2:] == (1, 2)
    assert histogram.sum_us == 101_000_202

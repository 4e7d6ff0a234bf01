"""The raw write latency, on the file system that the tests run on."""

from pathlib import Path

import pytest

from benchmarks.disk import DiskError, raw_write_latency


def test_latency_is_ordered_and_nothing_is_left(tmp_path: Path) -> None:
    try:
        latency = raw_write_latency(tmp_path, seconds=1.0)  # two writes of a slow disk
    except DiskError as error:
        pytest.skip(str(error))
    assert latency.count > 1
    assert 1 < latency.p50_us <= latency.p99_us <= latency.max_us
    assert list(tmp_path.iterdir()) == []

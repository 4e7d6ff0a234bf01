"""Rates come from real calls: what is counted was written, where it belongs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.disk_benchmark.measuring import (
    READ,
    SYNCED_WRITE,
    WRITE,
    Cursor,
    Stream,
    percentile_us,
    take_turns,
)
from vespiary_native.threads import ThreadRing
from vespiary_spec.errors import NativeError, StorageError
from vespiary_testkit.faulty_ring import FaultyRing

BLOCK = 4096


@pytest.fixture
def ring():
    ring = ThreadRing(2)
    yield ring
    ring.close()


@pytest.fixture
def file(tmp_path: Path):
    file = Disk().create(tmp_path / "f", is_direct=False)
    yield file
    file.close()


def stream(ring, file, kind: str, cursor: Cursor) -> Stream:
    return Stream(
        group="g",
        kind=kind,
        ring=ring,
        file=file,
        preallocation="none",
        block_bytes=BLOCK,
        cursor=cursor,
    )


def test_every_operation_counted_was_written(ring, file):
    size = 64 * BLOCK
    (phase,) = take_turns([stream(ring, file, SYNCED_WRITE, Cursor(size, is_wrapping=False))], 60.0)
    assert (phase.operations, file.size_bytes()) == (64, size)
    blocks = {file.path.read_bytes()[at : at + BLOCK] for at in range(0, size, BLOCK)}
    assert len(blocks) == 1
    assert any(blocks.pop())
    assert phase.operations_per_s == pytest.approx(64 / phase.seconds)
    assert phase.bytes_per_s == pytest.approx(size / phase.seconds)
    assert 0 < phase.p50_us <= phase.p90_us <= phase.p99_us <= phase.max_us
    assert phase.engine == "NIO"


def test_streams_of_one_file_share_its_blocks(ring, file):
    cursor = Cursor(40 * BLOCK, is_wrapping=False)
    phases = take_turns([stream(ring, file, WRITE, cursor) for _ in range(2)], 0.0001)
    assert file.size_bytes() == sum(phase.operations for phase in phases) * BLOCK


def test_time_ends_a_stream_that_wraps(ring, file):
    os.truncate(file.path, 2 * BLOCK)
    cursor = Cursor(2 * BLOCK, is_wrapping=True)
    done: list[float] = []
    phases = take_turns(
        [stream(ring, file, WRITE, cursor), stream(ring, file, READ, cursor)],
        0.03,
        on_progress=done.append,
    )
    assert all(phase.seconds >= 0.03 for phase in phases)
    assert file.size_bytes() == 2 * BLOCK
    assert sum(done) == pytest.approx(0.06)


@pytest.mark.parametrize(("result", "error"), [(-errno.EIO, NativeError), (512, StorageError)])
def test_a_failed_or_short_operation_ends_the_run(ring, file, result: int, error: type):
    faulty = FaultyRing(ring, fail_at=3, result=lambda _length: result)
    with pytest.raises(error, match="f:8192"):
        take_turns([stream(faulty, file, WRITE, Cursor(1 << 20, is_wrapping=False))], 5.0)


def test_files_that_are_too_small_are_named(ring, file):
    with pytest.raises(StorageError, match="Raise --size"):
        take_turns([stream(ring, file, WRITE, Cursor(512, is_wrapping=False))], 1.0)


def test_percentiles_are_nearest_ranks():
    values = [n * 1000 for n in range(1, 101)]
    assert [percentile_us(values, f) for f in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert percentile_us([7000], 0.99) == 7

"""Figures beside their floors, and the raw loop that they are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.journal import measurement, raw
from benchmarks.journal.__main__ import Figure, append_figures
from benchmarks.journal.measurement import Appends
from vespiary_broker.store.options import JournalOptions
from vespiary_testkit import product_loop

APPENDS = Appends(
    engine="ASYNCIO",
    durability="D2",
    messages_per_s=400_000.0,
    written_bytes_per_s=900.0,
    write_bytes=1_000_000.0,
    raw_bytes_per_s=1000.0,
    disk_bytes_per_message_byte=1.2,
    single_p50_us=130.0,
    single_p99_us=500.0,
    raw_single_p50_us=100.0,
    raw_single_p99_us=200.0,
)


def test_figures_are_held_against_their_floors():
    by_name = {figure.name: figure for figure in append_figures([APPENDS], has_floors=True)}
    assert by_name["bandwidth per raw"].median == pytest.approx(0.9)
    assert by_name["bandwidth per raw"].verdict == "kept"
    assert by_name["disk bytes per message byte"].verdict == "MISSED"
    assert by_name["one at a time per raw"].median == pytest.approx(1.3)
    assert all(not f.verdict for f in append_figures([APPENDS], has_floors=False))


def test_the_median_of_the_rounds_decides():
    figure = Figure(name="x", values=[1.0, 9.0, 2.0], bound=2.0)
    assert (figure.median, figure.verdict) == (2.0, "kept")
    assert Figure(name="x", values=[1.0], bound=2.0, at_least=True).verdict == "MISSED"


def test_the_raw_loop_writes_over_filled_files_and_nothing_else(tmp_path: Path):
    program = raw.build(tmp_path)
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(bytes(64 * 1024))
    try:
        done = raw.write(program, 8192, 0.05, files)
    except raw.RawError as error:
        if "Invalid argument" in str(error):
            pytest.skip("the filesystem of the tests' folder refuses O_DIRECT")
        raise
    assert done.count > 0
    assert done.bytes == done.count * 8192
    assert 0 < done.p50_us <= done.p99_us
    data = files[0].read_bytes()
    assert len(data) == 64 * 1024
    assert data[:4096] == bytes(4096), "the file's header stays as it was"
    assert any(data[4096:])


def test_the_raw_loop_refuses_what_it_cannot_measure(tmp_path: Path):
    program = raw.build(tmp_path)
    short = tmp_path / "short"
    short.write_bytes(b"x")
    for block_bytes in (4096, 1000):
        with pytest.raises(raw.RawError):
            raw.write(program, block_bytes, 0.05, [short])
    assert short.read_bytes() == b"x"


def test_a_run_begins_when_all_files_are_made(tmp_path: Path):
    options = JournalOptions(
        directory=tmp_path, file_size_bytes=1 << 20, min_files=9, max_disk_usage_percent=100
    )

    async def count_files() -> int:
        journal = await measurement.open_prepared(options)
        try:
            files = journal.statistics().files
            return files.active + files.free
        finally:
            await journal.close()

    assert product_loop.run(count_files()) >= 9

"""The simulator of micro-batches: what it does when the driver dies anywhere."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from vespiary_testkit.micro_batches import Killed, MicroBatches, QueryError
from vespiary_testkit.recording_stream import SCENARIOS, Desk, RecordingSource, play

SCHEMA = StructType([StructField("seq", LongType())])


def query(
    desk: Desk,
    partitions: int = 1,
    attempts: int = 1,
    step: Callable[[str], None] = lambda _: None,
) -> MicroBatches:
    def source() -> RecordingSource:
        return RecordingSource({"desk": str(desk.folder), "partitions": str(partitions)})

    checkpoint = desk.folder / "checkpoint"
    return MicroBatches(source, source, SCHEMA, checkpoint, attempts=attempts, step=step)


def names(desk: Desk) -> list[str]:
    return [call for call, _ in desk.calls()]


class Killer:
    """Kills a query at its n-th step."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.steps: list[str] = []

    def __call__(self, name: str) -> None:
        self.steps.append(name)
        self.left -= 1
        if not self.left:
            raise Killed(name)


def book_of(desk: Desk) -> dict[int, tuple[int, ...]]:
    """Return the rows of each batch that the sink committed; every replay must have the same."""
    book: dict[int, tuple[int, ...]] = {}
    for call, facts in desk.calls():
        if call == "sink.commit":
            rows = tuple(facts["rows"])
            assert book.setdefault(facts["batch"], rows) == rows
    return book


def check_each_row_once(desk: Desk, rows: int) -> None:
    counted = Counter(itertools.chain.from_iterable(book_of(desk).values()))
    assert counted == Counter(range(1, rows + 1))


def all_steps(folder: Path) -> list[str]:
    folder.mkdir()
    desk = Desk(folder)
    desk.put(5)
    killer = Killer(-1)
    query(desk, step=killer).run()
    return killer.steps


def test_a_run_reads_all_that_was_there_in_batches(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put(5)
    assert query(desk).run() == 3
    assert book_of(desk) == {0: (1, 2), 1: (3, 4), 2: (5,)}


def test_the_last_batch_is_never_acknowledged_by_commit(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put(5)
    query(desk).run()
    query(desk).run()
    assert [facts["end"] for call, facts in desk.calls() if call == "source.commit"] == [2, 4]
    # But the next run tells of it first thing.
    starts = [facts["start"] for call, facts in desk.calls() if call == "latestOffset"]
    assert starts[-1] == 5


def test_a_kill_at_any_step_loses_no_row_and_gives_none_to_two_batches(tmp_path: Path) -> None:
    steps = all_steps(tmp_path / "whole")
    assert len(steps) > 40
    for at in range(1, len(steps) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        desk = Desk(folder)
        desk.put(5)
        with pytest.raises(Killed):
            query(desk, step=Killer(at)).run()
        assert not {"stop", "sink.abort"} & set(names(desk)), steps[at - 1]
        desk.put(2)
        query(desk, partitions=2).run()
        check_each_row_once(desk, 7)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(0, 3), st.integers(1, 2)),
        max_size=5,
    )
)
def test_many_kills(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, int, int]]
) -> None:
    desk = Desk(tmp_path_factory.mktemp("kills"))
    desk.put(4)
    for at, partitions, more, attempts in runs:
        with contextlib.suppress(Killed):
            query(desk, partitions, attempts, Killer(at)).run()
        desk.put(more)
    query(desk).run()
    check_each_row_once(desk, desk.head)


def test_a_task_that_is_tried_again_writes_twice_and_is_committed_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put(2)
    query(desk, attempts=2).run()
    assert names(desk).count("write") == 2
    assert book_of(desk) == {0: (1, 2)}


def test_a_failed_task_aborts_and_does_not_stop_the_reader(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put(2)
    desk.fail_once("write")
    with pytest.raises(QueryError, match="batch 0: write fails once"):
        query(desk).run()
    assert "sink.abort" in names(desk)
    assert "stop" not in names(desk)


def test_a_failed_call_in_the_driver_stops_the_reader_and_aborts_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put(2)
    desk.fail_once("latestOffset")
    with pytest.raises(QueryError, match="latestOffset"):
        query(desk).run()
    assert names(desk)[-1] == "stop"
    assert "sink.abort" not in names(desk)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_ends_with_every_row_once(tmp_path: Path, scenario: str) -> None:
    desk = Desk(tmp_path)

    def run(partitions: int) -> None:
        with contextlib.suppress(QueryError):
            query(desk, partitions).run()

    play(desk, scenario, run)
    query(desk).run()
    check_each_row_once(desk, desk.head)

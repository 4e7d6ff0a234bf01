"""Exports in tables of a lake: each once, whole, in order, whenever a run is killed or doubled."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vespiary_pipeline.lake import registering
from vespiary_pipeline.lake.exported_files import LakeExport
from vespiary_pipeline.lake.registering import Conflict, LakeTable, LastExport, register
from vespiary_spec.errors import RegistrationRefused
from vespiary_testkit.lake_exports import (
    FORMS,
    NULL,
    exported,
    files_of,
    iceberg_table,
    registered,
    table_of,
    write_export,
)
from vespiary_testkit.system_call_faults import tracer

pytestmark = pytest.mark.ci

DAY = "day=2026-11-22"
ODD = (
    f"address=a%2Fb c/{DAY}",
    f"address=007/{DAY}",
    f"address={NULL}/{DAY}",
    f"address=é%23%3F%25x%3D1/day={NULL}",
    "address=orders/day=1969-12-31",
)
RUN_S = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "my lake"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add(lake: Path, form: str) -> int:
    return register(lake, table_of(lake, form)).exports


def versions(lake: Path, form: str) -> list[str | None]:
    """Return the export that each change of the table added; None: it added none."""
    if form == "delta":
        from deltalake import DeltaTable

        history = reversed(DeltaTable(str(lake)).history())
        numbers = [entry.get("vespiary.export") for entry in history]
        return [None if number is None else str(number) for number in numbers]
    return [snapshot.summary["vespiary.export"] for snapshot in iceberg_table(lake).snapshots()]


class Told:
    """A table that tells of each call before it and behind it. Owner: the test."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self.form, self.name, self.place = table.form, table.name, table.place

    @property
    def version(self) -> int | None:
        return self._table.version

    def look(self) -> LastExport | None:
        return self._table.look()

    def add(self, export: LakeExport) -> None:
        self.before(export.manifest.number)
        self._table.add(export)
        self.behind(export.manifest.number)

    def before(self, number: int) -> None:
        """Called before an export is added."""

    def behind(self, number: int) -> None:
        """Called when an export was added."""


def test_a_table_has_what_the_files_have_and_leaves_them_alone(lake: Path, form: str) -> None:
    write_export(lake, ODD, 0)
    write_export(lake, ODD[1:3], 20, journal_id="0b" * 16)  # another broker's
    before = files_of(lake)
    done = register(lake, table_of(lake, form))
    assert (done.exports, done.files, done.messages, done.last_export) == (2, 7, 14, 2)
    rows = registered(lake, form)
    assert rows == exported(lake)
    assert {row["address"] for row in rows} == {"a/b c", "007", None, "é#?%x=1", "orders"}
    assert {str(row["day"]) for row in rows} == {"2026-11-22", "None", "1969-12-31"}
    assert rows[0]["properties"] == [("secret-key", "secret-value")]
    assert files_of(lake) == before


def test_a_second_run_adds_what_came_meanwhile_in_order(lake: Path, form: str) -> None:
    for number in range(3):
        write_export(lake, ODD[:1], 2 * number)
    assert (add(lake, form), add(lake, form)) == (3, 0)
    write_export(lake, ODD[:2], 6)
    write_export(lake, ODD[:1], 10)
    assert (add(lake, form), add(lake, form)) == (2, 0)
    found = versions(lake, form)
    assert [number for number in found if number] == ["1", "2", "3", "4", "5"]
    assert registered(lake, form) == exported(lake)


def test_the_exporter_goes_on_beside_the_tables(lake: Path) -> None:
    write_export(lake, ODD, 0)
    plain = exported(lake)
    assert [add(lake, form) for form in FORMS] == [1, 1]
    assert exported(lake) == plain
    write_export(lake, ODD, 20)
    assert [add(lake, form) for form in FORMS] == [1, 1]
    assert [registered(lake, form) == exported(lake) for form in FORMS] == [True, True]


@pytest.mark.parametrize("point", ["before", "behind"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_run_that_ends_between_two_steps_is_put_right(
    lake: Path, form: str, point: str, number: int
) -> None:
    for at in range(2):
        write_export(lake, ODD, 10 * at)

    class Crash(Exception):  # noqa: N818 - what the real ones are
        pass

    def crash(now: int) -> None:
        if now == number:
            raise Crash

    table = Told(table_of(lake, form))
    setattr(table, point, crash)
    with pytest.raises(RegistrationRefused) as caught:
        register(lake, table)
    assert isinstance(caught.value.__cause__, Crash)
    assert add(lake, form) == 2 - (number - (point == "before"))
    assert registered(lake, form) == exported(lake)


def test_a_run_that_is_killed_right_behind_a_commit_to_delta_goes_on(lake: Path) -> None:
    """The library links a commit to its name, then unlinks what it wrote: each run gets one far."""
    for at in range(2):
        write_export(lake, ODD[:2], 4 * at)
    killed = [killed_at("unlink:signal=KILL:when=1", lake, "delta") for _ in range(4)]
    assert killed == [True, True, True, False]
    assert versions(lake, "delta") == [None, "1", "2"]
    assert registered(lake, "delta") == exported(lake)


def test_a_run_that_is_killed_before_a_commit_to_delta_is_put_right(lake: Path) -> None:
    for at in range(2):
        write_export(lake, ODD[:2], 4 * at)
    assert killed_at("linkat:signal=KILL:when=1", lake, "delta")
    assert add(lake, "delta") == 2
    write_export(lake, ODD[:2], 8)
    assert killed_at("linkat:signal=KILL:when=1", lake, "delta")
    assert add(lake, "delta") == 1
    assert registered(lake, "delta") == exported(lake)


@pytest.mark.verify
@pytest.mark.parametrize("commit", [4, 5, 6])
def test_a_run_that_is_killed_in_a_commit_to_iceberg_is_put_right(lake: Path, commit: int) -> None:
    """SQLite commits by unlinking its journal: three times for the catalogue, then for the table
    without rows, and for each export.
    """
    for at in range(2):
        write_export(lake, ODD[:2], 4 * at)
    assert killed_at(f"unlink:signal=KILL:when={commit}", lake, "iceberg", is_slow=True)
    assert (lake / "_iceberg/catalog.db-journal").exists()
    assert add(lake, "iceberg") == min(2, 7 - commit)
    assert registered(lake, "iceberg") == exported(lake)


def killed_at(fault: str, lake: Path, form: str, *, is_slow: bool = False) -> bool:
    """Register in a process of its own with a fault; return whether that ended it.

    Args:
        fault: For strace.
        lake: The folder.
        form: Of the table.
        is_slow: Trace all calls: strace's quick way kills in no first thread.
    """
    strace = [each for each in tracer(fault) if not (is_slow and each == "--seccomp-bpf")]
    done = subprocess.run(
        [*strace, *command(lake, form)],
        check=False, capture_output=True, text=True, timeout=RUN_S, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def command(lake: Path, form: str) -> list[str]:
    return [sys.executable, "-m", "vespiary_testkit.lake_exports", str(lake), form]


@pytest.mark.verify
def test_runs_at_once_add_each_export_once(lake: Path, form: str) -> None:
    for at in range(4):
        write_export(lake, ODD[:2], 4 * at)
    runs = [
        subprocess.Popen(command(lake, form), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for _ in range(3)
    ]
    added = [int(run.communicate(timeout=RUN_S)[0]) for run in runs]
    assert sum(added) == 4
    assert registered(lake, form) == exported(lake)
    assert [number for number in versions(lake, form) if number] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("first", [1, 2])
def test_who_comes_second_to_a_commit_looks_again(
    lake: Path, form: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as on a disk without locks
    for at in range(3):
        write_export(lake, ODD[:2], 4 * at)
    others: list[int] = []

    class Late(Told):
        def before(self, number: int) -> None:
            if number == first and not others:
                others.append(add(lake, form))

    done = register(lake, Late(table_of(lake, form)))
    assert (done.exports, others) == (first - 1, [4 - first])
    assert registered(lake, form) == exported(lake)


def test_a_stale_look_never_adds_twice(
    lake: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit itself is refused, not only the look before it."""
    write_export(lake, ODD[:1], 0)
    add(lake, form)
    manifest = write_export(lake, ODD[:1], 2)
    early, late = table_of(lake, form), table_of(lake, form)
    export = registering.read_export(lake, manifest)
    assert early.look() == late.look()
    early.add(export)
    with pytest.raises(Conflict):
        late.add(export)
    assert registered(lake, form) == exported(lake)


def test_conflicts_without_end_are_told(lake: Path, form: str) -> None:
    write_export(lake, ODD[:1], 0)

    class Crowded(Told):
        def before(self, number: int) -> None:
            raise Conflict

    with pytest.raises(RegistrationRefused, match="others change the table without pause"):
        register(lake, Crowded(table_of(lake, form)))
    assert add(lake, form) == 1


def test_an_export_that_comes_while_another_run_registers_it_is_no_stranger(
    lake: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    write_export(lake, ODD[:1], 0)
    others: list[Any] = []

    class Late(Told):
        def before(self, number: int) -> None:
            others.append(write_export(lake, ODD[:1], 2))
            others.append(add(lake, form))

    done = register(lake, Late(table_of(lake, form)))
    assert (done.exports, done.last_export, others[1]) == (0, 2, 2)
    assert registered(lake, form) == exported(lake)


def test_metadata_is_flushed_before_a_run_ends(
    lake: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_export(lake, ODD[:1], 0)
    flushed = []
    monkeypatch.setattr(
        registering.os, "fsync", lambda at: flushed.append(Path(f"/proc/self/fd/{at}").readlink())
    )
    table = table_of(lake, form)
    register(lake, table)
    assert table.place is not None
    assert set(table.place.rglob("*")) | {table.place, lake} == set(flushed)

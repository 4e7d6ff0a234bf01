"""A folder of exports: an export is there whole or not at all, and each row is taken once."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from vespiary_pipeline.jobs.export_folder import (
    MANIFEST,
    PRIVATE,
    ExportFolder,
    ExportRun,
    FolderSteps,
    Manifest,
    staged,
)
from vespiary_spec.errors import ExportRefused

JOURNAL = "0a" * 16


class Crash(BaseException):
    """The process is gone."""


class DyingSteps(FolderSteps):
    """Keeps a picture of the disk right before (or in the middle of) step `last`, and dies there.

    Args:
        last: The step that is not done any more.
        picture: Where the picture goes.
        folder: What it is of.
    """

    def __init__(self, last: int, folder: Path, picture: Path) -> None:
        self.last, self.folder, self.picture = last, folder, picture
        self.done = 0

    def _step(self) -> None:
        self.done += 1
        if self.done == self.last:
            if self.folder.exists():
                shutil.copytree(self.folder, self.picture)
            raise Crash

    def make(self, folder: Path) -> None:
        self._step()
        super().make(folder)

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])  # a file that is half there
        self._step()
        super().write(path, data)

    def flush(self, path: Path) -> None:
        self._step()
        super().flush(path)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def remove(self, folder: Path) -> None:
        self._step()
        super().remove(folder)


def write_rows(folder: Path, rows: range) -> None:
    """What Spark does: some files below folders of partitions."""
    for address in ("orders", "a%2Fb"):
        place = folder / f"address={address}" / "day=2026-11-22"
        place.mkdir(parents=True)
        numbers = [row for row in rows if row % 2 == (address == "orders")]
        table = pa.table({"body": ["x"] * len(numbers), "visible_position": numbers})
        pq.write_table(table, place / "part-0.parquet")


def export(folder: ExportFolder, available: int) -> int:
    """Export the rows that the last export left; return how many."""
    last = folder.last_of(JOURNAL, "messages", has_bodies=False)
    first = 0 if last is None else last.reached + 1
    if first >= available:
        return 0
    with folder.writing() as run:
        write_rows(run.staging, range(first, available))
        return publish(run, available - 1).rows


def publish(run: ExportRun, reached: int, journal_id: str = JOURNAL) -> Manifest:
    manifest = Manifest(
        number=run.number,
        made_at="2026-11-22T00:00:00Z",
        journal_id=journal_id,
        source="/data",
        content="messages",
        has_bodies=False,
        reached=reached,
        scan_from=reached + 1,
        files=staged(run.staging),
    )
    run.publish(manifest)
    return manifest


def visible(folder: Path) -> list[int]:
    """What a reader of Parquet that knows nothing of exports sees."""
    if not folder.exists():
        return []
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted(table.column("visible_position").to_pylist()) if table.num_rows else []


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_exports_follow_one_another_and_a_second_look_takes_nothing(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "lake")
    assert export(folder, 10) == 10
    assert export(folder, 10) == 0
    assert export(folder, 13) == 3
    assert visible(tmp_path / "lake") == list(range(13))
    assert [each.number for each in folder.manifests()] == [1, 2]
    assert [each.reached for each in folder.manifests()] == [9, 12]


@pytest.mark.parametrize("former", [0, 5])
def test_a_crash_at_any_step_leaves_all_or_nothing(tmp_path: Path, former: int) -> None:
    lake = tmp_path / "lake"
    if former:
        export(ExportFolder(lake), former)
    seen = set()
    for step in range(1, 50):
        work, picture = tmp_path / f"work-{step}", tmp_path / f"picture-{step}"
        if lake.exists():
            shutil.copytree(lake, work)
        steps = DyingSteps(step, work, picture)
        try:
            export(ExportFolder(work, steps), 12)
        except Crash:
            rows = visible(picture)
            assert rows in (list(range(former)), list(range(12)))
            seen.add(len(rows))
            export(ExportFolder(picture), 14)
            assert visible(picture) == list(range(14))
            assert not list((picture / PRIVATE).glob("staging-*"))
        else:
            assert steps.done < step
            assert visible(work) == list(range(12))
            break
    else:
        pytest.fail("there is no end of steps")
    assert seen == {former, 12}


def test_a_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)

    def fail() -> None:
        with folder.writing() as run:
            write_rows(run.staging, range(4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert visible(tmp_path) == []
    assert names(tmp_path / PRIVATE) == ["lock"]


def test_all_is_flushed_before_it_becomes_visible(tmp_path: Path) -> None:
    order = []

    class Recording(FolderSteps):
        def flush(self, path: Path) -> None:
            order.append(path.name)
            super().flush(path)

        def rename(self, old: Path, new: Path) -> None:
            order.append("RENAME")
            super().rename(old, new)

    export(ExportFolder(tmp_path / "lake", Recording()), 4)
    before, after = order[: order.index("RENAME")], order[order.index("RENAME") + 1 :]
    assert before.count("part-0.parquet") == 2
    assert {MANIFEST, "address=orders", "day=2026-11-22"} <= set(before)
    assert any(name.startswith("staging-1-") for name in before)
    assert after == ["lake"]


def test_only_one_export_writes_at_a_time(tmp_path: Path) -> None:
    with (
        ExportFolder(tmp_path).writing(),
        pytest.raises(ExportRefused, match="another export writes"),
        ExportFolder(tmp_path).writing(),
    ):
        pass
    with ExportFolder(tmp_path).writing():
        pass


def test_without_a_lock_the_later_of_two_exports_fails_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sharing(FolderSteps):
        def remove(self, folder: Path) -> None:
            pass  # the other one's staging folder

    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with ExportFolder(tmp_path, Sharing()).writing() as late:
        with ExportFolder(tmp_path).writing() as early:
            write_rows(early.staging, range(4))
            publish(early, 3)
        write_rows(late.staging, range(9))
        with pytest.raises(ExportRefused, match="there is an export 1 already"):
            publish(late, 8)
    assert visible(tmp_path) == list(range(4))


def test_what_a_dead_driver_s_spark_still_writes_is_in_no_export(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    with folder.writing() as dead:
        pass
    with folder.writing() as run:
        assert run.number == dead.number
        write_rows(run.staging, range(4))
        write_rows(dead.staging, range(4, 8))
        publish(run, 3)
    assert visible(tmp_path) == list(range(4))
    export(folder, 5)
    assert not dead.staging.exists()


def test_journals_side_by_side_are_counted_apart(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    export(folder, 6)
    with folder.writing() as run:
        write_rows(run.staging, range(3))
        publish(run, 2, "0b" * 16)
    assert [each.number for each in folder.manifests()] == [1, 2]
    last = folder.last_of("0b" * 16, "messages", has_bodies=False)
    assert last is not None
    assert last.reached == 2
    assert folder.last_of("0c" * 16, "messages", has_bodies=False) is None


@pytest.mark.parametrize(("content", "has_bodies"), [("live", False), ("messages", True)])
def test_exports_of_another_kind_are_refused(
    tmp_path: Path, content: str, has_bodies: bool
) -> None:
    folder = ExportFolder(tmp_path)
    export(folder, 2)
    with pytest.raises(ExportRefused, match="another kind"):
        folder.last_of(JOURNAL, content, has_bodies=has_bodies)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with (
        pytest.raises(ExportRefused, match=r"thesis\.txt, which no export made"),
        ExportFolder(tmp_path).writing(),
    ):
        pass
    assert names(tmp_path) == ["thesis.txt"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ExportRefused, match="cannot be written here: Not a directory"),
        ExportFolder(tmp_path / "file" / "lake").writing(),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:-3], "a manifest is damaged"),
        (lambda data: b"[]", "a manifest is damaged"),
        (lambda data: data.replace(b'"version": 1', b'"version": 2'), "a newer version"),
        (lambda data: data.replace(b'"reached"', b'"reeched"'), "a manifest is damaged"),
    ],
)
def test_a_manifest_that_is_not_understood_stops_an_export(
    tmp_path: Path, change: object, sentence: str
) -> None:
    folder = ExportFolder(tmp_path)
    export(folder, 2)
    path = tmp_path / "export=00000001" / MANIFEST
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ExportRefused, match=sentence):
        export(folder, 4)
    assert visible(tmp_path) == [0, 1]


def test_a_manifest_says_what_was_taken(tmp_path: Path) -> None:
    export(ExportFolder(tmp_path), 5)
    data = msgspec.json.decode((tmp_path / "export=00000001" / MANIFEST).read_bytes())
    assert data["journal_id"] == JOURNAL
    assert data["reached"] == 4
    assert {file["path"]: file["rows"] for file in data["files"]} == {
        "address=orders/day=2026-11-22/part-0.parquet": 2,
        "address=a%2Fb/day=2026-11-22/part-0.parquet": 3,
    }

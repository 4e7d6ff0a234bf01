"""Folders whose broker runs: what is durable is read, and files may go and come while it is."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.journal.record import FileRun, FilesRecord
from vespiary_pipeline import plan
from vespiary_pipeline.sources import pages as page_source
from vespiary_spec.errors import CorruptRecord, NativeError, SourceChanged
from vespiary_testkit.page_builder import messages
from vespiary_testkit.source_rows import reader_of, rows_of
from vespiary_testkit.written_files import JournalWriter, message, write_page


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose journal is locked, with three files that its newest one lists."""
    writer = JournalWriter(tmp_path / "journal")
    writer.file(1, [message(1)], is_sealed=True)
    writer.file(2, [message(2)], is_sealed=True)
    runs = FilesRecord((FileRun(1, 3),))
    writer.file(3, [runs], *([message(number)] for number in range(3, 13)), watermark=12)
    with (tmp_path / "journal" / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


def blocks(rows: list[dict[str, Any]]) -> list[int | None]:
    return [row["block"] for row in rows if row["kind"] in ("ADD", None)]


# Blocks: 1 message, 2 seal, 3 message, 4 seal, 5 FILES, 6 to 15 messages; up to 12 are durable.
DURABLE = [1, 3, *range(6, 13)]


def test_what_is_durable_is_read(data: Path) -> None:
    assert blocks(rows_of(data)) == DURABLE


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], list[int]]:
    """Have a change happen right before each of the first looks at a folder."""

    def install(times: int, change: Callable[[], None]) -> list[int]:
        looks: list[int] = []
        survey = plan.survey

        def surveyed(*arguments: Any, **named: Any) -> Any:
            looks.append(len(looks))
            if len(looks) <= times:
                change()
            return survey(*arguments, **named)

        monkeypatch.setattr(plan, "survey", surveyed)
        return looks

    return install


def moved_once(path: Path) -> Callable[[], None]:
    """Return what moves a file out of the folder, and back the next time."""
    aside = path.with_name("aside")

    def move() -> None:
        source, target = (path, aside) if path.exists() else (aside, path)
        source.rename(target)

    return move


@pytest.mark.parametrize("on_corrupt", ["fail", "report"])
def test_a_file_that_is_not_there_for_a_moment_is_looked_for_again(
    data: Path, changing: Callable[..., list[int]], on_corrupt: str
) -> None:
    looks = changing(2, moved_once(data / "journal" / "activemq-data-2.hq"))
    assert blocks(rows_of(data, onCorrupt=on_corrupt, columns="block,kind,error")) == DURABLE
    assert len(looks) == 2


def test_a_file_that_stays_away_is_missing(data: Path, changing: Callable[..., list[int]]) -> None:
    (data / "journal" / "activemq-data-2.hq").unlink()
    looks = changing(0, lambda: None)
    with pytest.raises(CorruptRecord, match="file 2 of the journal is missing"):
        rows_of(data)
    assert len(looks) > 2
    found = rows_of(data, onCorrupt="report")
    assert sorted(map(str, blocks(found))) == sorted(map(str, [1, None, *range(6, 13)]))


def test_nobody_counts_up_to_a_distant_file_id(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal")
    writer.file(1, [message(1)], is_sealed=True)
    writer.file(2, [FilesRecord((FileRun(1, 2**61),))], [message(2)])
    writer.file(2**32 - 1, [message(3)])
    with pytest.raises(CorruptRecord, match="file 3 of the journal is missing"):
        rows_of(tmp_path)
    found = rows_of(tmp_path, onCorrupt="report")
    missing = [row for row in found if row["error"] and "is missing" in row["error"]]
    assert 0 < len(missing) < 10_000


def test_a_file_that_can_not_be_opened_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> int:
        raise NativeError("the file can't be opened", 13, where=str(path), cure="be another user")

    monkeypatch.setattr("vespiary_pipeline.files.open_file", refused)
    with pytest.raises(NativeError, match="Permission denied") as caught:
        rows_of(data)
    assert caught.value.where == str(data / "journal" / "activemq-data-1.hq")


def test_a_kept_copy_that_is_removed_while_it_is_planned_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path)
    names = {number: f"activemq-data-2026112207180{number}-{number}.hq" for number in (1, 2)}
    oldest, _ = (
        writer.file(number, [message(number)], name=name, is_sealed=True)
        for number, name in names.items()
    )
    survey = plan.survey_copies

    def surveyed(*arguments: Any, **named: Any) -> Any:
        found = survey(*arguments, **named)
        oldest.unlink(missing_ok=True)  # it is too old now
        return found

    monkeypatch.setattr(plan, "survey_copies", surveyed)
    rows = rows_of(tmp_path)
    assert [row["block"] for row in rows if row["kind"] == "ADD"] == [3]


# --- damage ---------------------------------------------------------------------------------------


def damage(data: Path, block: int) -> None:
    """Damage a block of the newest file."""
    path = data / "journal" / "activemq-data-3.hq"
    content = bytearray(path.read_bytes())
    content[4096 * (block - 4) + 100] ^= 1
    path.write_bytes(content)


def test_damage_of_what_is_durable_is_not_taken_for_the_end(data: Path) -> None:
    damage(data, 9)
    with pytest.raises(CorruptRecord, match="block 9 is not there and blocks up to 12") as caught:
        rows_of(data)
    assert caught.value.where.endswith(f"activemq-data-3.hq:{4096 * 5}")
    found = rows_of(data, onCorrupt="report")
    assert blocks(found) == [1, 3, 6, 7, 8, None, 10, 11, 12]
    assert blocks(rows_of(data, onCorrupt="stop-file")) == [1, 3, 6, 7, 8, None]


def test_damage_behind_what_is_durable_is_not_looked_at(data: Path) -> None:
    damage(data, 13)
    assert blocks(rows_of(data)) == DURABLE


def test_the_last_durable_block_damaged_is_told(data: Path) -> None:
    damage(data, 12)
    with pytest.raises(CorruptRecord, match="block 12 is not there"):
        rows_of(data)
    assert blocks(rows_of(data, onCorrupt="report")) == [*DURABLE[:-1], None]


def test_a_block_that_comes_while_others_behind_it_are_looked_at_is_no_damage(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data / "journal" / "activemq-data-3.hq"
    whole = path.read_bytes()
    damage(data, 9)  # as if it were still on its way
    valid_behind = plan._valid_behind

    def written_meanwhile(*arguments: Any) -> Any:
        found = valid_behind(*arguments)
        path.write_bytes(whole)
        return found

    monkeypatch.setattr(plan, "_valid_behind", written_meanwhile)
    monkeypatch.setattr(plan, "_LIVE_TRIES", 0)
    assert blocks(rows_of(data)) == DURABLE


# --- between the plan and the reading -------------------------------------------------------------


def planned(path: Path, **options: str) -> tuple[Any, list[Any]]:
    reader = reader_of(path, maxPartitionBytes="64k", **options)
    return reader, list(reader.partitions())


def read(reader: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("table", ["records", "files"])
def test_a_file_that_was_removed_since_the_plan_is_told(data: Path, table: str) -> None:
    path = data / "journal" / "activemq-data-1.hq"
    strict, strict_parts = planned(data, table=table)
    lenient, parts = planned(data, table=table, consistency="best-effort")
    path.unlink()
    with pytest.raises(SourceChanged, match="removed this file") as caught:
        read(strict, strict_parts)
    assert caught.value.where == str(path)
    found = read(lenient, parts)
    assert [row["path"] for row in found if row["error"]] == [str(path)]
    assert {row["file_id"] for row in found if not row["error"]} == {2, 3}


def test_a_file_that_was_used_again_is_no_damage_in_the_table_of_files(data: Path) -> None:
    strict, strict_parts = planned(data, table="files")
    lenient, parts = planned(data, table="files", consistency="best-effort")
    JournalWriter(data / "journal").file(4, [message(99)], name="activemq-data-1.hq", salt=99)
    with pytest.raises(SourceChanged, match="used this file again"):
        read(strict, strict_parts)
    assert ["used this file again" in (row["error"] or "") for row in read(lenient, parts)] == [
        True,
        False,
        False,
    ]


def test_a_page_goes_with_its_last_message(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paging = data / "paging"
    pages = [write_page(paging, number, messages(5, first=number * 10)) for number in (1, 2)]
    reader, parts = planned(data, journal="page", consistency="best-effort")
    pages[0].unlink()
    found = read(reader, parts)
    assert [row["file_id"] for row in found if row["kind"] == "ADD"] == [2] * 5
    assert [row["path"] for row in found if row["error"]] == [str(pages[0])]

    page_files = page_source.page_files
    monkeypatch.setattr(page_source, "page_files", lambda folder: [pages[0], *page_files(folder)])
    kinds = [row["kind"] for row in rows_of(data, journal="page")]
    assert kinds == ["ADD"] * 5 + ["SEAL"]

"""Copies of a stopped broker's files: whole or not at all, and put back as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_broker.store import snapshot
from vespiary_broker.store.lock import FolderLock
from vespiary_codec.journal import file_header
from vespiary_spec.errors import DiskFull, JournalLocked, StorageError


def make_folders(root: Path) -> dict[str, Path]:
    folders = {name: root / name for name in ("bindings", "journal", "paging", "large_messages")}
    for folder in folders.values():
        folder.mkdir()
        (folder / ".vespiary-volume.json").write_text("stamp")
        (folder / "lost+found").mkdir()
    (folders["bindings"] / "activemq-bindings-1.bindings").write_bytes(b"b" * 5000)
    header = file_header.MAGIC + file_header.FORMAT_VERSION.to_bytes(2, "little")
    (folders["journal"] / "activemq-data-1.hq").write_bytes(header + os.urandom(70_000))
    (folders["paging"] / "a1").mkdir()
    (folders["paging"] / "a1" / "address.txt").write_text("orders")
    (folders["paging"] / "a1" / "000000001.page").write_bytes(b"VSPYPAGE\x02\x00" + b"p" * 9000)
    (folders["large_messages"] / "0000000000000001.msg").write_bytes(b"l" * 12_000)
    return folders


def content(root: Path) -> dict[str, bytes]:
    """Return every file but those of copies and locks."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and path.name != "server.lock"
        and not any(part.startswith(".vespiary-") for part in path.relative_to(root).parts)
    }


def test_what_was_copied_comes_back_byte_for_byte(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    before = content(tmp_path)
    parts = snapshot.take(folders, "first", before={"journal": 1})
    assert [p.files for p in parts] == [1, 1, 2, 1]
    assert sum(p.size_bytes for p in parts) == sum(map(len, before.values()))
    assert content(tmp_path) == before, "the originals are as they were"

    (folders["journal"] / "activemq-data-1.hq").write_bytes(b"a newer version was here")
    (folders["journal"] / "activemq-data-2.hq").write_bytes(b"and made another file")
    (folders["paging"] / "a1" / "000000001.page").unlink()
    (folders["large_messages"] / "0000000000000001.msg").unlink()
    snapshot.restore(folders, "first")
    assert content(tmp_path) == before
    aside = folders["journal"] / ".vespiary-replaced-first"
    assert (aside / "activemq-data-2.hq").read_bytes() == b"and made another file"
    assert (folders["journal"] / ".vespiary-volume.json").read_text() == "stamp"
    assert len(snapshot.listed(folders)) == 4, "the copy is still there"
    assert snapshot.remove(folders, "first") == 4
    assert snapshot.listed(folders) == []


def test_no_block_is_shared_and_the_second_time_nothing_is_written(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    first = snapshot.take(folders, "first", before={"journal": 1})
    copied = folders["journal"] / ".vespiary-snapshot-first" / "files" / "activemq-data-1.hq"
    original = folders["journal"] / "activemq-data-1.hq"
    assert copied.stat().st_ino != original.stat().st_ino
    original.write_bytes(b"changed")
    assert snapshot.take(folders, "first", before={"journal": 1}) == first
    with pytest.raises(StorageError, match="a copy of this name already"):
        snapshot.take(folders, "first", before={})
    assert copied.stat().st_size == 70_010


def test_parts_of_two_times_are_not_mixed(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    snapshot.take(folders, "first", before={})
    taken = folders["journal"] / ".vespiary-snapshot-first/files/activemq-data-1.hq"
    original = taken.read_bytes()
    folders["jms"] = tmp_path / "jms"  # such as a folder that a setting has added since
    folders["jms"].mkdir()
    (folders["journal"] / "activemq-data-1.hq").write_bytes(b"consumed")
    with pytest.raises(StorageError, match=r"a copy of this name already.*without.*/jms.*remove"):
        snapshot.take(folders, "first", before={})
    assert taken.read_bytes() == original, "it may be the only one"
    assert not list(folders["jms"].glob(".vespiary-*"))


@pytest.mark.parametrize("left", [["lost+found"], [".vespiary-volume.json"], ["server.lock"]])
def test_folders_without_content_are_no_files_of_a_broker(tmp_path: Path, left: list[str]) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    for name in left:
        (folder / name).touch()
    with pytest.raises(StorageError, match="no files of a broker"):
        snapshot.take({"journal": folder}, "first", before={})
    with pytest.raises(StorageError, match="no files of a broker"):
        snapshot.listed({"journal": folder})
    assert [path.name for path in folder.iterdir()] == left


def test_a_copy_alone_is_a_file_of_a_broker(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    snapshot.take(folders, "first", before={})
    before = content(tmp_path)
    for path in before:
        (tmp_path / path).unlink()
    snapshot.restore(folders, "first")
    assert content(tmp_path) == before


def test_a_condition_accepts_new_volumes_but_no_typing_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no files of a broker"):
        snapshot.take({"journal": tmp_path / "nosuch"}, "first", before={"journal": 1})
    folder = tmp_path / "journal"
    folder.mkdir()
    parts = snapshot.take({"journal": folder}, "first", before={"journal": 1})
    assert [p.files for p in parts] == [0]


def test_files_that_a_newer_version_opened_are_not_copied(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    newer = file_header.MAGIC + (2).to_bytes(2, "little")
    (folders["journal"] / "activemq-data-2.hq").write_bytes(newer + bytes(5000))
    assert snapshot.take(folders, "late", before={"journal": 1}) == []
    assert snapshot.listed(folders) == []
    assert len(snapshot.take(folders, "late", before={"journal": 2})) == 4


def cut_short(folders: dict[str, Path], before: dict[str, int], at: int) -> None:
    """Take the copy `cut`, and die at one of the files."""
    done = 0
    real = snapshot._copy

    def dies(*arguments: object) -> None:
        nonlocal done
        done += 1
        if done == at:
            raise KeyboardInterrupt
        real(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_copy", dies)
        with pytest.raises(KeyboardInterrupt):
            snapshot.take(folders, "cut", before=before)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_copy_before_an_upgrade_that_was_cut_short_is_completed(tmp_path: Path, at: int) -> None:
    folders = make_folders(tmp_path)
    before = content(tmp_path)
    cut_short(folders, {"journal": 1}, at)
    assert len(snapshot.take(folders, "cut", before={"journal": 1})) == 4
    assert not list(tmp_path.rglob("*.part"))
    for path in before:
        (tmp_path / path).unlink()
    snapshot.restore(folders, "cut")
    assert content(tmp_path) == before


def test_a_copy_that_was_cut_short_can_be_removed_and_taken_again(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    cut_short(folders, {}, 4)
    assert {p.folder for p in snapshot.listed(folders)} == {
        str(folders["bindings"]),
        str(folders["journal"]),
    }
    with pytest.raises(StorageError, match="no such copy"):
        snapshot.restore(folders, "cut")
    with pytest.raises(StorageError, match=r"already.*without.*/paging, .*/large_messages"):
        snapshot.take(folders, "cut", before={})
    snapshot.remove(folders, "cut")
    assert len(snapshot.take(folders, "cut", before={})) == 4
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_a_restore_that_was_cut_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    folders = make_folders(tmp_path)
    before = content(tmp_path)
    snapshot.take(folders, "first", before={})
    (folders["journal"] / "activemq-data-1.hq").write_bytes(b"newer")
    done = 0
    real = snapshot._copy

    def dies(*arguments: object) -> None:
        nonlocal done
        done += 1
        if done == dies_at:
            raise KeyboardInterrupt
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "_copy", dies)
    with pytest.raises(KeyboardInterrupt):
        snapshot.restore(folders, "first")
    monkeypatch.setattr(snapshot, "_copy", real)
    snapshot.restore(folders, "first")
    assert content(tmp_path) == before
    aside = folders["journal"].glob(".vespiary-replaced-first*/activemq-data-1.hq")
    assert [path.read_bytes() for path in aside] == [b"newer"], "it is not overwritten"
    assert not list(tmp_path.rglob(".vespiary-restoring-*"))


def test_a_broker_that_runs_is_left_alone(tmp_path: Path) -> None:
    folders = make_folders(tmp_path)
    lock = FolderLock(folders["journal"])
    try:
        with pytest.raises(JournalLocked):
            snapshot.take(folders, "first", before={})
        assert snapshot.listed(folders) == []
    finally:
        lock.close()
    FolderLock(folders["bindings"]).close()  # the other lock was let go


def test_a_volume_without_room_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = make_folders(tmp_path)
    real = os.statvfs

    class Full:
        f_bavail = 10
        f_frsize = 4096

    monkeypatch.setattr(snapshot.os, "statvfs", lambda _: Full)
    with pytest.raises(DiskFull, match=r"40 KiB free.*or more"):
        snapshot.take(folders, "first", before={})
    monkeypatch.setattr(snapshot.os, "statvfs", real)
    assert snapshot.listed(folders) == []
    assert not list(tmp_path.rglob("*.part"))


def test_a_copy_for_which_there_is_no_room_moves_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = make_folders(tmp_path)
    snapshot.take(folders, "first", before={})
    (folders["journal"] / "activemq-data-1.hq").write_bytes(b"newer")
    before = content(tmp_path)

    class Full:
        f_bavail = 10
        f_frsize = 4096

    monkeypatch.setattr(snapshot.os, "statvfs", lambda _: Full)
    with pytest.raises(DiskFull, match=r"beside the files that it replaces.*40 KiB free.*or more"):
        snapshot.restore(folders, "first")
    assert content(tmp_path) == before
    assert not list(tmp_path.rglob(".vespiary-re*"))


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "x" * 64, "a.part"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="no name of a copy"):
        snapshot.take(make_folders(tmp_path), name, before={})

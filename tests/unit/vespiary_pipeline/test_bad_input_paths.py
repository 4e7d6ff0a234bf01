"""Paths that hold no journal, or one that can't be read: what is said has path and cure."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from vespiary_pipeline.jobs.export_folder import ExportFolder
from vespiary_pipeline.jobs.importing import ImportSource, kind_of
from vespiary_pipeline.jobs.replaying import check_source
from vespiary_pipeline.jobs.verifying import folders_in
from vespiary_pipeline.sources import text
from vespiary_spec.errors import (
    BadExport,
    ConfigError,
    CorruptRecord,
    ForeignJournal,
    NativeError,
    StorageError,
    VespiaryError,
)
from vespiary_testkit.nobody import open_folder
from vespiary_testkit.source_rows import rows_of
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.written_files import JournalWriter, message

ENTRIES: dict[str, Callable[[str], object]] = {
    "read": rows_of,
    "read files": lambda path: rows_of(path, table="files"),
    "import": lambda path: kind_of(ImportSource(path=path)),
    "verify": lambda path: folders_in([path], {}),
    "replay": lambda path: check_source(path, {}),
}
"""The ways to a path, as far as they go without Spark."""

everywhere = pytest.mark.parametrize("entry", ENTRIES)


def refusal(entry: str, path: Path | str, kind: type[VespiaryError] = VespiaryError) -> str:
    """Return what is said of a path: one line, with a cure."""
    with pytest.raises(kind) as caught:
        ENTRIES[entry](str(path))
    assert caught.value.cure
    said = str(caught.value)
    assert "\n" not in said
    return said


# --- no journal -----------------------------------------------------------------------------------


@everywhere
def test_what_is_no_journal_is_told_with_its_path(entry: str, tmp_path: Path) -> None:
    empty, strange, file = (tmp_path / name for name in ("empty", "strange", "file"))
    empty.mkdir()
    strange.mkdir()
    (strange / "notes.txt").write_text("nothing")
    file.write_bytes(b"nothing")
    for path in (empty, strange, file):
        said = refusal(entry, path, StorageError)
        assert said.startswith(f"{path}: nothing of a broker lies here")
    assert refusal(entry, tmp_path / "none", StorageError).startswith(
        f"{tmp_path}/none: there is no such folder"
    )


@everywhere
@pytest.mark.parametrize("path", ["s3a://bucket/data", "hdfs://name/data", "a\0b"])
def test_what_is_no_path_of_a_file_system_is_refused(entry: str, path: str) -> None:
    assert "no path of a file system" in refusal(entry, path, ConfigError)


@everywhere
def test_an_empty_path_is_not_the_folder_that_one_is_in(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    JournalWriter(tmp_path / "journal").file(1, [message(1)])
    monkeypatch.chdir(tmp_path)
    refusal(entry, "", ConfigError)


@everywhere
def test_a_url_of_a_file_is_a_path(entry: str, tmp_path: Path) -> None:
    JournalWriter(tmp_path / "journal").file(1, [message(1)])
    ENTRIES[entry](f"file:{tmp_path}")
    ENTRIES[entry](f"file://{tmp_path}")


@everywhere
def test_a_path_that_can_t_be_looked_at_is_told(entry: str, tmp_path: Path) -> None:
    assert "File name too long" in refusal(entry, tmp_path / ("x" * 300), NativeError)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "Too many levels of symbolic links" in refusal(entry, tmp_path / "loop")


# --- files that are none --------------------------------------------------------------------------


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    JournalWriter(tmp_path).file(1, [message(1)])
    os.mkfifo(tmp_path / "activemq-data-2.hq")
    os.mkfifo(tmp_path / "server.lock")
    said: list[str] = []
    reading = threading.Thread(
        target=lambda: said.append(refusal("read", tmp_path, NativeError)), daemon=True
    )
    reading.start()
    reading.join(WAIT_S)
    assert len(said) == 1, "it waits for somebody who writes"
    assert said[0].startswith(f"{tmp_path}/activemq-data-2.hq: this has the name of a broker's")


def test_a_folder_or_nothing_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "folder/activemq-data-1.hq").mkdir(parents=True)
    assert "is none" in refusal("read", tmp_path / "folder", NativeError)
    (tmp_path / "link").mkdir()
    (tmp_path / "link/activemq-data-1.hq").symlink_to("/nowhere")
    assert "No such file" in refusal("read", tmp_path / "link", NativeError)


@pytest.mark.parametrize("size", [0, 1, 511, 65536])
def test_bytes_that_are_no_journal_s_are_told(size: int, tmp_path: Path) -> None:
    (tmp_path / "activemq-data-1.hq").write_bytes(b"\xa5" * size)
    said = refusal("read", tmp_path)
    assert said.startswith(f"{tmp_path}/activemq-data-1.hq:")


# --- versions, missing files, growth --------------------------------------------------------------


def test_files_of_two_versions_are_told_apart(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    journal.file(1, [message(1)], is_sealed=True)
    newer = journal.file(2, [message(2)])
    content = bytearray(newer.read_bytes())
    content[8] += 1
    newer.write_bytes(content)
    said = refusal("read", tmp_path, ForeignJournal)
    assert said.startswith(f"{newer}:8: ")
    assert "got 2, allowed: 1" in said
    assert "with the version that wrote it" in said


def test_files_of_two_brokers_are_told_apart(tmp_path: Path) -> None:
    JournalWriter(tmp_path).file(1, [message(1)], is_sealed=True)
    JournalWriter(tmp_path, journal_id=b"b" * 16).file(2, [message(2)])
    assert "files of two brokers" in refusal("read", tmp_path, ForeignJournal).lower()


def test_a_file_that_is_missing_in_the_middle_is_named(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    for number in range(1, 5):
        journal.file(number, [message(number)], is_sealed=number < 4)
    (tmp_path / "activemq-data-3.hq").unlink()
    said = refusal("read", tmp_path, CorruptRecord)
    assert said.startswith(f"{tmp_path}: file 3 of the journal is missing")


def test_a_file_of_another_size_than_it_says_is_told(tmp_path: Path) -> None:
    path = JournalWriter(tmp_path).file(1, [message(1)])
    size = path.stat().st_size
    for other in (size + 8192, size - 4096):
        os.truncate(path, other)
        said = refusal("read", tmp_path, CorruptRecord)
        assert said.startswith(f"{path}: the file's size is not the one in its header")
        assert f"got {other} bytes, allowed: {size} bytes" in said


def test_a_text_without_ends_of_lines_is_not_taken_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_LINE_BYTES_MAX", 4096)
    path = tmp_path / "journal.txt"
    path.write_bytes(b"#Vespiary journal " + b"x" * 100_000)
    longest = max(len(line) for line in text._lines(path))
    assert longest == 4096
    assert refusal("read", path, BadExport).startswith(f"{path}:1: ")


# --- no permission --------------------------------------------------------------------------------

_AS_NOBODY = """
import sys
from vespiary_spec.errors import VespiaryError
from vespiary_testkit.nobody import become_nobody
from test_bad_input_paths import ENTRIES  # before: nobody may not read where it lies
become_nobody()
for entry in sys.argv[2:]:
    try:
        ENTRIES[entry](sys.argv[1])
    except VespiaryError as error:
        print(error)
"""


def said_to_nobody(entries: Iterable[str], path: Path) -> list[str]:
    """Return what a user who owns nothing is told on each way to a path."""
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(path), *entries],
        env=os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[2]}"},
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("closed", "entries"),
    [
        ("", list(ENTRIES)),
        ("data", list(ENTRIES)),
        ("data/journal", list(ENTRIES)),
        ("data/journal/activemq-data-1.hq", ["read", "read files"]),
    ],
)
def test_what_may_not_be_read_is_told_with_its_path(closed: str, entries: list[str]) -> None:
    with open_folder() as folder:
        root = folder / "root"
        JournalWriter(root / "data/journal").file(1, [message(1)])
        (root / closed).chmod(0)
        told = said_to_nobody(entries, root / "data")
    assert len(told) == len(entries)
    for said in told:
        assert said.startswith(str(root / "data"))
        assert "Permission denied. Run as a user who may read it" in said


def test_exports_of_which_one_may_not_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "export=00000001/_export.json").mkdir(parents=True)  # as good as unreadable
    with pytest.raises(VespiaryError, match=r"export=00000001/_export\.json: a manifest cannot"):
        ExportFolder(tmp_path).manifests()

"""The folder of an import: whole or not there, whoever dies or comes along in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vespiary_pipeline.imports import assembly
from vespiary_pipeline.imports.folder import Staging
from vespiary_spec.errors import DiskFull, ImportRefused, NativeError
from vespiary_testkit.broker_process import environment
from vespiary_testkit.imported import carried, import_rows, names_of, write, writer_of
from vespiary_testkit.source_rows import rows_of

ROWS = [{"body": b"%d" % number} for number in range(20)]
NAMES = names_of([ROWS])


def bodies(data: Path) -> list[bytes]:
    return [row["body"] for row in rows_of(data, body="true") if row["kind"] == "ADD"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_and_nothing_else_is_left(tmp_path: Path) -> None:
    import_rows(tmp_path / "data", ROWS)
    assert names(tmp_path) == ["data"]
    assert names(tmp_path / "data") == ["bindings", "journal", "large-messages"]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / "deep" / "data").mkdir(parents=True)
    import_rows(tmp_path / "deep" / "data", ROWS)
    assert len(bodies(tmp_path / "deep" / "data")) == 20


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_is_there_is_left_alone(tmp_path: Path, *, is_folder: bool) -> None:
    kept = tmp_path / "data" / "kept" if is_folder else tmp_path / "data"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(ImportRefused, match="an empty or a new folder"):
        writer_of(tmp_path / "data", NAMES)
    assert kept.read_text() == "mine"
    assert names(tmp_path) == ["data"]


def test_nothing_is_seen_before_the_commit(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "data", NAMES)
    message = write(writer, 0, ROWS, NAMES)
    assert not (tmp_path / "data").exists()
    carried(writer).commit([message])
    assert len(bodies(tmp_path / "data")) == 20


def test_what_a_failed_task_wrote_is_not_in_it(tmp_path: Path) -> None:
    """The first try fails in the middle; the second one is what Spark tells of."""
    writer = writer_of(tmp_path / "data", NAMES)
    with pytest.raises(ImportRefused, match="row 20 of partition 0"):
        write(writer, 0, [*ROWS, {"body": None}], NAMES)
    carried(writer).commit([write(writer, 0, ROWS, NAMES)])
    assert bodies(tmp_path / "data") == [row["body"] for row in ROWS]


def test_a_try_that_nobody_tells_of_is_not_in_it(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "data", NAMES)
    write(writer, 0, ROWS, NAMES)
    carried(writer).commit([write(writer, 0, ROWS, NAMES)])
    assert len(bodies(tmp_path / "data")) == 20
    assert names(tmp_path) == ["data"]


def test_an_abort_leaves_nothing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "data", NAMES)
    message = write(writer, 0, ROWS, NAMES)
    carried(writer).abort([message, None])
    carried(writer).abort([message, None])
    assert not names(tmp_path)


def test_the_later_of_two_imports_wins(tmp_path: Path) -> None:
    first = writer_of(tmp_path / "data", NAMES)
    written = write(first, 0, ROWS, NAMES)
    second = writer_of(tmp_path / "data", NAMES)
    with pytest.raises(ImportRefused, match="another import into this folder has begun"):
        write(first, 1, ROWS, NAMES)
    with pytest.raises(ImportRefused, match="another import into this folder has begun"):
        carried(first).commit([written])
    carried(first).abort([written])
    carried(second).commit([write(second, 0, ROWS[:3], NAMES)])
    assert len(bodies(tmp_path / "data")) == 3
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("call", ["read_index", "flush_folder"])
def test_an_import_that_is_taken_over_in_its_commit_ends(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps of a commit another import begins."""
    first = writer_of(tmp_path / "data", NAMES)
    written = write(first, 0, ROWS, NAMES)
    real = getattr(assembly, call)

    def after_another(*arguments: Any) -> Any:
        monkeypatch.setattr(assembly, call, real)
        writer_of(tmp_path / "data", NAMES)
        return real(*arguments)

    monkeypatch.setattr(assembly, call, after_another)
    with pytest.raises(ImportRefused, match="another import into this folder has begun"):
        first.commit([written])
    assert not (tmp_path / "data").exists()


def test_two_imports_that_end_at_once_give_one_folder(tmp_path: Path) -> None:
    """Only file systems of which one does not show yet what the other did come here."""
    first = writer_of(tmp_path / "data", NAMES)
    written = write(first, 0, ROWS, NAMES)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "journal").mkdir()
    with pytest.raises(ImportRefused, match="an empty or a new folder"):
        first.commit([written])
    assert names(tmp_path / "data") == ["journal"]


def failing(code: int) -> Callable[..., None]:
    """Return a call that fails."""

    def fail(*_: object) -> None:
        raise OSError(code, "failed")

    return fail


def test_what_a_cut_off_clearing_left_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", failing(errno.EIO))
        with pytest.raises(NativeError):
            Staging(tmp_path / "data")
    assert not staging.folder.exists()
    assert len(names(tmp_path)) == 1
    import_rows(tmp_path / "data", ROWS)
    assert names(tmp_path) == ["data"]


def test_folders_of_other_imports_are_left_alone(tmp_path: Path) -> None:
    other = Staging(tmp_path / "data2")
    import_rows(tmp_path / "data", ROWS)
    assert other.folder.is_dir()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(DiskFull, match="there is no room for the import"):
        import_rows(tmp_path / "data", ROWS)
    assert not (tmp_path / "data").exists()


class Flushes:
    """Notes what is flushed; the call `fails` of them fails."""

    def __init__(self, fails: int = -1) -> None:
        self.paths: list[str] = []
        self._fails = fails
        self._real = os.fsync

    def __call__(self, descriptor: int) -> None:
        self.paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if len(self.paths) - 1 == self._fails:
            raise OSError(errno.EIO, "lost")
        self._real(descriptor)


def test_a_flush_that_fails_fails_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file and each folder is flushed, and a failure of any of them counts."""
    rows = [*ROWS, {"body": b"x" * 2000}]
    options = {"largeMessageSize": "1k", "fileSize": "64k"}
    with monkeypatch.context() as patch:
        flushes = Flushes()
        patch.setattr("os.fsync", flushes)
        import_rows(tmp_path / "data", rows, rows, **options)
    ends = {path.partition("/data/")[2] for path in flushes.paths}
    journal = {f"journal/activemq-data-{number}.hq" for number in (1, 2, 3)}
    assert journal | {"journal", "bindings", "bindings/activemq-bindings-1.bindings"} <= ends
    assert "large-messages" in ends
    assert sum(path.endswith(".body") for path in flushes.paths) == 2
    assert flushes.paths[-2].endswith("/data")
    assert flushes.paths[-1] == str(tmp_path)
    for number in range(len(flushes.paths)):
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", Flushes(number))
            with pytest.raises(NativeError, match="can't be flushed"):
                import_rows(tmp_path / f"data{number}", rows, rows, **options)


KILLED = """
import os, signal, sys
from pathlib import Path
from vespiary_pipeline.imports import assembly, folder, settling, staged
from vespiary_testkit.imported import import_rows

step, count = sys.argv[2], int(sys.argv[3])
owner, name = {"index": (assembly, "read_index"), "flush": (settling.os, "fsync"),
               "write": (staged.os, "pwrite"), "rename": (Path, "rename"),
               "clear": (folder.shutil, "rmtree")}[step]
real = getattr(owner, name)

def dies(*arguments, **more):
    global count
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)
    count -= 1
    return real(*arguments, **more)

setattr(owner, name, dies)
rows = [{"body": b"%d" % number} for number in range(20)]
import_rows(Path(sys.argv[1]), rows, rows)
"""


@pytest.mark.verify
@pytest.mark.parametrize(
    ("step", "count"),
    [("write", 0), ("write", 9), ("index", 1), ("flush", 0), ("flush", 3), ("flush", 6),
     ("flush", 7), ("rename", 0), ("rename", 1), ("rename", 2), ("clear", 0)],
)  # fmt: skip
def test_a_killed_import_is_whole_or_not_there(tmp_path: Path, step: str, count: int) -> None:
    data = tmp_path / "data"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(data), step, str(count)],
        env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    if data.exists():  # the rename was the last that happened
        assert bodies(data) == [row["body"] for row in ROWS] * 2
        return
    import_rows(data, ROWS)
    assert names(tmp_path) == ["data"]
    assert len(bodies(data)) == 20

"""A benchmark touches nothing that was there, and leaves nothing behind."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from vespiary_broker.store.disk import Disk, Usage
from vespiary_broker.store.disk_benchmark.results import GROWING
from vespiary_broker.store.disk_benchmark.workfiles import WorkFiles, needed_bytes, place_of
from vespiary_spec.errors import DiskFull, NativeError, StorageError
from vespiary_spec.settings import PreallocationStrategy

SIZE = 256 * 1024


def test_one_file_for_each_strategy_and_one_that_grows(tmp_path: Path):
    with WorkFiles(tmp_path / "b", SIZE) as work:
        assert list(tmp_path.iterdir()) == []
        work.make()
        sizes = {name: file.size_bytes() for name, file in work.files.items()}
        assert sizes == {**dict.fromkeys(PreallocationStrategy, SIZE), GROWING: 0}
        assert [making.preallocation for making in work.making] == list(PreallocationStrategy)
        assert all(making.seconds > 0 and not making.note for making in work.making)
        assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == []


class StopError(Exception):
    """What a test ends the run with."""


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
def test_everything_goes_whatever_ends_the_run(tmp_path: Path, error: type[BaseException]):
    def run() -> None:
        with WorkFiles(tmp_path / "b", SIZE) as work:
            work.make()
            raise error

    with pytest.raises(error):
        run()
    assert list(tmp_path.iterdir()) == []


class FailingDisk(Disk):
    """Fails the k-th file that is made."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def create(self, path: Path, *, is_direct: bool):
        self.left -= 1
        if self.left == 0:
            raise NativeError("cannot open the file", errno.EIO, where=str(path))
        return super().create(path, is_direct=is_direct)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, at: int):
    with WorkFiles(tmp_path / "b", SIZE, FailingDisk(at)) as work, pytest.raises(NativeError):
        work.make()
    assert list(tmp_path.iterdir()) == []


def interrupted_at(step: int, run: Callable[[], None]) -> bool:
    """Raise KeyboardInterrupt before the k-th line or return of whatever `run` calls.

    Returns:
        Whether there were so many.
    """
    left = step

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        nonlocal left
        if event in ("line", "return"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.verify
def test_an_interrupt_at_any_step_of_the_making_leaves_nothing(tmp_path: Path):
    def run() -> None:
        with ExitStack() as stack:
            stack.enter_context(work).make()
            sys.settrace(None)

    steps = 0
    while True:
        work = WorkFiles(tmp_path / f"b{steps}", SIZE)
        steps += 1
        is_interrupted = interrupted_at(steps, run)
        assert list(tmp_path.iterdir()) == [], f"interrupted at step {steps}"
        if not is_interrupted:
            break
    assert steps > 100


class FullDisk(Disk):
    """Has so many bytes free."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    def usage(self, folder: Path) -> Usage:
        return Usage(10 * self.free, self.free)


def test_the_space_is_looked_at_before_anything_is_made(tmp_path: Path):
    enough = int(needed_bytes(SIZE) * 1.06)
    with WorkFiles(tmp_path / "b", SIZE, FullDisk(enough)) as work:
        work.make()
    with (
        WorkFiles(tmp_path / "b", SIZE, FullDisk(needed_bytes(SIZE))) as work,
        pytest.raises(DiskFull, match="smaller --size") as caught,
    ):
        work.make()
    assert "free" in str(caught.value.measured)
    assert list(tmp_path.iterdir()) == []


def test_what_exists_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(StorageError, match="never writes into what is there"):
            place_of(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StorageError, match="no such folder"):
        place_of(tmp_path / "missing" / "name")
    assert place_of(tmp_path / "new") == tmp_path / "new"
    inside = place_of(tmp_path)
    assert inside.parent == tmp_path
    assert not inside.exists()


def test_a_folder_of_others_stays(tmp_path: Path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / GROWING).write_text("theirs")
    with (
        WorkFiles(tmp_path / "theirs", SIZE) as work,
        pytest.raises(StorageError, match="cannot be made"),
    ):
        work.make()
    assert (tmp_path / "theirs" / GROWING).read_text() == "theirs"

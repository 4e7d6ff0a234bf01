"""The real file system layer: results are looked at, errors name the place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import NativeError


def aligned(data: bytes) -> memoryview:
    view = AlignedBuffer(len(data)).memoryview
    view[:] = data
    return view


@pytest.mark.parametrize("is_direct", [True, False])
def test_what_was_written_is_read(tmp_path: Path, is_direct: bool):
    disk = Disk()
    file = disk.create(tmp_path / "a", is_direct=is_direct)
    file.write(aligned(b"x" * 8192), 0)
    file.write(aligned(b"y" * 4096), 4096)
    file.flush()
    buffer = AlignedBuffer(16384)
    assert file.read_into(buffer.memoryview, 0) == 8192
    assert bytes(buffer.memoryview[:8192]) == b"x" * 4096 + b"y" * 4096
    assert file.size_bytes() == 8192
    file.close()
    file.close()


def test_files_and_folders_are_private(tmp_path: Path):
    disk = Disk()
    disk.make_folder(tmp_path / "a" / "b")
    disk.create(tmp_path / "a" / "b" / "f", is_direct=False).close()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a" / "b" / "f").stat().st_mode) == 0o600
    disk.make_folder(tmp_path / "a" / "b")
    assert disk.names(tmp_path / "a" / "b") == ["f"]
    assert disk.names(tmp_path / "missing") == []


def test_a_name_that_is_taken_is_not_replaced(tmp_path: Path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(NativeError) as caught:
        Disk().rename(tmp_path / "a", tmp_path / "b")
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "b").read_text() == "b"


def test_errors_name_file_offset_and_reason(tmp_path: Path):
    disk = Disk()
    (tmp_path / "a").write_bytes(bytes(4096))
    file = disk.open(tmp_path / "a", is_direct=False, is_readonly=True)
    with pytest.raises(NativeError, match=r"a:0: cannot write: Bad file descriptor") as caught:
        file.write(memoryview(b"x"), 0)
    assert caught.value.errno == errno.EBADF
    file.close()
    with pytest.raises(NativeError, match="cannot open the file: No such file"):
        disk.open(tmp_path / "missing", is_direct=False, is_readonly=True)


def test_a_full_device_is_an_error_with_a_cure(tmp_path: Path):
    file = Disk().create(tmp_path / "a", is_direct=False)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    os.close(full)
    with pytest.raises(NativeError, match="Enlarge the volume") as caught:
        file.write(memoryview(b"x"), 0)
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_a_write_that_stops_half_way_is_an_error(tmp_path: Path):
    file = Disk().create(tmp_path / "a", is_direct=False)
    limit = os.pathconf(tmp_path, "PC_FILESIZEBITS")
    assert limit >= 32
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.dup2(writer, file.fileno())  # a pipe takes part of what it is given, and has no offsets
    with pytest.raises(NativeError):
        file.write(memoryview(bytes(1 << 20)), 0)
    for fd in (reader, writer):
        os.close(fd)
    file.close()


OPENINGS = {
    "create": lambda path: Disk().create(path, is_direct=False),
    "read": lambda path: Disk().open(path, is_direct=False, is_readonly=True),
    "write": lambda path: Disk().open(path, is_direct=False, is_readonly=False),
    "copy from": lambda path: Disk().copy_file(path, path.with_name("empty"), 0),
    "copy to": lambda path: Disk().copy_file(path.with_name("empty"), path, 0),
}


@pytest.mark.parametrize("how", OPENINGS)
def test_a_pipe_with_the_name_of_a_file_is_an_error_at_once(tmp_path: Path, how: str):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "a")
    with pytest.raises(NativeError, match="it is not a regular file") as caught:
        OPENINGS[how](tmp_path / "a")
    assert caught.value.where == str(tmp_path / "a")
    assert "remove it" in caught.value.cure


@pytest.mark.parametrize("how", OPENINGS)
def test_a_link_is_not_followed(tmp_path: Path, how: str):
    (tmp_path / "empty").touch()
    (tmp_path / "precious").write_bytes(b"content")
    (tmp_path / "a").symlink_to("precious")
    with pytest.raises(NativeError, match="This is a symbolic link"):
        OPENINGS[how](tmp_path / "a")
    assert (tmp_path / "precious").read_bytes() == b"content"


def test_space_is_what_this_user_may_take(tmp_path: Path):
    usage = Disk().usage(tmp_path)
    assert 0 < usage.free < usage.total

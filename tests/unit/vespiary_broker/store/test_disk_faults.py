"""The real disk's calls when the kernel fails them, and that flushes do reach it."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from vespiary_broker.store.disk import Disk
from vespiary_spec.errors import NativeError


def test_a_write_that_stops_within_a_page_is_an_error(tmp_path: Path) -> None:
    file = Disk().create(tmp_path / "a", is_direct=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + 100, hard))  # the kernel writes up to here
    try:
        with pytest.raises(NativeError, match="stopped half-way") as caught:
            file.write(memoryview(bytes(8192)), 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EIO
    assert file.size_bytes() == 4096 + 100
    file.close()


def test_a_flush_that_fails_is_an_error(tmp_path: Path) -> None:
    file = Disk().create(tmp_path / "a", is_direct=False)
    reader, writer = os.pipe()
    os.dup2(writer, file.fileno())  # a pipe can't be flushed
    with pytest.raises(NativeError, match="cannot flush") as caught:
        file.flush()
    assert caught.value.errno == errno.EINVAL
    file.close()
    os.close(reader)
    os.close(writer)


def test_flushes_reach_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []

    def fsync(fd: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))

    disk = Disk()
    file = disk.create(tmp_path / "a", is_direct=False)
    monkeypatch.setattr(os, "fsync", fsync)
    file.flush()
    disk.flush_folder(tmp_path)
    disk.make_folder(tmp_path / "b" / "c")
    file.close()
    assert flushed == [str(tmp_path / name) for name in ("a", "", "", "b")]

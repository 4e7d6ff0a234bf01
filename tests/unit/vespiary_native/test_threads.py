"""`ThreadRing`: its own part, beyond what every ring must do (test_ring_contract.py)."""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from pathlib import Path

import pytest

from vespiary_native.threads import Request, RequestKind, ThreadRing, perform


class FailingDisk:
    """Performs requests for real until told otherwise; holds the thread at a gate meanwhile."""

    def __init__(self, error: BaseException) -> None:
        self.gate = threading.Event()
        self.error = error
        self.started = 0

    def perform(self, request: Request) -> int:
        self.started += 1
        assert self.gate.wait(20)
        if request.token == 13:
            raise self.error
        return perform(request)


def take(ring: ThreadRing, count: int) -> list[tuple[int, int]]:
    taken: list[tuple[int, int]] = []
    poll = select.poll()
    poll.register(ring.fileno(), select.POLLIN)
    while len(taken) < count:
        assert poll.poll(20_000), f"{len(taken)} of {count} completions came"
        taken += ring.completions()
    return taken


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError(), SystemExit(1)], ids=repr)
def test_death_answers_everything_with_eio(
    tmp_path: Path, error: BaseException, caplog: pytest.LogCaptureFixture
):
    fd = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT)
    disk = FailingDisk(error)
    with ThreadRing(8, perform_request=disk.perform) as ring:
        for token in (1, 13, 3, 4):
            ring.submit_write_buffer(fd, b"abc", 0, token)
        disk.gate.set()
        assert take(ring, 4) == [(1, 3), (13, -errno.EIO), (3, -errno.EIO), (4, -errno.EIO)]
        # And so does everything after it, without a thread.
        ring.submit_write_buffer(fd, b"abc", 0, 5)
        ring.submit_sync(fd, 6)
        assert take(ring, 2) == [(5, -errno.EIO), (6, -errno.EIO)]
        assert disk.started == 2
    assert ring.outstanding == 0
    os.close(fd)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "all its requests fail with EIO" in record.message
    assert record.exc_info


def test_an_os_error_is_one_result_and_the_thread_lives(tmp_path: Path):
    fd = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT)
    disk = FailingDisk(OSError(errno.ENOSPC, "full"))
    disk.gate.set()
    with ThreadRing(8, perform_request=disk.perform) as ring:
        for token in (1, 13, 3):
            ring.submit_write_buffer(fd, b"abc", 0, token)
        assert take(ring, 3) == [(1, 3), (13, -errno.ENOSPC), (3, 3)]
        disk.error = OSError("without a number")
        ring.submit_sync(fd, 13)
        assert take(ring, 1) == [(13, -errno.EIO)]
    os.close(fd)


def test_a_full_ring_counts_what_the_thread_has_not_begun(tmp_path: Path):
    fd = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT)
    disk = FailingDisk(RuntimeError())
    with ThreadRing(2, perform_request=disk.perform) as ring:
        ring.submit_sync(fd, 1)
        ring.submit_sync(fd, 2)
        with pytest.raises(OSError, match="ring is full"):
            ring.submit_sync(fd, 3)
        assert ring.completions() == []
        assert ring.outstanding == 2
        disk.gate.set()
        assert take(ring, 2) == [(1, 0), (2, 0)]
    os.close(fd)


class ShortDisk:
    """System calls that move at most `step` bytes; fails once past `limit` bytes in all."""

    def __init__(self, step: int, limit: int) -> None:
        self.step = step
        self.limit = limit
        self.calls: list[tuple[int, int]] = []

    def pwritev(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        (buffer,) = buffers
        if sum(count for _, count in self.calls) >= self.limit:
            raise OSError(errno.ENOSPC, "full")
        count = os.pwritev(fd, [buffer[: self.step]], offset)
        self.calls.append((offset, count))
        return count


def test_a_short_write_is_continued(tmp_path: Path):
    path = tmp_path / "journal"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    data = bytes(range(250)) * 10
    request = Request(RequestKind.DURABLE_WRITE, fd, memoryview(data), 7, 1)
    disk = ShortDisk(step=1000, limit=10_000)
    assert perform(request, pwritev=disk.pwritev) == 2500
    assert disk.calls == [(7, 1000), (1007, 1000), (2007, 500)]
    assert path.read_bytes() == bytes(7) + data
    with pytest.raises(OSError, match="full") as caught:
        perform(request, pwritev=ShortDisk(step=1000, limit=2000).pwritev)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="wrote nothing") as caught:
        perform(request, pwritev=ShortDisk(step=0, limit=1).pwritev)
    assert caught.value.errno == errno.EIO
    os.close(fd)


@pytest.mark.parametrize(
    ("kind", "syncs"), [(RequestKind.WRITE, 0), (RequestKind.DURABLE_WRITE, 1)]
)
def test_a_failed_flush_fails_the_durable_write_alone(kind: RequestKind, syncs: int):
    # A socket can be written to, but not flushed: fdatasync gives EINVAL. pwritev gives ESPIPE, so
    # the write is done by a plain one.
    reader, writer = os.pipe()
    request = Request(kind, writer, memoryview(b"abc"), 0, 1)
    if syncs:
        with pytest.raises(OSError) as caught:
            perform(request, pwritev=lambda fd, buffers, _: os.writev(fd, buffers))
        assert caught.value.errno == errno.EINVAL
    else:
        assert perform(request, pwritev=lambda fd, buffers, _: os.writev(fd, buffers)) == 3
    assert os.read(reader, 10) == b"abc"
    os.close(reader)
    os.close(writer)

"""On a real folder, with stand-ins for the AIO ring; real rings are in the integration tests."""

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.store.volumes import probe
from vespiary_broker.store.volumes.probe import Capability, Probe
from vespiary_spec.errors import EngineUnavailable


class SynchronousRing:
    """Does what a ring does, at once: the write, then a completion and a readable eventfd."""

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.done: list[tuple[int, int]] = []
        self.is_closed = False

    def submit_write(
        self, fd: int, address: int, length: int, offset: int, token: int, *, durable: bool = True
    ) -> None:
        assert durable
        assert address % 4096 == 0
        self.finish(token, self.write(fd, ctypes.string_at(address, length), offset))

    def write(self, fd: int, data: bytes, offset: int) -> int:
        # Through another descriptor: bytes that are not aligned can't go through O_DIRECT.
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        try:
            written = os.pwrite(other, data, offset)
            os.fsync(other)
        finally:
            os.close(other)
        return written

    def finish(self, token: int, result: int) -> None:
        self.done.append((token, result))
        os.eventfd_write(self.event, 1)

    def fileno(self) -> int:
        return self.event

    def completions(self) -> list[tuple[int, int]]:
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        os.close(self.event)
        self.is_closed = True


class LyingRing(SynchronousRing):
    """Says that it wrote, and did not."""

    def write(self, fd: int, data: bytes, offset: int) -> int:
        return len(data)


class ShortRing(SynchronousRing):
    """Writes half."""

    def write(self, fd: int, data: bytes, offset: int) -> int:
        return super().write(fd, data[:2048], offset)


class FailingRing(SynchronousRing):
    """Every write ends with an error of the device."""

    def write(self, fd: int, data: bytes, offset: int) -> int:
        return -errno.EIO


class SilentRing(SynchronousRing):
    """Takes a write and never completes it."""

    def finish(self, token: int, result: int) -> None:
        return


class RefusingRing(SynchronousRing):
    """Can be opened, but takes no write."""

    def submit_write(
        self, fd: int, address: int, length: int, offset: int, token: int, *, durable: bool = True
    ) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    trial = tmp_path / "trial"
    try:
        os.close(os.open(trial, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"{tmp_path} takes no direct I/O: {error.strerror}")
    finally:
        trial.unlink(missing_ok=True)
    yield tmp_path
    # Whatever happened, nothing is left.
    assert list(tmp_path.iterdir()) == []


def run(folder: Path, ring: SynchronousRing | None = None, samples: int = 3) -> Probe:
    ring = ring or SynchronousRing()
    found = probe.run(
        str(folder), open_ring=lambda depth: ring, flush_samples=samples, aio_timeout_s=0.05
    )
    assert ring.is_closed
    return found


def test_everything_works_and_nothing_is_left(folder: Path) -> None:
    found = run(folder, samples=5)
    assert found.direct == Capability(True)
    assert found.aio == Capability(True)
    assert len(found.flush_us) == 5
    assert list(found.flush_us) == sorted(found.flush_us)
    assert "SYNC" in found.flush_method.upper()


@pytest.mark.parametrize(
    ("ring", "reason"),
    [
        (ShortRing, "wrote 2048 of 4096"),
        (FailingRing, "Input/output error"),
        (SilentRing, "no completion within 0.05 s"),
        (RefusingRing, "Invalid argument"),
    ],
)
def test_a_ring_that_does_not_do_its_work_is_found_out(
    folder: Path, ring: type[SynchronousRing], reason: str
) -> None:
    found = run(folder, ring())
    assert found.aio.works is False
    assert reason in found.aio.reason
    assert found.direct.works is True


def test_a_ring_that_says_it_wrote_and_did_not_is_an_error_of_the_disk(folder: Path) -> None:
    ring = LyingRing()
    with pytest.raises(OSError, match="other bytes were read back") as caught:
        run(folder, ring)
    assert caught.value.errno == errno.EIO
    assert ring.is_closed


def test_io_uring_is_tried_only_where_it_is_asked_for(folder: Path) -> None:
    assert run(folder).uring == Capability(None, "io_uring was not asked for")
    ring = SynchronousRing()

    def refuse(depth: int) -> probe.Ring:
        raise OSError(errno.ENOSYS, "Function not implemented")

    found = probe.run(str(folder), open_ring=refuse, open_uring=lambda _: ring, flush_samples=0)
    assert found.uring == Capability(True)
    assert found.aio.works is False
    assert ring.is_closed


@pytest.mark.parametrize(
    ("ring", "reason"),
    [
        (ShortRing, "io_uring wrote 2048 of 4096"),
        (FailingRing, "io_uring write: Input/output error"),
        (SilentRing, "io_uring write: no completion within 0.05 s"),
        (RefusingRing, "io_uring_enter: [Errno 22] Invalid argument"),
    ],
)
def test_an_io_uring_that_does_not_do_its_work_is_found_out(
    folder: Path, ring: type[SynchronousRing], reason: str
) -> None:
    found = probe.run(
        str(folder),
        open_ring=lambda _: SynchronousRing(),
        open_uring=lambda _: ring(),
        flush_samples=0,
        aio_timeout_s=0.05,
    )
    assert found.uring.works is False
    assert reason in found.uring.reason
    assert found.aio == Capability(True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "EAGAIN"),
        (EngineUnavailable("ASYNCIO can't be used: forced", cure="unset it"), "forced; unset it"),
        (OSError(errno.ENOSYS, "Function not implemented"), "ENOSYS"),
        (ImportError("No module named 'vespiary_native._native'"), "_native"),
    ],
)
def test_a_ring_that_cannot_be_opened_is_a_reason(
    folder: Path, error: Exception, reason: str
) -> None:
    def refuse(depth: int) -> probe.Ring:
        raise error

    found = probe.run(str(folder), open_ring=refuse, flush_samples=0)
    assert found.aio.works is False
    assert reason in found.aio.reason
    assert found.flush_us_p50 is None
    assert found.flush_us_p99 is None


def test_no_more_samples_after_the_budget(folder: Path) -> None:
    found = probe.run(
        str(folder),
        open_ring=lambda depth: SynchronousRing(),
        flush_samples=10**9,
        flush_budget_s=0.0,
    )
    assert len(found.flush_us) == 1


def test_more_samples_than_blocks_stay_inside_the_file(folder: Path) -> None:
    assert len(run(folder, samples=probe.PROBE_BLOCKS + 3).flush_us) == probe.PROBE_BLOCKS + 3


def test_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(tmp_path / "missing")


@pytest.mark.parametrize(
    ("samples", "p50", "p99"),
    [
        ((), None, None),
        ((7,), 7, 7),
        ((1, 2), 1, 2),
        ((1, 2, 3), 2, 3),
        (tuple(range(1, 51)), 25, 50),
        (tuple(range(1, 101)), 50, 99),
    ],
)
def test_percentiles_are_the_nearest_rank(
    samples: tuple[int, ...], p50: int | None, p99: int | None
) -> None:
    found = Probe(direct=Capability(True), aio=Capability(True), flush_us=samples)
    assert (found.flush_us_p50, found.flush_us_p99) == (p50, p99)

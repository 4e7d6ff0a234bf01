"""The contract of a ring, on every implementation, over real files opened with O_DIRECT."""

from __future__ import annotations

import asyncio
import errno
import gc
import mmap
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_native.abc_ring import DEPTH_MAX, LENGTH_MAX, Completion, Ring
from vespiary_native.memory import AlignedBuffer
from vespiary_native.threads import ThreadRing
from vespiary_spec.errors import NativeError
from vespiary_testkit import product_loop
from vespiary_testkit.seeds import seed_for

PAGE = 4096
FILE_BYTES = 64 * PAGE
WAIT_MS = 20_000

MakeRing = Callable[[int], Ring]


def make_ring_of(kind: str, depth: int) -> Ring:
    if kind == "threads":
        return ThreadRing(depth)
    from vespiary_native.aio import AioRing
    from vespiary_native.uring import UringRing

    make = UringRing if kind.startswith("uring") else AioRing
    return make(depth, write_then_sync=kind.endswith("then-sync"))


def io_uring_refusal() -> str:
    """Why there is no io_uring here; empty if there is."""
    try:
        make_ring_of("uring", 1).close()
    except NativeError as error:
        return str(error)
    return ""


@pytest.fixture(params=["aio", "aio-then-sync", "uring", "uring-then-sync", "threads"])
def make_ring(request: pytest.FixtureRequest) -> Iterator[MakeRing]:
    kind = request.param
    if kind != "threads" and not loader.is_wanted():
        pytest.skip("VESPIARY_NATIVE=0: no AIO without the native part")
    if kind.startswith("uring") and (refusal := io_uring_refusal()):
        pytest.skip(f"no io_uring here: {refusal}")
    made: list[Ring] = []

    def make(depth: int) -> Ring:
        made.append(make_ring_of(kind, depth))
        return made[-1]

    make.kind = kind  # type: ignore[attr-defined]
    yield make
    for ring in made:
        ring.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A zero-filled file of 64 pages, with O_DIRECT where the filesystem has it."""
    path = tmp_path / "journal"
    path.write_bytes(bytes(FILE_BYTES))
    try:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def buffer() -> Iterator[AlignedBuffer]:
    with AlignedBuffer(FILE_BYTES) as made:
        yield made


def take(ring: Ring, count: int) -> list[tuple[int, int]]:
    """Wait on the eventfd as a loop would, until `count` completions have come."""
    taken: list[tuple[int, int]] = []
    poll = select.poll()
    poll.register(ring.fileno(), select.POLLIN)
    while len(taken) < count:
        assert poll.poll(WAIT_MS), f"{len(taken)} of {count} completions came"
        taken += ring.completions()
    return taken


def write_one(ring: Ring, fd: int, buffer: AlignedBuffer, length: int, offset: int) -> int:
    ring.submit_write(fd, buffer.address, length, offset, 7)
    ((token, result),) = take(ring, 1)
    assert token == 7
    return result


def read_one(ring: Ring, fd: int, buffer: AlignedBuffer, length: int, offset: int) -> int:
    ring.submit_read(fd, buffer.address, length, offset, 8)
    ((token, result),) = take(ring, 1)
    assert token == 8
    return result


def test_what_is_written_is_read_back(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(4)
    noise = random.Random(seed_for("ring noise")).randbytes(3 * PAGE)
    buffer.memoryview[: 3 * PAGE] = noise
    assert write_one(ring, file, buffer, 3 * PAGE, 5 * PAGE) == 3 * PAGE
    with AlignedBuffer(5 * PAGE) as back:
        assert read_one(ring, file, back, 5 * PAGE, 4 * PAGE) == 5 * PAGE
        assert back.memoryview.tobytes() == bytes(PAGE) + noise + bytes(PAGE)


def test_a_write_need_not_be_durable_and_a_sync_follows(
    make_ring: MakeRing, file: int, buffer: AlignedBuffer
):
    ring = make_ring(4)
    ring.submit_write(file, buffer.address, PAGE, 0, 1, durable=False)
    assert take(ring, 1) == [(1, PAGE)]
    ring.submit_sync(file, 2)
    assert take(ring, 1) == [(2, 0)]


def test_a_completion_has_names(make_ring: MakeRing, file: int):
    ring = make_ring(1)
    ring.submit_sync(file, 2**64 - 1)
    assert take(ring, 1) == [Completion(token=2**64 - 1, result=0)]


def test_a_read_is_short_only_at_the_end(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(4)
    assert read_one(ring, file, buffer, 2 * PAGE, FILE_BYTES - PAGE) == PAGE
    assert read_one(ring, file, buffer, PAGE, FILE_BYTES) == 0


def test_names_depth_and_outstanding(make_ring: MakeRing, file: int):
    ring = make_ring(3)
    kind = make_ring.kind.partition("-")[0]  # type: ignore[attr-defined]
    assert ring.name == {"aio": "ASYNCIO", "uring": "IO_URING", "threads": "NIO"}[kind]
    assert (ring.depth, ring.outstanding) == (3, 0)
    ring.submit_sync(file, 1)
    ring.submit_sync(file, 2)
    assert ring.outstanding == 2
    take(ring, 2)
    assert ring.outstanding == 0
    assert ring.completions() == []


def test_errors_of_the_disk_are_completions(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(4)
    read_only = os.open(sys.executable, os.O_RDONLY)
    closed = os.dup(file)
    os.close(closed)
    assert write_one(ring, closed, buffer, PAGE, 0) == -errno.EBADF
    assert read_one(ring, -1, buffer, PAGE, 0) == -errno.EBADF
    assert write_one(ring, read_only, buffer, PAGE, 0) == -errno.EBADF
    ring.submit_sync(closed, 3)
    assert take(ring, 1) == [(3, -errno.EBADF)]
    ring.submit_read(file, PAGE, PAGE, 0, 4)  # an address that nobody has mapped
    assert take(ring, 1) == [(4, -errno.EFAULT)]
    os.close(read_only)
    # The ring still works.
    assert write_one(ring, file, buffer, PAGE, 0) == PAGE


def test_misaligned_with_o_direct_is_einval(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    import fcntl

    if not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
        pytest.skip("the filesystem of the temporary folder has no O_DIRECT")
    ring = make_ring(2)
    assert write_one(ring, file, buffer, PAGE, 1) == -errno.EINVAL
    assert write_one(ring, file, buffer, 100, 0) == -errno.EINVAL
    ring.submit_write(file, buffer.address + 1, PAGE, 0, 9)
    assert take(ring, 1) == [(9, -errno.EINVAL)]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_not_taken_for_a_whole_one(
    make_ring: MakeRing, file: int, buffer: AlignedBuffer
):
    ring = make_ring(2)
    with file_size_limit(2 * PAGE):
        result = write_one(ring, file, buffer, 3 * PAGE, 0)
        beyond = write_one(ring, file, buffer, PAGE, 2 * PAGE)
    # The kernel's rings hand the short count up as it is; the thread goes on and meets the reason.
    assert result == (-errno.EFBIG if ring.name == "NIO" else 2 * PAGE)
    assert beyond == -errno.EFBIG


NO_SPACE = """
import os, subprocess, sys
folder, kind, tests = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=True)
sys.path.insert(0, tests)
import test_ring_contract as suite
from vespiary_native.memory import AlignedBuffer
ring = suite.make_ring_of(kind, 2)
fd = os.open(folder + "/journal", os.O_RDWR | os.O_CREAT)
buffer = AlignedBuffer(8 * 4096)
first = suite.write_one(ring, fd, buffer, 8 * 4096, 0)
second = suite.write_one(ring, fd, buffer, 4096, 4 * 4096)
ring.close()
os.close(fd)
buffer.close()
print(first, second)
"""


def test_a_full_disk_is_enospc(make_ring: MakeRing, tmp_path: Path):
    unshare = shutil.which("unshare")
    namespace = [unshare or "", "--map-root-user", "--mount"]
    if not unshare or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no private mount namespace to be had for a small tmpfs")
    done = subprocess.run(
        [
            *namespace,
            sys.executable,
            "-c",
            NO_SPACE,
            str(tmp_path),
            make_ring.kind,  # type: ignore[attr-defined]
            str(Path(__file__).parent),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second = map(int, done.stdout.split())
    assert first == (-errno.ENOSPC if make_ring(1).name == "NIO" else 4 * PAGE)
    assert second == -errno.ENOSPC


def test_many_outstanding_each_come_back_once(
    make_ring: MakeRing, file: int, buffer: AlignedBuffer
):
    count = 300
    ring = make_ring(count)
    order = random.Random(seed_for("ring order"))
    expected = {}
    for token in range(count):
        at = token % 64 * PAGE
        choice = order.randrange(4)
        if choice == 0:
            ring.submit_read(file, buffer.address + at, PAGE, at, token)
        elif choice == 1:
            ring.submit_write(file, buffer.address + at, PAGE, at, token)
        elif choice == 2:
            ring.submit_sync(file, token)
        else:
            ring.submit_write(-1, buffer.address + at, PAGE, at, token)
        expected[token] = (PAGE, PAGE, 0, -errno.EBADF)[choice]
    taken = take(ring, count)
    assert len(taken) == count
    assert dict(taken) == expected


def test_a_full_ring_refuses_and_goes_on(make_ring: MakeRing, file: int):
    ring = make_ring(2)
    ring.submit_sync(file, 1)
    ring.submit_sync(file, 2)
    with pytest.raises(NativeError, match=r"full \(2 of 2 requests outstanding\)") as caught:
        ring.submit_sync(file, 3)
    assert caught.value.errno == errno.EAGAIN
    assert sorted(take(ring, 2)) == [(1, 0), (2, 0)]
    ring.submit_sync(file, 3)
    assert take(ring, 1) == [(3, 0)]


@pytest.mark.parametrize(
    ("argument", "fd", "length", "offset", "token"),
    [
        ("descriptor", 2**31, PAGE, 0, 0),
        ("length", 0, 0, 0, 0),
        ("length", 0, -1, 0, 0),
        ("length", 0, LENGTH_MAX + 1, 0, 0),
        ("offset", 0, PAGE, -1, 0),
        ("offset", 0, PAGE, 2**63, 0),
        ("token", 0, PAGE, 0, -1),
        ("token", 0, PAGE, 0, 2**64),
    ],
)
def test_numbers_out_of_range_are_refused(
    make_ring: MakeRing, argument: str, fd: int, length: int, offset: int, token: int
):
    ring = make_ring(2)
    with pytest.raises(ValueError, match=f"^{argument} .* out of range"):
        ring.submit_write(fd, 4096, length, offset, token)
    with pytest.raises(ValueError, match=f"^{argument} .* out of range"):
        ring.submit_read(fd, 4096, length, offset, token)
    assert ring.outstanding == 0


@pytest.mark.parametrize("depth", [0, -1, DEPTH_MAX + 1])
def test_a_depth_out_of_range_is_refused(make_ring: MakeRing, depth: int):
    with pytest.raises(ValueError, match=f"ring depth {depth} is out of range"):
        make_ring(depth)


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_a_buffer_is_written_whole(
    make_ring: MakeRing, tmp_path: Path, make: Callable[[bytes], bytes]
):
    path = tmp_path / "buffered"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    ring = make_ring(2)
    ring.submit_write_buffer(fd, make(b"forty-two bytes"), 3, 1)
    assert take(ring, 1) == [(1, 15)]
    os.close(fd)
    assert path.read_bytes() == b"\0\0\0forty-two bytes"


def test_a_buffer_lives_until_its_completion(make_ring: MakeRing, file: int):
    ring = make_ring(64)
    for token in range(64):
        mapped = mmap.mmap(-1, PAGE)
        mapped[:] = bytes([token]) * PAGE
        ring.submit_write_buffer(file, mapped, token * PAGE, token)
        del mapped
    gc.collect()
    assert sorted(take(ring, 64)) == [(token, PAGE) for token in range(64)]
    with AlignedBuffer(FILE_BYTES) as back:
        assert read_one(ring, file, back, FILE_BYTES, 0) == FILE_BYTES
        assert back.memoryview.tobytes() == b"".join(bytes([n]) * PAGE for n in range(64))


def test_a_kept_buffer_cannot_be_freed_and_is_let_go(make_ring: MakeRing, file: int):
    ring = make_ring(2)
    mapped = mmap.mmap(-1, PAGE)
    ring.submit_write_buffer(file, mapped, 0, 1)
    with pytest.raises(ValueError, match="token 1 has a buffer outstanding"):
        ring.submit_write_buffer(file, mapped, 0, 1)
    take(ring, 1)
    gc.collect()
    mapped.close()  # BufferError if the ring still held it
    with pytest.raises(ValueError, match="length 0 is out of range"):
        ring.submit_write_buffer(file, b"", 0, 2)
    ring.submit_write_buffer(file, bytes(1), 0, 2)  # the refused one left no trace
    take(ring, 1)


def test_an_event_loop_can_watch_it(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(1)

    async def write_twenty() -> list[tuple[int, int]]:
        loop = asyncio.get_running_loop()
        finished: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

        def readable() -> None:
            for completion in ring.completions():
                finished.put_nowait(completion)

        loop.add_reader(ring.fileno(), readable)
        results = []
        for token in range(20):
            ring.submit_write(file, buffer.address, PAGE, token * PAGE, token)
            results.append(await asyncio.wait_for(finished.get(), 20))
        loop.remove_reader(ring.fileno())
        return results

    assert product_loop.run(write_twenty()) == [(token, PAGE) for token in range(20)]


def test_the_eventfd_is_quiet_when_nothing_waits(make_ring: MakeRing, file: int):
    ring = make_ring(4)
    poll = select.poll()
    poll.register(ring.fileno(), select.POLLIN)
    assert not poll.poll(0)
    ring.submit_sync(file, 1)
    take(ring, 1)
    assert not poll.poll(0)


def test_close_waits_for_what_is_outstanding(make_ring: MakeRing, file: int):
    ring = make_ring(64)
    buffer = AlignedBuffer(FILE_BYTES)
    buffer.memoryview[:] = b"\xa5" * FILE_BYTES
    for token in range(64):
        ring.submit_write(
            file, buffer.address + token * PAGE, PAGE, token * PAGE, token, durable=False
        )
    ring.close()
    buffer.memoryview[:] = bytes(FILE_BYTES)  # the disk must have its own by now
    buffer.close()
    back = mmap.mmap(-1, FILE_BYTES)
    assert os.preadv(file, [back], 0) == FILE_BYTES
    assert back[:] == b"\xa5" * FILE_BYTES
    back.close()


def test_a_closed_ring_refuses(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(2)
    ring.submit_write_buffer(file, mmap.mmap(-1, PAGE), 0, 1)
    ring.close()
    ring.close()
    assert ring.outstanding == 0
    for use in (
        ring.fileno,
        ring.completions,
        lambda: ring.submit_sync(file, 1),
        lambda: ring.submit_read(file, buffer.address, PAGE, 0, 1),
        lambda: ring.submit_write(file, buffer.address, PAGE, 0, 1),
        lambda: ring.submit_write_buffer(file, b"x", 0, 1),
    ):
        with pytest.raises(NativeError, match="closed") as caught:
            use()
        assert caught.value.errno == errno.EBADF


def test_a_forked_child_is_refused(make_ring: MakeRing, file: int, buffer: AlignedBuffer):
    ring = make_ring(4)
    ring.submit_write(file, buffer.address, PAGE, 0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork with threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            refused = 0
            for use in (ring.completions, lambda: ring.submit_sync(file, 2)):
                try:
                    use()
                except NativeError as error:
                    refused += error.errno == errno.ECHILD
            ring.close()
            status = 0 if refused == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert take(ring, 1) == [(1, PAGE)]
    assert write_one(ring, file, buffer, PAGE, 0) == PAGE


def test_a_forgotten_ring_is_reported(make_ring: MakeRing):
    forgotten = [make_ring_of(make_ring.kind, 1)]  # type: ignore[attr-defined]
    with pytest.warns(ResourceWarning, match="unclosed .*Ring"):
        forgotten.clear()

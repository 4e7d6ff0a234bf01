"""The intake gives the same frames however bytes were cut, and never looks twice for nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vespiary_broker.engine.switching import Switches
from vespiary_broker.server import intake as intake_module
from vespiary_broker.server.buffers import HEADROOM_BYTES, READ_BYTES, SharedBuffer
from vespiary_broker.server.stomp.intake import Intake
from vespiary_codec.wire.stomp import Frame, StompLimits
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.seeds import seed_for

LIMITS = StompLimits(body_bytes=480 * 1024)
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


class FakeTaker:
    """A connection that writes down what it is told."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.core = journal.core
        self.handle = journal.core.open_connection()
        self.peer = "test"
        self.is_open = True
        self.is_busy = False
        self.stop_after: int | None = None
        self.frames: list[Frame] = []
        self.errors: list[str] = []
        self.failed = self.blocked = 0
        self.takes_blocked = False
        self.partial = False
        self.intake: Intake = Intake(self.core, SharedBuffer(self.core), self, LIMITS, Switches())

    @property
    def is_taking(self) -> bool:
        return self.is_open and not self.is_busy

    def take_frame(self, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.command == "CONNECT":
            self.intake.set_version("1.2")
            self.core.set_ready(self.handle, 12, (100, 8192, 65536, LIMITS.body_bytes))
        if self.stop_after == len(self.frames):
            self.is_busy = True

    def refuse_error(self, error: Any) -> None:
        self.errors.append(error.reason)
        self.is_open = False
        self.intake.drop()

    def fail_frame(self) -> None:
        self.failed += 1
        self.is_open = False

    def block(self) -> None:
        self.blocked += 1
        self.is_busy = True

    def rest(self) -> None:
        self.is_busy = True

    def note_partial(self, is_partial: bool, *, is_new: bool = False) -> None:
        self.partial = is_partial

    def read(self, data: bytes) -> None:
        """Have bytes read as the loop would: as much as the view takes at a time."""
        while data and self.is_open:
            view = self.intake.read_view()
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.intake.take(count)
            data = data[count:]


def _send(body: bytes, *, with_length: bool = True, name: str = "/queue/q") -> bytes:
    length = f"content-length:{len(body)}\n".encode() if with_length else b""
    return b"SEND\ndestination:%s\n%s\n%s\0" % (name.encode(), length, body)


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
def taker(journal: MemoryJournal) -> FakeTaker:
    return FakeTaker(journal)


def _stream(rng: random.Random) -> tuple[bytes, list[bytes]]:
    """Return a stream of frames of all sizes and the bodies in it."""
    bodies = []
    data = CONNECT
    for size in (0, 1, 100, 5000, HEADROOM_BYTES - 100, HEADROOM_BYTES + 100, 300_000):
        for with_length in (True, False):
            body = rng.randbytes(size).replace(b"\0", b"x")
            bodies.append(body)
            data += _send(body, with_length=with_length) + b"\n" * rng.randrange(3)
    return data, bodies


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("largest", [7_000, 70_000, READ_BYTES])
def test_cuts_do_not_matter(taker: FakeTaker, case: int, largest: int) -> None:
    rng = random.Random(seed_for(f"intake cuts {case}"))
    data, bodies = _stream(rng)
    position = 0
    while position < len(data):
        step = rng.randrange(1, largest)
        taker.read(data[position : position + step])
        position += step
    assert taker.errors == []
    assert taker.failed == 0
    assert [frame.body for frame in taker.frames[1:]] == bodies
    assert not taker.partial
    assert taker.intake.partial_bytes == 0


def test_taught_frames_go_to_the_core(taker: FakeTaker, journal: MemoryJournal) -> None:
    journal.core.open_queue(1)
    taker.read(CONNECT)
    journal.core.teach(taker.handle, b"/queue/q", journal.core.open_route([1]))
    taker.read(_send(b"x") * 100)
    assert len(taker.frames) == 1
    assert journal.core.queue_statistics(1).added == 100


@pytest.mark.parametrize("size", [10, HEADROOM_BYTES // 2, 200_000])
def test_frames_after_one_that_takes_time_wait(taker: FakeTaker, size: int) -> None:
    taker.stop_after = 3
    bodies = [bytes([65 + n]) * size for n in range(5)]
    data = CONNECT + b"".join(_send(body) for body in bodies)
    taker.read(data[:READ_BYTES])  # what a transport had read before it was stopped
    assert len(taker.frames) == 3
    taker.is_busy = False
    taker.stop_after = None
    taker.intake.resume()
    taker.read(data[READ_BYTES:])
    assert [frame.body for frame in taker.frames[1:]] == bodies


def test_bytes_that_come_while_it_holds(taker: FakeTaker) -> None:
    """TLS hands out what it has decrypted although reading was paused."""
    taker.read(CONNECT)
    taker.stop_after = 2
    bodies = [b"a", b"b" * 100_000, b"c"]
    data = b"".join(_send(body) for body in bodies)
    taker.read(data[:50])
    for start in range(50, len(data), 16_384):
        taker.read(data[start : start + 16_384])
    assert len(taker.frames) == 2
    taker.is_busy = False
    taker.intake.resume()
    assert [frame.body for frame in taker.frames[1:]] == bodies


def test_login_that_takes_time(taker: FakeTaker) -> None:
    taker.stop_after = 1
    taker.read(CONNECT + _send(b"early"))
    taker.read(_send(b"later"))
    assert len(taker.frames) == 1
    taker.is_busy = False
    taker.intake.resume()
    assert [frame.body for frame in taker.frames[1:]] == [b"early", b"later"]


def test_blocked_core_is_asked_again(journal: MemoryJournal) -> None:
    small = MemoryJournal(files=1, file_bytes=64 * 1024)
    taker = FakeTaker(small)
    small.core.open_queue(1)
    taker.read(CONNECT)
    small.core.teach(taker.handle, b"/queue/q", small.core.open_route([1]))
    frame = b"SEND\ndestination:/queue/q\npersistent:true\n\n" + b"x" * 1000 + b"\0"
    taker.read(frame * 200)
    assert taker.blocked == 1
    staged = small.core.queue_statistics(1).added
    assert 0 < staged < 200
    for _ in range(8):
        small.add_file()
    taker.is_busy = False
    taker.intake.resume()
    assert small.core.queue_statistics(1).added == 200
    assert taker.errors == []


def test_a_policy_takes_what_the_core_has_no_room_for(journal: MemoryJournal) -> None:
    small = MemoryJournal(files=1, file_bytes=64 * 1024)
    taker = FakeTaker(small)
    taker.takes_blocked = True
    small.core.open_queue(1)
    taker.read(CONNECT)
    small.core.teach(taker.handle, b"/queue/q", small.core.open_route([1]))
    head = b"SEND\ndestination:/queue/q\npersistent:true\n\n"
    frames = [head + f"{number:04d}".encode() * 250 + b"\0" for number in range(200)]
    stream = b"".join(frames)
    for at in range(0, len(stream), 777):  # cut anywhere
        taker.read(stream[at : at + 777])
    staged = small.core.queue_statistics(1).added
    assert 0 < staged < 200
    taken = [int(frame.body[:4]) for frame in taker.frames[1:]]
    assert taken == list(range(200))[staged:]
    assert (taker.blocked, taker.errors, taker.failed) == (0, [], 0)


@pytest.mark.parametrize(
    "data",
    [b"SHOUT\n\n\0", b"SEND\nno colon\n\n\0", b"SEND\ndestination:a\n" + b"x:y\n" * 101 + b"\n\0"],
)
def test_codec_says_what_is_wrong(taker: FakeTaker, data: bytes) -> None:
    taker.read(CONNECT + _send(b"good") + data)
    assert [frame.body for frame in taker.frames[1:]] == [b"good"]
    assert len(taker.errors) == 1
    assert taker.failed == 0
    assert not taker.partial


def test_ends_of_line_between_frames(taker: FakeTaker) -> None:
    taker.read(CONNECT + b"\n\r\n\n" + _send(b"a") + b"\r\n" * 50)
    for _ in range(5):
        taker.read(b"\r\n")
        taker.read(b"\n")
    taker.read(_send(b"b"))
    assert [frame.body for frame in taker.frames[1:]] == [b"a", b"b"]
    assert taker.errors == []


class CountingCore:
    """Passes on to a core and counts the scans."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.scans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def scan_stomp(self, *arguments: int) -> Any:
        self.scans += 1
        return self._core.scan_stomp(*arguments)


@pytest.mark.parametrize("with_length", [True, False])
def test_slow_bytes_do_not_cost_a_scan_each(journal: MemoryJournal, with_length: bool) -> None:
    core = CountingCore(journal.core)
    journal.core = core  # type: ignore[assignment]
    taker = FakeTaker(journal)
    taker.read(CONNECT)
    core.scans = 0
    data = _send(b"x" * 20_000, with_length=with_length)
    for octet in data:
        taker.read(bytes([octet]))
    assert len(taker.frames) == 2
    assert core.scans < 60


def test_no_announced_length_reserves_memory(taker: FakeTaker) -> None:
    taker.read(CONNECT + b"SEND\ndestination:a\ncontent-length:400000\n\n" + b"x" * 100)
    private = taker.intake._private
    assert private is not None
    assert len(private.memory) < 10_000
    assert len(taker.intake._shared.memory) > intake_module.READ_BEFORE_LOGIN_BYTES

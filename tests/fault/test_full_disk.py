"""A real broker on a file system that is full: who waits, who is refused, whose is dropped.

The volume is a small ext4 on a loop device, filled by a file beside the broker's data. What was
confirmed is looked for after kill -9; how soon it goes on after space returned is printed. The
bound here is wide, since test machines are shared; `VESPIARY_SPACE_S=5` holds it to the promise.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.small_disk import MIB, small_disk
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

SPACE_S = float(os.environ.get("VESPIARY_SPACE_S", "60"))
QUIET_S = 2.0
QUIET_FACTOR = 5
"""Without a confirm for so long, and for so many times the longest that one of its confirms took, a
sender waits for room."""
BODY_BYTES = 4000
PRELOADED = 200
DRAINED = 60
SETTINGS = (
    "journal-file-size=1MiB",
    "journal-compact-min-files=0",
    "address-settings.failing.disk-full-policy=FAIL",
    "address-settings.dropping.disk-full-policy=DROP",
    "address-settings.#.auto-delete-queues=false",
)


class Ballast:
    """A file that takes all the room of a volume."""

    def __init__(self, volume: Path) -> None:
        self.path = volume / "ballast"

    def fill(self) -> None:
        """Take what is left."""
        with self.path.open("ab", buffering=0) as file:
            for size in (MIB, 64 * 1024, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass
            with contextlib.suppress(OSError):  # what was not allocated is no ballast
                os.fsync(file.fileno())

    def remove(self) -> None:
        """Give the room back."""
        self.path.unlink()


class Sender(threading.Thread):
    """Sends one message after the other to a queue, each confirmed before the next."""

    def __init__(self, port: int, queue: str, body_bytes: int = BODY_BYTES, first: int = 0) -> None:
        super().__init__(daemon=True)
        self.peer = StompPeer(port)
        self.peer.connect()
        self.queue = queue
        self.body_bytes = body_bytes
        self.first = first
        self.confirmed_s: list[float] = []
        self.error = ""
        self.is_over = threading.Event()

    def run(self) -> None:
        with self.peer:
            self._send_all()

    def _send_all(self) -> None:
        while not self.is_over.is_set():
            number = self.first + len(self.confirmed_s)
            headers = {"destination": f"/queue/{self.queue}", "persistent": "true"}
            body = b"%d " % number
            try:
                self.peer.send(
                    "SEND",
                    {**headers, "receipt": str(number)},
                    body.ljust(self.body_bytes, b"x"),
                )
                frame = self.peer.receive(120)
            except (OSError, Ended) as error:
                self.error = self.error or str(error)
                return
            if frame.command == "ERROR":
                self.error = frame.get("message") or ""
                return
            assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", str(number))
            self.confirmed_s.append(time.monotonic())

    @property
    def quiet_s(self) -> float:
        """How long no confirm may come before it is taken to wait; more on a slow machine."""
        times = self.confirmed_s[:]
        longest_s = max((after - before for before, after in pairwise(times)), default=0.0)
        return max(QUIET_S, min(QUIET_FACTOR * longest_s, WAIT_S / 2))

    @property
    def confirmed(self) -> int:
        """Number of the message behind the last that was confirmed."""
        return self.first + len(self.confirmed_s)

    def goes_on_from(self, confirmed: int) -> Callable[[], bool]:
        """Return a function that says whether more than so many have been confirmed."""
        return lambda: self.confirmed > confirmed


def metric(broker: BrokerProcess, name: str) -> float:
    """Return a metric without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def preload(port: int) -> None:
    """Put messages of two queues into the same files, so that draining one frees none."""
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(PRELOADED):
            for queue in ("drained", "waiting"):
                headers = {"destination": f"/queue/{queue}", "persistent": "true"}
                body = (b"%d " % number).ljust(BODY_BYTES, b"x")
                peer.send("SEND", {**headers, "receipt": f"{queue}{number}"}, body)
        peer.receive_receipt(f"waiting{PRELOADED - 1}")


def send_some(port: int, queue: str, body_bytes: int = BODY_BYTES) -> int:
    """Send some messages while there is room; return how many were confirmed."""
    sender = Sender(port, queue, body_bytes)
    sender.start()
    while sender.confirmed < 5:
        time.sleep(0.01)
    sender.is_over.set()
    sender.join(WAIT_S)
    return sender.confirmed


def read_all(port: int, queue: str, count: int) -> list[int]:
    """Return the numbers of all messages of a queue that has that many."""
    with StompPeer(port) as peer:
        peer.connect()
        subscribe_all(peer, queue)
        numbers = [int(frame.body.split()[0]) for frame in peer.receive_messages(count)]
        assert not peer.receive_rest(f"/queue/{queue}")
        return numbers


def subscribe_all(peer: StompPeer, queue: str) -> None:
    """Receive all of a queue, and keep it there."""
    subscription = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"}
    peer.send("SUBSCRIBE", {**subscription, "prefetch-count": "-1"})


def wait_until_blocked(broker: BrokerProcess, sender: Sender, ballast: Ballast) -> None:
    """Wait until the journal is blocked and the sender gets no more confirms."""
    end_s = time.monotonic() + 2 * WAIT_S
    while time.monotonic() < end_s:
        ballast.fill()  # also what the file system has given back meanwhile
        is_blocked = metric(broker, "vespiary_journal_blocked") == 1
        before = sender.confirmed
        time.sleep(sender.quiet_s)
        is_blocked &= metric(broker, "vespiary_journal_blocked") == 1
        if is_blocked and sender.confirmed == before:
            return
    raise AssertionError(f"never full:\n{broker.log_text()}")


def refused_at_once(port: int, body_bytes: int = BODY_BYTES) -> str:
    """Send one message to the queue that fails; return the sentence of the ERROR frame."""
    sender = Sender(port, "failing", body_bytes, first=1_000_000)
    sender.start()
    sender.join(WAIT_S)
    assert not sender.confirmed_s
    return sender.error


def drop(broker: BrokerProcess, count: int, body_bytes: int = BODY_BYTES) -> None:
    """Send to the queue that drops: all are confirmed, all are counted."""
    before = metric(broker, "vespiary_messages_dropped_total")
    with StompPeer(broker.port()) as peer:
        peer.connect()
        headers = {"destination": "/queue/dropping", "persistent": "true"}
        for number in range(count):
            peer.send("SEND", {**headers, "receipt": f"d{number}"}, bytes(body_bytes))
        peer.receive_receipt(f"d{count - 1}")
    assert metric(broker, "vespiary_messages_dropped_total") == before + count


def drain_some(port: int, count: int) -> list[float]:
    """Take and acknowledge messages, one confirmed before the next; return the seconds of each."""
    seconds = []
    with StompPeer(port) as peer:
        peer.connect()
        subscription = {"id": "1", "destination": "/queue/drained", "ack": "client-individual"}
        peer.send("SUBSCRIBE", {**subscription, "prefetch-count": "1"})
        (frame,) = peer.receive_messages(1)
        for number in range(count):
            assert int(frame.body.split()[0]) == number
            begun_s = time.monotonic()
            peer.send("ACK", {"id": frame.get("ack") or "", "receipt": f"a{number}"})
            answers = {(answer := peer.receive()).command: answer for _ in range(2)}
            assert answers["RECEIPT"].get("receipt-id") == f"a{number}"
            seconds.append(time.monotonic() - begun_s)
            frame = answers["MESSAGE"]
    return seconds


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 64 * MIB) as mount:
        yield mount


@pytest.mark.ci
@pytest.mark.parametrize("limit", ["max-disk-usage=100", "max-disk-usage=90"])
def test_each_address_has_its_policy_and_nothing_confirmed_is_lost(
    volume: Path, tmp_path: Path, limit: str
) -> None:
    ballast = Ballast(volume)
    broker = BrokerProcess(volume / "data", *SETTINGS, limit, log=tmp_path / "log")
    with broker:
        port = broker.port()
        preload(port)
        failing, dropping = (send_some(port, queue) for queue in ("failing", "dropping"))
        ballast.fill()
        waiting = Sender(port, "waiting", first=PRELOADED)
        waiting.start()
        wait_until_blocked(broker, waiting, ballast)
        stopped_at = waiting.confirmed
        sentence = refused_at_once(port)
        assert "the disk-full-policy of the address failing is FAIL" in sentence, sentence
        drop(broker, 300)
        seconds = drain_some(port, DRAINED)
        assert waiting.confirmed == stopped_at, "a confirm without room"
        assert waiting.is_alive()
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/readyz") as answer:
            assert answer.status == 200
        ballast.remove()
        freed_s = time.monotonic()
        while waiting.confirmed == stopped_at and time.monotonic() < freed_s + SPACE_S:
            time.sleep(0.01)
        assert waiting.confirmed > stopped_at, f"not within {SPACE_S:g} s:\n{broker.log_text()}"
        print(
            f"{limit}: goes on {waiting.confirmed_s[stopped_at - PRELOADED] - freed_s:.2f} s after"
            f" space returned; acknowledgements meanwhile took {max(seconds) * 1000:.0f} ms at most"
        )
        assert "messages are dropped" in broker.log_text()
        time.sleep(0.5)
        broker.kill()
        waiting.join(WAIT_S)
        broker.start()
        port = broker.port()
        numbers = read_all(port, "failing", failing)
        assert numbers == list(range(failing))
        assert read_all(port, "dropping", dropping) == list(range(dropping))
        assert read_all(port, "drained", PRELOADED - DRAINED) == list(range(DRAINED, PRELOADED))
        check_kept(port, waiting.confirmed)


LARGE_BYTES = 400_000
FULL_VOLUMES = {"one volume": 0, "the journal's": 0, "the large messages'": 1}


@pytest.mark.ci
def test_a_start_on_a_full_disk_gives_up_the_reserve_and_gets_it_back(
    volume: Path, tmp_path: Path
) -> None:
    ballast = Ballast(volume)
    size_bytes = 6 * MIB
    settings = (*SETTINGS, f"disk-reserve-size={size_bytes}", "disk-scan-period=200")
    broker = BrokerProcess(volume / "data", *settings, log=tmp_path / "log")
    with broker:
        preload(broker.port())
        wait_for(lambda: metric(broker, "vespiary_journal_reserve_bytes") == size_bytes)
        broker.kill()
    ballast.fill()
    for number in range(4):  # a start takes what the one before it has left
        with broker:
            assert metric(broker, "vespiary_journal_reserve_owed_bytes") == size_bytes
            assert metric(broker, "vespiary_journal_reserve_bytes") == 0
            if number < 3:
                broker.kill()
                continue
            assert "gives up the disk reserve" in (tmp_path / "log").read_text()
            sender = Sender(broker.port(), "waiting", first=PRELOADED)
            sender.start()
            wait_for(lambda: metric(broker, "vespiary_journal_blocked") == 1, broker.log_text)
            drain_some(broker.port(), DRAINED)
            ballast.remove()
            wait_for(
                lambda: metric(broker, "vespiary_journal_reserve_bytes") == size_bytes,
                broker.log_text,
            )
            wait_for(sender.goes_on_from(sender.confirmed), broker.log_text)
            sender.is_over.set()
            sender.join(WAIT_S)
            broker.kill()


@pytest.fixture
def second_volume(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "second", 64 * MIB) as mount:
        yield mount


@pytest.mark.ci
@pytest.mark.parametrize(
    "full",
    [
        pytest.param("one volume", marks=pytest.mark.verify),
        "the journal's",
        pytest.param("the large messages'", marks=pytest.mark.verify),
    ],
)
def test_large_messages_follow_the_policies_too(
    volume: Path, second_volume: Path, tmp_path: Path, full: str
) -> None:
    """Bodies in files, on the journal's volume or on one of their own, either of them full."""
    ballast = Ballast((volume, second_volume)[FULL_VOLUMES[full]])
    folder = volume / "large" if full == "one volume" else second_volume / "large"
    settings = (*SETTINGS, "max-disk-usage=100", f"large-messages-directory={folder}")
    broker = BrokerProcess(volume / "data", *settings, log=tmp_path / "log")
    with broker:
        port = broker.port()
        preload(port)
        failing, dropping = (
            send_some(port, queue, LARGE_BYTES) for queue in ("failing", "dropping")
        )
        ballast.fill()
        waiting = Sender(port, "waiting", first=PRELOADED)
        large = Sender(port, "large", LARGE_BYTES)
        for sender in (waiting, large):
            sender.start()
        if full == "the large messages'":
            wait_until_stopped(broker, large, ballast)
            assert metric(broker, "vespiary_journal_blocked") == 0
            wait_for_confirms(broker, waiting)  # small messages go on meanwhile
            waiting.is_over.set()  # for ever they would fill the journal's volume as well
        else:
            wait_until_blocked(broker, waiting, ballast)
            wait_until_stopped(broker, large, ballast)
        stopped_at = large.confirmed
        sentence = refused_at_once(port, LARGE_BYTES)
        assert "the disk-full-policy of the address failing is FAIL" in sentence, sentence
        drop(broker, 20, LARGE_BYTES)
        drain_some(port, DRAINED)
        assert (large.confirmed, large.error, large.is_alive()) == (stopped_at, "", True)
        ballast.remove()
        freed_s = time.monotonic()
        while large.confirmed == stopped_at and time.monotonic() < freed_s + SPACE_S:
            time.sleep(0.01)
        assert large.confirmed > stopped_at, f"not within {SPACE_S:g} s:\n{broker.log_text()}"
        print(
            f"{full} full: goes on {large.confirmed_s[stopped_at] - freed_s:.2f} s after space"
            " returned"
        )
        assert broker.log_text().count("messages are dropped") == 1
        broker.kill()
        for sender in (waiting, large):
            sender.join(WAIT_S)
        broker.start()
        port = broker.port()
        assert read_all(port, "failing", failing) == list(range(failing))
        assert read_all(port, "dropping", dropping) == list(range(dropping))
        assert read_all(port, "drained", PRELOADED - DRAINED) == list(range(DRAINED, PRELOADED))
        check_kept(port, waiting.confirmed)
        check_kept(port, large.confirmed, "large")


def wait_until_stopped(broker: BrokerProcess, sender: Sender, ballast: Ballast) -> None:
    """Wait until a large message waits for room and its sender gets no more confirms."""
    end_s = time.monotonic() + 2 * WAIT_S
    while time.monotonic() < end_s:
        ballast.fill()
        before = sender.confirmed
        time.sleep(sender.quiet_s)
        is_waiting = any(
            metric(broker, f"vespiary_{name}") == 1
            for name in ("large_messages_waiting", "journal_blocked")
        )
        if is_waiting and sender.confirmed == before:
            return
    raise AssertionError(f"never full:\n{broker.log_text()}")


def wait_for_confirms(broker: BrokerProcess, sender: Sender) -> None:
    """Wait until a sender gets a further confirm."""
    before, end_s = sender.confirmed, time.monotonic() + WAIT_S
    while sender.confirmed == before and time.monotonic() < end_s:
        time.sleep(0.01)
    assert sender.confirmed > before, f"no confirm:\n{broker.log_text()}"


def check_kept(port: int, confirmed: int, queue: str = "waiting") -> None:
    """Check that all confirmed messages are there; the one under way at the kill may be, too."""
    with StompPeer(port) as peer:
        peer.connect()
        subscribe_all(peer, queue)
        frames = peer.receive_messages(confirmed) + peer.receive_rest(f"/queue/{queue}")
    numbers = [int(frame.body.split()[0]) for frame in frames]
    assert numbers == list(range(len(numbers)))


@pytest.mark.ci
@pytest.mark.parametrize(
    "policy", ["none", pytest.param("another address has one", marks=pytest.mark.verify)]
)
def test_what_a_client_held_that_died_on_a_full_disk_goes_to_others(
    volume: Path, tmp_path: Path, policy: str
) -> None:
    ballast = Ballast(volume)
    settings = SETTINGS if policy != "none" else SETTINGS[:2] + SETTINGS[4:]
    broker = BrokerProcess(volume / "data", *settings, "max-disk-usage=100", log=tmp_path / "log")
    subscription = {"id": "1", "destination": "/queue/drained", "ack": "client-individual"}
    with broker:
        preload(broker.port())
        ballast.fill()
        waiting = Sender(broker.port(), "waiting", first=PRELOADED)
        waiting.start()
        wait_until_blocked(broker, waiting, ballast)
        with StompPeer(broker.port()) as both:
            both.connect()
            both.send("SUBSCRIBE", {**subscription, "prefetch-count": "5"})
            assert [int(frame.body.split()[0]) for frame in both.receive_messages(5)] == [*range(5)]
            headers = {"destination": "/queue/waiting", "persistent": "true", "receipt": "late"}
            both.send("SEND", headers, bytes(BODY_BYTES))
            both.send("SEND", headers, bytes(BODY_BYTES))
            assert metric(broker, "vespiary_journal_blocked") == 1  # answered behind the SENDs
            both.check_silent()
        with StompPeer(broker.port()) as other:
            other.connect()
            other.send("SUBSCRIBE", {**subscription, "prefetch-count": "-1"})
            frames = other.receive_messages(PRELOADED)
            assert sorted(int(frame.body.split()[0]) for frame in frames) == [*range(PRELOADED)]
        ballast.remove()
        waiting.is_over.set()
        waiting.join(WAIT_S)

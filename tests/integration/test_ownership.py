"""Two brokers that cannot see one another's locks, on one journal: one of them confirms."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.store.ownership import OWNER_NAME
from vespiary_codec.journal.owner_block import OwnerBlock, OwnerState, decode_owner_block
from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.other_kernel import part_locks
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

LEASE_S = 0.6
LEASE = f"journal-ownership-lease={LEASE_S * 1000:.0f}"
EXIT_LOST = 3
ENGINES = ("journal-type=ASYNCIO", "journal-type=NIO")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def other(data: Path) -> BrokerProcess:
    """A broker of another machine, which sees no lock of those that run."""
    part_locks(data)
    log = data.with_name("other.log")
    return BrokerProcess(data, LEASE, log=log, program="vespiary_testkit.other_kernel")


def send(peer: StompPeer, number: int, *, waits: bool = True) -> None:
    headers = {"destination": "/queue/q", "persistent": "true", "receipt": str(number)}
    peer.send("SEND", headers, f"message {number}".encode())
    if waits:
        peer.receive_receipt(str(number))


def received(port: int, least: int) -> list[str]:
    """Return what stands in the queue: at least so many."""
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/q", "ack": "client"})
        return [frame.body.decode() for frame in peer.receive_messages(least)]


def block(data: Path) -> OwnerBlock:
    (path,) = data.rglob(OWNER_NAME)
    return decode_owner_block(path.read_bytes())


@contextlib.contextmanager
def running(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that need not end well."""
    broker.start()
    try:
        yield broker
    finally:
        assert broker.process is not None
        if broker.process.poll() is None:
            os.kill(broker.pid, signal.SIGCONT)
            broker.kill()
        elif broker.process.stdout is not None:
            broker.process.stdout.close()


@pytest.mark.ci
@pytest.mark.parametrize("engine", ENGINES)
def test_who_was_stopped_and_ousted_confirms_nothing_more(data: Path, engine: str):
    with running(BrokerProcess(data, LEASE, engine)) as first, StompPeer(first.port()) as peer:
        peer.connect()
        for number in range(20):
            send(peer, number)
        os.kill(first.pid, signal.SIGSTOP)
        send(peer, 20, waits=False)  # stands in the socket until it goes on
        begun_s = time.monotonic()
        with other(data) as second:
            assert time.monotonic() - begun_s >= LEASE_S
            assert "has not let go of it; waiting" in second.log_text()
            assert block(data).epoch == 2
            os.kill(first.pid, signal.SIGCONT)
            answers = b""
            with contextlib.suppress(ConnectionError):
                while more := peer.socket.recv(65536):
                    answers += more
            assert b"RECEIPT" not in answers
            assert b"belongs to another broker now" in answers
            assert first.process is not None
            assert first.process.wait(WAIT_S) == EXIT_LOST
            assert "VSP-J108" in first.log_text()
            names = received(second.port(), 20)
            assert [f"message {number}" for number in range(20)] == names
            with StompPeer(second.port()) as again:
                again.connect()
                send(again, 21)
        assert block(data).state is OwnerState.RELEASED
        with BrokerProcess(data, LEASE) as third:
            assert len(received(third.port(), 21)) == 21


@pytest.mark.ci
def test_whoever_still_runs_is_fenced_and_loses_nothing_that_it_confirmed(data: Path):
    confirmed = -1

    def work(port: int) -> None:
        nonlocal confirmed
        with contextlib.suppress(ConnectionError, AssertionError, OSError), StompPeer(port) as peer:
            peer.connect()
            for number in range(1_000_000):
                send(peer, number)
                confirmed = number

    with running(BrokerProcess(data, LEASE)) as first:
        sender = threading.Thread(target=work, args=(first.port(),))
        sender.start()
        wait_for(lambda: confirmed > 50)
        with other(data) as second:
            sender.join(WAIT_S)
            assert not sender.is_alive()
            assert first.process is not None
            assert first.process.wait(WAIT_S) == EXIT_LOST
            names = received(second.port(), confirmed + 1)
            assert names[: confirmed + 1] == [f"message {n}" for n in range(confirmed + 1)]
        with BrokerProcess(data, LEASE) as third:
            assert received(third.port(), confirmed + 1) == names


@pytest.mark.ci
def test_kill_9_and_a_stop_make_no_start_wait(data: Path):
    broker = BrokerProcess(data, "journal-ownership-lease=60000")
    broker.start()
    broker.kill()
    assert block(data).state is OwnerState.HELD
    broker.start()
    assert broker.stop() == 0
    assert block(data).state is OwnerState.RELEASED
    broker.start()
    assert "waiting" not in broker.log_text()
    assert broker.stop() == 0
    assert block(data).epoch == 3
    with BrokerProcess(
        data, "journal-ownership-lease=60000", program="vespiary_testkit.other_kernel"
    ) as moved:
        assert "waiting" not in moved.log_text()


@contextlib.contextmanager
def waiting(data: Path) -> Iterator[subprocess.Popen[str]]:
    """A broker of another machine that waits for the lease of one that does not answer."""
    part_locks(data)
    log = data.with_name("waiting.log")
    command = [sys.executable, "-m", "vespiary_testkit.other_kernel", "run", "--json"]
    command += ["--port", "0", "--data", str(data), "--set", "journal-ownership-lease=20000"]
    with (
        running(BrokerProcess(data, "journal-ownership-lease=20000")) as first,
        log.open("w") as errors,
    ):
        os.kill(first.pid, signal.SIGSTOP)
        part_locks(data)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        ) as process:
            try:
                wait_for(lambda: "waiting 22.0 s" in log.read_text())
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.mark.engine
def test_a_start_that_died_while_it_waited_leaves_a_claim_and_no_owner(data: Path):
    with waiting(data) as process:
        process.kill()
        process.wait(WAIT_S)
        assert block(data).state is OwnerState.CLAIMING
        assert block(data).lease_ms == 20_000  # the next one waits as long, whoever it is


@pytest.mark.ci
def test_a_start_that_waits_can_be_stopped(data: Path):
    with waiting(data) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        text = data.with_name("waiting.log").read_text()
        assert "has not let go of it" in text
        assert "Traceback" not in text


@pytest.mark.ci
def test_a_damaged_block_is_refused_in_words(data: Path):
    with BrokerProcess(data, LEASE):
        pass
    (path,) = data.rglob(OWNER_NAME)
    path.write_bytes(path.read_bytes()[:100] + b"x" * 3996)
    with pytest.raises(AssertionError, match="the ownership block is damaged"):
        BrokerProcess(data, LEASE).start()
    path.unlink()
    with BrokerProcess(data, LEASE):
        assert block(data).epoch == 1

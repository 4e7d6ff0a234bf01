"""protocolload against real brokers, and against servers that do each kind of harm."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import generator
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.generator import GeneratorError, LoadReport, ProtocolLoad, run_load
from benchmarks.protocols import certificate
from vespiary_codec.wire.amqp import (
    NEED_DATA,
    Accepted,
    AmqpLimits,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Frame,
    FrameDecoder,
    Layer,
    Open,
    ProtocolHeader,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import UByte, UInt
from vespiary_testkit.product_loop import close_server, product_runner
from vespiary_testkit.stomp_server import Faults, running_stomp_server

pytestmark = pytest.mark.verify

ROOM = ("max-disk-usage=99",)
PROTOCOLS = ("stomp", "mqtt", "mqtt5", "amqp")
PAIRS = [*permutations(("stomp", "mqtt", "amqp"), 2), ("mqtt5", "amqp"), ("amqp", "mqtt5")]
MESSAGES = 3000


# --- a server of AMQP 1.0 that answers wrongly on request -----------------------------------------

# A small AMQP 1.0 server in memory that answers wrongly on request.

ACCEPTS, TAKES = 1000, 2048


@dataclass(frozen=True, slots=True)
class AmqpFaults:
    """What goes wrong: each `…_at` is the number of a message of a producer, from 1; 0 is never.

    Attributes:
        credit: What a sender may send ahead; it is topped up when nothing of it is left.
        window: Transfers that a session takes; topped up likewise.
        ends_with: What the link, session or connection ends with at `end_at`: a frame.
        outcome: What the message at `outcome_at` gets instead of `accepted`.
        is_refused: Whether links are attached without their terminus, and detached.
    """

    credit: int = ACCEPTS
    window: int = TAKES
    end_at: int = 0
    ends_with: Any = None
    outcome_at: int = 0
    outcome: Any = None
    confirm_twice_at: int = 0
    unsettled_at: int = 0
    deliver_twice_at: int = 0
    is_refused: bool = False
    login_code: int = 0
    max_frame_size: int = 1 << 17


REASON = Error(condition="amqp:internal-error", description="the disk is full")
ENDS = {
    "link": Detach(handle=UInt(0), closed=True, error=REASON),
    "session": End(error=REASON),
    "connection": Close(error=REASON),
}
REJECTED = Rejected(error=REASON)
RELEASED = Released()


class AmqpServer:
    """Its queues, and what it has counted.

    Attributes:
        accepted: Deliveries that receivers have accepted and settled.
        dispositions: Frames by which they did so.
        overdrawn: Transfers beyond credit or window.
        flows: What receivers have asked for: their credit, each time.
    """

    def __init__(self, faults: AmqpFaults) -> None:
        self.faults = faults
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.receivers: dict[str, list[_Connection]] = defaultdict(list)
        self.accepted = 0
        self.dispositions = 0
        self.overdrawn = 0
        self.flows: list[int] = []
        self.connections: set[_Connection] = set()


class _Connection(asyncio.Protocol):
    def __init__(self, server: AmqpServer) -> None:
        self.transport: asyncio.Transport
        self.ended = asyncio.Event()
        self.server = server
        self.faults = server.faults
        self.decoder = FrameDecoder(
            AmqpLimits(frame_bytes=self.faults.max_frame_size, before_open_bytes=512)
        )
        self.unsent = bytearray()
        self.address = ""
        self.credit = self.window = self.count = 0  # as a receiver
        self.room = self.given = 0  # as a sender

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        self.decoder.feed(data)
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if isinstance(event, ProtocolHeader):
                self.write(protocol_header(event.layer))
                if event.layer is Layer.SASL:
                    self.send(SaslMechanisms(sasl_server_mechanisms=("ANONYMOUS",)))
            else:
                assert isinstance(event, Frame)
                self.take(event.body, event.payload)

    def send(self, body: Any, payload: bytes = b"") -> None:
        self.write(encode_frame(Frame(0, body, payload)))

    def write(self, data: bytes) -> None:
        if not self.unsent:  # what a turn of the loop has to say leaves together
            asyncio.get_running_loop().call_soon(self.flush)
        self.unsent += data

    def flush(self) -> None:
        if not self.transport.is_closing():  # the generator may have gone in this turn
            self.transport.write(bytes(self.unsent))
        self.unsent.clear()

    def take(self, body: Any, payload: bytes) -> None:
        match body:
            case SaslInit():
                assert body.mechanism == "ANONYMOUS"
                self.send(SaslOutcome(code=UByte(self.faults.login_code)))
                self.decoder.expect_header()
            case Open():
                self.send(Open(container_id="s", max_frame_size=UInt(self.faults.max_frame_size)))
                self.write(b"\0\0\0\x08\2\0\0\0")  # a sign of life
            case Begin():
                self.window = self.faults.window
                window = UInt(self.window)
                self.send(Begin(remote_channel=UByte(0), next_outgoing_id=UInt(0),
                                incoming_window=window, outgoing_window=UInt(TAKES)))  # fmt: skip
            case Attach():
                self.attach(body)
            case Flow():
                self.server.flows.append(body.link_credit or 0)
                self.room = (body.delivery_count or 0) + (body.link_credit or 0) - self.given
                self.give()
            case Transfer():
                self.store(body, payload)
            case Disposition():
                assert body.settled
                assert isinstance(body.state, Accepted)
                last = body.first if body.last is None else body.last
                self.server.accepted += last - body.first + 1
                self.server.dispositions += 1
            case _:
                raise AssertionError(body)

    def attach(self, asked: Attach) -> None:
        receives = not asked.role
        terminus = asked.target if receives else asked.source
        self.address = terminus.address
        named = None if self.faults.is_refused else terminus
        source, target = (Source(), named) if receives else (named, Target())
        self.send(Attach(name=asked.name, handle=UInt(0), role=receives, source=source,
                         target=target, initial_delivery_count=UInt(0)))  # fmt: skip
        if self.faults.is_refused:
            self.send(ENDS["link"])
        elif receives:
            self.top_up()
        else:
            self.server.receivers[self.address].append(self)

    def top_up(self) -> None:
        self.credit, self.window = self.faults.credit, self.faults.window
        self.send(Flow(next_incoming_id=UInt(self.count), incoming_window=UInt(self.window),
                       next_outgoing_id=UInt(0), outgoing_window=UInt(TAKES), handle=UInt(0),
                       delivery_count=UInt(self.count), link_credit=UInt(self.credit)))  # fmt: skip

    def store(self, transfer: Transfer, payload: bytes) -> None:
        assert transfer.delivery_id == self.count
        assert transfer.delivery_tag
        self.server.overdrawn += self.credit <= 0 or self.window <= 0
        self.credit, self.window, self.count = self.credit - 1, self.window - 1, self.count + 1
        faults, number = self.faults, self.count
        if number == faults.end_at:
            self.send(faults.ends_with)
            return
        is_refused = number == faults.outcome_at
        for _ in range(2 if number == faults.confirm_twice_at else 1):
            settled = number != faults.unsettled_at
            self.send(Disposition(role=True, first=UInt(transfer.delivery_id), settled=settled,
                                  state=faults.outcome if is_refused else Accepted()))  # fmt: skip
        if not is_refused:
            copies = 2 if number == faults.deliver_twice_at else 1
            self.server.queues[self.address].extend([payload] * copies)
        for receiver in self.server.receivers[self.address]:
            receiver.give()
        if min(self.credit, self.window) == 0:  # by turns of the loop: a client that does not wait
            asyncio.get_running_loop().call_soon(self.top_up)

    def give(self) -> None:
        queue = self.server.queues[self.address]
        while queue and self.room > 0:
            given = UInt(self.given)
            transfer = Transfer(handle=UInt(0), delivery_id=given, delivery_tag=b"%d" % given,
                                message_format=UInt(0), settled=False)  # fmt: skip
            self.send(transfer, queue.popleft())
            self.given += 1
            self.room -= 1


@contextmanager
def running_amqp_server(faults: AmqpFaults | None = None) -> Iterator[tuple[AmqpServer, int]]:
    """Run a server in a thread; yields it and its port on 127.0.0.1."""
    server = AmqpServer(faults or AmqpFaults())
    with product_runner() as runner:
        loop = runner.get_loop()
        listener = loop.run_until_complete(
            loop.create_server(lambda: _Connection(server), "127.0.0.1", 0)
        )
        thread = threading.Thread(target=loop.run_forever, name="amqp-server")
        thread.start()
        try:
            yield server, listener.sockets[0].getsockname()[1]
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(close_server(listener, server.connections))


# --- the tests ------------------------------------------------------------------------------------


def load(producer: str, consumer: str = "", **changes: float) -> ProtocolLoad:
    """Return a load that ends with its last message."""
    usual = ProtocolLoad(
        producer_protocol=producer, consumer_protocol=consumer or producer, producers=3, queues=2,
        consumers=2, window=20, body_size=100, warmup=0, seconds=30, messages=MESSAGES,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)


def check_whole(report: LoadReport, consumers: int) -> None:
    """All was sent, confirmed and received, each once."""
    assert report.passed, report
    assert report.ended == "messages"
    assert report.totals.confirmed == report.totals.sent == MESSAGES
    assert report.totals.delivered == report.totals.acknowledged == (MESSAGES if consumers else 0)
    assert report.checks.confirmed_not_seen == (0 if consumers else MESSAGES)
    assert report.confirm_latency_us.count == sum(c for c, _ in report.per_second) == MESSAGES


class TestWithABroker:
    @pytest.fixture
    def broker(self, tmp_path: Path) -> Iterator[RunningBroker]:
        with running_broker(tmp_path / "data", settings=ROOM) as running:
            yield running

    @pytest.mark.verify
    @pytest.mark.parametrize("consumers", [0, 2])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_a_protocol_counts_what_a_broker_confirms(
        self, protocolload: Path, broker: RunningBroker, protocol: str, consumers: int
    ) -> None:
        seen: list[str] = []
        report = run_load(
            protocolload,
            broker.port,
            load(protocol, consumers=consumers),
            on_measuring=lambda: seen.append("measuring"),
            on_measured=lambda: seen.append("measured"),
        )
        assert seen == ["measuring", "measured"]
        check_whole(report, consumers)

    @pytest.mark.verify
    @pytest.mark.parametrize(("producer", "consumer"), PAIRS)
    def test_a_protocol_goes_into_another(
        self, protocolload: Path, broker: RunningBroker, producer: str, consumer: str
    ) -> None:
        report = run_load(protocolload, broker.port, load(producer, consumer))
        check_whole(report, 2)
        assert report.settings["consumer_protocol"] == consumer

    @pytest.mark.verify
    def test_all_speak_tls_and_want_the_right_authority(
        self, protocolload: Path, tmp_path: Path
    ) -> None:
        assert generator.has_tls(), "no openssl/ssl.h; on Debian: apt-get install libssl-dev"
        configuration, trusted = certificate.configure(tmp_path)
        (tmp_path / "other").mkdir()
        _, other = certificate.configure(tmp_path / "other")
        with running_broker(
            tmp_path / "data", settings=ROOM, configuration=configuration
        ) as broker:
            for protocol in ("stomp", "mqtt", "amqp"):
                report = run_load(
                    protocolload,
                    broker.port,
                    load(protocol, body_size=5000, messages=1000),  # several records a read
                    extra_arguments=("--tls-ca", str(trusted)),
                )
                assert report.passed, report
                assert report.totals.delivered == 1000
                assert report.settings["tls"] is True
            for extra, complaint in (
                (("--tls-ca", str(other)), "no TLS with the broker: .*certificate verify failed"),
                (("--tls-ca", str(tmp_path / "none")), "no certificate of an authority"),
                ((), "closed the connection"),
            ):
                with pytest.raises(GeneratorError, match=complaint):
                    run_load(protocolload, broker.port, load("amqp"), extra_arguments=extra)


class TestTheLedger:
    """What all protocols have in common, by way of STOMP."""

    @pytest.mark.verify
    @pytest.mark.parametrize(
        ("faults", "check", "count"),
        [
            (Faults(lose_every=100), "lost", 4),
            (Faults(duplicate_every=100), "duplicates", 4),
            (Faults(swap_every=100), "out_of_order", 4),
            (Faults(corrupt_every=100), "corrupt", 4),
            (Faults(misroute_every=100), "misrouted", 4),
            (Faults(drop_receipt_every=200), "unconfirmed", 2),
            (Faults(double_receipt_every=100), "receipt_errors", 4),
        ],
    )
    def test_each_kind_of_harm_is_counted_and_fails_the_run(
        self, protocolload: Path, faults: Faults, check: str, count: int
    ) -> None:
        harmed = load("stomp", messages=400, seconds=3, drain_seconds=1)
        if check == "out_of_order":
            harmed = msgspec.structs.replace(harmed, producers=1, consumers=1, queues=1)
        with running_stomp_server(faults) as (_, port):
            report = run_load(protocolload, port, harmed)
        assert getattr(report.checks, check) == count
        assert not report.passed

    def test_an_error_frame_is_quoted_and_leaves_no_figure(self, protocolload: Path) -> None:
        with (
            running_stomp_server(Faults(error_after=100)) as (_, port),
            pytest.raises(
                GeneratorError, match="by stomp: the broker said ERROR: the disk is full"
            ),
        ):
            run_load(protocolload, port, load("stomp"))

    def test_a_cut_connection_leaves_no_figure(self, protocolload: Path) -> None:
        with (
            running_stomp_server(Faults(close_after=100)) as (_, port),
            pytest.raises(GeneratorError, match=r"ended with 3: .*closed the connection"),
        ):
            run_load(protocolload, port, load("stomp", consumers=0))

    def test_the_window_bounds_what_is_unconfirmed(self, protocolload: Path) -> None:
        with running_stomp_server(Faults(drop_receipt_every=1)) as (server, port):
            report = run_load(
                protocolload, port, load("stomp", consumers=0, seconds=1, drain_seconds=0)
            )
        assert server.sends == report.checks.unconfirmed == 3 * 20


class TestAmqp:
    def test_all_is_accepted_by_runs_of_ids_and_credit_is_topped_up(
        self, protocolload: Path
    ) -> None:
        one = load("amqp", producers=1, queues=1, consumers=1, window=200)
        with running_amqp_server() as (server, port):
            report = run_load(protocolload, port, one)
        check_whole(report, 1)
        assert server.overdrawn == 0
        assert server.accepted == MESSAGES
        assert 0 < server.dispositions <= MESSAGES // 2
        assert len(server.flows) >= 1 + (MESSAGES - 1000) // 500
        assert set(server.flows) == {1000}

    @pytest.mark.parametrize("bounds", [AmqpFaults(credit=3), AmqpFaults(window=3)])
    def test_a_sender_keeps_to_credit_and_window(
        self, protocolload: Path, bounds: AmqpFaults
    ) -> None:
        with running_amqp_server(bounds) as (server, port):
            report = run_load(protocolload, port, load("amqp"))
        check_whole(report, 2)
        assert server.overdrawn == 0

    @pytest.mark.parametrize("what", ["link", "session", "connection"])
    def test_what_the_broker_ends_is_told_with_its_reason(
        self, protocolload: Path, what: str
    ) -> None:
        faults = AmqpFaults(end_at=50, ends_with=ENDS[what])
        sentence = (
            rf"ended with 1: (?s:.*)producer \d by amqp: the broker has ended the {what}: "
            "amqp:internal-error: the disk is full"
        )
        with (
            running_amqp_server(faults) as (_, port),
            pytest.raises(GeneratorError, match=sentence),
        ):
            run_load(protocolload, port, load("amqp"))

    @pytest.mark.parametrize(
        ("faults", "sentence"),
        [
            (AmqpFaults(is_refused=True), "has ended the link: amqp:internal-error: the disk"),
            (AmqpFaults(login_code=1), "lets nobody in by ANONYMOUS: outcome 1"),
            (AmqpFaults(max_frame_size=512), "takes frames of 512: --body-size has to be smaller"),
        ],
    )
    def test_what_can_not_begin_is_told(
        self, protocolload: Path, faults: AmqpFaults, sentence: str
    ) -> None:
        with (
            running_amqp_server(faults) as (_, port),
            pytest.raises(GeneratorError, match=sentence),
        ):
            run_load(protocolload, port, load("amqp", body_size=1024))

    @pytest.mark.verify
    @pytest.mark.parametrize(
        ("faults", "check", "sentence"),
        [
            (AmqpFaults(outcome_at=50, outcome=REJECTED), "receipt_errors", "the disk is full"),
            (AmqpFaults(outcome_at=50, outcome=RELEASED), "receipt_errors", "was not accepted"),
            (AmqpFaults(confirm_twice_at=50), "receipt_errors", "for the second time"),
            (AmqpFaults(unsettled_at=50), "unconfirmed", ""),
            (AmqpFaults(deliver_twice_at=50), "duplicates", ""),
        ],
    )
    def test_each_kind_of_harm_is_counted_and_fails_the_run(
        self, protocolload: Path, faults: AmqpFaults, check: str, sentence: str
    ) -> None:
        harmed = load("amqp", producers=1, queues=1, consumers=1, messages=400, drain_seconds=0.3)
        harmed = msgspec.structs.replace(harmed, seconds=2)
        with running_amqp_server(faults) as (_, port):
            done = subprocess.run(
                [protocolload, "--port", f"{port}", *harmed.arguments()],
                capture_output=True,
                check=False,
            )
        report = msgspec.json.decode(done.stdout, type=LoadReport)
        assert (done.returncode, report.passed) == (1, False)
        assert getattr(report.checks, check) == 1
        assert sentence in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--consumers", "3", "--queues", "2"], "--consumers 3: 0, or as many as queues (2)"),
        (["--producer-protocol", "xmpp"], "--producer-protocol xmpp: stomp, mqtt, mqtt5 or amqp"),
        (["--window", "0"], "--window 0: from 1 to 32767"),
        (["--body-size", "23"], "--body-size 23: from 24 to 1048576 bytes"),
        (["--consumer-protocol", "amqp", "--body-size", "65537"], "from 24 to 65536 bytes"),
        (["--producers", "0"], "--producers and --queues from 1 to 4096"),
        (["--seconds", "inf"], "--seconds to 86400"),
        (["--seconds", "nan"], "what is --seconds?"),
        (["--seconds"], "what is --seconds?"),
        (["--sekonds", "1"], "what is --sekonds?"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    protocolload: Path, arguments: list[str], complaint: str
) -> None:
    done = subprocess.run([protocolload, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_a_port_that_refuses_is_told_apart(protocolload: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connecting is refused
        port = f"{unused.getsockname()[1]}"
        done = subprocess.run([protocolload, "--port", port], capture_output=True, check=False)
    assert done.returncode == 3
    assert b"Connection refused" in done.stderr

"""protocolload against real brokers, and against servers that do each kind of harm."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from benchmarks import generator
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.generator import GeneratorError, LoadReport, ProtocolLoad, run_load
from benchmarks.protocols import certificate
from vespiary_testkit.amqp_server import (
    ENDS,
    REJECTED,
    RELEASED,
    AmqpFaults,
    running_amqp_server,
)
from vespiary_testkit.stomp_server import Faults, running_stomp_server

ROOM = ("max-disk-usage=99",)
PROTOCOLS = ("stomp", "mqtt", "mqtt5", "amqp")
PAIRS = [*permutations(("stomp", "mqtt", "amqp"), 2), ("mqtt5", "amqp"), ("amqp", "mqtt5")]
MESSAGES = 3000


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

    @pytest.mark.parametrize(("producer", "consumer"), PAIRS)
    def test_a_protocol_goes_into_another(
        self, protocolload: Path, broker: RunningBroker, producer: str, consumer: str
    ) -> None:
        report = run_load(protocolload, broker.port, load(producer, consumer))
        check_whole(report, 2)
        assert report.settings["consumer_protocol"] == consumer

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

"""The generator against a server that behaves, and against one that does each kind of harm."""

import signal
import socket
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.generator import GeneratorError, Load, LoadReport, run_load
from vespiary_testkit.stomp_server import Faults, running_stomp_server

pytestmark = pytest.mark.verify

_SHORT = Load(producers=2, consumers=2, queues=2, window=20, warmup=0, seconds=30, messages=400)
"""It ends with the last message; a busy machine is given time."""


def _run(binary: Path, load: Load, faults: Faults | None = None, *extra: str) -> LoadReport:
    with running_stomp_server(faults) as (_, port):
        return run_load(binary, port, load, extra_arguments=extra)


def _with(**changes: float | str) -> Load:
    return msgspec.structs.replace(_SHORT, **changes)


def test_everything_sent_is_confirmed_delivered_and_acknowledged(stompload: Path) -> None:
    with running_stomp_server() as (server, port):
        report = run_load(stompload, port, _SHORT)
    assert report.passed, report
    assert report.totals.sent == report.totals.confirmed == report.totals.delivered == 400
    assert server.acks == 400
    assert not any(queue.messages for queue in server.queues.values())
    assert report.checks.order_checked
    assert report.confirm_latency_us.count == 400
    assert report.end_to_end_latency_us.count == 400
    assert sum(confirmed for confirmed, _ in report.per_second) == 400


@pytest.mark.parametrize("ack", ["client", "auto"])
def test_other_ack_modes_settle_everything(stompload: Path, ack: str) -> None:
    with running_stomp_server() as (server, port):
        report = run_load(stompload, port, _with(ack=ack, consumers=1))
    assert report.passed, report
    assert report.totals.delivered == 400
    assert server.acks == (400 if ack == "client" else 0)


def test_more_queues_than_connections_each_get_their_share(stompload: Path) -> None:
    with running_stomp_server() as (server, port):
        report = run_load(stompload, port, _with(queues=7, consumers=3))
    assert report.passed, report
    assert {q.name: q.sequence for q in server.queues.values()} == {
        "bench.0": 50, "bench.2": 50, "bench.4": 50, "bench.6": 50,
        "bench.1": 67, "bench.3": 67, "bench.5": 66,
    }  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize(
    ("faults", "check", "count"),
    [
        (Faults(lose_every=100), "lost", 4),
        (Faults(duplicate_every=100), "duplicates", 4),
        (Faults(swap_every=100), "out_of_order", 4),
        (Faults(corrupt_every=100), "corrupt", 4),
        (Faults(misroute_every=100), "misrouted", 4),
        (Faults(resurrect_every=100), "duplicates", 4),
        (Faults(drop_receipt_every=200), "unconfirmed", 2),
        (Faults(double_receipt_every=100), "receipt_errors", 4),
    ],
)
def test_each_kind_of_harm_is_counted_and_fails_the_run(
    stompload: Path, faults: Faults, check: str, count: int
) -> None:
    # One queue and one producer where order matters: its neighbour is then its predecessor.
    load = _with(seconds=3, drain_seconds=1)
    if check == "out_of_order":
        load = _with(producers=1, consumers=1, queues=1, seconds=3)
    report = _run(stompload, load, faults)
    assert getattr(report.checks, check) == count
    assert not report.passed


def test_an_error_frame_ends_the_run_and_is_quoted(stompload: Path) -> None:
    report = _run(stompload, _SHORT, Faults(error_after=100))
    assert (report.ended, report.reason) == ("broker error", "the disk is full")
    assert not report.passed


def test_a_cut_connection_is_told_apart_and_loses_no_count(stompload: Path) -> None:
    report = _run(stompload, _with(consumers=0), Faults(close_after=100))
    assert report.ended == "connection lost"
    assert report.totals.confirmed < 100


def test_open_loop_counts_a_stall_for_every_message_that_was_due(stompload: Path) -> None:
    # 400 messages are due in 0.4 s; the server stops for 0.2 s at the 100th. About 200 wait; a
    # closed loop of one in flight would have seen a single slow message.
    load = Load(rate=1000, consumers=1, warmup=0, seconds=0.4)
    report = _run(stompload, load, Faults(stall_after=100, stall_s=0.2))
    assert report.passed, report
    assert report.totals.sent == 400
    assert report.confirm_latency_us.max > 190_000
    assert report.confirm_latency_us.p90 > 100_000
    closed = _run(
        stompload, Load(window=1, consumers=1, warmup=0, seconds=1, messages=400),
        Faults(stall_after=100, stall_s=0.2),
    )  # fmt: skip
    assert closed.confirm_latency_us.max > 190_000
    stalled = closed.confirm_latency_us
    assert stalled.p90 < stalled.max, "one stall, and 399 that nothing held up"


def test_the_window_bounds_what_is_unconfirmed(stompload: Path) -> None:
    with running_stomp_server(Faults(drop_receipt_every=1)) as (server, port):
        report = run_load(stompload, port, _with(consumers=0, seconds=1, drain_seconds=0))
    assert server.sends == report.checks.unconfirmed == 2 * 20


def test_warm_up_stays_out_of_the_window(stompload: Path) -> None:
    begin_s = time.monotonic()
    report = _run(stompload, Load(rate=500, warmup=0.4, seconds=0.2))
    all_s = time.monotonic() - begin_s
    assert report.totals.sent == 300
    assert report.confirm_latency_us.count == 100
    assert 0 < report.seconds < all_s - 0.35


def test_a_window_that_passed_while_the_machine_was_busy_is_measured_afterwards(
    stompload: Path,
) -> None:
    options = ["--consumers", "1", "--window", "1", "--warmup", "0.3", "--seconds", "0.1"]
    with running_stomp_server() as (server, port):
        command = [stompload, "--port", str(port), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            while server.sends == 0 and process.poll() is None:
                time.sleep(0.001)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)  # longer than the warm-up and the window
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate()
    report = msgspec.json.decode(output, type=LoadReport)
    assert report.passed, report
    assert report.seconds >= 0.09


def test_prefetch_login_and_routing_reach_the_broker(stompload: Path) -> None:
    extra = ("--login", "ann", "--passcode", "pw", "--vhost", "/", "--destination", "/queue/q%d.x")
    with running_stomp_server() as (server, port):
        report = run_load(stompload, port, _with(prefetch=5), extra_arguments=extra)
    assert report.passed, report
    assert all((c["login"], c["passcode"], c["host"]) == ("ann", "pw", "/") for c in server.logins)
    assert [s["prefetch-count"] for s in server.subscribes] == ["5", "5"]
    assert {s["subscription-type"] for s in server.subscribes} == {"ANYCAST"}
    assert set(server.queues) == {"/queue/q0.x", "/queue/q1.x"}


def test_left_overs_of_an_earlier_run_are_drained_but_not_counted(stompload: Path) -> None:
    with running_stomp_server() as (_, port):
        run_load(stompload, port, _with(consumers=0))
        report = run_load(stompload, port, _SHORT)
        assert report.passed, report
        assert report.checks.foreign == 400
        assert report.totals.delivered == 400


class TestLedger:
    def _produce(self, binary: Path, port: int, ledger: Path) -> LoadReport:
        return run_load(
            binary,
            port,
            _with(consumers=0),
            extra_arguments=["--ledger", f"{ledger}", "--run", "7"],
        )

    def _verify(self, binary: Path, port: int, ledger: Path, *extra: str) -> LoadReport:
        drain = Load(producers=0, consumers=1, queues=2, warmup=0, seconds=30)
        arguments = ["--verify-ledger", f"{ledger}", "--idle", "2", *extra]
        return run_load(binary, port, drain, extra_arguments=arguments)

    @pytest.mark.verify
    def test_confirmed_sends_stand_in_the_file_and_a_drain_finds_them(
        self, stompload: Path, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger"
        with running_stomp_server() as (server, port):
            assert self._produce(stompload, port, ledger).passed
            lines = ledger.read_text().splitlines()
            assert set(lines) == {f"S 7 {p} {n}" for p in range(2) for n in range(200)}
            report = self._verify(stompload, port, ledger, "--ledger", f"{ledger}")
            assert report.passed, report
            assert report.totals.delivered == 400
            assert server.acks == 400
            acked = {line for line in ledger.read_text().splitlines() if line.startswith("A ")}
            assert acked == {f"A 7 {p} {n}" for p in range(2) for n in range(200)}
            again = self._verify(stompload, port, ledger)
            assert again.passed, again
            assert again.totals.delivered == again.checks.in_doubt == 0

    def test_lines_are_in_the_file_when_the_generator_itself_is_killed(
        self, stompload: Path, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger"
        ledger.touch()
        with running_stomp_server() as (server, port):
            options = f"--port {port} --rate 500 --seconds 30 --ledger {ledger}".split()
            with subprocess.Popen([stompload, *options], stderr=subprocess.PIPE) as process:
                while ledger.read_bytes().count(b"\n") < 20 and process.poll() is None:
                    time.sleep(0.01)  # bounded by the 30 s of the run
                process.kill()
            assert process.returncode == -9
            assert 20 <= ledger.read_bytes().count(b"\n") <= server.sends < 500 * 30

    @pytest.mark.verify
    def test_a_confirmed_message_that_is_gone_is_lost(
        self, stompload: Path, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger"
        with running_stomp_server(Faults(lose_every=50)) as (_, port):
            self._produce(stompload, port, ledger)
            report = self._verify(stompload, port, ledger)
        assert report.checks.lost == 8
        assert not report.passed

    @pytest.mark.verify
    def test_an_acknowledged_message_that_is_back_is_resurrected(
        self, stompload: Path, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger"
        with running_stomp_server() as (_, port):
            self._produce(stompload, port, ledger)
            with ledger.open("a") as file:
                file.write("T 7 0 3\nA 7 0 3\nT 7 1 5\n")
            report = self._verify(stompload, port, ledger)
        assert report.checks.resurrected == 1
        assert report.checks.in_doubt == 1
        assert not report.passed

    @pytest.mark.verify
    def test_a_torn_last_line_is_left_out_and_any_other_is_refused(
        self, stompload: Path, tmp_path: Path
    ) -> None:
        ledger = tmp_path / "ledger"
        ledger.write_text("S 7 0 3\nS 7 0")
        with running_stomp_server() as (_, port):
            assert self._verify(stompload, port, ledger).checks.lost == 1
            ledger.write_text("S 7 0\nS 7 0 3\n")
            with pytest.raises(GeneratorError, match=r"line 1: not"):
                self._verify(stompload, port, ledger)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--host", "192.0.2.1"], "not a loopback address"),
        (["--host", "example.org"], "not a loopback address"),
        (["--host", "::2"], "not a loopback address"),
        (["--window", "0"], "not a number from 1 to 1000000"),
        (["--window", "nan"], "not a number from 1 to 1000000"),
        (["--body-size", "31"], "not a number from 32 to 16777216"),
        (["--seconds"], "needs a value"),
        (["--sekonds", "1"], "unknown option --sekonds"),
        (["--ack", "none"], "not client-individual, client or auto"),
        (["--login", "a\nb"], "line ends can't stand in a header"),
        (["--queues", "2", "--destination", "one"], "needs %d in --destination"),
        (["--producers", "0"], "leaves nothing to do"),
        (["--ledger", "x", "--consumers", "1", "--ack", "auto"], "needs --ack client-individual"),
        (["--verify-ledger", "x"], "--verify-ledger drains"),
        (["--verify-ledger", "no", "--producers", "0", "--consumers", "1"], "No such file"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    stompload: Path, arguments: list[str], complaint: str
) -> None:
    done = subprocess.run([stompload, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr


def test_a_port_that_refuses_is_told_apart(stompload: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connecting is refused
        port = f"{unused.getsockname()[1]}"
        done = subprocess.run([stompload, "--port", port], capture_output=True, check=False)
    assert done.returncode == 3
    assert b"Connection refused" in done.stderr


def test_help_names_every_option_with_its_default(stompload: Path) -> None:
    text = subprocess.run([stompload, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--drain-seconds" in text
    assert "(client-individual)" in text

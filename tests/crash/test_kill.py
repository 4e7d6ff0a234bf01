"""kill -9 at random moments, many times over the same store: no confirmed message is lost, and none
rises again whose acknowledgement was confirmed.

The ledger is kept by stompload in a file of its own: a line for each confirmed send, for each
delivery, for each confirmed acknowledgement. What stands between is in doubt, and either end of it
is legal. Journal files are small, so that rolls, checkpoints and reclaims are killed as well.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import msgspec
import pytest

from benchmarks.generator import LoadReport, build
from vespiary_testkit.broker_calls import call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.waiting import WAIT_S, wait_for

CYCLES = int(os.environ.get("VESPIARY_CRASH_CYCLES", "10"))
VERIFY_EVERY = 10
QUEUES = 2
SETTINGS = ("journal-file-size=2MiB", "journal-min-files=2")
COMPACTING = (*SETTINGS, "journal-compact-min-files=1", "journal-compact-percentage=100")
PAGING = (
    *SETTINGS,
    "address-settings.#.max-size-bytes=64KiB",
    "address-settings.#.page-size-bytes=64KiB",
)
FILTERED = "addresses:\n" + "".join(
    f"  - name: bench.{number}\n    queues:\n      - {{name: bench.{number}, "
    "routing-type: ANYCAST, filter-string: JMSPriority < 10}\n"
    for number in range(QUEUES)
)
PRIORITIES = ("--send-header", "priority:%v", "--variants", "10")


@pytest.fixture(scope="module")
def stompload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stompload") / "stompload")


def port_of(broker: BrokerProcess) -> int:
    ports = {e["name"]: e["port"] for e in broker.events if e["event"] == "listening"}
    return int(ports["all"])


def run_until_killed(
    broker: BrokerProcess,
    stompload: Path,
    ledger: Path,
    chance: random.Random,
    least: int,
    options: tuple[str, ...] = (),
) -> None:
    """Send and receive, and kill the broker in the middle.

    The ledger has that many confirms, and as many acknowledgements, before the broker is killed.
    """
    command = [str(stompload), "--port", str(port_of(broker)), "--ledger", str(ledger)]
    command += ["--producers", "2", "--consumers", "2", "--queues", str(QUEUES)]
    command += ["--window", "64", "--prefetch", "100", "--warmup", "0"]
    command += ["--seconds", f"{WAIT_S:.0f}"]  # it ends with its broker
    command += ["--body-size", str(chance.choice((64, 1024, 9000))), *options]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert load.stderr is not None
    first = load.stderr.readline()
    assert first == "stompload: measuring\n", first
    pid = broker.pid
    wait_for(lambda: lines_of(ledger) >= least, broker.log_text)
    timer = threading.Timer(chance.uniform(0.005, 0.5), os.kill, (pid, signal.SIGKILL))
    timer.start()
    code = load.wait(WAIT_S)
    timer.join()
    load.stderr.close()
    assert code == 3, f"stompload ended with {code}: the broker was to be killed under it"
    broker.kill()


def lines_of(ledger: Path) -> int:
    """Return how many confirms a ledger has, or acknowledgements if they are fewer."""
    text = "\n" + (ledger.read_text() if ledger.exists() else "")
    return min(text.count("\nS"), text.count("\nA"))


def kill_while_starting(broker: BrokerProcess, chance: random.Random) -> None:
    """Kill the broker while it recovers or just after."""
    timer = None
    try:
        broker.start()
        timer = threading.Timer(chance.uniform(0.0, 0.03), broker.kill)
        timer.start()
    finally:
        if timer is not None:
            timer.join()


def verify(broker: BrokerProcess, stompload: Path, ledger: Path) -> LoadReport:
    command = [str(stompload), "--port", str(port_of(broker)), "--ledger", str(ledger)]
    command += ["--verify-ledger", str(ledger), "--producers", "0", "--consumers", "1"]
    command += ["--queues", str(QUEUES), "--idle", "2", "--seconds", "60", "--body-size", "9000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout, done.stderr
    report = msgspec.json.decode(done.stdout, type=LoadReport)
    assert report.ended == "complete", done.stdout
    return report


def verify_all(broker: BrokerProcess, stompload: Path, ledger: Path) -> LoadReport:
    """Verify until the queues are empty: two silent seconds may be those of a busy machine."""
    end_s = time.monotonic() + WAIT_S
    while True:
        report = verify(broker, stompload, ledger)
        left = sum(queue["messages"] for queue in call(broker, "GET", "/queues")["items"])
        if not report.checks.lost or not left or time.monotonic() > end_s:
            return report


def kill_again_and_again(
    broker: BrokerProcess,
    stompload: Path,
    ledger: Path,
    store: int,
    cycles: int,
    options: tuple[str, ...] = (),
) -> None:
    """Kill a broker under load so many times, and look now and then at what it has."""
    chance = random.Random(seed_for(f"kills {store}"))
    try:
        for cycle in range(1, cycles + 1):
            if chance.random() < 0.2:
                kill_while_starting(broker, chance)
            broker.start()
            least = 10 * cycles if cycle == cycles else 0
            run_until_killed(broker, stompload, ledger, chance, least, options)
            if cycle % VERIFY_EVERY == 0 or cycle == cycles:
                broker.start()
                checks = verify_all(broker, stompload, ledger).checks
                found = f"cycle {cycle}: {checks}"
                assert checks.lost == 0, found
                assert checks.resurrected == 0, found
                assert checks.duplicates == 0, found
                assert checks.corrupt == 0, found
                assert broker.stop() == 0, broker.log_text()
    finally:
        if broker.process is not None:
            broker.kill()
    assert lines_of(ledger) >= 10 * cycles


@pytest.mark.ci
def test_with_priorities_and_filters_too(tmp_path: Path, stompload: Path) -> None:
    """Python chooses what goes where and who gets what: confirms mean the same."""
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(FILTERED)
    broker = BrokerProcess(tmp_path / "data", *SETTINGS, configuration=configuration)
    kill_again_and_again(broker, stompload, tmp_path / "ledger", 5, max(CYCLES // 8, 1), PRIORITIES)


@pytest.mark.parametrize(
    ("store", "settings", "cycles"),
    [
        (1, SETTINGS, -(-CYCLES // 2)),
        (2, SETTINGS, CYCLES // 2),
        pytest.param(3, COMPACTING, max(CYCLES // 4, 10), marks=pytest.mark.ci),
        pytest.param(4, PAGING, max(CYCLES // 4, 10), marks=pytest.mark.ci),
    ],
    ids=["one", "two", "compacting", "paging"],
)
def test_no_confirmed_message_is_lost_and_no_acknowledged_one_rises_again(
    tmp_path: Path, stompload: Path, store: int, settings: tuple[str, ...], cycles: int
) -> None:
    broker = BrokerProcess(tmp_path / "data", *settings)
    kill_again_and_again(broker, stompload, tmp_path / "ledger", store, cycles)

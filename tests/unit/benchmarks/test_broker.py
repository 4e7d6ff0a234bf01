"""The harness starts, watches and stops a broker by its command line alone."""

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.broker import BrokerError, RunningBroker, running_broker


def _program(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "program.py"
    path.write_text(text)
    return (sys.executable, str(path))


def test_ready_is_read_from_the_events_and_sigterm_ends_it(
    tmp_path: Path, fake_broker: tuple[str, ...]
) -> None:
    with running_broker(tmp_path / "data", command=fake_broker) as broker:
        assert (broker.ready.engine, broker.ready.durability) == ("MEMORY", "D0")
        assert broker.port > 1024
        assert 0 < broker.ready.seconds < broker.ready_s
        used = broker.usage()
        assert used.user_s > 0
        assert 1 << 20 < used.rss_bytes <= used.rss_peak_bytes
    with pytest.raises(ProcessLookupError):
        os.kill(broker.pid, 0)


def test_settings_and_environment_are_handed_over(tmp_path: Path) -> None:
    command = _program(
        tmp_path,
        "import json, os, sys, time\n"
        "print(json.dumps({'event': 'note', 'x': 1}))\n"
        "print(json.dumps({'event': 'listening', 'name': 'stomp', 'port': 7}))\n"
        "print(json.dumps({'event': 'listening', 'name': 'all', 'port': 8}))\n"
        "print(json.dumps({'event': 'listening', 'name': 'http', 'port': 9}))\n"
        "print(json.dumps({'event': 'ready', 'seconds': 0.5, 'durability': 'D2',\n"
        "    'engine': os.environ['VESPIARY_NATIVE'] + ' '.join(sys.argv[-2:])}), flush=True)\n"
        "time.sleep(60)\n",
    )
    seen: list[RunningBroker] = []

    def run() -> None:
        with running_broker(
            tmp_path / "data",
            command=command,
            settings=["journal-type=NIO"],
            environment={"VESPIARY_NATIVE": "0"},
        ) as broker:
            seen.append(broker)

    with pytest.raises(BrokerError, match="SIGTERM stopped the broker with -15, not 0"):
        run()
    assert seen[0].port == 8
    assert seen[0].ready.engine == "0--set journal-type=NIO"


def test_a_broker_that_ends_before_it_is_ready_shows_its_last_words(tmp_path: Path) -> None:
    command = _program(tmp_path, "import sys; sys.exit('no such setting: jurnal-type')")
    with (
        pytest.raises(BrokerError, match=r"ended with 1 .*\n.*no such setting: jurnal-type"),
        running_broker(tmp_path / "data", command=command),
    ):
        pytest.fail("it never was ready")


def test_a_broker_that_dies_on_the_way_is_reported(
    tmp_path: Path, fake_broker: tuple[str, ...]
) -> None:
    def run() -> None:
        with running_broker(tmp_path / "data", command=fake_broker) as broker:
            os.kill(broker.pid, signal.SIGKILL)
            os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(BrokerError, match="ended by itself with -9"):
        run()


def test_a_missing_broker_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerError, match="run `make run` once"),
        running_broker(tmp_path / "data", command=["/nonexistent/vespiary"]),
    ):
        pytest.fail("it never was ready")


def test_figures_of_producers_that_waited_for_the_disk_are_refused(tmp_path: Path) -> None:
    command = _program(
        tmp_path,
        "import json, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('WARNING no journal file can be made, producers will wait: 91.9 % used', "
        "file=sys.stderr, flush=True)\n"
        "print(json.dumps({'event': 'listening', 'name': 'all', 'port': 8}))\n"
        "print(json.dumps({'event': 'ready', 'seconds': 0.5, 'durability': 'D2',\n"
        "    'engine': 'NIO'}), flush=True)\n"
        "time.sleep(60)\n",
    )
    with (
        pytest.raises(BrokerError, match=r"disk was too full.*max-disk-usage=100.*91\.9 % used"),
        running_broker(tmp_path / "data", command=command),
    ):
        pass

"""`vespiary journal` on journals that a real broker wrote: good, in use, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.cli.journal_folders import CountingDisk
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_messages import send_messages, take_messages

PROGRAM = [sys.executable, "-m", "vespiary_broker"]


def vespiary(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def journal_files(data: Path) -> dict[str, tuple[bytes, int]]:
    """What the message journal's files hold, without the lock's."""
    return {n: c for n, c in contents(data / "journal").items() if n.endswith(".hq")}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """The data folder of a broker that holds ten messages and has stopped."""
    folder = tmp_path / "data"
    with BrokerProcess(folder, "journal-file-size=1MiB") as broker:
        place = f"stomp://127.0.0.1:{broker.port()}"
        assert vespiary("send", "orders", "hello", "-n", "10", "--url", place).returncode == 0
    return folder


@pytest.mark.engine
def test_a_good_journal_and_nothing_is_written(data: Path):
    before = contents(data)
    done = vespiary("journal", "verify", data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [": good:" in line for line in done.stdout.splitlines()] == [True, True]
    info = vespiary("journal", "info", data, "--json")
    bindings, messages = json.loads(info.stdout)
    assert (bindings["kind"], messages["kind"]) == ("BINDINGS", "MESSAGE")
    assert list(messages["liveMessages"].values()) == [10]
    assert contents(data) == before


@pytest.mark.ci
def test_several_folders_at_once(data: Path):
    done = vespiary("journal", "verify", data, data / "journal", "--json")
    assert [report["finding"] for report in json.loads(done.stdout)] == ["good"] * 3
    assert vespiary("journal", "verify").returncode == 2


@pytest.mark.ci
def test_info_says_what_keeps_a_file_and_names_queues(data: Path):
    done = vespiary("journal", "info", data)
    assert "live messages: queue 1 (orders): 10" in done.stdout
    assert "10 live messages" in done.stdout
    assert "to orders, at activemq-data-1.hq:" in done.stdout
    report = json.loads(vespiary("journal", "info", data / "journal", "--json").stdout)[0]
    assert report["oldest"]["address"] == "orders"
    assert report["files"][0]["liveMessages"] == 10
    assert 0 < report["liveBytes"] < report["files"][0]["usedBytes"]


@pytest.mark.ci
def test_one_journal_of_its_own(data: Path):
    done = vespiary("journal", "info", data / "journal")
    assert done.returncode == 0
    assert "live messages: queue 1: 10" in done.stdout
    assert "activemq-data-1.hq" in done.stdout


@pytest.mark.ci
def test_a_journal_in_use_may_be_looked_at(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "journal-file-size=1MiB") as broker:
        place = f"stomp://127.0.0.1:{broker.port()}"
        vespiary("send", "orders", "hello", "--url", place)
        assert vespiary("journal", "verify", broker.data).returncode == 0
        assert vespiary("send", "orders", "hello", "--url", place).returncode == 0


@pytest.mark.ci
def test_a_flipped_bit_is_found_and_the_broker_does_not_start(data: Path):
    path = data / "journal/activemq-data-1.hq"
    with path.open("r+b") as file:
        file.seek(4096 + 100)
        byte = file.read(1)[0]
        file.seek(4096 + 100)
        file.write(bytes([byte ^ 1]))
    done = vespiary("journal", "verify", data)
    assert done.returncode == 1
    assert ": bad:" in done.stdout
    assert "activemq-data-1.hq:4096" in done.stdout
    assert "VSP-J104" in done.stdout
    assert "activemq-data-1.hq:4096: block 1: corrupt: bad checksum of a block" in done.stdout
    assert "what to do: keep a copy" in done.stdout
    report = json.loads(vespiary("journal", "verify", data / "journal", "--json").stdout)[0]
    assert [(p["offset"], p["sequence"]) for p in report["problems"]] == [(4096, 1)]
    assert (report["finding"], report["error"]["code"]) == ("bad", "VSP-J104")
    before = journal_files(data)
    run = vespiary("run", "--data", data, "--port", "0")
    assert run.returncode == 1
    assert "VSP-J104" in run.stderr
    assert "Traceback" not in run.stderr
    assert journal_files(data) == before


@pytest.mark.ci
@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_folder_without_a_journal_is_named(tmp_path: Path, command: str):
    done = vespiary("journal", command, tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} holds no journal" in done.stderr
    assert vespiary("journal", command, tmp_path / "no").returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_tool_opens_nothing_for_writing(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x")
    read: list[int] = []
    disk = CountingDisk(read.append)
    with pytest.raises(ValueError, match="never writes"):
        disk.open(tmp_path / "file", is_direct=False, is_readonly=False)
    file = disk.open(tmp_path / "file", is_direct=False, is_readonly=True)
    assert file.read_into(memoryview(bytearray(1)), 0) == 1
    file.close()
    assert read == [1]


@pytest.mark.ci
def test_compact_gives_back_what_a_few_old_messages_hold(tmp_path: Path):
    folder = tmp_path / "data"
    with BrokerProcess(folder, "journal-file-size=1MiB", "journal-compact-min-files=0") as broker:
        for _ in range(6):
            send_messages(broker.port(), "old", "stays")
            send_messages(broker.port(), "new", *["x" * 9000] * 100)
            assert len(take_messages(broker.port(), "new", 100)) == 100
    done = vespiary("journal", "compact", folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["isComplete"] is True
    assert report["before"]["filesInUse"] >= 5
    assert report["after"]["filesInUse"] <= 2
    assert report["movedMessages"] == 6
    again = vespiary("journal", "compact", folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("before: 1 file in use"), again.stdout
    with BrokerProcess(folder) as broker:
        assert take_messages(broker.port(), "old", 6) == ["stays"] * 6


@pytest.mark.ci
def test_compact_refuses_a_journal_without_its_bindings_and_one_in_use(data: Path):
    done = vespiary("journal", "compact", data / "journal")
    assert done.returncode == 2
    assert "no data folder of a broker" in done.stderr
    with BrokerProcess(data):
        done = vespiary("journal", "compact", data)
        assert done.returncode == 1
        assert "locked" in done.stderr or "in use" in done.stderr, done.stderr

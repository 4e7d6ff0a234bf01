"""`journal print` and `journal recover` on journals that a real broker wrote, also in use."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_messages import take_messages

PROGRAM = [sys.executable, "-m", "vespiary_broker"]


def vespiary(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def settled(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the contents once the broker has covered its last confirms with an empty block."""
    for _ in range(100):
        before = contents(folder)
        time.sleep(2)  # a hundred times what it waits for the next message
        if contents(folder) == before:
            return before
    raise AssertionError("an idle broker goes on writing")


def send(broker: BrokerProcess, queue: str, *bodies: str) -> None:
    place = f"stomp://127.0.0.1:{broker.port()}"
    for body in bodies:
        assert vespiary("send", queue, body, "--url", place).returncode == 0


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a broker that got four messages, one block each."""
    folder = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(folder, "journal-file-size=1MiB") as broker:
        send(broker, "orders", "one", "two", "three")
        send(broker, "bills", "four")
    return folder


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "data"
    for path in original.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(original)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return copy


def spoil(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 4]), offset)


def offset_of(data: Path, content: str) -> int:
    """Offset of the block in which a message stands."""
    lines = vespiary("journal", "print", data / "journal", "--json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    text = base64.b64encode(content.encode()).decode()
    entry = next(entry for entry in entries if entry.get("content") == text)
    return int(entry["offset"]) // 4096 * 4096


@pytest.mark.ci
def test_printing_changes_nothing_and_shows_every_record(data: Path):
    before = contents(data)
    done = vespiary("journal", "print", data)
    assert done.returncode == 0, done.stderr
    assert "headers {destination: orders" in done.stdout
    assert 'content "three"' in done.stdout
    assert "4 surviving messages" in done.stdout
    assert "queue 1 (orders): 3" in done.stdout
    safe = vespiary("journal", "print", "--safe", data)
    assert "headers {destination: ***" in safe.stdout
    assert "three" not in safe.stdout
    lines = vespiary("journal", "print", "--json", data).stdout.splitlines()
    summaries = [json.loads(line) for line in lines if '"summary"' in line]
    assert [summary["kind"] for summary in summaries] == ["BINDINGS", "MESSAGE"]
    assert summaries[1]["liveMessages"] == {"1": 3, "2": 1}
    assert contents(data) == before


@pytest.mark.ci
def test_all_looking_commands_leave_a_live_broker_alone(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "journal-file-size=1MiB") as broker:
        send(broker, "orders", "one")
        before = settled(broker.data)
        for arguments in (
            ("info", broker.data),
            ("verify", broker.data),
            ("print", broker.data, "--reclaimed"),
            ("export", broker.data / "journal", tmp_path / "text"),
            ("recover", broker.data, tmp_path / "copy"),
        ):
            done = vespiary("journal", *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        assert contents(broker.data) == before
        assert take_messages(broker.port(), "orders", 1) == ["one"]


def test_text_of_messages_cannot_steer_a_terminal(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "journal-file-size=1MiB") as broker:
        send(broker, "orders", "\x1b[31mred\x1b[0m")
    done = vespiary("journal", "print", tmp_path / "data")
    assert "\x1b" not in done.stdout
    assert "\\u001b[31mred" in done.stdout


@pytest.mark.ci
def test_a_broker_starts_from_what_was_recovered(data: Path, tmp_path: Path):
    spoil(data / "journal/activemq-data-1.hq", offset_of(data, "two") + 80)
    assert vespiary("run", "--data", data, "--port", "0").returncode == 1
    before = contents(data)
    done = vespiary("journal", "recover", data, tmp_path / "new")
    assert done.returncode == 1, done.stderr
    assert "3 messages saved" in done.stdout
    assert "1 place lost" in done.stdout
    assert contents(data) == before
    assert vespiary("journal", "verify", tmp_path / "new").returncode == 0
    with BrokerProcess(tmp_path / "new", "journal-file-size=1MiB") as broker:
        assert take_messages(broker.port(), "orders", 2) == ["one", "three"]
        send(broker, "orders", "five")
        assert take_messages(broker.port(), "orders", 1) == ["five"]
        assert take_messages(broker.port(), "bills", 1) == ["four"]


@pytest.mark.ci
def test_queues_whose_bindings_are_lost_can_be_made_again(data: Path, tmp_path: Path):
    bindings = data / "bindings/activemq-bindings-1.bindings"
    lines = vespiary("journal", "print", data / "bindings", "--json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    lost = next(e for e in entries if e.get("fields", {}).get("key") == "queue/2")
    spoil(bindings, lost["offset"])
    done = vespiary("journal", "recover", data, tmp_path / "plain")
    assert "in no binding: 2: 1" in done.stdout
    done = vespiary("journal", "recover", "--recreate-queues", data, tmp_path / "new", "--json")
    assert done.returncode == 1
    messages, saved = json.loads(done.stdout)
    assert messages["liveMessages"] == {"1": 3, "2": 1}
    assert saved["bindings"] == ["counter/queue-id", "queue/1", "queue/2"]
    with BrokerProcess(tmp_path / "new", "journal-file-size=1MiB") as broker:
        assert take_messages(broker.port(), "orders", 3) == ["one", "two", "three"]
        assert take_messages(broker.port(), "recovered.2", 1) == ["four"]
        send(broker, "another", "six")
        assert take_messages(broker.port(), "another", 1) == ["six"]


@pytest.mark.ci
def test_recovering_into_the_old_folder_is_refused(data: Path):
    before = contents(data)
    assert vespiary("journal", "recover", data, data).returncode == 2
    assert vespiary("journal", "recover", data, data / "new").returncode == 2
    assert contents(data) == before
    done = vespiary("journal", "recover", data / "journal", data / "bindings")
    assert done.returncode == 1
    assert "empty or a new folder" in done.stderr
    assert contents(data) == before

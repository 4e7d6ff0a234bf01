"""Retention and replay with a real broker: settings by their effect, messages back in a queue."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

BODY = b"x" * 30_000
SMALL = ("journal-file-size=1MiB",)


def kept(history: Path) -> list[str]:
    return sorted(path.name for path in history.glob("*.hq")) if history.exists() else []


def work(broker: BrokerProcess, first: int, count: int) -> None:
    """Send numbered messages, some in a transaction that is aborted, and consume all."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("BEGIN", {"transaction": "t"})
        peer.send("SEND", {"destination": "/queue/in", "transaction": "t", "n": "aborted"}, BODY)
        peer.send("ABORT", {"transaction": "t"})
        for number in range(first, first + count):
            headers = {"destination": "/queue/in", "persistent": "true", "n": str(number)}
            headers |= {"parity": str(number % 2), "receipt": str(number)}
            peer.send("SEND", headers, BODY)
        peer.receive_receipt(str(first + count - 1))
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/in", "ack": "auto"})
        found = peer.receive_messages(count)
        assert [frame.get("n") for frame in found] == [
            str(number) for number in range(first, first + count)
        ]


def replay(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", "journal", "replay", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.ci
def test_consumed_messages_are_replayed_once(tmp_path: Path):
    history = tmp_path / "history"
    settings = (*SMALL, f"journal-retention-directory={history}")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        work(broker, 0, 100)
        wait_for(lambda: len(kept(history)) >= 2)
        # What is sent again fills journal files too: replay from a folder that stays as it is.
        frozen = tmp_path / "frozen"
        frozen.mkdir()
        for name in kept(history):  # not what is being made
            shutil.copy2(history / name, frozen)
        history = frozen
        before = {path: path.read_bytes() for path in history.iterdir()}
        dry = replay(str(history), "--dry-run", "--address", "in")
        assert dry["confirmed"] == 0
        count = dry["selected"]
        assert 60 <= count <= 100, "all but those of the newest file"
        url = ["--url", f"stomp://127.0.0.1:{broker.port()}", "--target", "/queue/again"]
        done = replay(str(history), *url, "--filter", "parity = 1", "--address", "in")
        again = replay(str(history), *url, "--filter", "parity = 1", "--address", "in")
        assert done["confirmed"] == again["confirmed"] > count // 3
        bindings = ["--bindings", str(tmp_path / "data/bindings")]
        named = replay(str(history), "--dry-run", "--queue", "in", *bindings)
        assert named["selected"] == count
        none = replay(str(history), *url, "--to", "2020-01-01")
        assert none["selected"] == 0
        rest = replay(str(history), *url, "--address", "in", "--skip", str(count - 1), "--dry-run")
        assert (rest["selected"], rest["skipped"]) == (count, count - 1)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/again", "ack": "auto"})
            found = peer.receive_messages(done["confirmed"])
            assert not peer.receive_rest("/queue/again")
        assert [f.get("n") for f in found] == [str(2 * i + 1) for i in range(len(found))]
        assert all(frame.body == BODY for frame in found)
        assert found[0].get("original-destination") == "/queue/in"
        for path, data in before.items():
            assert path.read_bytes() == data


def test_old_copies_go_by_size_and_by_age(tmp_path: Path):
    history = tmp_path / "history"
    settings = (*SMALL, f"journal-retention-directory={history}")
    with BrokerProcess(
        tmp_path / "data", *settings, "journal-retention-storage-limit=2MiB"
    ) as broker:
        work(broker, 0, 150)
        wait_for(lambda: len(kept(history)) == 2)
        work(broker, 150, 50)
    old = kept(history)
    assert old
    with BrokerProcess(tmp_path / "data", *settings, "journal-retention-period=1s") as broker:
        work(broker, 200, 60)
        wait_for(lambda: not set(kept(history)) & set(old))


LARGE = bytes(range(256)) * 2000


def send_large(peer: StompPeer, queue: str, numbers: range) -> None:
    for number in numbers:
        headers = {"destination": f"/queue/{queue}", "persistent": "true", "n": str(number)}
        peer.send("SEND", headers | {"receipt": f"l{number}"}, LARGE + str(number).encode())
        peer.receive_receipt(f"l{number}")


@pytest.mark.engine
def test_large_messages_are_replayed_with_their_bodies(tmp_path: Path):
    """Consumed ones from the copies, those that still wait from the broker's folder."""
    history = tmp_path / "history"
    settings = (*SMALL, f"journal-retention-directory={history}", "min-large-message-size=100KiB")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            send_large(peer, "big", range(3))
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/big", "ack": "auto"})
            assert len(peer.receive_messages(3)) == 3
            peer.send("UNSUBSCRIBE", {"id": "1", "receipt": "u"})
            peer.receive_receipt("u")
            send_large(peer, "big", range(3, 5))
        bodies = history / "large-messages"
        wait_for(lambda: len(list(bodies.glob("*.msg"))) == 3)
        work(broker, 0, 100)  # fills the file with the messages, which is copied then
        wait_for(lambda: len(kept(history)) >= 2)
        url = ["--url", f"stomp://127.0.0.1:{broker.port()}", "--target", "/queue/again"]
        place = ["--large-messages", str(tmp_path / "data/large-messages")]
        done = replay(str(history), *url, "--address", "big", *place)
        assert (done["confirmed"], done["lost"]) == (5, 0)
        next(iter(bodies.glob("*.msg"))).unlink()
        rest = replay(str(history), "--dry-run", "--address", "big", *place)
        assert (rest["selected"], rest["lost"]) == (5, 1)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/again", "ack": "auto"})
            found = peer.receive_messages(5)
            assert [frame.get("n") for frame in found] == list("01234")
            for frame in found:
                assert frame.body == LARGE + frame.get("n").encode()  # type: ignore[union-attr]

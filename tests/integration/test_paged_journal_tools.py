"""The tools on a journal of which messages stand in pages: they say so, and lose none of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=64KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)
COUNT = 3000


def journal(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vespiary_broker", "journal", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def info(folder: Path) -> dict[str, Any]:
    done = journal("info", folder, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    return next(report for report in reports if report["kind"] == "MESSAGE")


def fill(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(COUNT):
            headers = {"destination": "/queue/in", "persistent": "true", "receipt": str(number)}
            peer.send("SEND", headers, b"%d " % number + b"x" * 1000)
        peer.receive_receipt(str(COUNT - 1))


def drain(broker: BrokerProcess, count: int) -> list[int]:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/in", "ack": "auto"})
        frames = peer.receive_messages(count)
        assert not peer.receive_rest("/queue/in")
        peer.send("DISCONNECT", {"receipt": "bye"})
        peer.receive_receipt("bye")
    return [int(frame.body.split()[0]) for frame in frames]


@pytest.mark.ci
def test_pages_are_counted_and_nothing_is_left_out_in_silence(tmp_path: Path) -> None:
    data = tmp_path / "data"
    text = tmp_path / "journal.text"
    with BrokerProcess(data, *SETTINGS) as broker:
        fill(broker)
        wait_for(lambda: len(list((data / "paging").glob("*/*.page"))) > 5)
    found = info(data)
    (live,) = found["liveMessages"].values()
    (paged,) = found["pagedMessages"].values()
    assert live + paged == COUNT
    assert found["pages"] > 5
    assert f"in {found['pages']} pages: queue 1 (in): {paged}" in journal("info", data).stdout
    assert journal("verify", data).returncode == 0

    done = journal("export", data / "journal", text)
    assert done.returncode == 1
    assert f"{paged} messages in {found['pages']} pages" in done.stderr
    done = journal("recover", data / "journal", tmp_path / "saved", "--json")
    (saved,) = json.loads(done.stdout)
    assert sum(saved["liveMessages"].values()) + saved["leftInPages"] == COUNT

    with BrokerProcess(data, *SETTINGS) as broker:
        assert drain(broker, COUNT) == list(range(COUNT))
        fill(broker)
        drain(broker, COUNT)
        wait_for(lambda: not list((data / "paging").glob("*/*.page")))
    assert info(data)["pagedMessages"] == {}
    done = journal("export", data / "journal", text)
    assert done.returncode == 0, done.stderr
    fresh = tmp_path / "fresh"
    done = journal("import", text, fresh / "journal")
    assert done.returncode == 0, done.stderr
    subprocess.run(["cp", "-r", str(data / "bindings"), str(fresh)], check=True)
    with BrokerProcess(fresh, *SETTINGS) as broker:
        assert drain(broker, 0) == []

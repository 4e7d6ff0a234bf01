"""`vespiary-pipeline replay`: messages of files to a real broker again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.wire.stomp import Frame
from vespiary_testkit.broker_calls import address, call
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = pytest.mark.spark
ROWS = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    """Files of a broker: orders, prices, a transaction and one that was rolled back; and a time
    between the first and the second half of the orders."""
    path = tmp_path_factory.mktemp("source") / "data"
    with BrokerProcess(path) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        send(peer, "orders", *[f"o{number}" for number in range(ROWS // 2)], colour="red")
        send(peer, "prices", "p0", "p1", priority="7")
        time.sleep(0.01)  # arrival is in milliseconds
        between = datetime.now(UTC)
        time.sleep(0.01)
        send(peer, "orders", *[f"o{number}" for number in range(ROWS // 2, ROWS)])
        for name, end in (("kept", "COMMIT"), ("void", "ABORT")):
            peer.send("BEGIN", {"transaction": name})
            send(peer, "orders", f"tx-{name}", transaction=name)
            peer.send(end, {"transaction": name, "receipt": name})
            peer.receive_receipt(name)
        broker.kill()
    return path, between


def send(peer: StompPeer, queue: str, *bodies: str, **headers: str) -> None:
    for number, body in enumerate(bodies):
        sent = {"destination": f"/queue/{queue}", "persistent": "true", **headers}
        if number == len(bodies) - 1 and "transaction" not in headers:
            sent["receipt"] = "sent"
        peer.send("SEND", sent, body.encode())
    if "transaction" not in headers:
        peer.receive_receipt("sent")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "target") as broker:
        yield broker


def to(broker: BrokerProcess) -> list[str]:
    stomp = f"stomp://127.0.0.1:{broker.port()}"
    return ["--target", "again", "--url", address(broker), "--stomp-url", stomp]


def arrived(broker: BrokerProcess) -> list[Frame]:
    waiting = call(broker, "GET", "/queues/again")["messages"]
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/again", "ack": "auto"})
        return [peer.receive() for _ in range(waiting)]


def bodies(frames: list[Frame]) -> list[str]:
    return [frame.body.decode() for frame in frames]


def test_all_messages_come_again_in_their_order(
    run: Any, files: tuple[Path, datetime], target: BrokerProcess
) -> None:
    path, _ = files
    (told,) = [json.loads(run("replay", path, "--dry-run", "--json", "--address", "orders").stdout)]
    assert told == {"selected": ROWS + 1, "sent": 0, "lost": 0}
    said = run("replay", path, *to(target), "--address", "orders").stdout
    assert f"{ROWS + 1} of {ROWS + 1} messages sent to again" in said
    found = arrived(target)
    assert bodies(found) == [*[f"o{number}" for number in range(ROWS)], "tx-kept"]
    assert found[0].get("colour") == "red"
    assert {frame.get("original-destination") for frame in found} == {"/queue/orders"}
    assert call(target, "GET", "/fences")["items"] == []


@pytest.mark.verify
def test_times_headers_and_queues_select(
    run: Any, files: tuple[Path, datetime], target: BrokerProcess
) -> None:
    path, between = files
    first = [f"o{number}" for number in range(ROWS // 2)]
    run("replay", path, *to(target), "--to", between.isoformat())
    assert sorted(bodies(arrived(target))) == sorted([*first, "p0", "p1"])
    run("replay", path, *to(target), "--from", between.isoformat(), "--delivery", "plain")
    rest = [f"o{number}" for number in range(ROWS // 2, ROWS)]
    assert bodies(arrived(target)) == [*rest, "tx-kept"]
    run("replay", path, *to(target), "--filter", "colour = red")
    assert bodies(arrived(target)) == first
    run("replay", path, *to(target), "--queue", "prices")
    prices = arrived(target)
    assert bodies(prices) == ["p0", "p1"]
    assert {frame.get("priority") for frame in prices} == {"7"}


@pytest.mark.verify
def test_what_is_sent_twice_arrives_once(
    run: Any, files: tuple[Path, datetime], target: BrokerProcess
) -> None:
    path, _ = files
    for _ in range(2):
        run("replay", path, *to(target), "--address", "prices", "--delivery", "dedup")
        run("replay", path, *to(target), "--queue", "prices", "--write-id", "prices-again")
    assert sorted(bodies(arrived(target))) == ["p0", "p0", "p1", "p1"]


@pytest.mark.verify
def test_exports_come_again_too(
    run: Any, files: tuple[Path, datetime], target: BrokerProcess, tmp_path: Path
) -> None:
    path, _ = files
    run("export", path, "--to", tmp_path / "lake")
    run("replay", tmp_path / "lake", *to(target), "--address", "orders", "--tasks", "3")
    assert sorted(bodies(arrived(target))) == sorted(
        [*[f"o{number}" for number in range(ROWS)], "tx-kept"]
    )
    run("export", path, "--to", tmp_path / "bare", "--no-bodies")
    refused = run("replay", tmp_path / "bare", *to(target), code=1)
    assert "without bodies" in refused.stderr


@pytest.mark.verify
def test_a_replay_needs_a_broker(run: Any, files: tuple[Path, datetime]) -> None:
    path, _ = files
    assert "needs --target and --url" in run("replay", path, code=2).stderr
    nobody = ["--target", "again", "--url", "http://127.0.0.1:1"]
    refused = run("replay", path, *nobody, "--stomp-url", "stomp://127.0.0.1:1", code=1)
    assert "can't be reached" in refused.stderr
    assert "no time" in run("replay", path, *nobody, "--from", "yesterday", code=2).stderr

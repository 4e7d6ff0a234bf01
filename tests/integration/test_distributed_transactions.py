"""Distributed transactions against a real broker: the page's example, kill -9, administrators."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.bindings import BindingsJournal
from vespiary_codec.wire.stomp import Frame
from vespiary_testkit import product_loop
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/transactions.md"
X = "7:0a0b:01"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data", "journal-file-size=2MiB")
    broker.start()
    yield broker
    if broker.process is not None:
        assert broker.stop() == 0, broker.log_text()


def vespiary(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def transaction(broker: BrokerProcess, *arguments: str) -> Any:
    url = f"http://127.0.0.1:{broker.port('http')}"
    return vespiary("transaction", *arguments, "--api", url)


def restart(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def connected(broker: BrokerProcess) -> StompPeer:
    peer = StompPeer(broker.port())
    peer.connect()
    return peer


def prepare(peer: StompPeer, *bodies: bytes, xid: str = X) -> Frame:
    """Send in a branch and prepare it; return the receipt."""
    peer.send("BEGIN", {"transaction": "t", "xid": xid})
    for body in bodies:
        headers = {"destination": "/queue/a", "transaction": "t", "persistent": "true"}
        peer.send("SEND", headers, body)
    return end(peer, "COMMIT", phase="prepare", xid=xid)


def end(peer: StompPeer, command: str, *, xid: str = X, **headers: str) -> Frame:
    peer.send(command, {"transaction": "t", "xid": xid, "receipt": "r", **headers})
    frame = peer.receive()
    assert frame.command == "RECEIPT", frame.get("message")
    return frame


def messages(broker: BrokerProcess) -> list[bytes]:
    """Return what is in the queue and nobody has locked, and leave it there."""
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/a"

    def state() -> dict[str, int]:
        with urllib.request.urlopen(url) as answer:
            found: dict[str, int] = json.load(answer)
            return found

    wait_for(lambda: not state()["delivering"], "a consumer that has gone holds something")
    ready = state()["ready"]
    ack = "client-individual"
    with connected(broker) as peer:
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/a", "ack": ack, "receipt": "s"})
        found = [frame.body for frame in peer.receive_receipt("s")]
        found += [frame.body for frame in peer.receive_messages(ready - len(found))]
        assert not peer.receive_rest("/queue/a")
        return found


def test_the_example_of_the_page_runs_with_stomp_py(broker: BrokerProcess) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code = example.replace("61613", str(broker.port("stomp")))
    assert code != example
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout == "done XA_OK\ndone XA_OK\n"
    with connected(broker) as peer:
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/invoices"})
        (message,) = peer.receive_messages(1)
    assert message.body == b"invoice 7"


@pytest.mark.ci
@pytest.mark.parametrize("command", ["COMMIT", "ABORT"])
def test_a_prepared_branch_survives_kill_9_twice(broker: BrokerProcess, command: str) -> None:
    with connected(broker) as peer:
        headers = {"destination": "/queue/a", "persistent": "true", "receipt": "0"}
        peer.send("SEND", headers, b"before")
        peer.receive_receipt("0")
        assert prepare(peer, b"one", b"two").get("xa") == "XA_OK"
        peer.send("SEND", headers | {"receipt": "1"}, b"behind")
        peer.receive_receipt("1")
    for _ in range(2):
        restart(broker)
        (branch,) = transaction(broker, "list")
        assert (branch["xid"], branch["state"]) == (X, "prepared")
        assert branch["members"] == [{"queue": "a", "added": 2, "acknowledged": 0}]
        assert messages(broker) == [b"before", b"behind"]
    with connected(broker) as peer:
        end(peer, command)
    restart(broker)
    assert transaction(broker, "list") == []
    kept = [b"one", b"two"] if command == "COMMIT" else []
    assert messages(broker) == [b"before", *kept, b"behind"]


@pytest.mark.engine
def test_an_acknowledgement_is_prepared_over_a_kill(broker: BrokerProcess) -> None:
    with connected(broker) as peer:
        headers = {"destination": "/queue/a", "persistent": "true", "receipt": "0"}
        peer.send("SEND", headers, b"job")
        peer.receive_receipt("0")
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/a", "ack": "client-individual"})
        (message,) = peer.receive_messages(1)
        peer.send("BEGIN", {"transaction": "t", "xid": X})
        peer.send("ACK", {"id": message.get("ack", ""), "transaction": "t"})
        end(peer, "COMMIT", phase="prepare")
    restart(broker)
    assert messages(broker) == [], "it is locked"
    with connected(broker) as peer:
        end(peer, "ABORT")
    assert messages(broker) == [b"job"]


@pytest.mark.ci
def test_a_heuristic_outcome_is_remembered_over_a_kill(broker: BrokerProcess) -> None:
    with connected(broker) as peer:
        prepare(peer, b"one")
        assert transaction(broker, "commit", X, "--yes")["state"] == "heuristic-commit"
    restart(broker)
    assert messages(broker) == [b"one"]
    with connected(broker) as peer:
        peer.send("COMMIT", {"transaction": "t", "xid": X})
        assert "XA_HEURCOM" in peer.receive_error().get("message", "")
    assert transaction(broker, "forget", X, "--yes") == {"forgotten": X}
    restart(broker)
    assert transaction(broker, "list") == []
    assert messages(broker) == [b"one"]


@pytest.mark.ci
def test_a_branch_whose_queue_is_gone_is_kept_in_quarantine(broker: BrokerProcess) -> None:
    with connected(broker) as peer:
        prepare(peer, b"one")
    assert broker.stop() == 0
    product_loop.run(forget_queues(broker.data / "bindings"))
    broker.start()
    (branch,) = transaction(broker, "list")
    assert branch["state"] == "quarantined"
    assert "bindings do not know queue" in branch["reason"]
    assert "prepared branch in quarantine" in broker.log_text()
    with connected(broker) as peer:
        peer.send("COMMIT", {"transaction": "t", "xid": X})
        assert "XAER_RMERR" in peer.receive_error().get("message", "")
    restart(broker)
    assert transaction(broker, "list")[0]["state"] == "quarantined"
    assert transaction(broker, "rollback", X, "--yes")["state"] == "heuristic-rollback"
    transaction(broker, "forget", X, "--yes")
    restart(broker)
    assert transaction(broker, "list") == []


async def forget_queues(folder: Path) -> None:
    """Take the queues out of the bindings, as an older copy of them might lack them."""
    bindings = await BindingsJournal.open(folder)
    for key in bindings.snapshot():
        if key.startswith("queue/"):
            await bindings.remove(key)
    await bindings.close()


def test_a_queue_with_prepared_members_is_not_deleted(broker: BrokerProcess) -> None:
    with connected(broker) as peer:
        prepare(peer, b"one")
        url = f"http://127.0.0.1:{broker.port('http')}"
        command = ("queue", "delete", "a", "--force", "--yes", "--api", url)
        done = subprocess.run(
            [sys.executable, "-m", "vespiary_broker", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 1
        assert "prepared transactions" in done.stderr
        end(peer, "COMMIT")
    assert messages(broker) == [b"one"]


def test_transaction_timeout_has_an_effect(tmp_path: Path) -> None:
    settings = ("transaction-timeout=1000", "transaction-timeout-scan-period=100")
    with BrokerProcess(tmp_path / "data", *settings) as broker, connected(broker) as peer:
        peer.send("BEGIN", {"transaction": "t"})
        end_s = time.monotonic() + WAIT_S
        metrics = ""
        while "vespiary_transactions_timed_out_total 1.0" not in metrics:
            assert time.monotonic() < end_s, metrics
            url = f"http://127.0.0.1:{broker.port('http')}/metrics"
            metrics = urllib.request.urlopen(url).read().decode()
        peer.send("COMMIT", {"transaction": "t"})
        assert "transaction-timeout" in peer.receive_error().get("message", "")

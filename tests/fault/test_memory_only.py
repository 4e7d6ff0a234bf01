"""`persistence-enabled: false`: whatever clients do, nothing is written to any disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.system_call_faults import watcher

CALLS = "open,openat,openat2,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink"
_OPENED = re.compile(
    r'(?:open|openat|openat2|creat)\([^"]*"(?P<path>[^"]*)", (?P<flags>[A-Z_|0-9]+)'
)
_MADE = re.compile(r'(?:mkdir|mkdirat|rename\w*|link\w*|symlink)\([^"]*"(?P<path>[^"]*)"')
WRITING = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}


def written(trace: str) -> list[str]:
    """Return the paths that were opened for writing, or made, without those of devices."""
    found = [m["path"] for m in _MADE.finditer(trace) if "EEXIST" not in m.string[m.end() :][:40]]
    found += [
        match["path"]
        for match in _OPENED.finditer(trace)
        if WRITING & set(match["flags"].split("|"))
    ]
    return [path for path in found if not path.startswith(("/dev/", "/proc/"))]


def use(broker: BrokerProcess) -> None:
    """Do all that would be written: queues, subscriptions, messages, transactions, acks."""
    with StompPeer(broker.port()) as peer:
        peer.connect(client_id="c")
        headers = {"destination": "/queue/q", "persistent": "true", "receipt": "r"}
        for size in (10, 1000, 100_000):
            peer.send("SEND", headers, b"x" * size)
            assert peer.receive().command == "RECEIPT"
        peer.send("BEGIN", {"transaction": "t"})
        peer.send("SEND", {**headers, "transaction": "t", "_AMQ_DUPL_ID": "1"}, b"in a transaction")
        assert peer.receive().command == "RECEIPT"
        peer.send("COMMIT", {"transaction": "t", "receipt": "c"})
        assert peer.receive().command == "RECEIPT"
        subscription = {"id": "1", "destination": "/queue/q", "ack": "client-individual"}
        peer.send("SUBSCRIBE", subscription)
        for _ in range(4):
            message = peer.receive()
            assert message.command == "MESSAGE"
            peer.send("ACK", {"id": message.get("ack") or "", "receipt": "a"})
        for _ in range(4):
            assert peer.receive().command == "RECEIPT"
        durable = {"id": "2", "destination": "/topic/t", "durable-subscription-name": "d"}
        peer.send("SUBSCRIBE", {**durable, "receipt": "s"})
        assert peer.receive().command == "RECEIPT"


@pytest.mark.parametrize("is_persistent", [False, True])
def test_nothing_is_written(
    tmp_path: Path, is_persistent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    data, trace = tmp_path / "data", tmp_path / "trace"
    settings = [f"persistence-enabled={str(is_persistent).lower()}", "journal-file-size=1MiB"]
    with BrokerProcess(data, *settings, under=watcher(CALLS, trace)) as broker:
        assert broker.ready["durability"] == ("D2" if is_persistent else "D0")
        use(broker)
    paths = written(trace.read_text())
    if is_persistent:  # the trace sees what there is to see
        assert data.is_dir()
        assert any("activemq-data-" in path for path in paths)
        assert any("activemq-bindings-" in path for path in paths)
    else:
        assert paths == []
        assert not data.exists()

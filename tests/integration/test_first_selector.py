"""The first selector of a broker: its parser is imported and built beside the event loop."""

from __future__ import annotations

import sys
from pathlib import Path

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

WATCHER = """
import sys, threading

class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "lark":
            thread = threading.current_thread()
            is_main = thread is threading.main_thread()
            print("lark is imported by", "the loop" if is_main else "a thread", file=sys.stderr)

sys.meta_path.insert(0, Watcher())
sys.argv = ["vespiary", *sys.argv[4:]]
from vespiary_broker.cli import main
sys.exit(main())
"""


def test_a_thread_builds_the_parser_of_selectors(tmp_path: Path) -> None:
    script = tmp_path / "watcher.py"
    script.write_text(WATCHER)
    under = [sys.executable, str(script)]
    with BrokerProcess(tmp_path / "data", under=under) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        assert "lark" not in broker.log_text(), "who has no selector pays for none"
        headers = {"id": "1", "destination": "/queue/q", "selector": "a = 'b'", "receipt": "1"}
        peer.send("SUBSCRIBE", headers)
        assert peer.receive().command == "RECEIPT"
        for value in "cb":
            peer.send("SEND", {"destination": "/queue/q", "a": value})
        assert peer.receive().get("a") == "b"
        assert "lark is imported by a thread" in broker.log_text()
        assert "by the loop" not in broker.log_text()

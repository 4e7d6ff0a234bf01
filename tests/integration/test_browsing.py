"""Browsing a real broker: by the API and by `vespiary browse`; nothing is taken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from urllib.parse import urlencode

import pytest

from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.terminal import Terminal
from vespiary_testkit.waiting import wait_for


def browse(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    api = f"http://127.0.0.1:{broker.port('http')}"
    return subprocess.run(
        [sys.executable, "-m", "vespiary_broker", "browse", *arguments, "--api", api],
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.ci
def test_messages_are_looked_at_and_left_there(tmp_path: Path):
    small = ("journal-file-size=1MiB", "min-large-message-size=200KiB")
    with BrokerProcess(tmp_path / "data", *small) as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            headers = {"destination": "/queue/shown", "persistent": "true"}
            for number in range(250):
                own = {"n": str(number), "note": "a:b", "receipt": str(number)}
                peer.send("SEND", headers | own, b"body %d" % number)
            peer.send("SEND", headers | {"n": "250"}, b"\xff\x00\xfe")
            peer.send("SEND", headers | {"n": "251", "receipt": "all"}, b"x" * 300_000)
            peer.receive_receipt("all")
        done = browse(broker, "shown", "--all", "--json")
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [message["headers"]["n"] for message in found] == [str(n) for n in range(252)]
        assert found[0]["headers"]["note"] == "a:b"
        assert found[7]["body"] == "body 7"
        assert (found[250]["body"], found[250]["bodyBase64"]) == (None, "/wD+")
        assert (found[251]["isLarge"], found[251]["bodyBytes"]) == (True, 300_000)
        done = browse(broker, "shown", "-n", "2", "--filter", "n BETWEEN 3 AND 9", "--headers")
        assert done.stdout.count(b"body ") == 2
        assert b"note: a:b" in done.stdout
        assert b"body 3\n" in done.stdout
        broker.kill()
        broker.start()
        assert len(browse(broker, "shown", "--all", "--json").stdout.splitlines()) == 252
        assert b"no queue" in browse(broker, "nowhere").stderr
        done = browse(broker, "shown", "--filter", "n = ")
        assert done.returncode == 1
        assert b"selector" in done.stderr
        query = urlencode({"bodyBytes": 3, "limit": 1})
        page = ask(broker, f"/api/v1/queues/shown/messages?{query}")
        assert (page["items"][0]["body"], page["items"][0]["bodyBytes"]) == ("bod", 6)


def test_messages_in_pages_are_shown_too(tmp_path: Path):
    small = ("address-settings.#.max-size-bytes=256KiB", "address-settings.#.page-size-bytes=64KiB")
    with BrokerProcess(tmp_path / "data", *small, "journal-file-size=1MiB") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(1500):
                headers = {"destination": "/queue/deep", "persistent": "true", "n": str(number)}
                peer.send("SEND", headers | {"receipt": str(number)}, b"x" * 1000)
            peer.receive_receipt("1499")
        wait_for(lambda: len(list((tmp_path / "data/paging").glob("*/*.page"))) > 8)
        for _ in range(2):
            done = browse(broker, "deep", "--all", "--json")
            assert done.returncode == 0, done.stderr
            found = [json.loads(line)["headers"]["n"] for line in done.stdout.splitlines()]
            assert found == [str(number) for number in range(1500)]
        done = browse(broker, "deep", "--filter", "n IN ('3', '700', '1499')", "--json")
        assert [json.loads(line)["headers"]["n"] for line in done.stdout.splitlines()] == [
            *("3", "700", "1499")
        ]
        with StompPeer(broker.port()) as peer:
            peer.connect()
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/deep", "ack": "auto"})
            taken = peer.receive_messages(1500)
        assert [frame.get("n") for frame in taken] == [str(number) for number in range(1500)]


def ask(broker: BrokerProcess, path: str) -> dict[str, list[dict[str, object]]]:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{broker.port('http')}{path}", timeout=60) as answer:
        found: dict[str, list[dict[str, object]]] = json.load(answer)
    return found


CONTROLS = "\x1b]0;owned\x07 \x9b2J \x7f \u202e\rover"
"""What a message may hold to steer a terminal: its title, its screen, the order of its text."""


def shown_on_a_terminal(broker: BrokerProcess, *arguments: str) -> str:
    """Run a command whose output and errors go to a terminal; return what was written there."""
    screen = Terminal()
    option = "--url" if arguments[0] in ("send", "receive") else "--api"
    scheme, name = ("stomp", "all") if option == "--url" else ("http", "http")
    subprocess.run(
        [
            *(sys.executable, "-m", "vespiary_broker", *arguments),
            *(option, f"{scheme}://127.0.0.1:{broker.port(name)}"),
        ],
        stdout=screen.file,
        stderr=screen.file,
        env={**environment(), "COLUMNS": "300"},
        check=False,
        timeout=60,
    )
    return screen.close()


@pytest.mark.ci
def test_control_characters_of_clients_do_not_reach_the_terminal(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker, StompPeer(broker.port()) as peer:
        peer.connect(**{"client-id": f"c{CONTROLS}".replace("\r", "")})  # CONNECT cannot escape it
        sent = {"destination": "/queue/hostile", "note": CONTROLS, "receipt": "1"}
        peer.send("SEND", sent, f"first\nsecond {CONTROLS}".encode() + b"\xff\x9b2J")
        peer.receive_receipt("1")
        name = f"s{CONTROLS}".replace("\r", "")
        held = {"destination": "/queue/other", "id": name, "selector": f"a = '{name}'"}
        peer.send("SUBSCRIBE", held | {"receipt": "2"})
        peer.receive_receipt("2")
        for arguments in (
            ("browse", "hostile", "--headers"),
            ("browse", "hostile", "--json"),
            ("consumer", "list"),
            ("consumer", "list", "--json"),
            ("connection", "list"),
            ("connection", "list", "--json"),
            ("send", f"q{CONTROLS}", "x"),
            ("receive", "hostile", "--headers"),
        ):
            text = shown_on_a_terminal(broker, *arguments)
            # A terminal puts \r before each line feed, and the headings of tables are bold.
            text = re.sub(r"\x1b\[[01]m", "", text.replace("\r\n", ""))
            held = [c for c in text if unicodedata.category(c) == "Cc"]
            assert held == [], (arguments, text)
            assert "\u202e" not in text, arguments
            is_quoted = arguments[0] == "send"  # by the broker, in its error
            assert ("\\x1b" if is_quoted else "\\u001b") in text, (arguments, text)
        peer.send("SEND", sent | {"receipt": "3"}, CONTROLS.encode())
        peer.receive_receipt("3")
        assert CONTROLS in shown_on_a_terminal(broker, "browse", "hostile", "--raw")
        assert CONTROLS.encode() in browse(broker, "hostile").stdout, "a pipe gets what is stored"
        assert CONTROLS in shown_on_a_terminal(broker, "receive", "hostile", "--raw")

"""How long costly selectors, filters and patterns delay another connection.

`python -m benchmarks.bench_selectors`. Owns: the broker, its hostile clients, a client that pings
beside them, and the table. Must never: be a test's verdict. Called by people;
docs/howto/benchmarks.md has the figures.

For each ping the table has the time until the answer, and the processor time that the broker's
event loop has had meanwhile, which other programs of the machine do not change.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import machine
from benchmarks.broker import RunningBroker, running_broker
from benchmarks.protocols import hostile
from vespiary_codec.wire.amqp import (
    Begin,
    Frame,
    Layer,
    Open,
    Source,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import Described, Symbol, UInt

_HEADER: Final = "a" * 60_000
_COSTLY: Final = " OR ".join([f"h LIKE '%{'a_' * 509}b%'"] * 6)
"""Close to the most that is accepted: about 6 KB."""
_TOO_COSTLY: Final = " OR ".join([f"h LIKE '%{'a_' * 509}b%'"] * 8)
"""The 8 KB that are refused."""
_LONG: Final = " OR ".join([f"h LIKE '{'_a' * 200}b%'"] * 92)
"""38 KB, about as long as is accepted, with patterns for the beginning of a header."""
_TOO_LONG: Final = " OR ".join([f"h LIKE '{'_a' * 115}b%'"] * 250)
"""61 KB that are refused."""
_NUMBERED: Final = "n IN ('0'" + "".join(f",'{n:060}'" for n in range(508)) + ")"
"""As many words as are accepted, in 32 KB."""
_WAIT_S: Final = 120.0
_PAUSE_S: Final = 0.001


class Delays:
    """A client that pings the broker as long as the block lasts.

    Attributes:
        wall_ms: Milliseconds until the answer, of each ping.
        loop_ms: Milliseconds that the broker's loop has had of a processor meanwhile.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self.wall_ms: list[float] = []
        self.loop_ms: list[float] = []
        self._facts = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat")
        self._client = _connected(broker, "MQTT", 999)
        self._client.recv(4)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ping)

    def __enter__(self) -> Delays:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _ping(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            begin, had = time.perf_counter(), self._had_ms()
            self._client.sendall(b"\xc0\0")
            if not self._client.recv(2):
                raise SystemExit("the broker closed the connection that pings")
            self.loop_ms.append(self._had_ms() - had)
            self.wall_ms.append(1000 * (time.perf_counter() - begin))

    def _had_ms(self) -> float:
        return int(self._facts.read_text().split()[0]) / 1e6


def _connected(broker: RunningBroker, protocol: str, number: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.ports["all"]), _WAIT_S)
    client.sendall(hostile.login(protocol, number))
    return client


def _read_until(client: socket.socket, wanted: bytes) -> None:
    """Read until something was said; all else is thrown away."""
    seen = b""
    client.settimeout(_WAIT_S)
    while wanted not in seen:
        data = client.recv(1 << 20)
        if not data:
            raise SystemExit(f"the broker closed the connection: {seen[-300:]!r}")
        if b"ERROR" in data:
            raise SystemExit(f"the broker said: {data[:300]!r}")
        seen = seen[-200:] + data


def _send(client: socket.socket, to: str, count: int, header: str = _HEADER) -> None:
    """Send messages, and wait until they are confirmed."""
    for number in range(count):
        receipt = f"receipt:sent-{to}-{number}\n"
        client.sendall(f"SEND\ndestination:{to}\n{receipt}h:{header}\n\nx\0".encode())
    _read_until(client, f"sent-{to}-{count - 1}".encode())


def _subscribe(client: socket.socket, to: str, selector: str, number: int = 0) -> None:
    head = f"SUBSCRIBE\nid:{number}\nreceipt:subscribed-{number}\ndestination:{to}\n"
    client.sendall(f"{head}selector:{selector}\n\n\0".encode())


def _subscribed(client: socket.socket, to: str, selector: str, number: int = 0) -> None:
    _subscribe(client, to, selector, number)
    _read_until(client, b"subscribed-%d" % number)


def _get(broker: RunningBroker, path: str, selector: str) -> None:
    query = urllib.parse.urlencode({"filter": selector})
    url = f"http://127.0.0.1:{broker.http_port}/api/v1{path}?{query}"
    with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
        answer.read()


def _wait_until_loaded(broker: RunningBroker) -> None:
    """Wait for an answer by HTTP: what answers is loaded in a thread after the start.

    That delays pings too, though no client asked for it.
    """
    url = f"http://127.0.0.1:{broker.http_port}/readyz"
    with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
        answer.read()


def subscription(broker: RunningBroker, selector: str = _COSTLY) -> None:
    """21 messages and one subscriber whose selector matches none of them."""
    with _connected(broker, "STOMP", 0) as client:
        _send(client, "/queue/a", 21)
        _subscribed(client, "/queue/a", selector)
        _send(client, "/queue/a", 5)
        time.sleep(0.5)


def refused(broker: RunningBroker) -> None:
    """Selectors that are too costly or too long: all that happens is that they are refused."""
    for selector in (_TOO_COSTLY, _TOO_LONG):
        with _connected(broker, "STOMP", 0) as client:
            _read_until(client, b"CONNECTED")
            _send(client, "/queue/a", 21)
            _subscribe(client, "/queue/a", selector)
            while client.recv(1 << 16):
                pass


def filters(broker: RunningBroker) -> None:
    """Ten filters of one address, and messages to it."""
    with _connected(broker, "STOMP", 0) as client, _connected(broker, "STOMP", 1) as other:
        for number in range(10):
            _subscribed(client, "/topic/a", _COSTLY.replace("b%'", f"{number}%'"), number)
        _send(other, "/topic/a", 21)


def long_filter(broker: RunningBroker) -> None:
    """A filter of 38 KB, and messages to its address."""
    with _connected(broker, "STOMP", 0) as client, _connected(broker, "STOMP", 1) as other:
        _subscribed(client, "/topic/a", _LONG)
        _send(other, "/topic/a", 21)


def dead_letters(broker: RunningBroker) -> None:
    """Moves to an address with ten filters."""
    with _connected(broker, "STOMP", 0) as client, _connected(broker, "STOMP", 1) as other:
        for number in range(10):
            selector = _COSTLY.replace("b%'", f"{number}%'")
            _subscribed(client, "/topic/DLA", f"h IS NOT NULL OR {selector}", number)
        frame = f"SEND\ndestination:/queue/a\nexpires:1\nh:{_HEADER}\n\nx\0"
        other.sendall(frame.encode() * 21)
        _subscribe(other, "/queue/a", "", 0)
        time.sleep(3)


def _attach(selector: str, handle: int, *, is_browsing: bool = False) -> bytes:
    described = Described(Symbol("apache.org:selector-filter:string"), selector)
    mode = Symbol("copy") if is_browsing else None
    source = Source(address="/queue/a", filter={Symbol("s"): described}, distribution_mode=mode)
    return hostile.amqp_attach(source, handle, 1000)


def _amqp(broker: RunningBroker, number: int, frames: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", broker.ports["all"]), _WAIT_S)
    begin = Begin(
        next_outgoing_id=UInt(0), incoming_window=UInt(2**20), outgoing_window=UInt(2**20)
    )
    hello = [Frame(0, Open(container_id=f"c{number}")), Frame(0, begin)]
    said = protocol_header(Layer.AMQP) + b"".join(encode_frame(frame) for frame in hello)
    client.sendall(said + frames)
    return client


def attaches(broker: RunningBroker) -> None:
    """AMQP links with long selectors: ten on one connection, and 40 connections at once."""
    clients = [_amqp(broker, 0, b"".join(_attach(_NUMBERED, n) for n in range(10)))]
    clients += [_amqp(broker, 1 + n, b"") for n in range(40)]
    time.sleep(1)
    for client in clients[1:]:
        client.sendall(_attach(_NUMBERED, 0))
    time.sleep(4)
    for client in clients:
        client.close()


def subscriptions(broker: RunningBroker) -> None:
    """STOMP subscriptions with long selectors: ten on one connection, 40 connections at once."""
    clients = [_connected(broker, "STOMP", n) for n in range(41)]
    for client in clients:
        _read_until(client, b"CONNECTED")
    for number in range(10):
        _subscribe(clients[0], "/queue/a", _NUMBERED, number)
    for client in clients[1:]:
        _subscribe(client, "/queue/a", _NUMBERED)
    for client in clients[1:]:
        _read_until(client, b"subscribed-0")
        client.close()
    clients[0].close()


def amqp_browser(broker: RunningBroker) -> None:
    """One AMQP browser with a costly selector."""
    with _connected(broker, "STOMP", 0) as client:
        _send(client, "/queue/a", 21)
    with _amqp(broker, 0, _attach(_COSTLY, 0, is_browsing=True)):
        time.sleep(2)


def browsing(broker: RunningBroker) -> None:
    """Browsing and counting by the HTTP API."""
    with _connected(broker, "STOMP", 0) as client:
        _send(client, "/queue/a", 41)
    _get(broker, "/queues/a/messages", _COSTLY)
    _get(broker, "/queues/a/count", _COSTLY)


def wildcards(broker: RunningBroker) -> None:
    """4000 patterns of many levels, and messages to new topics that fit all but their ends."""
    clients = [_connected(broker, "MQTT", number) for number in range(5)]
    other = clients.pop()
    for base, client in enumerate(clients):
        client.recv(4)
        for number in range(1000 * base, 1000 * (base + 1)):
            levels = "/".join("+" if number >> bit & 1 else "a" for bit in range(12))
            end = f"/{'+/' * (number % 8)}x{number}"
            client.sendall(
                b"\x82" + _mqtt_rest((number + 1).to_bytes(2, "big") + _text(levels + end) + b"\0")
            )
        _count(client, 5 * 1000)
    for number in range(50):
        topic = "/".join("a" for _ in range(20)) + f"/{number}"
        other.sendall(b"\x30" + _mqtt_rest(_text(topic) + b"x"))
    time.sleep(3)
    for client in (*clients, other):
        client.close()


def long_wildcards(broker: RunningBroker) -> None:
    """2000 patterns of 1000 bytes, and messages to new topics that fit all but their ends."""
    with _connected(broker, "STOMP", 0) as client, _connected(broker, "STOMP", 1) as other:
        for number in range(2000):
            words = ["*" if number >> bit & 1 else "a" for bit in range(12)] + ["*"] * 480
            _subscribe(client, f"/topic/{'.'.join(words)}.x{number}", "", number)
        _read_until(client, b"subscribed-1999")
        for number in range(50):
            _send(other, f"/topic/{'.'.join(['a'] * 492)}.{number}", 1, "x")


def wide_wildcards(broker: RunningBroker) -> None:
    """Wildcards that cover 20,000 topics: subscribed, changed and unsubscribed; with a selector."""
    with (
        socket.create_connection(("127.0.0.1", broker.ports["all"]), _WAIT_S) as client,
        _connected(broker, "MQTT", 0) as publisher,
        _connected(broker, "STOMP", 1) as chooser,
    ):
        client.sendall(b"\x10" + _mqtt_rest(_text("MQTT") + b"\5\2\0\0\0" + _text("wide")))
        client.sendall(b"\x82" + _mqtt_rest(b"\0\1\0" + _text("w/none/#") + b"\0"))
        _read_until(client, b"\x90\4\0\1")
        publisher.recv(4)
        for number in range(20_000):
            publisher.sendall(b"\x30" + _mqtt_rest(_text(f"w/{number}") + b"x"))
        publisher.sendall(b"\x32" + _mqtt_rest(_text("w/0") + b"\0\1x"))
        _count(publisher, 4)
        for packet_id, no_local in enumerate((b"\0", b"\4", b"\0"), 2):
            packet = b"\0%c\0" % packet_id + _text("w/+") + no_local
            client.sendall(b"\x82" + _mqtt_rest(packet))
            _read_until(client, b"\x90\4\0%c" % packet_id)
        _subscribed(chooser, "/topic/w.*", "h = 1")
        chooser.sendall(b"UNSUBSCRIBE\nid:0\nreceipt:ended\n\n\0")
        _read_until(chooser, b"ended")
        client.sendall(b"\xa2" + _mqtt_rest(b"\0\x09\0" + _text("w/+")))
        _read_until(client, b"\xb0\4\0\x09")
        time.sleep(1)


def matching_wildcards(broker: RunningBroker) -> None:
    """4000 patterns that all match ten topics: made, half of them unsubscribed, the rest closed."""
    topics = ["/".join("a" for _ in range(12)) + f"/{number}" for number in range(10)]
    clients = [_connected(broker, "MQTT", number) for number in range(5)]
    other = clients.pop()
    for topic in topics:
        other.sendall(b"\x30" + _mqtt_rest(_text(topic) + b"x"))
    for base, client in enumerate(clients):
        client.recv(4)
        for number in range(1000 * base, 1000 * (base + 1)):
            pattern = "/".join("+" if number >> bit & 1 else "a" for bit in range(12)) + "/+"
            packet_id = (number + 1).to_bytes(2, "big")
            client.sendall(b"\x82" + _mqtt_rest(packet_id + _text(pattern) + b"\0"))
        _count(client, 5 * 1000)
        for number in range(1000 * base, 1000 * base + 500):
            pattern = "/".join("+" if number >> bit & 1 else "a" for bit in range(12)) + "/+"
            packet_id = (number + 1).to_bytes(2, "big")
            client.sendall(b"\xa2" + _mqtt_rest(packet_id + _text(pattern)))
        _count(client, 4 * 500)
    for client in (*clients, other):
        client.close()
    time.sleep(3)


def matching_filters(broker: RunningBroker) -> None:
    """1000 STOMP subscriptions with selectors to patterns that all match ten topics."""
    topics = [".".join("a" for _ in range(12)) + f".{number}" for number in range(10)]
    with _connected(broker, "STOMP", 0) as client, _connected(broker, "STOMP", 1) as other:
        for topic in topics:
            _send(other, f"/topic/{topic}", 1, "x")
        for number in range(1000):
            pattern = ".".join("*" if number >> bit & 1 else "a" for bit in range(12)) + ".*"
            _subscribe(client, f"/topic/{pattern}", f"h = {number}", number)
        _read_until(client, b"subscribed-999")
        for topic in topics:
            _send(other, f"/topic/{topic}", 1, "7")
    time.sleep(2)


def retained(broker: RunningBroker) -> None:
    """20,000 retained messages, and subscriptions that go over all of them."""
    with _connected(broker, "MQTT", 0) as client:
        client.recv(4)
        for number in range(20_000):
            client.sendall(b"\x31" + _mqtt_rest(_text(f"r/{number}/{number % 7}") + b"x"))
        client.sendall(b"\x82" + _mqtt_rest(b"\0\1" + _text("+/+/9") + b"\0"))
        _count(client, 5)
        client.sendall(b"\x82" + _mqtt_rest(b"\0\2" + _text("#") + b"\0"))
        _count(client, 200_000)


def _count(client: socket.socket, most: int) -> None:
    client.settimeout(_WAIT_S)
    while most > 0:
        data = client.recv(1 << 20)
        if not data:
            raise SystemExit("the broker closed the connection")
        most -= len(data)


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _mqtt_rest(body: bytes) -> bytes:
    size, length = len(body), b""
    while True:
        size, digit = divmod(size, 128)
        length += bytes([digit | 128 if size else digit])
        if not size:
            return length + body


class Scenario(NamedTuple):
    """What hostile clients do.

    Attributes:
        name: For the table.
        act: Does it, and comes back when it is done.
    """

    name: str
    act: Callable[[RunningBroker], None]


SCENARIOS: Final = (
    Scenario("nothing", lambda _: time.sleep(2)),
    Scenario("LIKE with _, 6 KB, 21 messages", subscription),
    Scenario("LIKE with _, 8 KB, 61 KB: refused", refused),
    Scenario("ten filters of 6 KB, 21 messages", filters),
    Scenario("a filter of 38 KB, 21 messages", long_filter),
    Scenario("dead letters to ten filters of 6 KB", dead_letters),
    Scenario("AMQP attaches, 32 KB", attaches),
    Scenario("STOMP subscriptions, 32 KB", subscriptions),
    Scenario("an AMQP browser, 6 KB", amqp_browser),
    Scenario("browsing and counting, 6 KB", browsing),
    Scenario("4000 wildcards, new topics", wildcards),
    Scenario("2000 wildcards of 1 KB, new topics", long_wildcards),
    Scenario("4000 wildcards that match ten topics", matching_wildcards),
    Scenario("wildcards that cover 20,000 topics", wide_wildcards),
    Scenario("1000 wildcards with selectors", matching_filters),
    Scenario("20,000 retained messages, # and +", retained),
)


def measure(folder: Path, scenario: Scenario, command: tuple[str, ...] | None) -> Delays:
    """Run a scenario on a fresh broker.

    Args:
        folder: An empty folder.
        scenario: What hostile clients do.
        command: The broker's program; None: this environment's.
    """
    settings = (
        "max-disk-usage=100",
        "address-settings.#.expiry-address=DLA",
        "acceptors.all.stomp.max-header-line-size=64KiB",
    )
    with running_broker(folder / "data", command=command, settings=settings) as broker:
        _wait_until_loaded(broker)
        with Delays(broker) as delays:
            scenario.act(broker)
        return delays


def main() -> None:
    """Print the longest delay of a ping under each scenario."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", default="", help="a part of a scenario's name")
    parser.add_argument("--command", help="another broker's program")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    here = machine.describe(options.folder)
    print(f"machine: {here.cores} x {here.cpu}, Linux {here.kernel}, commit {here.commit}")
    print(f"{'longest delay of a ping, ms':40} {'loop':>10} {'wall':>10} {'pings':>8}")
    command = (options.command,) if options.command else None
    for scenario in SCENARIOS:
        if options.only not in scenario.name:
            continue
        runs = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                runs.append(measure(Path(folder), scenario, command))
        loop_ms = max(max(run.loop_ms) for run in runs)
        wall_ms = max(max(run.wall_ms) for run in runs)
        count = sum(len(run.loop_ms) for run in runs)
        print(f"{scenario.name:40} {loop_ms:10.1f} {wall_ms:10.1f} {count:8}", flush=True)


if __name__ == "__main__":
    main()

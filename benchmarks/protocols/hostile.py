"""Clients that mean harm, one kind each, for as long as a measurement lasts.

Owns the hostile connections of one attack. Must never: measure, or attack anything but loopback.
Called by `benchmarks.protocols.attacks`.
"""

import contextlib
import itertools
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from vespiary_codec.wire.amqp import (
    Attach,
    Begin,
    Close,
    Flow,
    Frame,
    Layer,
    Open,
    Source,
    Target,
    encode_frame,
    protocol_header,
)
from vespiary_codec.wire.amqp.values import UInt

_CONNECT_S = 10.0
_HOST = "127.0.0.1"
_PAUSE_S = 0.25
"""For a round over all connections: a slow writer sends four bytes a second."""
_GROUP = 20
_PRESS_S = 0.001
_AGAIN_S = 0.1
_TOPIC = "attacked"


class Wave:
    """Hostile connections to one port, kept up until the wave is over.

    Args:
        port: Of the broker.
        count: How many connections at a time.
    """

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        self.opened = 0
        self.is_over = threading.Event()

    def connect(self) -> socket.socket:
        """Open one more connection."""
        client = socket.create_connection((_HOST, self.port), _CONNECT_S)
        self.opened += 1
        return client


Attack = Callable[[Wave], None]
"""Attacks until the wave is over."""


@contextlib.contextmanager
def attacked(attack: Attack, wave: Wave, processors: Collection[int] = ()) -> Iterator[None]:
    """Attack in a thread of its own, as long as the block lasts.

    An attacker's processor is not the broker's: attackers have one of their own if there are two,
    and are made to need little of it. They are not made "nice": with weights that far apart Linux
    6.18 was seen to let the worker that completes direct writes wait for seconds.

    Args:
        attack: Attacks until the wave is over.
        wave: What it sends.
        processors: Those of the attackers; empty: any.
    """

    def act() -> None:
        if processors:  # what it starts has them, too
            os.sched_setaffinity(threading.get_native_id(), processors)
        attack(wave)

    thread = threading.Thread(target=act, name="attack")
    thread.start()
    try:
        yield
    finally:
        wave.is_over.set()
        thread.join()


def _in_threads(attack: Callable[[], None], count: int) -> None:
    threads = [threading.Thread(target=attack, name="attacker") for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- TLS ------------------------------------------------------------------------------------------


def half_open(wave: Wave) -> None:
    """Begin handshakes and do not go on with them; those that are cut off begin anew."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    _keep_up(wave, lambda client, _: client.sendall(hello))


def key_updates(wave: Wave) -> None:
    """Change keys again and again (TLS 1.3); who is cut off comes back."""
    _by_openssl(wave, "-tls1_3", b"K\n")


def renegotiations(wave: Wave) -> None:
    """Ask for other handshakes again and again (TLS 1.2); who is cut off comes back."""
    _by_openssl(wave, "-tls1_2", b"R\n")


def _by_openssl(wave: Wave, version: str, key: bytes) -> None:
    """Have `openssl s_client` press a key: it acts once for each read of its input."""
    command = ["openssl", "s_client", "-connect", f"{_HOST}:{wave.port}", version]

    def press() -> None:
        while not wave.is_over.is_set():
            wave.opened += 1
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            ) as process:
                assert process.stdin is not None
                with contextlib.suppress(OSError):
                    while not wave.is_over.is_set() and process.poll() is None:
                        process.stdin.write(key)
                        time.sleep(_PRESS_S)
                process.kill()
            wave.is_over.wait(_AGAIN_S)  # a start of openssl costs more than what it does

    _in_threads(press, wave.count)


# --- the protocols --------------------------------------------------------------------------------

_STOMP_LOGIN = b"CONNECT\naccept-version:1.2\nhost:x\nheart-beat:0,0\n\n\0"
_FLOOD = b"flood."
_FLOODS = itertools.count()
_FLOOD_S = 1.0
"""How long a flooder waits for the broker before it comes back."""
_FILTERS = 1000  # at most so many links and filters has a client


def _mqtt_packet(kind: int, body: bytes) -> bytes:
    """Return a packet of less than 16 KiB."""
    size = len(body)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([kind]) + length + body


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def _mqtt_login(name: str) -> bytes:
    return _mqtt_packet(0x10, b"\0\4MQTT\4\2\0\0" + _text(name))


def _amqp_login(name: str) -> bytes:
    begin = Begin(
        next_outgoing_id=UInt(0), incoming_window=UInt(2**20), outgoing_window=UInt(2**20)
    )
    frames = [Frame(0, Open(container_id=name)), Frame(0, begin)]
    return protocol_header(Layer.AMQP) + b"".join(encode_frame(frame) for frame in frames)


def amqp_attach(source: Source, handle: int, credit: int) -> bytes:
    """Return what attaches a receiver, and asks for messages.

    Args:
        source: What it receives from.
        handle: Number of the link; it names it too.
        credit: Messages that it asks for.
    """
    attach = Attach(
        name=f"link-{handle}", handle=UInt(handle), role=True, source=source, target=Target()
    )
    flow = Flow(
        next_incoming_id=UInt(0),
        incoming_window=UInt(2**20),
        next_outgoing_id=UInt(0),
        outgoing_window=UInt(2**20),
        handle=UInt(handle),
        delivery_count=UInt(0),
        link_credit=UInt(credit),
    )
    return encode_frame(Frame(0, attach)) + encode_frame(Frame(0, flow))


def login(protocol: str, number: int) -> bytes:
    """Return what a client of a protocol says first."""
    if protocol == "STOMP":
        return _STOMP_LOGIN
    name = f"hostile-{number}"
    return _mqtt_login(name) if protocol == "MQTT" else _amqp_login(name)


def subscription(protocol: str, address: str, number: int) -> bytes:
    """Return what subscribes to a topic, and asks for many messages."""
    if protocol == "STOMP":
        head = f"SUBSCRIBE\nid:{number}\nack:client\nprefetch-count:100000\n"
        return f"{head}destination:/topic/{address}\n\n\0".encode()
    if protocol == "MQTT":
        packet_id = (number % 65_535 + 1).to_bytes(2, "big")
        return _mqtt_packet(0x82, packet_id + _text(address) + b"\1")
    return amqp_attach(Source(address=f"/topic/{address}"), number, 100_000)


def beginning(protocol: str) -> bytes:
    """Return the beginning of a frame that takes long, behind the login."""
    if protocol == "STOMP":
        return b"SEND\ndestination:/queue/slow\ncontent-length:100000\n\n"
    if protocol == "MQTT":
        return b"\x30\xa0\x8d\x06" + _text("slow")
    return b"\0\0\x40\0\2\0\0\0"


def goodbye(protocol: str) -> bytes:
    """Return what a client says last; the broker closes the connection behind its answer."""
    if protocol == "STOMP":
        return b"DISCONNECT\nreceipt:bye\n\n\0"
    return b"\xe0\0" if protocol == "MQTT" else encode_frame(Frame(0, Close()))


def subscribe_flood(protocol: str) -> Attack:
    """Subscribe to ever new topics as fast as the broker takes it; who was served comes back.

    The frames are made before: attackers work on processors of their own elsewhere, and what they
    take of the broker's here would be counted as its own.
    """
    plain = b"%s000000." % _FLOOD
    topics = (f"{plain.decode()}{number}" for number in range(_FILTERS))
    frames = [subscription(protocol, topic, number) for number, topic in enumerate(topics)]
    said = b"".join(frames) + goodbye(protocol)

    def attack(wave: Wave) -> None:
        def flood() -> None:
            while not wave.is_over.is_set():
                number = next(_FLOODS)
                with contextlib.suppress(OSError), wave.connect() as client:
                    client.settimeout(_FLOOD_S)
                    new = said.replace(plain, b"%s%06d." % (_FLOOD, number))
                    client.sendall(login(protocol, number) + new)
                    while client.recv(65536) and not wave.is_over.is_set():
                        pass

        _in_threads(flood, wave.count)

    return attack


def slow_readers(protocol: str) -> Attack:
    """Subscribe to a topic with messages, and read nothing of them."""

    def attack(wave: Wave) -> None:
        def begin(client: socket.socket, number: int) -> None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(login(protocol, number) + subscription(protocol, _TOPIC, 0))

        sender = threading.Thread(target=_send_to_readers, args=(wave,), name="sender")
        sender.start()
        _keep_up(wave, begin)
        sender.join()

    return attack


def _send_to_readers(wave: Wave) -> None:
    """Send 100 messages a second to those who do not read."""
    frame = f"SEND\ndestination:/topic/{_TOPIC}\n\n{'x' * 1024}\0".encode()
    with contextlib.suppress(OSError), wave.connect() as client:
        client.sendall(_STOMP_LOGIN)
        while not wave.is_over.wait(0.01):
            client.sendall(frame)


def slow_writers(protocol: str) -> Attack:
    """Begin a frame, and go on with it a byte at a time."""

    def attack(wave: Wave) -> None:
        first = beginning(protocol)
        _keep_up(wave, lambda client, n: client.sendall(login(protocol, n) + first), trickle=b"x")

    return attack


def _keep_up(wave: Wave, begin: Callable[[socket.socket, int], None], trickle: bytes = b"") -> None:
    """Keep so many connections open, and send a little by each, round after round."""
    clients: dict[int, socket.socket] = {}
    try:
        while not wave.is_over.is_set():
            for number in range(wave.count):
                if wave.is_over.is_set():
                    break
                client = clients.get(number)
                try:
                    if client is None:
                        client = clients[number] = wave.connect()
                        begin(client, number)
                    elif trickle:
                        client.sendall(trickle)
                    elif _is_closed(client):
                        clients.pop(number).close()
                except OSError:
                    if number in clients:
                        clients.pop(number).close()
                if number % _GROUP == 0:  # they know nothing of each other: they do not act at once
                    time.sleep(_PAUSE_S * _GROUP / wave.count)
    finally:
        for client in clients.values():
            client.close()


def _is_closed(client: socket.socket) -> bool:
    """Whether the broker has closed a connection of which nothing is read."""
    try:
        return not client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for the broker, and its key, with the openssl program.

    Raises:
        OSError: There is no such program.
        subprocess.CalledProcessError: It failed.
    """
    certificate, key = folder / "tls.crt", folder / "tls.key"
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    files = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *request.split(), *files], check=True, capture_output=True)
    return certificate, key

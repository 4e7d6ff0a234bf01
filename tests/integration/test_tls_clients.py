"""TLS against a real broker: users by certificate, servers by name, floods, slow hands."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import hashlib
import shutil
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from vespiary_broker.cli.api_client import ApiClient
from vespiary_broker.cli.program import run_program
from vespiary_broker.engine.users import format_users, make_user
from vespiary_broker.server.tls_contexts import make_tls_context
from vespiary_spec.settings import AcceptorTls
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for
from vespiary_testkit.websocket_peer import WebSocketClient

pytestmark = pytest.mark.once

MIB = 1024 * 1024
HALF_OPEN = 1000
CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:secret\n\n\0"


# --- a client that floods -------------------------------------------------------------------------

# A TLS client that may do what Python's `ssl` cannot: floods of KeyUpdate and renegotiation.
# Calls the public C interface of OpenSSL (libssl.so.3), and checks no certificate.

TLS_1_2 = 0x0303
TLS_1_3 = 0x0304
_SSL_CTRL_SET_MIN_PROTO_VERSION = 123
_SSL_CTRL_SET_MAX_PROTO_VERSION = 124


def _library() -> Any:
    name = ctypes.util.find_library("ssl")
    if name is None or "so.3" not in name:
        pytest.skip("libssl.so.3 is not installed, by which floods are made")
    library = ctypes.CDLL(name)
    for function, result, arguments in (
        ("TLS_client_method", ctypes.c_void_p, []),
        ("SSL_CTX_new", ctypes.c_void_p, [ctypes.c_void_p]),
        ("SSL_CTX_free", None, [ctypes.c_void_p]),
        (
            "SSL_CTX_ctrl",
            ctypes.c_long,
            [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p],
        ),
        ("SSL_new", ctypes.c_void_p, [ctypes.c_void_p]),
        ("SSL_free", None, [ctypes.c_void_p]),
        ("SSL_set_fd", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
        ("SSL_connect", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_do_handshake", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_key_update", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
        ("SSL_renegotiate", ctypes.c_int, [ctypes.c_void_p]),
        ("SSL_write", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        ("SSL_read", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
    ):
        entry = getattr(library, function)
        entry.restype, entry.argtypes = result, arguments
    return library


class OpensslClient:
    """One connection; use it as a context manager.

    Args:
        port: Port on loopback.
        version: The version of TLS to speak.
    """

    def __init__(self, port: int, version: int = TLS_1_3) -> None:
        self._library = library = _library()
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.give_up_after(WAIT_S)
        self._context = library.SSL_CTX_new(library.TLS_client_method())
        for bound in (_SSL_CTRL_SET_MIN_PROTO_VERSION, _SSL_CTRL_SET_MAX_PROTO_VERSION):
            library.SSL_CTX_ctrl(self._context, bound, version, None)
        self._ssl = library.SSL_new(self._context)
        library.SSL_set_fd(self._ssl, self.socket.fileno())
        assert library.SSL_connect(self._ssl) == 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)
        self.socket.close()

    def give_up_after(self, seconds: float) -> None:
        """Let reading and writing fail after a time."""
        time = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time)

    def send(self, data: bytes) -> bool:
        """Send bytes; False if that failed."""
        return int(self._library.SSL_write(self._ssl, data, len(data))) == len(data)

    def receive(self) -> bytes:
        """Return what comes next; empty if nothing does."""
        room = ctypes.create_string_buffer(65536)
        count = self._library.SSL_read(self._ssl, room, len(room))
        return room.raw[: max(count, 0)]

    def update_keys(self) -> bool:
        """Change our key, and have the other side change its own; False if that failed."""
        library = self._library
        return bool(
            library.SSL_key_update(self._ssl, 1) and library.SSL_do_handshake(self._ssl) == 1
        )

    def renegotiate(self) -> bool:
        """Ask for another handshake (TLS 1.2); False if that failed."""
        library = self._library
        is_asked = library.SSL_renegotiate(self._ssl) and library.SSL_do_handshake(self._ssl) == 1
        return bool(is_asked)


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of servers and clients."""
    made = tmp_path_factory.mktemp("tls")
    authority = Authority()
    (made / "ca.crt").write_bytes(authority.certificate)
    for name in ("broker", "alice", "nobody", "orders.example", "any"):
        authority.sign(name).write(made / name)
    authority.sign("press", subject="CN=press 7,OU=plant,O=Orders").write(made / "press")
    authority.sign("none", subject="O=Orders").write(made / "nameless")
    Authority("Others").sign("alice").write(made / "foreign")
    return made


@contextlib.contextmanager
def running(folder: Path) -> Iterator[BrokerProcess]:
    """A broker with an acceptor for each way."""
    files = f"certificate: {folder}/broker/tls.crt, key: {folder}/broker/tls.key"
    clients = f"client-ca: {folder}/ca.crt"
    names = "\n".join(
        f"        - {{server-name: '{name}', certificate: {folder}/{file}/tls.crt,"
        f" key: {folder}/{file}/tls.key}}"
        for name, file in (("orders.example", "orders.example"), ("*.example", "any"))
    )
    data = Path(tempfile.mkdtemp(dir=folder))
    configuration = data.with_suffix(".yaml")
    configuration.write_text(
        "acceptors:\n"
        f"  - {{name: all, port: 0, handshake-timeout: 5, tls: {{{files}}}}}\n"
        f"  - {{name: need, port: 0, tls: {{{files}, {clients}}}}}\n"
        f"  - {{name: want, port: 0, tls: {{{files}, {clients}, want-client-auth: true,\n"
        "       certificate-users: [{subject: 'CN=press 7,OU=plant,O=Orders', user: bob}]}}\n"
        "  - name: names\n    port: 0\n    tls:\n"
        f"      certificate: {folder}/broker/tls.crt\n      key: {folder}/broker/tls.key\n"
        f"      sni:\n{names}\n"
        "  - {name: clear, port: 0}\n"
    )
    users = [make_user(name, "secret", iterations=4096) for name in ("alice", "bob")]
    users.append(make_user("root", "secret", roles=("admin",), iterations=4096))
    (data / "users").write_text(format_users(users))
    with BrokerProcess(data, configuration=configuration) as process:
        yield process


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with running(folder) as process:
        yield process


@pytest.fixture
def fresh_broker(folder: Path) -> Iterator[BrokerProcess]:
    """One whose memory is measured: nothing that was there before is used again."""
    with running(folder) as process:
        yield process


def settled_rss(broker: BrokerProcess) -> int:
    """Return the memory of a broker that does nothing, once its start is over."""
    before = 0
    while before != broker.rss_bytes():
        before = broker.rss_bytes()
        time.sleep(0.5)
    return before


def context_of(folder: Path, client: str = "") -> ssl.SSLContext:
    """Return a client's context, with a certificate if it has one."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if client:
        context.load_cert_chain(folder / client / "tls.crt", folder / client / "tls.key")
    return context


def users_of(broker: BrokerProcess, listener: str) -> list[str]:
    """Return the users of a listener's connections, as the API shows them."""
    password = broker.data.parent / "password"
    password.write_text("secret")
    password.chmod(0o600)
    api = ApiClient(f"http://root@127.0.0.1:{broker.port('http')}", password)
    return [each["user"] for each in api.items("/connections") if each["listener"] == listener]


# --- users by certificate ---------------------------------------------------------------------


def answer_to(broker: BrokerProcess, name: str, context: ssl.SSLContext, **headers: str) -> str:
    """Log in; return `CONNECTED`, or the sentence of the refusal."""
    with StompPeer(broker.port(name), tls=context) as peer:
        peer.send("CONNECT", {"accept-version": "1.2", "host": "x", **headers})
        frame = peer.receive()
        if frame.command == "CONNECTED":
            return frame.command
        return frame.get("message", "")


@pytest.mark.parametrize(
    ("name", "client"), [("need", "alice"), ("want", "alice"), ("want", "press")]
)
def test_a_client_certificate_logs_in(
    broker: BrokerProcess, folder: Path, name: str, client: str
) -> None:
    assert answer_to(broker, name, context_of(folder, client)) == "CONNECTED"


@pytest.mark.parametrize(("client", "user"), [("alice", "alice"), ("press", "bob")])
def test_the_user_is_that_of_the_certificate(
    broker: BrokerProcess, folder: Path, client: str, user: str
) -> None:
    wait_for(lambda: users_of(broker, "want") == [])
    with StompPeer(broker.port("want"), tls=context_of(folder, client)) as peer:
        peer.connect()
        assert users_of(broker, "want") == [user]


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ("nobody", "stands for 'nobody', who is no user here"),
        ("nameless", "needs a login"),
        ("", "needs a login"),
    ],
)
def test_a_certificate_of_nobody_does_not(
    broker: BrokerProcess, folder: Path, client: str, words: str
) -> None:
    assert words in answer_to(broker, "want", context_of(folder, client))


def test_a_login_wins_over_the_certificate(broker: BrokerProcess, folder: Path) -> None:
    context = context_of(folder, "nobody")
    assert answer_to(broker, "want", context, login="bob", passcode="secret") == "CONNECTED"
    wrong = answer_to(broker, "want", context_of(folder, "alice"), login="bob", passcode="x")
    assert "wrong" in wrong


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "client"), [("need", ""), ("need", "foreign"), ("want", "foreign")]
)
def test_one_that_is_not_good_is_turned_away(
    broker: BrokerProcess, folder: Path, name: str, client: str
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        answer_to(broker, name, context_of(folder, client))


@pytest.mark.parametrize(
    ("scheme", "listener", "other"),
    [("stomp+ssl", "clear", "stomp"), ("stomp", "all", "stomp+ssl")],
)
def test_a_command_with_the_wrong_scheme_names_the_other(
    broker: BrokerProcess,
    scheme: str,
    listener: str,
    other: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = f"127.0.0.1:{broker.port(listener)}"
    assert run_program(["send", "--url", f"{scheme}://{place}", "orders", "x"]) == 1
    assert f"write --url {other}://{place}" in capsys.readouterr().err


def test_in_clear_nobody_has_a_certificate(broker: BrokerProcess) -> None:
    with StompPeer(broker.port("clear")) as peer:
        peer.send("CONNECT", {"accept-version": "1.2", "host": "alice"})
        assert "needs a login" in peer.receive_error().get("message", "")


def test_a_certificate_counts_through_a_websocket_too(broker: BrokerProcess, folder: Path) -> None:
    context = context_of(folder, "alice")
    with WebSocketClient(broker.port("need"), "v12.stomp", tls=context) as web:
        web.log_in()


# --- servers by name --------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("orders.example", "orders.example"),
        ("ORDERS.example", "orders.example"),
        ("other.example", "any"),
        ("a.b.example", "broker"),
        ("example", "broker"),
        ("elsewhere.test", "broker"),
        (None, "broker"),
    ],
)
def test_the_certificate_is_that_of_the_name(
    broker: BrokerProcess, folder: Path, asked: str | None, shown: str
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", broker.port("names")), WAIT_S) as raw,
        context.wrap_socket(raw, server_hostname=asked) as tls,
    ):
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        wanted = ssl.PEM_cert_to_DER_cert((folder / shown / "tls.crt").read_text())
        assert hashlib.sha256(der).digest() == hashlib.sha256(wanted).digest()
        tls.sendall(CONNECT)
        assert tls.recv(4096).startswith(b"CONNECTED")


@pytest.mark.ci
def test_a_renewed_certificate_of_a_name_is_taken(broker: BrokerProcess, folder: Path) -> None:
    def shown() -> bytes | None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", broker.port("names")), WAIT_S) as raw,
            context.wrap_socket(raw, server_hostname="orders.example") as tls,
        ):
            return tls.getpeercert(binary_form=True)

    before = shown()
    renewed = Authority("Renewing").sign("orders.example")
    old = (
        (folder / "orders.example/tls.crt").read_bytes(),
        (folder / "orders.example/tls.key").read_bytes(),
    )
    renewed.write(folder / "orders.example")
    wanted = ssl.PEM_cert_to_DER_cert(renewed.certificate.decode())
    wait_for(lambda: shown() == wanted)
    (folder / "orders.example/tls.key").write_bytes(old[1])
    (folder / "orders.example/tls.crt").write_bytes(old[0])
    wait_for(lambda: shown() == before)


# --- versions ---------------------------------------------------------------------------------


def client_up_to(folder: Path, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return a client's context that speaks everything up to a version of TLS.

    OpenSSL 3 speaks TLS 1.1 at security level 0 alone, as its signatures have SHA-1.
    """
    context = context_of(folder)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """Do a handshake in memory; return the version that was agreed on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_tls_1_2_is_the_floor(broker: BrokerProcess, folder: Path) -> None:
    """OpenSSL 3 refuses TLS 1.1 by its security level already, so the floor that the broker sets is
    looked at below that level, too; a context without it shows that this client could."""
    old = client_up_to(folder, ssl.TLSVersion.TLSv1_1)
    files = {"certificate": f"{folder}/broker/tls.crt", "key": f"{folder}/broker/tls.key"}
    ours = make_tls_context(AcceptorTls(**files), "acceptors.all.tls")
    ours.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        shake_hands(old, ours)
    ours.minimum_version = ssl.TLSVersion.TLSv1
    assert shake_hands(old, ours) == "TLSv1.1"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        answer_to(broker, "all", old)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = client_up_to(folder, version)
        answer = answer_to(broker, "all", context, login="alice", passcode="secret")
        assert answer == "CONNECTED"


def test_a_hello_however_cut(broker: BrokerProcess, folder: Path) -> None:
    """The handshake begins with what came first, be it one byte or more than is read at first."""
    for cut in (1, 2, 5, 6, 100, 300):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = context_of(folder)
        context.set_alpn_protocols([f"protocol-{n:04}" for n in range(600)])  # a hello of 9 KiB
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", broker.port()), WAIT_S) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            hello = outgoing.read()
            assert len(hello) > 8192
            raw.sendall(hello[:cut])
            time.sleep(0.02)
            raw.sendall(hello[cut:])
            _finish(raw, tls, incoming, outgoing)


def _finish(
    raw: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    """Complete a handshake, log in, and check the answer."""
    while True:
        incoming.write(raw.recv(65536))
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
    tls.write(CONNECT)
    raw.sendall(outgoing.read())
    received = b""
    while not received:
        incoming.write(raw.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            received = tls.read(4096)
    assert received.startswith(b"CONNECTED")


# --- floods -----------------------------------------------------------------------------------


@contextlib.contextmanager
def bystander(broker: BrokerProcess) -> Iterator[Callable[[int], None]]:
    """A client that does its work meanwhile; yields what sends and waits for the receipts."""
    with StompPeer(broker.port("clear")) as peer:
        peer.connect(login="alice", passcode="secret")

        def send(count: int) -> None:
            for number in range(count):
                peer.send("SEND", {"destination": "/queue/by", "receipt": str(number)}, b"x")
                peer.receive_receipt(str(number))

        yield send


@pytest.mark.ci
@pytest.mark.parametrize("is_logged_in", [True, False])
def test_a_flood_of_key_updates_is_cut_off(broker: BrokerProcess, is_logged_in: bool) -> None:
    before = broker.rss_bytes()
    done = 0
    with OpensslClient(broker.port()) as client, bystander(broker) as send:
        if is_logged_in:
            assert client.send(CONNECT)
            assert client.receive().startswith(b"CONNECTED")
        client.give_up_after(2)
        ended = threading.Event()

        def flood() -> None:
            nonlocal done
            while done < 1_000_000 and client.update_keys():
                done += 1
            ended.set()

        thread = threading.Thread(target=flood)
        thread.start()
        while not ended.is_set():
            send(20)
        thread.join()
    assert done < 1_000_000
    assert broker.rss_bytes() - before < 16 * MIB
    wait_for(lambda: "records had no content" in broker.log.read_text())  # one line a minute


def test_key_updates_now_and_then_are_taken(broker: BrokerProcess) -> None:
    with OpensslClient(broker.port()) as client:
        assert client.send(CONNECT)
        assert client.receive().startswith(b"CONNECTED")
        for number in range(1000):
            assert client.update_keys()
            assert client.send(b"SEND\ndestination:/queue/ku\nreceipt:%d\n\nx\0" % number)
            assert b"receipt-id:%d\n" % number in client.receive()


@pytest.mark.ci
def test_a_client_that_says_little_is_not_cut_off(broker: BrokerProcess) -> None:
    """One line feed a record, thousands of them: each is a heart-beat."""
    with OpensslClient(broker.port()) as client:
        assert client.send(CONNECT)
        assert client.receive().startswith(b"CONNECTED")
        for _ in range(20_000):
            assert client.send(b"\n")
        assert client.send(b"SEND\ndestination:/queue/lf\nreceipt:r\n\nx\0")
        assert b"receipt-id:r" in client.receive()


@pytest.mark.ci
def test_renegotiation_is_refused(broker: BrokerProcess) -> None:
    before = broker.rss_bytes()
    with bystander(broker) as send:
        for _ in range(50):
            with OpensslClient(broker.port(), TLS_1_2) as client:
                assert client.send(CONNECT)
                assert client.receive().startswith(b"CONNECTED")
                client.give_up_after(1)
                for _ in range(100):
                    if not client.renegotiate():
                        break
                else:
                    raise AssertionError("the broker has shaken hands again")
        send(50)
    assert broker.rss_bytes() - before < 16 * MIB


@pytest.mark.parametrize(("version", "key"), [("-tls1_3", "K"), ("-tls1_2", "R")])
def test_what_openssl_does_by_hand(
    broker: BrokerProcess, folder: Path, version: str, key: str
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    place = f"127.0.0.1:{broker.port()}"
    process = subprocess.Popen(
        ["openssl", "s_client", "-connect", place, version, "-CAfile", str(folder / "ca.crt")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        text = b""
        process.stdin.write(CONNECT)
        process.stdin.flush()
        while b"CONNECTED\nversion" not in text:
            text += process.stdout.read1(65536)  # type: ignore[attr-defined]
        for _ in range(20):
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(key.encode() + b"\n")
                process.stdin.flush()
            time.sleep(0.02)
        with bystander(broker) as send:
            send(20)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        rest = process.stdout.read()
        if key == "R":
            assert b"no renegotiation" in rest or b"error" in rest, rest
        else:
            assert b"KEYUPDATE" in rest, rest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def hello_of(folder: Path) -> bytes:
    """Return the first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = context_of(folder).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@contextlib.contextmanager
def half_open(broker: BrokerProcess, beginnings: list[bytes]) -> Iterator[list[socket.socket]]:
    """Connections that begin a handshake and do not go on with it."""
    begun: list[socket.socket] = []
    try:
        for beginning in beginnings:
            raw = socket.create_connection(("127.0.0.1", broker.port()), WAIT_S)
            begun.append(raw)
            raw.sendall(beginning)
        yield begun
    finally:
        for raw in begun:
            raw.close()


@pytest.mark.ci
def test_half_open_handshakes_stay_bounded_and_end_in_time(
    fresh_broker: BrokerProcess, folder: Path
) -> None:
    broker, hello = fresh_broker, hello_of(folder)
    before = settled_rss(broker)
    with half_open(broker, [hello, hello[:50]] * (HALF_OPEN // 2)) as begun:
        with bystander(broker) as send:
            send(200)
        answer = answer_to(broker, "all", context_of(folder), login="alice", passcode="secret")
        assert answer == "CONNECTED"
        assert broker.rss_bytes() - before < 64 * MIB
        for raw in begun:
            raw.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(65536):
                    pass


@pytest.mark.ci
@pytest.mark.parametrize(("is_whole", "bound_mib"), [(True, 64), (False, 16)])
def test_more_half_open_handshakes_than_places(
    fresh_broker: BrokerProcess, folder: Path, is_whole: bool, bound_mib: int
) -> None:
    """Those beyond the places hold no memory of TLS, nor do those that have not said enough; who
    comes behind them gets in, since the oldest give way."""
    broker, hello = fresh_broker, hello_of(folder)
    with bystander(broker) as send:
        send(20)
        before = settled_rss(broker)
        with half_open(broker, [hello if is_whole else hello[:-1]] * 2 * HALF_OPEN):
            send(100)
            assert broker.rss_bytes() - before < bound_mib * MIB
            context = context_of(folder)
            with StompPeer(broker.port(), tls=context) as peer:
                peer.connect(login="alice", passcode="secret")

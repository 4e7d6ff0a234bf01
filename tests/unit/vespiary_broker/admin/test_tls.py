"""The HTTP port with TLS: handshakes, client certificates, rotation; the port for probes."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from vespiary_broker.admin import server
from vespiary_broker.admin.tls import HttpDoor, HttpTls
from vespiary_spec.settings import AcceptorTls, CertificateUser
from vespiary_testkit import product_loop
from vespiary_testkit.admin_rig import (
    AdminRig,
    MemoryBroker,
    admin_rig,
    basic,
    users_with_roles,
)
from vespiary_testkit.certificates import Authority
from vespiary_testkit.waiting import WAIT_S, wait_for


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> Path:
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    for name in ("broker", "root", "nobody"):
        authority.sign(name).write(tmp_path / name)
    return tmp_path


def tls_of(files: Path, **more: Any) -> AcceptorTls:
    return AcceptorTls(
        certificate=str(files / "broker/tls.crt"), key=str(files / "broker/tls.key"), **more
    )


def client(files: Path, name: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    if name:
        context.load_cert_chain(files / name / "tls.crt", files / name / "tls.key")
    return context


def get(
    port: int, path: str, context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        if context is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT_S, context=context)
    )
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


# --- TLS ------------------------------------------------------------------------------------------


def test_the_api_over_tls_and_not_in_clear(files: Path) -> None:
    with admin_rig(MemoryBroker(users_with_roles()), tls=tls_of(files)) as rig:
        login = basic("root", "secret")
        status, body = get(rig.port, "/api/v1/brokers", client(files), Authorization=login)
        assert status == 200
        assert json.loads(body)
        assert get(rig.port, "/api/v1/brokers", client(files))[0] == 401
        assert get(rig.port, "/healthz", client(files)) == (200, b"alive\n")
        with pytest.raises((http.client.HTTPException, OSError)):
            get(rig.port, "/healthz")


def test_many_requests_over_one_connection_and_a_large_body(files: Path) -> None:
    with admin_rig(tls=tls_of(files)) as rig:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", rig.port, timeout=WAIT_S, context=client(files)
        )
        for n in range(50):
            body = json.dumps({"name": f"q{n}", "filler": "x" * 50_000})
            connection.request("POST", "/api/v1/queues", body, {"Content-Type": "application/json"})
            assert connection.getresponse().read()
        connection.close()


def test_a_client_certificate_is_a_login(files: Path) -> None:
    tls = tls_of(files, client_ca=str(files / "ca.crt"), want_client_auth=True)
    with admin_rig(MemoryBroker(users_with_roles()), tls=tls) as rig:
        assert get(rig.port, "/api/v1/brokers", client(files, "root"))[0] == 200
        status, body = get(rig.port, "/api/v1/brokers", client(files, "nobody"))
        assert status == 401
        assert b"no user here" in body
        assert get(rig.port, "/api/v1/brokers", client(files))[0] == 401
        login = basic("root", "secret")
        assert get(rig.port, "/api/v1/brokers", client(files), Authorization=login)[0] == 200
        wrong = basic("root", "wrong")
        assert (
            get(rig.port, "/api/v1/brokers", client(files, "root"), Authorization=wrong)[0] == 401
        ), "a password that is sent has to be right"
        origin = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert get(rig.port, "/api/v1/brokers", client(files, "root"), **origin)[0] == 403


def test_subjects_that_stand_for_users_and_certificates_that_are_needed(files: Path) -> None:
    users = (CertificateUser(subject="CN=nobody", user="root"),)
    tls = tls_of(files, client_ca=str(files / "ca.crt"), certificate_users=users)
    with admin_rig(MemoryBroker(users_with_roles()), tls=tls, probe_port=0) as rig:
        assert get(rig.port, "/api/v1/brokers", client(files, "nobody"))[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            get(rig.port, "/healthz", client(files))
        assert get(probes(rig), "/healthz") == (200, b"alive\n")


def test_connections_to_come_get_the_certificate_as_it_is_now(
    files: Path, authority: Authority
) -> None:
    with admin_rig(tls=tls_of(files)) as rig:
        server_ = rig.broker.admin_server
        assert server_ is not None
        assert server_.tls is not None
        old = http.client.HTTPSConnection(
            "127.0.0.1", rig.port, timeout=WAIT_S, context=client(files)
        )
        old.request("GET", "/healthz")
        assert old.getresponse().read() == b"alive\n"
        signed = authority.sign("other.example")
        signed.write(files / "broker")
        assert product_loop.run(server_.tls.reload_tls())
        with socket.create_connection(("127.0.0.1", rig.port), WAIT_S) as raw:
            context = client(files)
            with context.wrap_socket(raw, server_hostname="other.example"):
                pass
        assert server_.tls.certificate is not None
        assert server_.tls.certificate.fingerprint == signed.fingerprint
        (files / "broker/tls.key").write_text("no key")
        assert not product_loop.run(server_.tls.reload_tls())
        assert "PEM" in server_.tls.certificate_refused
        assert get(rig.port, "/healthz", client(files))[0] == 200
        old.request("GET", "/healthz")
        assert old.getresponse().read() == b"alive\n", "what is open stays"
        old.close()


def test_silent_clients_do_not_keep_others_out(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(server, "WAITING_MIN", 8)
    with admin_rig(tls=tls_of(files)) as rig:
        silent = [socket.create_connection(("127.0.0.1", rig.port), WAIT_S) for _ in range(40)]
        assert get(rig.port, "/healthz", client(files))[0] == 200
        for each in silent:
            each.close()


def hello_of(context: ssl.SSLContext) -> bytes:
    """Return the first message of a handshake."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class Wire:
    """A connection from an address that this machine does not have."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return (self.peer, 4711) if name == "peername" else None

    def abort(self) -> None:
        self.is_closed = True


def come(door: HttpDoor, peer: str) -> Wire:
    wire = Wire(peer)
    door.gate().connection_made(cast(Any, wire))
    return wire


def closed(wires: list[Wire]) -> list[bool]:
    return [wire.is_closed for wire in wires]


def test_handshakes_of_one_network_are_bounded(files: Path) -> None:
    async def scenario() -> None:
        errors: Counter[str] = Counter()
        door = HttpDoor(
            HttpTls(tls_of(files)), asyncio.Protocol, lambda: 100, 3,
            lambda kind: errors.update((kind,)),
        )  # fmt: skip
        flood = [come(door, f"2001:db8::{n}") for n in range(9)]
        assert closed(flood) == [False] * 3 + [True] * 6
        assert errors == {"connections-per-address": 6}
        assert not come(door, "192.0.2.1").is_closed
        here = [come(door, peer) for peer in ("127.0.0.1", "::1") for _ in range(9)]
        assert not any(closed(here)), "loopback has no bound"
        door.close()
        assert door.addresses.networks_count == 0

    product_loop.run(scenario())


def test_the_network_with_most_handshakes_makes_room(files: Path) -> None:
    async def scenario() -> None:
        door = HttpDoor(HttpTls(tls_of(files)), asyncio.Protocol, lambda: 4, 100, lambda _: None)
        early = come(door, "192.0.2.1")
        flood = [come(door, "198.51.100.1") for _ in range(9)]
        late = come(door, "192.0.2.2")
        assert closed(flood) == [True] * 7 + [False] * 2
        assert closed([early, late]) == [False] * 2
        door.close()

    product_loop.run(scenario())


def test_a_flood_of_hellos_does_not_keep_other_addresses_out(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(server, "WAITING_MIN", 8)
    context = client(files)
    hello = hello_of(context)  # a part: of those that have begun, `test_handshakes` tells
    with admin_rig(tls=tls_of(files)) as rig, ExitStack() as stack:
        honest = stack.enter_context(socket.create_connection(("127.0.0.1", rig.port), WAIT_S))
        for _ in range(40):
            flood = socket.create_connection(
                ("127.0.0.1", rig.port), WAIT_S, source_address=("127.0.0.9", 0)
            )
            stack.enter_context(flood).sendall(hello[:-1])
        with context.wrap_socket(honest, server_hostname="localhost") as secure:
            secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert secure.recv(12) == b"HTTP/1.1 200"


def test_too_many_connections_are_told_so(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    with admin_rig(tls=tls_of(files)) as rig:
        held = http.client.HTTPSConnection(
            "127.0.0.1", rig.port, timeout=WAIT_S, context=client(files)
        )
        held.request("GET", "/healthz")
        held.getresponse().read()
        assert get(rig.port, "/api/v1/brokers", client(files))[0] == 503
        assert get(rig.port, "/healthz", client(files)) == (200, b"alive\n")
        held.close()


# --- the port for probes --------------------------------------------------------------------------


def probes(rig: AdminRig) -> int:
    assert rig.broker.admin_server is not None
    port = rig.broker.admin_server.probe_port
    assert port is not None
    return port


def test_probes_and_metrics_without_a_login_and_nothing_else() -> None:
    broker = MemoryBroker(users_with_roles())
    with admin_rig(broker, probe_port=0) as rig:
        port = probes(rig)
        assert port != rig.port
        assert get(port, "/healthz") == (200, b"alive\n")
        assert get(port, "/readyz") == (200, b"ready\n")
        status, body = get(port, "/metrics")
        assert status == 200
        assert b"vespiary_" in body
        broker.not_ready_reason = "the broker is stopping"
        assert get(port, "/readyz") == (503, b"the broker is stopping\n")
        login = basic("root", "secret")
        for path in ("/", "/ws", "/api/v1/brokers", "/api/v1/openapi.json", "/docs", "/metrics/x"):
            status, body = get(port, path, Authorization=login)
            assert status == 404, path
            assert b"alone" in body
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("POST", "/api/v1/queues", "{}", {"Authorization": login})
        assert connection.getresponse().status == 404
        connection.close()


def test_metrics_need_a_login_beyond_loopback_but_at_the_port_for_probes() -> None:
    with admin_rig(MemoryBroker(users_with_roles()), host="0.0.0.0", probe_port=0) as rig:
        assert get(rig.port, "/metrics")[0] == 401
        assert get(probes(rig), "/metrics")[0] == 200
        assert get(probes(rig), "/api/v1/brokers", Authorization=basic("root", "secret"))[0] == 404


def test_a_web_page_cannot_read_the_metrics_by_rebinding() -> None:
    with admin_rig(probe_port=0) as rig:
        assert get(probes(rig), "/metrics", Host="evil.example")[0] == 421
        assert get(probes(rig), "/metrics", Origin="http://evil.example")[0] == 403


def test_without_the_setting_there_is_no_such_port() -> None:
    with admin_rig() as rig:
        assert rig.broker.admin_server is not None
        assert rig.broker.admin_server.probe_port is None


def test_silent_clients_of_the_api_leave_the_probe_port_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(server, "WAITING_MIN", 4)
    with admin_rig(probe_port=0) as rig:
        silent = [socket.create_connection(("127.0.0.1", rig.port), WAIT_S) for _ in range(20)]
        wait_for(lambda: get(probes(rig), "/metrics")[0] == 200, what="metrics")
        for each in silent:
            each.close()

"""The opening handshake of WebSockets over fake transports: what it chooses, what it refuses."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from vespiary_broker.engine.users import make_user
from vespiary_broker.server.connection import Connection
from vespiary_broker.server.web_pages import Asked, any_page, local_pages, same_place_pages
from vespiary_broker.server.websocket.handshake import is_origin_named
from vespiary_spec.settings import Acceptor, WebSocketLimits
from vespiary_testkit.server_rig import ServerRig
from vespiary_testkit.virtual_time import run_virtual
from vespiary_testkit.websocket_peer import handshake
from vespiary_testkit.websocket_rig import CONNECT, Client, on_loop


@pytest.mark.parametrize("version", ["v10.stomp", "v11.stomp", "v12.stomp"])
def test_the_clients_first_spoken_subprotocol_is_chosen(version: str) -> None:
    @on_loop()
    async def scenario(rig: ServerRig) -> None:
        client = await Client(rig, "chat", version, "v12.stomp").open()
        assert client.web.subprotocol == version
        assert client.connection.handler is not None
        assert client.connection.handler.protocol == "STOMP 1.2 over WebSocket"

    scenario()


@on_loop()
async def test_without_a_subprotocol_the_first_bytes_tell(rig: ServerRig) -> None:
    client = Client(rig)
    client.arrive(client.web.opening)
    client.look()
    assert client.web.subprotocol is None
    for byte in CONNECT:
        client.message(bytes([byte]))
    (connected,) = await client.frames()
    assert connected.command == "CONNECTED"


@on_loop()
async def test_without_a_subprotocol_what_is_not_spoken_is_closed_with_1003(rig: ServerRig) -> None:
    client = Client(rig)
    client.arrive(client.web.opening)
    client.look()
    client.message(b"\x16\x03\x01\x00")
    client.look()
    assert client.web.close is not None
    assert client.web.close.code == 1003


HANDSHAKES = {
    "not an upgrade": (b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n", 426, b"speaks WebSocket"),
    "another path behind": (handshake(path="/ws?x=1").replace(b"/ws?", b"/ws/?"), 400, b"/ws"),
    "no key": (handshake(headers={"Sec-WebSocket-Key": None}), 400, b"Key"),  # type: ignore[dict-item]
    "no version": (handshake(headers={"Sec-WebSocket-Version": None}), 400, b"Version"),  # type: ignore[dict-item]
    "an old version": (handshake(headers={"Sec-WebSocket-Version": "8"}), 400, b"Version"),
    "no host": (handshake(headers={"Host": None}), 400, b"wrong"),  # type: ignore[dict-item]
    "not HTTP": (b"GET /ws \x00\x01\r\n\r\n", 400, b"wrong"),
    "no ASCII": (handshake(headers={"Sec-WebSocket-Protocol": "\xff\xfe"}), 400, b"wrong"),
    "unknown subprotocol": (handshake("chat"), 400, b"v12.stomp"),
    "subprotocol not spoken": (handshake("nonsense", "wamp"), 400, b"none of the subprotocols"),
    "huge head": (handshake(headers={"X": "y" * 9000}), 431, b"longer than 8192 bytes"),
    "endless head": (b"GET /ws HTTP/1.1\r\n" + b"X: y\r\n" * 2000, 431, b"longer than 8192"),
}


@pytest.mark.parametrize("case", HANDSHAKES)
def test_a_wrong_handshake_gets_an_answer_of_http(case: str) -> None:
    data, status, sentence = HANDSHAKES[case]

    @on_loop()
    async def scenario(rig: ServerRig) -> None:
        client = Client(rig)
        client.arrive(data)
        answer = client.http()
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert sentence in answer
        assert client.transport.is_eof
        assert not client.connection.is_open

    scenario()


@on_loop()
async def test_a_head_without_end_keeps_no_more_than_the_limit(rig: ServerRig) -> None:
    client = Client(rig)
    client.arrive(b"GET /ws HTTP/1.1\r\nX: ")
    for _ in range(100):
        client.arrive(b"y" * 1000)
    assert client.http().startswith(b"HTTP/1.1 431 ")


@on_loop(run_virtual)
async def test_a_slow_handshake_ends_with_the_time_for_logins(rig: ServerRig) -> None:
    client = Client(rig)
    for byte in b"GET /ws HTTP":
        client.arrive(bytes([byte]))
        await asyncio.sleep(0.5)
    await asyncio.sleep(5)
    assert client.http().startswith(b"HTTP/1.1 408 ")
    assert b"no login within 10 seconds" in client.http()


@on_loop(run_virtual)
async def test_an_open_websocket_without_a_login_is_closed(rig: ServerRig) -> None:
    client = Client(rig, "v12.stomp")
    client.arrive(client.web.opening)
    await asyncio.sleep(11)
    client.look()
    assert client.web.close is not None
    assert client.web.close.code == 1008
    assert b"no login within 10 seconds" in client.web.received()


@on_loop(
    acceptor=Acceptor(
        name="all", port=0, web_socket=WebSocketLimits(allowed_origins=("https://shop.example",))
    )
)
async def test_pages_of_other_origins_are_refused(rig: ServerRig) -> None:
    other = Client(rig)
    other.arrive(handshake("v12.stomp", headers={"Origin": "https://evil.example"}))
    assert other.http().startswith(b"HTTP/1.1 403 ")
    for headers in ({"Origin": "https://SHOP.example"}, {}):
        client = Client(rig)
        client.arrive(handshake("v12.stomp", headers=headers))
        assert client.http().startswith(b"HTTP/1.1 101 ")


SERVING = Acceptor(
    name="all",
    host="127.0.0.1",
    port=0,
    web_socket=WebSocketLimits(allowed_origins=("https://shop.example", "*")),
)


def is_let_in(
    rig: ServerRig,
    host: str = "127.0.0.1:61616",
    origin: str = "",
    site: str = "",
    agent: str = "Mozilla/5.0",
) -> bool:
    """Whether a handshake with these headers succeeds."""
    headers = {"Host": host, "Origin": origin, "Sec-Fetch-Site": site, "User-Agent": agent}
    client = Client(rig)
    client.arrive(handshake("v12.stomp", headers={k: v for k, v in headers.items() if v}))
    return client.http().startswith(b"HTTP/1.1 101 ")


def test_origins_that_the_settings_name() -> None:
    assert is_origin_named([b"https://A.example"], ("https://a.example/",))
    assert not is_origin_named([b"https://a.example.evil"], ("https://a.example",))
    assert not is_origin_named([b"https://a.example", b"https://b"], ("https://a.example",))
    assert not is_origin_named([b"null"], ("*",))
    assert not is_origin_named([], ("https://a.example",))


@pytest.mark.parametrize(
    ("origin", "host", "local", "same"),
    [
        (None, "127.0.0.1:61616", True, True),
        ("http://localhost:3000", "127.0.0.1:61616", True, False),
        ("http://127.0.0.1:3000", "localhost:61616", True, False),
        ("http://[::1]:3000", "localhost:61616", True, False),
        ("http://127.0.0.1:61616", "127.0.0.1:61616", True, True),
        ("http://192.0.2.7:8161", "192.0.2.7:8161", True, True),
        ("https://mq.example", "mq.example", False, True),  # rebinding, where nobody logs in
        ("https://evil.example", "127.0.0.1:61616", False, False),
        ("http://localhost.evil.example", "127.0.0.1:61616", False, False),
        ("null", "127.0.0.1:61616", False, False),
        ("http://[", "127.0.0.1:61616", False, False),
    ],
)
def test_which_pages_connect_without_a_login_that_is_typed(
    origin: str | None, host: str, local: bool, same: bool
) -> None:
    asked = Asked(host, origin)
    assert (local_pages(asked) is None) is local
    assert (same_place_pages(asked) is None) is same
    assert any_page(asked) is None


@pytest.mark.parametrize("has_users", [False, True])
def test_pages_of_other_sites_do_not_use_a_broker_without_logins(has_users: bool) -> None:
    @on_loop(acceptor=SERVING)
    async def scenario(rig: ServerRig) -> None:
        if has_users:
            rig.users["amy"] = make_user("amy", "secret", iterations=4096)
        assert is_let_in(rig), "clients that are no browsers send no origin"
        assert is_let_in(rig, origin="https://shop.example")
        assert is_let_in(rig, origin="http://localhost:3000")
        assert is_let_in(rig, origin="https://evil.example") is has_users
        named = {"host": "broker:61616", "origin": "http://broker:61616"}
        assert is_let_in(rig, **named) is has_users, "rebinding"
        assert is_let_in(rig, **named, agent=""), "paho and websocket-client, which are no browsers"

    scenario()


@pytest.mark.parametrize("has_users", [False, True])
def test_the_http_port_lets_in_the_pages_that_may_use_the_rest_of_it(has_users: bool) -> None:
    @on_loop(acceptor=SERVING)
    async def scenario(rig: ServerRig) -> None:
        rig.listener.is_http = True
        if has_users:
            rig.users["amy"] = make_user("amy", "secret", iterations=4096)
        local = "localhost:8161"
        assert is_let_in(rig, host=local)
        assert is_let_in(rig, host=local, origin=f"http://{local}")
        assert is_let_in(rig, host=local, origin="https://shop.example"), "the settings name it"
        assert not is_let_in(rig, host=local, origin="http://localhost:3000")
        assert not is_let_in(rig, host=local, site="cross-site")
        for origin in ("", "http://evil.example", "https://shop.example"):
            assert not is_let_in(rig, host="evil.example", origin=origin), "rebinding"

    scenario()


BEYOND = msgspec.structs.replace(SERVING, host="0.0.0.0")


@pytest.mark.parametrize("has_users", [False, True])
def test_beyond_loopback_pages_by_name_need_a_broker_with_logins(has_users: bool) -> None:
    """Where no login is needed, a site may have made its own name lead here."""

    @on_loop(acceptor=BEYOND)
    async def scenario(rig: ServerRig) -> None:
        rig.listener.is_http = True
        if has_users:
            rig.users["amy"] = make_user("amy", "secret", iterations=4096)
        assert is_let_in(rig, host="mq:8161", origin="http://mq:8161") is has_users
        assert is_let_in(rig, host="mq:8161", origin="http://mq:8161", agent="")
        assert is_let_in(rig, host="192.0.2.7:8161", origin="http://192.0.2.7:8161")
        assert not is_let_in(rig, host="192.0.2.7:8161", origin="http://localhost:3000")

    scenario()


@on_loop(acceptor=SERVING)
async def test_pages_of_other_sites_do_not_use_the_certificate_of_a_browser(
    rig: ServerRig,
) -> None:
    rig.users["amy"] = make_user("amy", "secret", iterations=4096)
    assert is_let_in(rig, origin="https://evil.example")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "certificate_login", lambda: None)
        assert is_let_in(rig, host="mq.example", origin="https://mq.example")
        assert is_let_in(rig, origin="https://shop.example"), "the settings name it"
        assert not is_let_in(rig, origin="https://evil.example")

"""The listener's life: where it may listen, how many connections, how long they may idle."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket

import pytest

from vespiary_broker.admin import server
from vespiary_broker.admin.access import Access
from vespiary_broker.admin.endpoints import Site
from vespiary_broker.admin.server import AdminServer, load_site
from vespiary_broker.server.line_limit import LINES_PER_PERIOD
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Admin
from vespiary_testkit.admin_rig import MemoryBroker, admin_rig, users_with_roles
from vespiary_testkit.journal_workload import run
from vespiary_testkit.waiting import WAIT_S


@run
async def test_without_users_only_this_machine_may_ask():
    with pytest.raises(ConfigError, match=r"admin\.host.*no users.*vespiary user add"):
        async with AdminServer(
            MemoryBroker(), Admin(host="0.0.0.0", port=0), has_users=False
        ).running():
            raise AssertionError("it listens")


@run
async def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"admin\.port.*127\.0\.0\.1:{port}.*in use"):
            async with AdminServer(
                MemoryBroker(), Admin(host="127.0.0.1", port=port), has_users=False
            ).running():
                raise AssertionError("it listens")


@run
async def test_an_address_of_another_machine_is_named():
    elsewhere = AdminServer(MemoryBroker(), Admin(host="192.0.2.1", port=0), has_users=True)
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        async with elsewhere.running():
            raise AssertionError("it listens")


@run
async def test_clients_that_come_before_it_answers_wait():
    listener = AdminServer(MemoryBroker(), Admin(host="127.0.0.1", port=0), has_users=False)
    async with listener.running():
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        listener.begin()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()


class LateImport:
    """An import that finds no descriptor, or no library that can be mapped, a few times."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> type[Site]:
        if self.failures:
            self._loop.call_soon_threadsafe(self.failed.set)
            raise self.failures.pop(0)
        return load_site()


@run
async def test_what_answers_is_loaded_again_until_that_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(server, "_AGAIN_S", 0.001)
    load = LateImport(
        OSError(errno.EMFILE, "Too many open files"), ImportError("cannot open shared object file")
    )
    listener = AdminServer(
        MemoryBroker(), Admin(host="127.0.0.1", port=0), has_users=False, load=load
    )
    async with listener.running():
        listener.begin()
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()
    assert not load.failures
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.name for record in told] == ["vespiary_broker.admin.server"]
    assert "Too many open files" in told[0].getMessage()


@run
async def test_once_loaded_it_needs_no_more_files():
    """A file that cannot be opened is tried again while it is loaded, and only then."""
    make_site = load_site()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        broker = MemoryBroker()
        site = make_site(broker, Access(broker, "127.0.0.1"))
        await site.open()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await site.close()


@run
async def test_it_stops_while_what_answers_cannot_be_loaded():
    async with asyncio.timeout(WAIT_S):
        load = LateImport(*(OSError(errno.EMFILE, "Too many open files") for _ in range(99)))
        listener = AdminServer(
            MemoryBroker(), Admin(host="127.0.0.1", port=0), has_users=False, load=load
        )
        async with listener.running():
            listener.begin()
            await load.failed.wait()


@run
async def test_it_stops_before_it_has_begun():
    async with asyncio.timeout(WAIT_S):
        listener = AdminServer(MemoryBroker(), Admin(host="127.0.0.1", port=0), has_users=False)
        async with listener.running():
            port = listener.port
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


def test_with_users_others_may_ask_and_must_log_in():
    with admin_rig(MemoryBroker(users_with_roles()), host="0.0.0.0") as rig:
        elsewhere = {"Host": "broker.example"}
        assert rig.get("/healthz", headers=elsewhere).status == 200
        assert rig.get("/readyz", headers=elsewhere).status == 200
        for path in ("/", "/metrics", "/api/v1/queues", "/api/v1/openapi.json"):
            assert rig.get(path, headers=elsewhere).status == 401
            assert rig.get(path, headers=elsewhere, login=("alice", "secret")).status == 200


def test_probes_say_why_not():
    with admin_rig() as rig:
        assert (rig.get("/healthz").body, rig.get("/readyz").body) == (b"alive\n", b"ready\n")
        rig.broker.not_ready_reason = "the disk is full"
        answer = rig.get("/readyz")
        assert (answer.status, answer.body) == (503, b"the disk is full\n")
        assert rig.get("/healthz").status == 200
        rig.broker.failed_reason = "a write failed"
        assert (rig.get("/healthz").status, rig.get("/healthz").body) == (503, b"a write failed\n")


def test_every_answer_has_the_headers_that_protect_a_browser():
    with admin_rig() as rig:
        for path in ("/", "/metrics", "/healthz", "/api/v1/brokers", "/nowhere"):
            headers = rig.get(path).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Cache-Control"] == "no-store"
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in headers
            assert headers["Server"] == "Vespiary"


def test_what_is_not_there_and_what_cannot_be_done_are_problems():
    with admin_rig() as rig:
        answer = rig.get("/nowhere")
        assert (answer.status, answer.headers.get_content_type()) == (
            404,
            "application/problem+json",
        )
        answer = rig.call("PUT", "/api/v1/queues")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,POST")


def test_a_defect_is_answered_without_its_details(caplog: pytest.LogCaptureFixture):
    with admin_rig() as rig:
        rig.broker.failure = KeyError("inner secret")
        answer = rig.call("POST", "/api/v1/queues", body={"name": "x"})
        assert answer.status == 500
        assert "inner secret" not in answer.json["detail"]
    assert "inner secret" in caplog.text


def test_what_is_no_request_is_logged_in_one_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    with admin_rig() as rig:
        assert rig.get("/api/v1/queues/" + "n" * 9000).status == 400
        (told,) = [record for record in caplog.records if "no request" in record.getMessage()]
        assert (told.levelno, told.exc_info) == (logging.INFO, None)
        assert "8190" in told.getMessage()


def test_a_name_that_no_client_could_say_is_refused():
    with admin_rig() as rig:
        for path, body in (
            ("queues", {"name": "a::b"}),
            ("queues", {"name": "b", "address": "a::b"}),
            ("addresses", {"name": "a::b", "routingTypes": ["ANYCAST"]}),
        ):
            answer = rig.call("POST", f"/api/v1/{path}", body=body)
            assert answer.status == 400
            assert "has :: in it" in answer.json["detail"]


def test_the_page_names_its_own_script_and_nothing_foreign():
    with admin_rig() as rig:
        page = rig.get("/")
        policy = page.headers["Content-Security-Policy"]
        assert "script-src 'sha256-" in policy
        assert "unsafe" not in policy
        text = page.body.decode()
        assert "https://" not in text
        assert "http://" not in text


def test_too_many_connections_are_turned_away(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    with admin_rig() as rig:
        held = [socket.create_connection(("127.0.0.1", rig.port)) for _ in range(2)]
        try:
            for connection in held:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(12) == b"HTTP/1.1 200"
            assert rig.get("/api/v1/queues").status == 503
            assert rig.get("/healthz").status == 200
        finally:
            for connection in held:
                connection.close()


def test_a_flood_of_what_is_no_request_is_bounded_in_the_log(caplog: pytest.LogCaptureFixture):
    flood = 3 * LINES_PER_PERIOD
    with caplog.at_level(logging.INFO), admin_rig() as rig:
        for number in range(flood):
            with socket.create_connection(("127.0.0.1", rig.port), timeout=WAIT_S) as connection:
                connection.sendall(b"GET /%d NONE/1.1\r\n\r\n" % number)
                assert connection.recv(12) == b"HTTP/1.0 400"
    said = [each for each in caplog.records if "it is no request" in each.getMessage()]
    assert 1 <= len(said) <= LINES_PER_PERIOD


def test_a_request_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "_SWEEP_S", 0.02)
    monkeypatch.setattr(server, "IDLE_S", WAIT_S)
    with admin_rig() as rig:
        with socket.create_connection(("127.0.0.1", rig.port), timeout=WAIT_S) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
            monkeypatch.setattr(server, "IDLE_S", 0.1)  # now: it has begun
            assert connection.recv(100) == b""
        monkeypatch.setattr(server, "IDLE_S", WAIT_S)
        assert rig.get("/healthz").status == 200

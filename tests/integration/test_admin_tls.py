"""The HTTP port of a whole broker over TLS, with its commands; and the port for probes."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.certificates import Authority
from vespiary_testkit.waiting import WAIT_S, wait_for
from vespiary_testkit.websocket_peer import WebSocketClient

pytestmark = pytest.mark.once

AUTHORITY = Authority()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    (made / "ca.crt").write_bytes(AUTHORITY.certificate)
    for name in ("broker", "root"):
        AUTHORITY.sign(name).write(made / name)
    return made


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    data = folder / "data"
    data.mkdir(mode=0o700)
    root = make_user("root", "secret-of-root", roles=["admin"], iterations=4096)
    (data / "users").write_text(format_users([root]))
    (data / "users").chmod(0o600)
    settings = (
        f"admin.tls.certificate={folder}/broker/tls.crt",
        f"admin.tls.key={folder}/broker/tls.key",
        f"admin.tls.client-ca={folder}/ca.crt",
        "admin.tls.want-client-auth=true",
        "admin.probe-port=0",
    )
    with BrokerProcess(data, *settings) as process:
        yield process


def vespiary(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vespiary_broker", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**environment(), **variables},
        check=False,
        timeout=WAIT_S,
    )


def test_commands(broker: BrokerProcess, folder: Path) -> None:
    place = f"127.0.0.1:{broker.port('http')}"
    ca = ("--ca", folder / "ca.crt")
    certificate = (
        *("--client-certificate", folder / "root/tls.crt"),
        *("--client-key", folder / "root/tls.key"),
    )
    password = {"VESPIARY_PASSWORD": "secret-of-root"}
    asked = ("queue", "list", "--json", "--api")
    found = vespiary(*asked, f"https://root@{place}", *ca, **password)
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found
    found = vespiary(*asked, f"https://{place}", *ca, *certificate)
    assert (found.returncode, found.stdout.strip()) == (0, "[]"), found
    found = vespiary(*asked, f"https://{place}", *ca)
    assert found.returncode == 1
    assert "needs a login" in found.stderr
    found = vespiary(*asked, f"https://root@{place}", **password)
    assert found.returncode == 1
    assert "is not trusted" in found.stderr
    assert "--ca" in found.stderr
    found = vespiary(*asked, f"http://root@{place}", **password)
    assert found.returncode == 1
    assert "https://" in found.stderr
    clear = f"127.0.0.1:{broker.port('probes')}"
    found = vespiary(*asked, f"https://root@{clear}", *ca, **password)
    assert found.returncode == 1
    assert "does not speak TLS" in found.stderr
    found = vespiary(*asked, f"https://{place}", "--ca", folder / "broker/tls.key")
    assert found.returncode == 1
    assert "--ca" in found.stderr
    assert "PEM" in found.stderr


def test_probes(broker: BrokerProcess) -> None:
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/", 404)):
        connection = http.client.HTTPConnection("127.0.0.1", broker.port("probes"), timeout=WAIT_S)
        connection.request("GET", path)
        assert connection.getresponse().status == status, path
        connection.close()


def test_websockets_go_through_tls(broker: BrokerProcess, folder: Path) -> None:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with WebSocketClient(broker.port("http"), "v12.stomp", tls=context) as web:
        login = b"CONNECT\naccept-version:1.2\nlogin:root\npasscode:secret-of-root\n\n\0"
        web.message(login)
        assert web.received(b"\0").startswith(b"CONNECTED")
    context.load_cert_chain(folder / "root/tls.crt", folder / "root/tls.key")
    with WebSocketClient(broker.port("http"), "v12.stomp", tls=context) as web:
        web.message(b"CONNECT\naccept-version:1.2\n\n\0")
        assert web.received(b"\0").startswith(b"CONNECTED"), "the certificate is the login"


def test_a_renewed_certificate_is_taken_without_a_restart(
    broker: BrokerProcess, folder: Path
) -> None:
    renewed = AUTHORITY.sign("broker")
    renewed.write(folder / "broker")
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))

    def shown() -> bytes:
        place = ("127.0.0.1", broker.port("http"))
        return ssl.get_server_certificate(place, ca_certs=str(folder / "ca.crt")).encode()

    wait_for(lambda: shown().split() == renewed.certificate.split(), what="the new certificate")
    connection = http.client.HTTPSConnection(
        "127.0.0.1", broker.port("http"), timeout=WAIT_S, context=context
    )
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    assert "certificate taken acceptor=http" in broker.log_text()


def test_files_that_are_wrong_reject_the_start(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("nothing")
    settings = [
        *("--set", f"admin.tls.certificate={tmp_path}/tls.crt"),
        *("--set", f"admin.tls.key={tmp_path}/tls.key"),
    ]
    for command in ("run", "check"):
        found = vespiary(command, "--data", tmp_path / "data", *settings)
        assert found.returncode != 0
        assert "admin.tls" in found.stdout + found.stderr
        assert "Traceback" not in found.stderr

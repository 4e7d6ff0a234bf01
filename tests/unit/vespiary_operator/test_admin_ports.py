"""The HTTP port of brokers over TLS: who is called there, and by what certificate it is known."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from vespiary_operator import names, remote
from vespiary_operator.admin_ports import AdminPort, admin_port, trust_of
from vespiary_operator.broker_calls import EndDrain, StartDrain
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.remote import Remote
from vespiary_spec.limits import AUTHORITIES_CHARACTERS_MAX
from vespiary_testkit.broker_resources import broker
from vespiary_testkit.certificates import Authority, Signed, self_signed

AUTHORITY = Authority()
POD = {"metadata": {"name": "orders-0"}, "status": {"podIP": "127.0.0.1"}}
TLS_POD = {
    **POD,
    "metadata": {"name": "orders-0", "annotations": {names.ANNOTATION_ADMIN_TLS: "cert"}},
}


def secret(signed: Signed, **more: bytes) -> dict[str, Any]:
    data = {"tls.crt": signed.certificate, "tls.key": signed.key}
    data |= {name.replace("_", "."): value for name, value in more.items()}
    return {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}


# --- which certificate ----------------------------------------------------------------------------


def test_each_pod_says_whether_it_speaks_tls() -> None:
    asked = broker(admin={"port": 9000, "tls": {"secretName": "cert"}})
    secrets = {"cert": secret(AUTHORITY.sign("orders.ns.svc"))}
    assert admin_port(asked, POD, secrets) == AdminPort(number=9000), "its template is of before"
    found = admin_port(asked, TLS_POD, secrets)
    assert found is not None
    assert found.trust == trust_of(secrets["cert"])
    assert admin_port(broker(), TLS_POD, {}) is None, "never in clear, and the Secret is not read"
    assert admin_port(asked, TLS_POD, {"cert": None}) is None


def test_the_certificate_is_in_the_secret_or_signed_by_one_in_it() -> None:
    own = AUTHORITY.sign("orders.ns.svc")
    found = trust_of(secret(own, ca_crt=AUTHORITY.certificate + AUTHORITY.certificate))
    assert found is not None
    assert found.server_name == "orders.ns.svc"
    assert found.authorities.encode() == own.certificate + AUTHORITY.certificate
    others = b"".join(Authority(str(number)).certificate for number in range(120))
    assert len(others) > AUTHORITIES_CHARACTERS_MAX
    found = trust_of(secret(own, ca_crt=others))
    assert found is not None
    assert found.authorities.encode() == own.certificate
    assert trust_of(secret(own, ca_crt=b"x")) == trust_of(secret(own))


@pytest.mark.parametrize(
    ("hosts", "server_name"),
    [
        ((x509.DNSName("*.orders-headless.ns.svc"),), "broker.orders-headless.ns.svc"),
        ((x509.IPAddress(ipaddress.ip_address("10.0.0.1")), x509.DNSName("a.b")), "a.b"),
        ((x509.IPAddress(ipaddress.ip_address("10.0.0.1")),), "10.0.0.1"),
        ((x509.RFC822Name("a@b"),), ""),
        ((x509.DNSName(".b"), x509.DNSName("a..b"), x509.DNSName("a.b")), "a.b"),
        ((), ""),
    ],
)
def test_the_host_is_one_of_the_certificates(
    hosts: tuple[x509.GeneralName, ...], server_name: str
) -> None:
    found = trust_of(secret(self_signed(*hosts)))
    assert ("" if found is None else found.server_name) == server_name


@pytest.mark.parametrize("data", [None, {}, {"data": {}}, {"data": {"tls.crt": "!"}}])
def test_a_secret_without_a_certificate_is_no_reason_to_trust(data: dict[str, Any] | None) -> None:
    assert trust_of(data) is None


# --- calls ----------------------------------------------------------------------------------------


class TlsSite:
    """A broker's HTTP port over TLS.

    Attributes:
        requests: Method, path and login of each request.
        bodies: What was posted.
    """

    def __init__(self, signed: Signed, folder: Path) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.bodies: list[Any] = []
        signed.write(folder)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def _handle(self, request: web.Request) -> web.Response:
        login = request.headers.get("Authorization", "")
        self.requests.append((request.method, request.path, login))
        if request.method == "POST":
            self.bodies.append(await request.json())
        return web.json_response({"items": [{"engine": "NIO"}]})

    async def called(self, *trusts: dict[str, Any]) -> list[BrokerAnswer | None]:
        """Ask it, once with each Secret, in one session; then begin a drain with the last one."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._context).start()
            number = runner.addresses[0][1]
            asked = broker(admin={"port": number, "tls": {"secretName": "cert"}})
            answers = []
            async with aiohttp.ClientSession() as session:
                for trust in trusts:
                    port = admin_port(asked, TLS_POD, {"cert": trust})
                    assert port is not None
                    answers.append(await Remote(session).answer(TLS_POD, port, "pw"))
                call = StartDrain(pod=TLS_POD, target="https://orders-1", trust=port.trust)
                is_taken = await Remote(session).carry_out(call, port, "pw")
                assert is_taken is (answers[-1] is not None)
                await Remote(session).carry_out(EndDrain(pod=TLS_POD), port, "pw")
            return answers
        finally:
            await runner.cleanup()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "TIMEOUT_S", 60.0)  # also on a busy machine
    monkeypatch.setattr(remote, "CALL_S", 60.0)


def test_a_broker_is_asked_and_told_by_its_certificate(tmp_path: Path) -> None:
    own = AUTHORITY.sign("orders.ns.svc")
    site = TlsSite(own, tmp_path)
    renewed = secret(AUTHORITY.sign("orders.ns.svc"), ca_crt=AUTHORITY.certificate)
    # It shows the one before: the kubelet has yet to bring the Secret that the operator has read.
    (found,) = asyncio.run(site.called(renewed))
    assert found is not None
    assert found.engine == "NIO"
    assert all(login.startswith("Basic ") for _, _, login in site.requests)
    assert [path for method, path, _ in site.requests if method == "DELETE"] == ["/api/v1/drain"]
    (body,) = site.bodies
    assert body["serverName"] == "orders.ns.svc"
    assert AUTHORITY.certificate.decode() in body["authorities"]


def test_a_certificate_that_signs_itself_is_trusted_as_it_is(tmp_path: Path) -> None:
    own = self_signed(x509.DNSName("*.orders-headless.ns.svc"))
    (found,) = asyncio.run(TlsSite(own, tmp_path).called(secret(own)))
    assert found is not None


def test_nobody_else_is_told_the_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = TlsSite(AUTHORITY.sign("billing.ns.svc"), tmp_path)
    wrong = (
        secret(AUTHORITY.sign("orders.ns.svc"), ca_crt=AUTHORITY.certificate),  # another's host
        secret(Authority().sign("billing.ns.svc")),  # another's signer
    )
    assert asyncio.run(site.called(*wrong)) == [None, None]
    assert site.requests == []
    assert "is not the Secret's" in caplog.text


def test_a_connection_is_not_shared_by_two_who_trust_differently(tmp_path: Path) -> None:
    site = TlsSite(AUTHORITY.sign("orders.ns.svc"), tmp_path)
    right = secret(AUTHORITY.sign("orders.ns.svc"), ca_crt=AUTHORITY.certificate)
    wrong = secret(AUTHORITY.sign("billing.ns.svc"), ca_crt=AUTHORITY.certificate)
    found, refused = asyncio.run(site.called(right, wrong))
    assert found is not None
    assert refused is None

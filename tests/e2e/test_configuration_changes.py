"""Settings, users and certificates that change under a running broker, on a real cluster."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from typing import Any

import pytest
import stomp

from vespiary_testkit.certificates import Authority
from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = [pytest.mark.e2e, pytest.mark.verify]

AUTHORITY = Authority()
PASSWORD = "correct horse"
REFUSED = "certificate not taken, the one before stays"
"""What a broker logs of TLS files that it cannot use."""


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {
        key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def certificate(subject: str, *, days: float) -> dict[str, Any]:
    """Return a Secret with another certificate of the same host."""
    signed = AUTHORITY.sign("orders.example", days=days, subject=f"CN={subject}")
    parts = {"tls_crt": signed.certificate, "tls_key": signed.key}
    return secret("cert", **parts, ca_crt=AUTHORITY.certificate)


def users(**passwords: str) -> dict[str, Any]:
    return secret("logins", **{name: text.encode() for name, text in passwords.items()})


def patch(cluster: KubernetesCluster, namespace: str, spec: dict[str, Any]) -> int:
    """Change a Broker; return its generation."""
    text = json.dumps({"spec": spec})
    cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", text)
    return int(cluster.broker("orders", namespace)["metadata"]["generation"])


def identity(cluster: KubernetesCluster, namespace: str) -> tuple[str, int]:
    """Return the UID of the broker's pod and how often its container was started again."""
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    (broker,) = pod["status"]["containerStatuses"]
    return pod["metadata"]["uid"], broker["restartCount"]


def broker_log(cluster: KubernetesCluster, namespace: str) -> str:
    return cluster.read("-n", namespace, "logs", "orders-0", "-c", "broker")


def may_log_in(port: int, name: str, password: str) -> bool:
    connection = stomp.Connection12([("127.0.0.1", port)], reconnect_attempts_max=1)
    try:
        connection.connect(name, password, wait=True)
        connection.disconnect()
    except stomp.exception.StompException:
        return False
    return True


def subject_at(port: int) -> str:
    with StompPeer(port, tls=trusting()) as peer:
        peer.connect(login="admin", passcode=PASSWORD)
        assert isinstance(peer.socket, ssl.SSLSocket)
        found: Any = peer.socket.getpeercert()
        return str(dict(pair[0] for pair in found["subject"])["commonName"])


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=AUTHORITY.certificate.decode())


def http_subject(port: int) -> str:
    """Return whom the HTTP port shows, and see that it answers there."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusting())
    try:
        connection.request("GET", "/readyz")
        assert isinstance(connection.sock, ssl.SSLSocket)
        found: Any = connection.sock.getpeercert()
        assert connection.getresponse().status == 200
        return str(dict(pair[0] for pair in found["subject"])["commonName"])
    finally:
        connection.close()


@pytest.fixture
def orders(cluster: KubernetesCluster, namespace: str) -> str:
    """Return the namespace of a Broker with two acceptors; one has TLS, and the HTTP port has."""
    cluster.apply(certificate("one.example", days=90), namespace)
    cluster.apply(users(admin=PASSWORD, guest="the-first"), namespace)
    acceptors = [
        {"name": "plain", "port": 61613},
        {"name": "secure", "port": 61617, "tls": {"secretName": "cert"}},
    ]
    admin = {"tls": {"secretName": "cert"}}
    spec = {"acceptors": acceptors, "auth": {"secretName": "logins"}, "admin": admin}
    cluster.apply(small_broker("orders", **spec), namespace)
    cluster.wait_until_ready("orders", namespace)
    # The broker says so itself, over TLS.
    cluster.wait_for_condition("orders", namespace, "ConfigApplied", "True")
    return namespace


def test_changes_reach_a_broker_that_goes_on_running(cluster: KubernetesCluster, orders: str):
    before = identity(cluster, orders)
    with (
        cluster.forwarded("pod/orders-0", 61613, orders) as plain,
        cluster.forwarded("pod/orders-0", 61617, orders) as secure,
        cluster.forwarded("pod/orders-0", 8161, orders) as http_port,
    ):
        # Settings: a client that is connected all the time.
        with StompPeer(plain) as peer:
            peer.connect(login="admin", passcode=PASSWORD)
            peer.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"x")
            peer.receive_receipt("1")
            limit = {"match": "#", "maxSizeMessages": 1, "addressFullPolicy": "FAIL"}
            queue = {"name": "made", "queues": [{"name": "made"}]}
            generation = patch(cluster, orders, {"addressSettings": [limit], "addresses": [queue]})
            cluster.wait_for_condition(
                "orders", orders, "ConfigApplied", "True", generation=generation
            )
            peer.send("SEND", {"destination": "/queue/a", "receipt": "2"}, b"y")
            error = peer.receive_error()
            assert "address-full-policy is FAIL" in error.get("message", "") + error.body.decode()
        patch(cluster, orders, {"addressSettings": []})

        # Users: a new password, and one that is gone.
        assert may_log_in(plain, "guest", "the-first")
        cluster.apply(users(admin=PASSWORD, guest="the-second"), orders)
        wait_for("the new password", lambda: may_log_in(plain, "guest", "the-second"), pause_s=2)
        assert not may_log_in(plain, "guest", "the-first")
        cluster.kubectl(
            "-n", orders, "patch", "secret", "logins", "--type=json",
            "-p", json.dumps([{"op": "remove", "path": "/data/guest"}]),
        )  # fmt: skip
        wait_for("the user gone", lambda: not may_log_in(plain, "guest", "the-second"), pause_s=2)

        # Certificates: the new one is shown, and one whose key does not fit is not.
        assert subject_at(secure) == http_subject(http_port) == "one.example"
        look_inside(cluster, orders)
        cluster.apply(certificate("two.example", days=10), orders)
        wait_for("the new certificate", lambda: subject_at(secure) == "two.example", pause_s=2)
        soon = wait_for(
            "a certificate that ends soon",
            lambda: _reason(cluster, orders, "CertificateValid", "ExpiresSoon"),
        )
        assert "acceptor secure (secret cert)" in soon["message"].lower()
        wait_for("at the HTTP port, too", lambda: http_subject(http_port) == "two.example")
        taken = wait_for(
            "the operator hears of it, over TLS",
            lambda: _reason(cluster, orders, "ConfigApplied", "Applied"),
        )
        assert taken["status"] == "True"
        found = cluster.broker("orders", orders)["status"]
        named = [(each["acceptor"], each["secretName"]) for each in found["certificates"]]
        assert named == [("secure", "cert"), ("http", "cert")]
        assert {each["name"] for each in found["endpoints"] if each.get("tls")} == {
            "secure",
            "http",
        }
        other = AUTHORITY.sign("three.example")
        cluster.apply(
            secret("cert", tls_crt=other.certificate, tls_key=AUTHORITY.sign("x").key), orders
        )
        wrong = cluster.wait_for_condition("orders", orders, "CertificateValid", "False")
        assert "is not the key of its tls.crt" in wrong["message"]
        # The operator has looked into the Secret. Its files come to the broker when the kubelet
        # brings them, which it does at once for a pod that somebody has changed.
        cluster.kubectl("-n", orders, "annotate", "pod", "orders-0", "e2e/look=now")
        wait_for("the broker has looked at it", lambda: REFUSED in broker_log(cluster, orders))
        assert subject_at(secure) == http_subject(http_port) == "two.example"
    assert identity(cluster, orders) == before


def look_inside(cluster: KubernetesCluster, namespace: str) -> None:
    """Probes come over TLS, commands in the pod do, and nothing is answered in clear."""
    pod = cluster.get("pod", "orders-0", namespace)
    assert pod is not None
    (main,) = pod["spec"]["containers"]
    assert main["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    command = (
        *("vespiary", "status", "--api", "https://admin@localhost:8161"),
        *("--ca", "/etc/vespiary/tls/cert/ca.crt"),
    )
    done = cluster.kubectl(
        *("-n", namespace, "exec", "orders-0", "-c", "broker", "--"),
        *("env", f"VESPIARY_PASSWORD={PASSWORD}", *command),
    )
    assert "journal" in done.stdout
    with cluster.forwarded("pod/orders-0", 8161, namespace) as clear:
        connection = http.client.HTTPConnection("127.0.0.1", clear, timeout=60)
        connection.request("GET", "/readyz")
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()
        connection.close()


def _reason(
    cluster: KubernetesCluster, namespace: str, kind: str, reason: str
) -> dict[str, Any] | None:
    found = cluster.condition("orders", namespace, kind)
    return found if found.get("reason") == reason else None

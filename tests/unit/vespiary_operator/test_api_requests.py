"""Requests are counted by what access rules call them."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading

import kubernetes
import pytest
import urllib3.exceptions

from vespiary_operator.api_requests import ApiRequest, CountingRest, refusal, understood
from vespiary_operator.metrics import Metrics


@pytest.mark.parametrize(
    ("method", "url", "meaning"),
    [
        ("GET", "/api/v1/namespaces/ns/pods/orders-0", ApiRequest("get", "pods")),
        ("GET", "/api/v1/namespaces/ns/pods?labelSelector=a", ApiRequest("list", "pods")),
        ("GET", "/api/v1/pods?watch=true", ApiRequest("watch", "pods")),
        ("GET", "/api/v1/pods?watch=false", ApiRequest("list", "pods")),
        ("GET", "https://10.0.0.1:6443/api/v1/nodes", ApiRequest("list", "nodes")),
        ("GET", "/api/v1/nodes/one", ApiRequest("get", "nodes")),
        ("GET", "/api/v1/namespaces/ns", ApiRequest("get", "namespaces")),
        ("POST", "/api/v1/namespaces/ns/events", ApiRequest("create", "events")),
        (
            "PATCH",
            "/apis/vespiary.dev/v1beta1/namespaces/ns/brokers/orders/status?fieldManager=x",
            ApiRequest("patch", "brokers", "status"),
        ),
        (
            "PATCH",
            "/apis/vespiary.dev/v1beta1/brokernodetunings/default/status",
            ApiRequest("patch", "brokernodetunings", "status"),
        ),
        ("PUT", "/apis/apps/v1/namespaces/ns/statefulsets/x", ApiRequest("update", "statefulsets")),
        ("DELETE", "/api/v1/namespaces/ns/configmaps/x", ApiRequest("delete", "configmaps")),
        (
            "DELETE",
            "/api/v1/namespaces/ns/configmaps",
            ApiRequest("deletecollection", "configmaps"),
        ),
        ("GET", "/apis", None),
        ("GET", "/apis/apps/v1", None),
        ("GET", "/version", None),
    ],
)
def test_a_request_is_understood(method: str, url: str, meaning: ApiRequest | None) -> None:
    assert understood(method, url) == meaning


TERMINATING = json.dumps(
    {
        "kind": "Status",
        "reason": "Forbidden",
        "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]},
    }
).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = 403 if "secrets" in self.path else 200
        body = TERMINATING if "gone" in self.path else b'{"kind": "Status", "reason": "Forbidden"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_the_transport_counts_what_is_answered_refused_and_lost() -> None:
    metrics = Metrics()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        configuration = kubernetes.client.Configuration(host=host)
        configuration.retries = False
        rest = CountingRest(configuration, metrics.asked)
        rest.request("GET", f"{host}/api/v1/pods")
        rest.request("GET", f"{host}/apis")
        with contextlib.suppress(kubernetes.client.ApiException):  # or it is a response, by version
            rest.request("GET", f"{host}/api/v1/namespaces/ns/secrets/x")
        with contextlib.suppress(kubernetes.client.ApiException):
            rest.request("GET", f"{host}/api/v1/namespaces/gone/secrets")
        server.shutdown()
    with pytest.raises(urllib3.exceptions.HTTPError):
        rest.request("GET", f"{host}/api/v1/nodes")
    lines = [line for line in metrics.text().decode().splitlines() if "api_requests_total{" in line]
    name = "vespiary_operator_api_requests_total"
    refused = 'subresource="",verb="get"'
    assert sorted(lines) == [
        f'{name}{{code="0",reason="",resource="nodes",subresource="",verb="list"}} 1.0',
        f'{name}{{code="200",reason="",resource="pods",subresource="",verb="list"}} 1.0',
        f'{name}{{code="403",reason="Forbidden",resource="secrets",{refused}}} 1.0',
        f'{name}{{code="403",reason="NamespaceTerminating",resource="secrets",subresource="",'
        'verb="list"} 1.0',
    ]


@pytest.mark.parametrize("body", [None, b"", "no JSON", b"[]", b'{"details": null}'])
def test_a_refusal_that_says_nothing_has_no_reason(body: str | bytes | None) -> None:
    assert refusal(body) == ""

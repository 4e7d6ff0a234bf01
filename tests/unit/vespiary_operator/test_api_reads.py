"""What the e2e tests read of an API server without kubectl: the same, or they have to ask it."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.api_reads import ApiReads, Unknown


def resource(name: str, kind: str, short: str, *, namespaced: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "singularName": kind.lower(),
        "namespaced": namespaced,
        "kind": kind,
        "shortNames": [short],
    }


def missing(name: str, kind: str) -> dict[str, Any]:
    return {"kind": "Status", "reason": "NotFound", "details": {"name": name, "kind": kind}}


class Server(http.server.ThreadingHTTPServer):
    """Answers from a dictionary.

    Attributes:
        answers: Status and body by path and query.
        asked: Every path and query that was asked for.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        brokers = resource("brokers", "Broker", "br")
        core = [resource("pods", "Pod", "po"), resource("nodes", "Node", "no", namespaced=False)]
        core.append({"name": "pods/log", "singularName": "", "namespaced": True, "kind": "Pod"})
        group = {"preferredVersion": {"groupVersion": "vespiary.dev/v1beta1"}}
        self.answers: dict[str, tuple[int, Any]] = {
            "/apis": (200, {"groups": [group]}),
            "/api/v1": (200, {"resources": core}),
            "/apis/vespiary.dev/v1beta1": (200, {"resources": [brokers]}),
        }
        self.asked: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)
        status, body = self.server.answers.get(self.path, (404, "404 page not found"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write((body if isinstance(body, str) else json.dumps(body)).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server() as made:
        place = {"server": f"http://127.0.0.1:{made.server_address[1]}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": place}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "nobody"}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "managedFields": [{"manager": "helm"}]}}


@pytest.mark.parametrize("kind", ["br", "broker", "brokers", "brokers.vespiary.dev"])
def test_an_object_is_found_by_each_name_of_its_kind(server: Server, kind: str) -> None:
    path = "/apis/vespiary.dev/v1beta1/namespaces/shop/brokers/orders"
    server.answers[path] = 200, named("orders")
    reads = ApiReads()
    for _ in range(2):
        assert reads.get(kind, "orders", "shop") == {"metadata": {"name": "orders"}}
    assert server.asked.count("/apis") == 1, "kinds are looked for once"


def test_objects_say_what_they_are_and_are_chosen_by_labels(server: Server) -> None:
    path = "/api/v1/namespaces/shop/pods?labelSelector=app%3Dorders"
    server.answers[path] = 200, {"items": [named("one"), named("two")]}
    found = ApiReads().items("pods", "shop", "app=orders")
    assert [(each["kind"], each["apiVersion"]) for each in found] == [("Pod", "v1")] * 2
    assert [each["metadata"] for each in found] == [{"name": "one"}, {"name": "two"}]


def test_what_is_of_the_whole_cluster_needs_no_namespace(server: Server) -> None:
    server.answers["/api/v1/nodes"] = 200, {"items": []}
    assert ApiReads().items("nodes", "", "") == []


def test_none_is_said_of_an_object_alone(server: Server) -> None:
    reads = ApiReads()
    server.answers["/api/v1/namespaces/shop/pods/gone"] = 404, missing("gone", "pods")
    assert reads.get("pod", "gone", "shop") is None
    server.answers["/api/v1/namespaces/shop/pods/gone"] = 404, missing("shop", "namespaces")
    with pytest.raises(Unknown):
        reads.get("pod", "gone", "shop")
    with pytest.raises(Unknown):
        reads.get("pod", "a path that is not served", "shop")


def test_a_kind_that_comes_later_is_found(server: Server) -> None:
    reads = ApiReads()
    with pytest.raises(Unknown, match="tuned is no resource"):
        reads.items("tuned", "shop", "")
    _, core = server.answers["/api/v1"]
    core["resources"].append(resource("tuneds", "Tuned", "tu"))
    server.answers["/api/v1/namespaces/shop/tuneds"] = 200, {"items": []}
    assert reads.items("tuned", "shop", "") == []


@pytest.mark.parametrize(
    ("kind", "namespace"),
    [
        pytest.param("daemonset,pods", "shop", id="several kinds"),
        pytest.param("pods", "", id="the namespace that kubectl has"),
        pytest.param("pods", "broken", id="an error of the server"),
    ],
)
def test_kubectl_is_asked_for_the_rest(server: Server, kind: str, namespace: str) -> None:
    server.answers["/api/v1/namespaces/broken/pods"] = 503, "later"
    with pytest.raises(Unknown):
        ApiReads().items(kind, namespace, "")


def test_kubectl_is_asked_where_nobody_answers(server: Server) -> None:
    reads = ApiReads()
    server.shutdown()
    server.server_close()
    with pytest.raises(Unknown):
        reads.get("pod", "one", "shop")

"""What `helm test` and the guard of an uninstall say."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError, api_exception

from vespiary_operator import installation_checks
from vespiary_operator.kinds import Kind


class Brokers:
    """An API server's handle of Brokers, which refuses small journals."""

    def __init__(self, found: tuple[str, ...] = (), *, checks: bool = True, taken: int = 0) -> None:
        self.found = found
        self.checks = checks
        self.taken = taken
        self.asked: list[Any] = []

    def __call__(self, kind: Kind) -> Any:
        assert kind.name == "Broker"
        return self

    def create(self, body: dict[str, Any], namespace: str, query_params: Any) -> None:
        assert query_params == [("dryRun", "All")], "nothing may be kept"
        self.asked.append(namespace)
        if self.taken:
            raise refused(self.taken)
        if body["spec"] and self.checks:
            raise refused(422)

    def get(self, namespace: str | None) -> Any:
        items = []
        for name in self.found:
            place, _, own = name.partition("/")
            if namespace in (None, place):
                items.append(SimpleNamespace(metadata=SimpleNamespace(namespace=place, name=own)))
        return SimpleNamespace(items=items)


def refused(status: int) -> DynamicApiError:
    error: DynamicApiError = api_exception(ApiException(status=status, reason="no"))
    error.status = status
    return error


def unknown(kind: Kind) -> Any:
    raise ResourceNotFoundError(kind.name)


@pytest.fixture
def readyz() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/readyz"
        server.shutdown()


def test_a_working_installation_is_called_good(readyz: str) -> None:
    brokers = Brokers()
    found = list(installation_checks.installation(brokers, "system", readyz))
    assert [is_good for is_good, _ in found] == [True] * 4
    assert brokers.asked == ["system", "system"]


@pytest.mark.parametrize(
    ("brokers", "path", "bad"),
    [
        (Brokers(checks=False), "", "one byte got status 201 instead of 422"),
        (Brokers(taken=403), "", r"An empty Broker is not taken in system \(status 403\)"),
        (Brokers(), "-not", "The operator is not ready: .*503"),
        (unknown, "", "does not know Brokers. Install the definitions"),
    ],
)
def test_what_does_not_work_is_named(brokers: Any, path: str, bad: str, readyz: str) -> None:
    found = list(installation_checks.installation(brokers, "system", readyz + path))
    (first, *_) = (sentence for is_good, sentence in found if not is_good)
    with pytest.raises(AssertionError, match=bad):
        raise AssertionError(first)


def test_an_uninstall_that_takes_brokers_with_it_is_bad() -> None:
    some = Brokers(("b/two", "a/one"))
    ((is_good, sentence),) = installation_checks.uninstall(some, ())
    assert not is_good
    assert "would delete 2 Brokers: a/one, b/two." in sentence
    ((is_good, sentence),) = installation_checks.uninstall(some, ("c",))
    assert is_good
    many = Brokers(tuple(f"n/b{i}" for i in range(9)))
    ((_, sentence),) = installation_checks.uninstall(many, ())
    assert "n/b4 and others" in sentence
    ((is_good, _),) = installation_checks.uninstall(unknown, ())
    assert is_good

"""What the API server's refusals mean: tried again when it asks, or not the same way again."""

from __future__ import annotations

import urllib3.exceptions
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import api_exception

from vespiary_operator.api_errors import (
    RETRY_MAX_S,
    RETRY_S,
    ApiRefusedError,
    ApiUnavailableError,
    explained,
)
from vespiary_spec.errors import TemporaryReconcileError


class Answer:
    """What the client makes its exception of."""

    def __init__(self, status: int, retry_after: str) -> None:
        self.status, self.reason, self.data = status, "no", b'{"message": "come back"}'
        self.headers = {"Retry-After": retry_after} if retry_after else {}

    def getheaders(self) -> dict[str, str]:
        return self.headers


def refused(status: int, retry_after: str = "") -> Exception:
    error: Exception = api_exception(ApiException(http_resp=Answer(status, retry_after)))
    return error


def test_an_overloaded_server_is_asked_again_when_it_says() -> None:
    for status in (429, 500, 502, 503, 504):
        found = explained(refused(status, "7"), "list pods ns")
        assert isinstance(found, ApiUnavailableError)
        assert found.delay_s == 7.0
        assert "come back" in str(found)
        assert "list pods ns" in str(found)


def test_a_server_that_does_not_say_when_or_asks_for_too_much() -> None:
    for asked, delay_s in (
        ("", RETRY_S),
        ("Wed, 21 Oct 2026 07:28:00 GMT", RETRY_S),
        ("86400", RETRY_MAX_S),
        ("0", 1.0),
    ):
        found = explained(refused(503, asked), "list pods ns")
        assert isinstance(found, ApiUnavailableError)
        assert found.delay_s == delay_s


def test_a_refusal_is_no_overload() -> None:
    for status in (400, 403, 404, 409, 410, 422):
        found = explained(refused(status, "7"), "apply services ns/orders")
        assert isinstance(found, ApiRefusedError)
        assert found.status == status
    assert "rbac.yaml" in str(explained(refused(403), "get secrets ns/a"))


def test_a_server_that_cannot_be_reached_is_tried_again() -> None:
    for error in (urllib3.exceptions.ProtocolError("reset"), ConnectionRefusedError("refused")):
        assert isinstance(explained(error, "list pods ns"), TemporaryReconcileError)


def test_what_failed_at_once_may_be_asked_again_in_the_same_pass() -> None:
    for error, pause_s in (
        (urllib3.exceptions.ProtocolError("reset"), 0.0),
        (refused(500), 0.0),
        (refused(429, "1"), 1.0),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "slow"), None),  # type: ignore[arg-type]
    ):
        found = explained(error, "list pods ns")
        assert isinstance(found, ApiUnavailableError)
        assert found.pause_s == pause_s

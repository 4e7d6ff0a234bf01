"""What the API server's refusals mean to a pass: that it is wrong, or that it comes too early.

Owns: which failures are tried again, and when: as the server asks with `Retry-After` where it does.
Never: retries (the work queue does). Called by: `cluster`; its errors by whoever looks at them.
"""

from __future__ import annotations

import json

import urllib3.exceptions
from kubernetes.dynamic.exceptions import DynamicApiError

from vespiary_spec.errors import ReconcileError, TemporaryReconcileError

RETRY_S = 5.0
"""A server that does not answer, or does not say when to come back, is asked again after this."""

RETRY_MAX_S = 60.0
"""A server that asks for more is asked again after this: an hour of silence helps nobody."""

NOT_FOUND = 404
TOO_MANY_REQUESTS = 429


class ApiRefusedError(ReconcileError):
    """The API server refused a call.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, what: str, *, where: str, status: int, cure: str = "") -> None:
        super().__init__(what, where=where, measured=status, cure=cure)
        self.status = status


class ApiUnavailableError(TemporaryReconcileError):
    """The API server was not reached, is overloaded (429) or has failed (5xx).

    Attributes:
        pause_s: How long to wait at least before the same is asked again, in seconds; None where it
            has taken so long already that another try in the same pass would hold up others.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str,
        pause_s: float | None,
        measured: object = None,
        delay_s: float = RETRY_S,
    ) -> None:
        super().__init__(what, where=where, measured=measured, delay_s=delay_s)
        self.pause_s = pause_s


class KindNotServedError(TemporaryReconcileError):
    """The API server does not know a kind: its definition is not installed."""


class NotLeadingError(TemporaryReconcileError):
    """Another operator may be at work by now: nothing more is written."""


def _message(error: DynamicApiError) -> str:
    """Return what the API server said, without the headers that the client adds."""
    try:
        said = json.loads(error.body or "{}").get("message", "")
    except (ValueError, AttributeError, TypeError):
        said = ""
    return str(said or error.reason or "no reason given")


def _retry_after_s(error: DynamicApiError) -> float | None:
    """Return how long the server asks to wait, in seconds; it may not say, or say a date."""
    headers = getattr(error, "headers", None) or {}
    asked = next((v for k, v in headers.items() if str(k).lower() == "retry-after"), "")
    return min(RETRY_MAX_S, float(asked)) if str(asked).isdecimal() else None


def _is_of_no_kind(error: DynamicApiError) -> bool:
    """Return whether nothing answers at a path: an object that is not there has a Status."""
    try:
        return not isinstance(json.loads(error.body or ""), dict)
    except (ValueError, TypeError):
        return True


def explained(error: DynamicApiError | Exception, what: str) -> ReconcileError:
    """Return what a failed call means.

    Args:
        error: What the client raised.
        what: The call, such as `list pods orders`.

    Returns:
        An `ApiUnavailableError` where the same call may succeed later: the server was not
        reached, is overloaded (429) or has failed (5xx). An `ApiRefusedError` where it said no.
    """
    if not isinstance(error, DynamicApiError):
        is_slow = isinstance(error, (TimeoutError, urllib3.exceptions.TimeoutError))
        return ApiUnavailableError(
            f"the API server did not answer: {error}",
            where=what,
            pause_s=None if is_slow else 0.0,
        )
    status = int(error.status or 0)
    if status == NOT_FOUND and _is_of_no_kind(error):
        return KindNotServedError(
            "the API server does not know this kind", where=what, cure="install the CRDs"
        )
    if status == TOO_MANY_REQUESTS or status >= 500:
        asked_s = _retry_after_s(error)
        return ApiUnavailableError(
            f"the API server could not answer: {_message(error)}",
            where=what,
            measured=status,
            pause_s=asked_s or 0.0,
            delay_s=max(1.0, RETRY_S if asked_s is None else asked_s),
        )
    cure = "compare the operator's role with the chart's rbac.yaml" if status == 403 else ""
    return ApiRefusedError(
        f"the API server refused: {_message(error)}", where=what, status=status, cure=cure
    )

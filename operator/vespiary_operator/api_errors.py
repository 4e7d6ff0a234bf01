"""What the API server's refusals mean to a pass: that it is wrong, or that it comes too early.

Owns: which failures are tried again, and when: as the server asks with `Retry-After` where it does.
Never: retries (the work queue does). Called by: `cluster`; its errors by whoever looks at them.
"""

from __future__ import annotations

import json

from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError

from vespiary_spec.errors import ReconcileError, TemporaryReconcileError

RETRY_S = 5.0
"""A server that does not answer, or does not say when to come back, is asked again after this."""

RETRY_MAX_S = 60.0
"""A server that asks for more is asked again after this: an hour of silence helps nobody."""

TOO_MANY_REQUESTS = 429


class ApiRefusedError(ReconcileError):
    """The API server refused a call.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, what: str, *, where: str, status: int, cure: str = "") -> None:
        super().__init__(what, where=where, measured=status, cure=cure)
        self.status = status


class KindNotServedError(TemporaryReconcileError):
    """The API server does not know a kind: its definition is not installed."""


def _message(error: DynamicApiError) -> str:
    """Return what the API server said, without the headers that the client adds."""
    try:
        said = json.loads(error.body or "{}").get("message", "")
    except (ValueError, AttributeError, TypeError):
        said = ""
    return str(said or error.reason or "no reason given")


def _retry_after_s(error: DynamicApiError) -> float:
    """Return how long the server asks to wait, in seconds; it may not say, or say a date."""
    headers = getattr(error, "headers", None) or {}
    asked = next((v for k, v in headers.items() if str(k).lower() == "retry-after"), "")
    return min(RETRY_MAX_S, float(asked)) if str(asked).isdecimal() else RETRY_S


def explained(
    error: DynamicApiError | ResourceNotFoundError | Exception, what: str
) -> ReconcileError:
    """Return what a failed call means.

    Args:
        error: What the client raised.
        what: The call, such as `list pods orders`.

    Returns:
        A `TemporaryReconcileError` where the same call may succeed later: the server was not
        reached, is overloaded (429) or has failed (5xx). An `ApiRefusedError` where it said no.
    """
    if isinstance(error, ResourceNotFoundError):
        return KindNotServedError(
            "the API server does not know this kind", where=what, cure="install the CRDs"
        )
    if not isinstance(error, DynamicApiError):
        return TemporaryReconcileError(
            f"the API server did not answer: {error}", where=what, delay_s=RETRY_S
        )
    status = int(error.status or 0)
    if status == TOO_MANY_REQUESTS or status >= 500:
        return TemporaryReconcileError(
            f"the API server could not answer: {_message(error)}",
            where=what,
            measured=status,
            delay_s=max(1.0, _retry_after_s(error)),
        )
    cure = "compare the operator's role with the chart's rbac.yaml" if status == 403 else ""
    return ApiRefusedError(
        f"the API server refused: {_message(error)}", where=what, status=status, cure=cure
    )

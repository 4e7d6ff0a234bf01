"""Why a pass did not reach its end, as one of few words: the label of a metric.

Owns: the words, and which failure has which. What exactly was said is in the log.
Never: decides what is tried again. Called by: `reconciler`, `metrics`.
"""

from __future__ import annotations

import enum

from vespiary_operator.api_errors import (
    TOO_MANY_REQUESTS,
    ApiRefusedError,
    ApiUnavailableError,
    KindNotServedError,
    NotLeadingError,
)
from vespiary_spec.errors import ReconcileError


class FailureReason(enum.StrEnum):
    """Why a pass did not reach its end."""

    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    CONFLICT = "Conflict"
    INVALID = "Invalid"
    REFUSED = "Refused"
    OVERLOADED = "Overloaded"
    SERVER_ERROR = "ServerError"
    NO_ANSWER = "NoAnswer"
    KIND_NOT_SERVED = "KindNotServed"
    NOT_LEADING = "NotLeading"
    OTHER = "Other"
    BUG = "Bug"


MEANINGS = {
    FailureReason.FORBIDDEN: "a right is missing, or a policy or a quota refuses the write (403)",
    FailureReason.NOT_FOUND: "what was to be changed is gone (404)",
    FailureReason.CONFLICT: "somebody else changed it at the same time (409)",
    FailureReason.INVALID: "the API server takes no such object (400, 422)",
    FailureReason.REFUSED: "refused for another reason",
    FailureReason.OVERLOADED: "the API server asks to come back later (429)",
    FailureReason.SERVER_ERROR: "the API server failed (5xx)",
    FailureReason.NO_ANSWER: "the API server was not reached, or did not answer in time",
    FailureReason.KIND_NOT_SERVED: "a definition is not installed",
    FailureReason.NOT_LEADING: "another operator holds the Lease by now",
    FailureReason.OTHER: "none of these; the log has it",
    FailureReason.BUG: "a bug; the log has its trace",
}
"""What each word means; docs/howto/monitoring.md has them."""

_REFUSALS = {
    400: FailureReason.INVALID,
    403: FailureReason.FORBIDDEN,
    404: FailureReason.NOT_FOUND,
    409: FailureReason.CONFLICT,
    422: FailureReason.INVALID,
}


def reason_of(error: Exception) -> FailureReason:
    """Return why a pass that ended with this did not reach its end."""
    if isinstance(error, ApiRefusedError):
        return _REFUSALS.get(error.status, FailureReason.REFUSED)
    if isinstance(error, ApiUnavailableError):
        if error.measured is None:
            return FailureReason.NO_ANSWER
        is_overloaded = error.measured == TOO_MANY_REQUESTS
        return FailureReason.OVERLOADED if is_overloaded else FailureReason.SERVER_ERROR
    if isinstance(error, KindNotServedError):
        return FailureReason.KIND_NOT_SERVED
    if isinstance(error, NotLeadingError):
        return FailureReason.NOT_LEADING
    return FailureReason.OTHER if isinstance(error, ReconcileError) else FailureReason.BUG

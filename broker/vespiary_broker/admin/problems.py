"""Errors of the API as RFC 9457 problems: a status, a sentence, a stable code.

Owns the exception that handlers raise and the mapping of Vespiary's errors. Must never let a
traceback or a payload out. Called by `handlers`, `access`, `endpoints`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from vespiary_broker.admin.records import Problem
from vespiary_broker.engine.names import meant_queue
from vespiary_spec.errors import (
    ConfigError,
    DiskFull,
    InvalidSelector,
    JournalError,
    LoginRefused,
    NotPermitted,
    RemoteProtocolError,
    VespiaryError,
)

MEDIA_TYPE: Final = "application/problem+json"


class Refused(Exception):  # noqa: N818  (an answer, not a fault)
    """A request is answered with a problem.

    Attributes:
        status: HTTP status.
        detail: A sentence.
        code: Stable code of the error behind it; empty if there is none.
        headers: Further headers of the answer.
    """

    def __init__(
        self, status: int, detail: str, *, code: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.headers = headers or {}

    def problem(self, instance: str) -> Problem:
        """Return the body of the answer.

        Args:
            instance: Path of the request.
        """
        return Problem(
            type=f"urn:vespiary:error:{self.code}" if self.code else "about:blank",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=instance,
        )


def unknown_queue(name: str, queue: Callable[[str], object | None]) -> Refused:
    """Return the answer to a request about a queue that does not exist.

    Args:
        name: What it is called in the request.
        queue: Returns the state of a queue; None: there is none of that name.
    """
    detail = f"There is no queue {name[:200]!r}."
    meant = meant_queue(name)
    if meant and queue(meant) is not None:
        detail += f" Name it {meant[:200]!r}."
    return Refused(404, detail)


def refused(error: VespiaryError, status: int | None = None) -> Refused:
    """Return the answer to an error.

    Args:
        error: The error.
        status: Status to answer with; None takes the one that its kind has.
    """
    if status is None:
        status = _status(error)
    return Refused(status, str(error), code=error.code)


def _status(error: VespiaryError) -> int:
    if isinstance(error, LoginRefused):
        return HTTPStatus.UNAUTHORIZED
    if isinstance(error, NotPermitted):
        return HTTPStatus.FORBIDDEN
    if isinstance(error, JournalError | DiskFull):
        return HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, InvalidSelector | ConfigError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, RemoteProtocolError):
        return HTTPStatus.CONFLICT
    return HTTPStatus.INTERNAL_SERVER_ERROR

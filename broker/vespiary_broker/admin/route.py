"""What a row of the API's table is, and the parameters that many of them have.

Owns the types. Must never hold behaviour. Called by the modules of rows, and by `routes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import Handler

LIMIT_MAX: Final = 1000
BODY_BYTES_SHOWN_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """A parameter of the query; every one may be left out.

    Attributes:
        name: Its name.
        kind: `int`, `bool` or `str`.
        default: Value when it is left out.
        description: What it does.
        range: Least and most of a number.
    """

    name: str
    kind: type[int] | type[bool] | type[str]
    default: Any
    description: str
    range: tuple[int, int] = (1, LIMIT_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation.

    Attributes:
        method: HTTP method.
        path: Path below `BASE`; `{name}` is one segment.
        operation: Its id.
        tag: What it is about.
        handler: What it does.
        answers: Record of the body by status of success; None for no body.
        problems: Statuses of its own problems, beside `COMMON_STATUSES`.
        query: Parameters of the query.
        body: Record of the request's body; None for none.
        text_type: Media type of answers that are text or bytes; empty for records as JSON.
        is_private: Whether it tells what not everybody who is logged in may know: it needs an
            administrator, as changes do, or the permission that `permissions` says.
    """

    method: str
    path: str
    operation: str
    tag: str
    handler: Handler
    answers: dict[int, type[records.Record] | None]
    problems: tuple[int, ...] = (400,)
    query: tuple[QueryParameter, ...] = ()
    body: type[records.Body] | None = None
    text_type: str = ""
    is_private: bool = False

    @property
    def summary(self) -> str:
        """First line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0]

    @property
    def is_body_needed(self) -> bool:
        """Whether a request without a body is refused: one has fields without a default."""
        if self.body is None:
            return False
        return any(field.required for field in msgspec.structs.fields(self.body))

    @property
    def is_change(self) -> bool:
        """Whether it changes something, and so needs an administrator."""
        return self.method != "GET"


PAGE: Final = (
    QueryParameter(
        name="limit",
        kind=int,
        default=100,
        description=f"Most items to return, 1 to {LIMIT_MAX}.",
    ),
    QueryParameter(
        name="after",
        kind=str,
        default=None,
        description="`next` of the page before; left out for the first page.",
    ),
)
CHANGE_WITH_BODY: Final = (400, 409, 413, 415)

PERSIST: Final = QueryParameter(
    name="persist", kind=bool, default=False, description="A restart leaves it paused."
)

FORCE: Final = QueryParameter(
    name="force",
    kind=bool,
    default=False,
    description="Delete it although it has messages or consumers.",
)

"""The table of the API: paths, parameters, bodies, answers. Dispatch and document both read it.

Owns the table. Must never hold behaviour: that is `handlers`. Called by `endpoints`, `openapi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import Answer, Api, Call

BASE: Final = "/api/v1"
BODY_BYTES_MAX: Final = 64 * 1024
LIMIT_MAX: Final = 1000

COMMON_STATUSES: Final = (401, 403, 421, 429, 503)
"""Answers that any operation may give before it is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """A parameter of the query; every one may be left out.

    Attributes:
        name: Its name.
        kind: `int`, `bool` or `str`.
        default: Value when it is left out.
        description: What it does.
    """

    name: str
    kind: type[int] | type[bool] | type[str]
    default: Any
    description: str


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
    """

    method: str
    path: str
    operation: str
    tag: str
    handler: Callable[[Api, Call], Awaitable[Answer]]
    answers: dict[int, type[records.Record] | None]
    problems: tuple[int, ...] = (400,)
    query: tuple[QueryParameter, ...] = ()
    body: type[records.Body] | None = None

    @property
    def summary(self) -> str:
        """First line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0]

    @property
    def is_change(self) -> bool:
        """Whether it changes something, and so needs an administrator."""
        return self.method != "GET"


_PAGE: Final = (
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
_CHANGE_WITH_BODY: Final = (400, 409, 413, 415)

ROUTES: Final = (
    Route(
        method="GET",
        path="/brokers",
        operation="listBrokers",
        tag="brokers",
        handler=Api.brokers,
        answers={200: records.BrokerPage},
    ),
    Route(
        method="GET",
        path="/journal",
        operation="showJournal",
        tag="journal",
        handler=Api.journal,
        answers={200: records.Journal},
    ),
    Route(
        method="GET",
        path="/queues",
        operation="listQueues",
        tag="queues",
        handler=Api.queues,
        answers={200: records.QueuePage},
        query=_PAGE,
    ),
    Route(
        method="POST",
        path="/queues",
        operation="createQueue",
        tag="queues",
        handler=Api.create_queue,
        answers={200: records.Queue, 201: records.Queue},
        problems=_CHANGE_WITH_BODY,
        body=records.NewQueue,
    ),
    Route(
        method="GET",
        path="/queues/{name}",
        operation="showQueue",
        tag="queues",
        handler=Api.queue,
        answers={200: records.Queue},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/queues/{name}",
        operation="deleteQueue",
        tag="queues",
        handler=Api.delete_queue,
        answers={200: records.Removed},
        problems=(400, 404, 409),
        query=(
            QueryParameter(
                name="force",
                kind=bool,
                default=False,
                description="Delete it although it has messages or consumers.",
            ),
        ),
    ),
    Route(
        method="POST",
        path="/queues/{name}/purge",
        operation="purgeQueue",
        tag="queues",
        handler=Api.purge_queue,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/addresses",
        operation="listAddresses",
        tag="addresses",
        handler=Api.addresses,
        answers={200: records.AddressPage},
        query=_PAGE,
    ),
    Route(
        method="POST",
        path="/addresses",
        operation="createAddress",
        tag="addresses",
        handler=Api.create_address,
        answers={200: records.Address, 201: records.Address},
        problems=(400, 413, 415),
        body=records.NewAddress,
    ),
    Route(
        method="GET",
        path="/addresses/{name}",
        operation="showAddress",
        tag="addresses",
        handler=Api.address,
        answers={200: records.Address},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/addresses/{name}",
        operation="deleteAddress",
        tag="addresses",
        handler=Api.delete_address,
        answers={204: None},
        problems=(400, 404, 409),
    ),
    Route(
        method="GET",
        path="/connections",
        operation="listConnections",
        tag="connections",
        handler=Api.connections,
        answers={200: records.ConnectionPage},
        query=_PAGE,
    ),
    Route(
        method="GET",
        path="/consumers",
        operation="listConsumers",
        tag="consumers",
        handler=Api.consumers,
        answers={200: records.ConsumerPage},
        query=(
            *_PAGE,
            QueryParameter(
                name="queue", kind=str, default=None, description="Only those of this queue."
            ),
        ),
    ),
)


def read_query(route: Route, given: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the parameters of a query, converted and complete.

    Args:
        route: The operation.
        given: Names and values as sent.

    Raises:
        ValueError: A parameter is unknown, there twice, or has a wrong value; with a sentence.
    """
    values = {parameter.name: parameter.default for parameter in route.query}
    kinds = {parameter.name: parameter.kind for parameter in route.query}
    seen = set()
    for name, text in given:
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise ValueError(f"There is no query parameter {name[:100]!r} here; known: {known}.")
        if name in seen:
            raise ValueError(f"The query parameter {name} is there twice.")
        seen.add(name)
        values[name] = _value(name, text, kinds[name])
    return values


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"The query parameter {name} is true or false, not {text[:100]!r}.")
        return text == "true"
    if kind is int:
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        if not is_number or not 1 <= int(text) <= LIMIT_MAX:
            raise ValueError(
                f"The query parameter {name} is a number from 1 to {LIMIT_MAX}, not {text[:100]!r}."
            )
        return int(text)
    return text


def read_body(route: Route, data: bytes) -> Any:
    """Return the body of a request.

    Raises:
        ValueError: It is not what the operation takes; with a sentence.
    """
    if route.body is None:
        if data:
            raise ValueError("This operation takes no body.")
        return None
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise ValueError(f"The body is not what {route.operation} takes: {error}.") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"The body is no JSON: {error}.") from error

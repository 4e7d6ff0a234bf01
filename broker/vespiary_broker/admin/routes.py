"""The table of the API: paths, parameters, bodies, answers. Dispatch and document both read it.

Owns the table, put together from the modules of its rows, and the reading of what requests bring.
Must never hold behaviour: that is `handlers` and the modules beside it. Called by `endpoints`,
`openapi`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from vespiary_broker.admin.address_routes import ADDRESS_ROUTES
from vespiary_broker.admin.broker_routes import BROKER_ROUTES
from vespiary_broker.admin.client_routes import CLIENT_ROUTES
from vespiary_broker.admin.configuration_routes import CONFIGURATION_ROUTES
from vespiary_broker.admin.counter_routes import COUNTER_ROUTES
from vespiary_broker.admin.drain_routes import DRAIN_ROUTES
from vespiary_broker.admin.fence_routes import FENCE_ROUTES
from vespiary_broker.admin.jms_routes import JMS_ROUTES
from vespiary_broker.admin.message_routes import MESSAGE_ROUTES
from vespiary_broker.admin.queue_routes import QUEUE_ROUTES
from vespiary_broker.admin.route import QueryParameter, Route
from vespiary_broker.admin.stream_routes import STREAM_ROUTES

BASE: Final = "/api/v1"
BODY_BYTES_MAX: Final = 64 * 1024

COMMON_STATUSES: Final = (401, 403, 421, 503)
"""Answers that any operation may give before it is reached."""

ROUTES: Final = (
    *BROKER_ROUTES,
    *QUEUE_ROUTES,
    *MESSAGE_ROUTES,
    *ADDRESS_ROUTES,
    *CLIENT_ROUTES,
    *STREAM_ROUTES,
    *FENCE_ROUTES,
    *JMS_ROUTES,
    *COUNTER_ROUTES,
    *DRAIN_ROUTES,
    *CONFIGURATION_ROUTES,
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
    known = {parameter.name: parameter for parameter in route.query}
    seen = set()
    for name, text in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"There is no query parameter {name[:100]!r} here; known: {names}.")
        if name in seen:
            raise ValueError(f"The query parameter {name} is there twice.")
        seen.add(name)
        values[name] = _value(known[name], text)
    return values


def _value(parameter: QueryParameter, text: str) -> Any:
    name = parameter.name
    if parameter.kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"The query parameter {name} is true or false, not {text[:100]!r}.")
        return text == "true"
    if parameter.kind is int:
        least, most = parameter.range
        is_number = text.isascii() and text.isdigit() and len(text) < 20
        if not is_number or not least <= int(text) <= most:
            raise ValueError(
                f"The query parameter {name} is a number from {least} to {most}, "
                f"not {text[:100]!r}."
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
    if not data and not route.is_body_needed:
        data = b"{}"
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise ValueError(f"The body is not what {route.operation} takes: {error}.") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"The body is no JSON: {error}.") from error

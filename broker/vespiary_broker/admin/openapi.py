"""The OpenAPI 3.1 document of the API, made from the table of routes and the records.

Owns the way from types and docstrings to the document. Must never state a fact of its own about an
operation: those are in `routes` and `records`. Called by `endpoints`.
"""

from __future__ import annotations

import functools
import re
from http import HTTPStatus
from typing import Any, Final

import msgspec

from vespiary_broker.admin import (
    change_records,
    configuration_records,
    counter_records,
    divert_records,
    drain_records,
    fence_records,
    group_records,
    message_records,
    records,
    stream_records,
    task_records,
    transaction_records,
    volumes,
)
from vespiary_broker.admin.problems import MEDIA_TYPE
from vespiary_broker.admin.route import QueryParameter, Route
from vespiary_broker.admin.routes import BASE, BODY_BYTES_MAX, COMMON_STATUSES, ROUTES
from vespiary_spec.version import VERSION

_REFERENCE: Final = "#/components/schemas/{name}"
_MEANINGS: Final = {
    400: "A parameter or the body is wrong.",
    401: "A login is needed, or it is wrong.",
    403: "The user is no administrator, or the request comes from another site's page.",
    404: "There is none of this name.",
    409: "It exists otherwise, or is in use.",
    413: f"The body is larger than {BODY_BYTES_MAX} bytes.",
    415: "The body is not application/json.",
    421: "The Host header names another machine than the one that listens on loopback.",
    503: "The broker is starting, or its journal has failed.",
}


@functools.cache
def encoded_document() -> bytes:
    """Return the document as JSON; the first call takes tens of milliseconds."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """Return the document as plain data."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Vespiary",
            "version": VERSION,
            "summary": "Administration of a broker.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": BASE}],
        "security": [{"basic": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "A user of the users file; changes need the role `admin`. On "
                    "loopback, and without users, no login is needed.",
                }
            },
        },
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return plain


def _operation(route: Route) -> dict[str, Any]:
    parameters = [_query(parameter) for parameter in route.query]
    if "{name}" in route.path:
        parameters.insert(
            0,
            {
                "name": "name",
                "in": "path",
                "required": True,
                "description": "The name, percent-encoded.",
                "schema": {"type": "string", "minLength": 1},
            },
        )
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": _responses(route),
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.is_body_needed,
            "content": {"application/json": {"schema": _link(route.body)}},
        }
    return operation


def _query(parameter: QueryParameter) -> dict[str, Any]:
    schemas: dict[type, dict[str, Any]] = {
        int: {
            "type": "integer",
            "minimum": parameter.range[0],
            "maximum": parameter.range[1],
        },
        bool: {"type": "boolean"},
        str: {"type": "string"},
    }
    schema = schemas[parameter.kind]
    if parameter.default is not None:
        schema = schema | {"default": parameter.default}
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": schema,
    }


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            answer["content"] = {"application/json": {"schema": _link(kind)}}
        elif route.text_type:
            answer["content"] = {route.text_type: {"schema": {"type": "string"}}}
        responses[str(status)] = answer
    for status in sorted({*route.problems, *COMMON_STATUSES}):
        responses[str(status)] = {
            "description": _MEANINGS[status],
            "content": {MEDIA_TYPE: {"schema": _link(records.Problem)}},
        }
    return responses


def _link(kind: type) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def _schemas() -> dict[str, Any]:
    kinds: list[type] = [records.Problem]
    for route in ROUTES:
        kinds += [kind for kind in (*route.answers.values(), route.body) if kind is not None]
    _, schemas = msgspec.json.schema_components(dict.fromkeys(kinds), ref_template=_REFERENCE)
    named = vars(records) | vars(transaction_records) | vars(message_records)
    named |= vars(divert_records) | vars(change_records) | vars(task_records)
    named |= vars(counter_records) | vars(group_records) | vars(drain_records)
    named |= vars(configuration_records) | vars(stream_records)
    named |= vars(fence_records)
    named |= {"Volume": volumes.Volume, "VolumePage": volumes.VolumePage}
    classes = {name: kind for name, kind in named.items() if isinstance(kind, type)}
    for name, schema in schemas.items():
        if name in classes:
            _describe(schema, classes[name].__doc__ or "")
    return schemas


def _describe(schema: dict[str, Any], docstring: str) -> None:
    """Put the sentences of a docstring where they belong."""
    head, _, attributes = docstring.partition("Attributes:")
    schema["description"] = " ".join(head.split())
    properties = schema.get("properties", {})
    for match in re.finditer(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", attributes, re.MULTILINE):
        name, *rest = match[1].split("_")
        spelled = name + "".join(part.capitalize() for part in rest)
        if spelled in properties:
            properties[spelled]["description"] = " ".join(match[2].split())

"""The table of the API: paths, parameters, bodies, answers. Dispatch and document both read it.

Owns the table. Must never hold behaviour: that is `handlers`. Called by `endpoints`, `openapi`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vespiary_broker.admin import (
    change_records,
    changes,
    departures,
    divert_records,
    diverts,
    jms,
    message_records,
    messages,
    records,
    transaction_records,
    transactions,
)
from vespiary_broker.admin.handlers import Api, Handler
from vespiary_broker.engine.jms import JmsKind

BASE: Final = "/api/v1"
BODY_BYTES_MAX: Final = 64 * 1024
LIMIT_MAX: Final = 1000
_BODY_BYTES_SHOWN_MAX: Final = 1024 * 1024

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
        text_type: Media type of answers that are text; empty for records as JSON.
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

_FORCE: Final = QueryParameter(
    name="force",
    kind=bool,
    default=False,
    description="Delete it although it has messages or consumers.",
)


def _jms_routes(
    kind: JmsKind, singular: str, plural: str, body: type[records.Body]
) -> tuple[Route, ...]:
    """Return the four operations on JMS objects of a kind."""
    path = f"/jms/{jms.COLLECTIONS[kind][0]}"
    is_destination = kind is not JmsKind.CONNECTION_FACTORY
    return (
        Route(
            method="GET",
            path=path,
            operation=f"list{plural}",
            tag="jms",
            handler=jms.lister(kind),
            answers={200: records.JmsPage},
            query=_PAGE,
        ),
        Route(
            method="POST",
            path=path,
            operation=f"create{singular}",
            tag="jms",
            handler=jms.maker(kind),
            answers={200: records.JmsObject, 201: records.JmsObject},
            problems=_CHANGE_WITH_BODY,
            body=body,
        ),
        Route(
            method="GET",
            path=f"{path}/{{name}}",
            operation=f"show{singular}",
            tag="jms",
            handler=jms.shower(kind),
            answers={200: records.JmsObject},
            problems=(400, 404),
        ),
        Route(
            method="DELETE",
            path=f"{path}/{{name}}",
            operation=f"delete{singular}",
            tag="jms",
            handler=jms.remover(kind),
            answers={200: records.Removed},
            problems=(400, 404, 409) if is_destination else (400, 404),
            query=(_FORCE,) if is_destination else (),
        ),
    )


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
        path="/journal/files",
        operation="listJournalFiles",
        tag="journal",
        handler=Api.journal_files,
        answers={200: records.JournalFilePage},
        query=_PAGE,
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
        query=(_FORCE,),
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
        method="POST",
        path="/queues/{name}/retry",
        operation="retryMessages",
        tag="queues",
        handler=departures.retry_messages,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="POST",
        path="/queues/{name}/send-to-dead-letter",
        operation="sendToDeadLetterAddress",
        tag="queues",
        handler=departures.send_to_dead_letter_address,
        answers={200: records.Removed},
        problems=(400, 404, 409),
    ),
    Route(
        method="POST",
        path="/queues/{name}/expire",
        operation="expireMessages",
        tag="queues",
        handler=departures.expire_messages,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/queues/{name}/messages",
        operation="browseQueue",
        tag="queues",
        handler=messages.browse_queue,
        answers={200: message_records.MessagePage},
        problems=(400, 404, 409),
        query=(
            *_PAGE,
            QueryParameter(
                name="filter",
                kind=str,
                default="",
                description="Only messages that match this selector.",
            ),
            QueryParameter(
                name="bodyBytes",
                kind=int,
                default=256,
                description=f"Bytes of each body to show, 0 to {_BODY_BYTES_SHOWN_MAX}.",
                range=(0, _BODY_BYTES_SHOWN_MAX),
            ),
        ),
    ),
    Route(
        method="PATCH",
        path="/queues/{name}",
        operation="changeQueue",
        tag="queues",
        handler=changes.change_queue,
        answers={200: records.Queue},
        problems=(400, 404, 413, 415),
        body=change_records.QueueChanges,
    ),
    Route(
        method="POST",
        path="/queues/{name}/pause",
        operation="pauseQueue",
        tag="queues",
        handler=changes.pause_queue,
        answers={200: records.Queue},
        problems=(400, 404, 409),
        query=(
            QueryParameter(
                name="persist", kind=bool, default=False, description="A restart leaves it paused."
            ),
        ),
    ),
    Route(
        method="POST",
        path="/queues/{name}/resume",
        operation="resumeQueue",
        tag="queues",
        handler=changes.resume_queue,
        answers={200: records.Queue},
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
        method="PATCH",
        path="/addresses/{name}",
        operation="changeAddress",
        tag="addresses",
        handler=changes.change_address,
        answers={200: records.Address},
        problems=(400, 404, 409, 413, 415),
        body=change_records.AddressChanges,
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
        path="/addresses/{name}/duplicate-ids",
        operation="showDuplicateIds",
        tag="addresses",
        handler=Api.duplicates,
        answers={200: records.DuplicateIds},
        problems=(400, 404),
        query=(_PAGE[0],),
    ),
    Route(
        method="DELETE",
        path="/addresses/{name}/duplicate-ids",
        operation="clearDuplicateIds",
        tag="addresses",
        handler=Api.clear_duplicates,
        answers={200: records.Forgotten},
        problems=(400, 404),
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
    Route(
        method="GET",
        path="/transactions",
        operation="listTransactions",
        tag="transactions",
        handler=transactions.list_transactions,
        answers={200: transaction_records.TransactionPage},
        query=_PAGE,
    ),
    Route(
        method="GET",
        path="/transactions/{name}",
        operation="showTransaction",
        tag="transactions",
        handler=transactions.show_transaction,
        answers={200: transaction_records.Transaction},
        problems=(400, 404),
    ),
    *(
        Route(
            method="POST",
            path=f"/transactions/{{name}}/{act}",
            operation=f"{act}Transaction",
            tag="transactions",
            handler=handler,
            answers={200: transaction_records.Transaction},
            problems=(400, 404, 409),
        )
        for act, handler in (
            ("commit", transactions.commit_transaction),
            ("rollback", transactions.rollback_transaction),
        )
    ),
    Route(
        method="POST",
        path="/transactions/{name}/forget",
        operation="forgetTransaction",
        tag="transactions",
        handler=transactions.forget_transaction,
        answers={204: None},
        problems=(400, 404, 409),
    ),
    Route(
        method="GET",
        path="/diverts",
        operation="listDiverts",
        tag="diverts",
        handler=diverts.list_diverts,
        answers={200: divert_records.DivertPage},
        query=_PAGE,
    ),
    Route(
        method="POST",
        path="/diverts",
        operation="createDivert",
        tag="diverts",
        handler=diverts.create_divert,
        answers={200: divert_records.Divert, 201: divert_records.Divert},
        problems=_CHANGE_WITH_BODY,
        body=divert_records.NewDivert,
    ),
    Route(
        method="GET",
        path="/diverts/{name}",
        operation="showDivert",
        tag="diverts",
        handler=diverts.show_divert,
        answers={200: divert_records.Divert},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/diverts/{name}",
        operation="deleteDivert",
        tag="diverts",
        handler=diverts.delete_divert,
        answers={204: None},
        problems=(400, 404),
    ),
    *_jms_routes(JmsKind.QUEUE, "JmsQueue", "JmsQueues", records.NewJmsDestination),
    *_jms_routes(JmsKind.TOPIC, "JmsTopic", "JmsTopics", records.NewJmsDestination),
    *_jms_routes(
        JmsKind.CONNECTION_FACTORY,
        "ConnectionFactory",
        "ConnectionFactories",
        records.NewConnectionFactory,
    ),
    Route(
        method="GET",
        path="/jms/bindings",
        operation="listJndiNames",
        tag="jms",
        handler=jms.list_jndi_names,
        answers={200: records.JndiPage},
        query=_PAGE,
    ),
    Route(
        method="DELETE",
        path="/jms/bindings/{name}",
        operation="removeJndiName",
        tag="jms",
        handler=jms.remove_jndi_name,
        answers={204: None},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/jms/jndi.properties",
        operation="showJndiProperties",
        tag="jms",
        handler=jms.show_properties,
        answers={200: None},
        problems=(400,),
        text_type=jms.PROPERTIES_TYPE,
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
        is_number = text.isascii() and text.isdigit() and len(text) < 10
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
    try:
        return msgspec.json.decode(data, type=route.body)
    except msgspec.ValidationError as error:
        raise ValueError(f"The body is not what {route.operation} takes: {error}.") from error
    except msgspec.DecodeError as error:
        raise ValueError(f"The body is no JSON: {error}.") from error

"""What the API does with single messages: look at them.

Owns the operations. Must never know headers or sockets. Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

import base64
import codecs
from typing import Any

from vespiary_broker.admin import message_records
from vespiary_broker.admin.handlers import Answer, Api, Call, number
from vespiary_broker.admin.problems import refused, unknown_queue
from vespiary_spec.errors import InvalidSelector


async def browse_queue(api: Api, call: Call) -> Answer:
    """Look at the messages of a queue; none is taken."""
    if api.broker.queue(call.name) is None:
        raise unknown_queue(call.name, api.broker.queue)
    try:
        page: Any = await api.broker.browsing.page(
            call.name,
            after=number(call.query["after"]) or 0,
            limit=call.query["limit"],
            filter_text=call.query["filter"],
            body_bytes=call.query["bodyBytes"],
            states=frozenset(name for name in ("scheduled", "delivering") if call.query[name]),
            user=call.user,
        )
    except InvalidSelector as error:
        raise refused(error, 400) from error
    items = tuple(_record(message) for message in page.items)
    following = None if page.next is None else str(page.next)
    return Answer(message_records.MessagePage(items=items, next=following))


async def count_messages(api: Api, call: Call) -> Answer:
    """Count messages of a queue, those that consumers hold included."""
    if api.broker.queue(call.name) is None:
        raise unknown_queue(call.name, api.broker.queue)
    try:
        counted: Any = await api.broker.browsing.count(
            call.name, after=number(call.query["after"]) or 0, filter_text=call.query["filter"]
        )
    except InvalidSelector as error:
        raise refused(error, 400) from error
    following = None if counted.next is None else str(counted.next)
    return Answer(message_records.MessageCount(messages=counted.messages, next=following))


def _record(message: Any) -> message_records.Message:
    text = _text(message.body, is_whole=len(message.body) == message.body_bytes)
    fields = message_records.Message.__struct_fields__
    values = {name: getattr(message, name) for name in fields if not name.startswith("body")}
    return message_records.Message(
        **values,
        body_bytes=message.body_bytes,
        body=text,
        body_base64=base64.b64encode(message.body).decode() if text is None else None,
    )


def _text(body: bytes, *, is_whole: bool) -> str | None:
    """Return a body as text, without a character that was cut in two; None if it is no text."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body, final=is_whole)
    except UnicodeDecodeError:
        return None

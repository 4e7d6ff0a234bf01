"""What the API does for streams: look, claim, read, acknowledge, delete.

Owns the operations. Must never know headers or sockets. The calls are the broker's
(`app.streaming`). Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from vespiary_broker.admin import stream_records
from vespiary_broker.admin.handlers import Answer, Api, Call, cut, shown
from vespiary_broker.admin.problems import Refused, unknown_queue
from vespiary_codec.journal.ranges import encode_trailer

BLOCKS_LENGTH: Final = "Vespiary-Blocks-Length"
"""Header of a range: where its trailer begins."""


def _record(api: Api, name: str) -> stream_records.Stream:
    state = api.broker.streams.get(name)
    if state is None:
        raise Refused(404, f"There is no stream {name[:200]!r}.")
    return shown(state, stream_records.Stream)


async def list_streams(api: Api, call: Call) -> Answer:
    """List streams."""
    names, following = cut(api.broker.streams.names(), call)
    items = tuple(_record(api, name) for name in names)
    return Answer(stream_records.StreamPage(items=items, next=following))


async def show_stream(api: Api, call: Call) -> Answer:
    """Show one stream; its lease is not touched."""
    return Answer(_record(api, call.name))


async def claim_stream(api: Api, call: Call) -> Answer:
    """Make a stream, or claim one: its earlier run is out."""
    wanted: stream_records.StreamClaim = call.body
    is_new = api.broker.streams.get(wanted.name) is None
    if is_new and api.broker.queue(wanted.queue) is None:
        raise unknown_queue(wanted.queue, api.broker.queue)
    state = await api.broker.streams.claim(wanted.name, wanted.queue, wanted.owner, wanted.lease_s)
    value = shown(state, stream_records.Stream)
    return Answer(value, 201 if is_new else 200, f"/api/v1/streams/{quote(value.name, safe='')}")


async def head_of_stream(api: Api, call: Call) -> Answer:
    """Ask how far a stream can be read."""
    _record(api, call.name)
    state = await api.broker.streams.head(call.name, _needed(call, "epoch"))
    return Answer(shown(state, stream_records.Stream))


async def range_of_stream(api: Api, call: Call) -> Answer:
    """Read messages of a stream: journal blocks, then a trailer of JSON."""
    _record(api, call.name)
    epoch, after, to = (_needed(call, name) for name in ("epoch", "after", "to"))
    most = call.query["maxBytes"]
    found: Any = await api.broker.streams.range(call.name, epoch, after, to, most)
    headers = {BLOCKS_LENGTH: str(len(found.blocks))}
    found.blocks.extend(encode_trailer(found.through, found.messages, found.gaps))
    return Answer(found.blocks, headers=headers)


async def body_of_stream(api: Api, call: Call) -> Answer:
    """Read a piece of a large message's body; nothing behind its end."""
    _record(api, call.name)
    epoch, sequence = _needed(call, "epoch"), _needed(call, "sequence")
    offset, most = call.query["offset"], call.query["maxBytes"]
    return Answer(await api.broker.streams.body(call.name, epoch, sequence, offset, most))


async def acknowledge_stream(api: Api, call: Call) -> Answer:
    """Acknowledge all messages of a stream up to a sequence."""
    _record(api, call.name)
    done: stream_records.StreamAcknowledgement = call.body
    state = await api.broker.streams.acknowledge(call.name, done.epoch, done.sequence)
    return Answer(shown(state, stream_records.Stream))


async def delete_stream(api: Api, call: Call) -> Answer:
    """Delete a stream; what is not acknowledged stays in its queue."""
    _record(api, call.name)
    await api.broker.streams.remove(call.name)
    return Answer(None, 204)


def _needed(call: Call, name: str) -> int:
    value = call.query[name]
    if value is None:
        raise Refused(400, f"The query parameter {name} is missing.")
    number: int = value
    return number

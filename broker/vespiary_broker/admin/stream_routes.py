"""Operations on streams: list, claim, read, acknowledge, delete.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import stream_records, streams
from vespiary_broker.admin.route import CHANGE_WITH_BODY, PAGE, QueryParameter, Route

_OCTETS: Final = "application/octet-stream"
_MIB: Final = 1024 * 1024


def _sequence(name: str, description: str, default: int | None = None) -> QueryParameter:
    return QueryParameter(
        name=name,
        kind=int,
        default=default,
        description=description,
        range=(0, stream_records.SEQUENCE_MAX),
    )


def _bytes(default: int, most: int, description: str) -> QueryParameter:
    return QueryParameter(
        name="maxBytes", kind=int, default=default, description=description, range=(1, most)
    )


_EPOCH: Final = _sequence("epoch", "That of the caller's claim.")

STREAM_ROUTES: Final = (
    Route(
        method="GET",
        path="/streams",
        operation="listStreams",
        tag="streams",
        handler=streams.list_streams,
        answers={200: stream_records.StreamPage},
        query=PAGE,
    ),
    Route(
        method="POST",
        path="/streams",
        operation="claimStream",
        tag="streams",
        handler=streams.claim_stream,
        answers={200: stream_records.Stream, 201: stream_records.Stream},
        problems=(404, *CHANGE_WITH_BODY),
        body=stream_records.StreamClaim,
    ),
    Route(
        method="GET",
        path="/streams/{name}",
        operation="showStream",
        tag="streams",
        handler=streams.show_stream,
        answers={200: stream_records.Stream},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/streams/{name}",
        operation="deleteStream",
        tag="streams",
        handler=streams.delete_stream,
        answers={204: None},
        problems=(400, 404, 409),
    ),
    Route(
        method="GET",
        path="/streams/{name}/head",
        operation="headOfStream",
        tag="streams",
        handler=streams.head_of_stream,
        answers={200: stream_records.Stream},
        problems=(400, 404, 409),
        query=(_EPOCH,),
    ),
    Route(
        method="GET",
        path="/streams/{name}/range",
        operation="rangeOfStream",
        tag="streams",
        handler=streams.range_of_stream,
        answers={200: None},
        problems=(400, 404, 409),
        query=(
            _EPOCH,
            _sequence("after", "Begin behind this sequence."),
            _sequence("to", "The last sequence, at most a head that was told."),
            _bytes(
                8 * _MIB,
                16 * _MIB,
                "Bound of the blocks in bytes; the first message comes in any case.",
            ),
        ),
        text_type=_OCTETS,
    ),
    Route(
        method="GET",
        path="/streams/{name}/body",
        operation="bodyOfStream",
        tag="streams",
        handler=streams.body_of_stream,
        answers={200: None},
        problems=(400, 404, 409),
        query=(
            _EPOCH,
            _sequence("sequence", "The message."),
            _sequence("offset", "First byte of the body.", 0),
            _bytes(8 * _MIB, 16 * _MIB, "Most bytes."),
        ),
        text_type=_OCTETS,
    ),
    Route(
        method="POST",
        path="/streams/{name}/acknowledge",
        operation="acknowledgeStream",
        tag="streams",
        handler=streams.acknowledge_stream,
        answers={200: stream_records.Stream},
        problems=(404, *CHANGE_WITH_BODY),
        body=stream_records.StreamAcknowledgement,
    ),
)

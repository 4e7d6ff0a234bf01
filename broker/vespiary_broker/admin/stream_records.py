"""What the API says of streams and takes for them, and their metrics.

Owns the records, which are the API's schema. Must never hold behaviour. Called by `streams`,
`metrics` and the module of routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from vespiary_broker.admin.records import Body, Name, Record

SEQUENCE_MAX: Final = 2**63 - 1
LEASE_S_MAX: Final = 86_400

Owner = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]


class Stream(Record, frozen=True):
    """A queue that one reader reads by ranges, and acknowledges apart from reading.

    Attributes:
        name: Its name, unique in the broker.
        queue: The queue that it reads.
        queue_id: Its number; another one: not the same queue, whatever its name.
        address: The address of the queue.
        owner: Who claimed it last.
        epoch: Number of that claim; calls name it.
        lease_s: Seconds that nobody else may claim it after a call.
        lease_left_s: What is left of them.
        acknowledged: All up to this sequence is acknowledged.
        head: All up to this sequence can be read, and nothing new comes at or below it.
        lag: Sequences between the two.
        cap: Why not all that is in the queue can be read: `prepared-transaction`, `paused` or
            `journal-full`; empty if all can.
        capped_by: The XID of the transaction that is in the way; empty for none.
        capped_s: Seconds since that one was prepared.
    """

    name: str
    queue: str
    queue_id: int
    address: str
    owner: str
    epoch: int
    lease_s: float
    lease_left_s: float
    acknowledged: int
    head: int
    lag: int
    cap: str
    capped_by: str
    capped_s: float


class StreamPage(Record, frozen=True):
    """Some streams, by name.

    Attributes:
        items: The streams.
        next: Give it as `after` to see more; null at the end.
    """

    items: tuple[Stream, ...]
    next: str | None


class StreamClaim(Body, frozen=True):
    """A stream to make, or to claim.

    Attributes:
        name: Its name, unique in the broker.
        queue: The queue that it reads.
        owner: Who claims it, such as the id of a Spark query.
        lease_s: Seconds that nobody else may claim it after a call, 1 to 86400.
    """

    name: Name
    queue: Name
    owner: Owner
    lease_s: Annotated[float, msgspec.Meta(ge=1, le=LEASE_S_MAX)] = 60.0


class StreamAcknowledgement(Body, frozen=True):
    """How far a stream is done.

    Attributes:
        epoch: That of the caller's claim.
        sequence: All messages up to this one are done.
    """

    epoch: Sequence
    sequence: Sequence


_GAUGES: Final = (
    ("lag", "lag_messages", "Sequences that can be read and are not acknowledged."),
    ("head", "head_sequence", "Sequence up to which the stream can be read."),
    ("acknowledged", "acknowledged_sequence", "Sequence up to which all is acknowledged."),
    ("lease_left_s", "lease_left_seconds", "Seconds until others may claim the stream."),
    ("capped_s", "capped_seconds", "Age of the prepared transaction that holds up the head."),
)


def metrics_of(streams: tuple[Stream, ...], prefix: str) -> Iterator[Metric]:
    """Yield the metrics of streams.

    Args:
        streams: The streams.
        prefix: Of all names.
    """
    for field, name, text in _GAUGES:
        family = GaugeMetricFamily(f"{prefix}_stream_{name}", text, labels=("stream", "queue"))
        for stream in streams:
            family.add_metric((stream.name, stream.queue), float(getattr(stream, field)))
        yield family

"""Offsets of a stream: how far each queue was read, and whose the stream is.

Owns their form in Spark's checkpoint:

    {"v": 1, "owner": "…", "queues": {"orders": {"id": 7, "sequence": 1200}}}

The owner is the checkpoint's: it is made with the first batch and goes on from offset to offset. So
a query that starts again ousts its own older driver, and another query waits for the lease. Must
never call the broker. Called by `reader`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vespiary_spec.errors import ConfigError

VERSION: Final = 1


class QueueOffset(NamedTuple):
    """All messages of a queue up to a sequence were read.

    Attributes:
        queue_id: The queue's number in its broker.
        sequence: The last sequence, 0 if none.
    """

    queue_id: int
    sequence: int


class Offsets(NamedTuple):
    """How far a query is.

    Attributes:
        owner: The checkpoint's name for itself; empty before its first batch.
        queues: By the queues' names.
    """

    owner: str
    queues: dict[str, QueueOffset]

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it, names in order: Spark compares the text."""
        queues = {
            name: {"id": offset.queue_id, "sequence": offset.sequence}
            for name, offset in sorted(self.queues.items())
        }
        return {"v": VERSION, "owner": self.owner, "queues": queues}


def read_offsets(value: dict[str, Any]) -> Offsets:
    """Return an offset of a checkpoint.

    Args:
        value: What Spark kept.

    Raises:
        ConfigError: Another version wrote it.
    """
    if value.get("v") != VERSION:
        raise ConfigError(
            "the checkpoint was written by another version", path="checkpointLocation",
            value=value.get("v"), allowed=str(VERSION),
        )  # fmt: skip
    queues = {
        name: QueueOffset(int(one["id"]), int(one["sequence"]))
        for name, one in value["queues"].items()
    }
    return Offsets(str(value["owner"]), queues)

"""Streams of a broker in memory, and every answer that the API documents for them.

Owns `MemoryStreams`, part of `admin_rig.MemoryBroker`. Used by the HTTP listener's tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vespiary_broker.app.stream_ranges import Range
from vespiary_broker.app.streaming import StreamState
from vespiary_broker.engine.stream_gaps import Gap, GapReason
from vespiary_codec.journal.ranges import RangeBlocks
from vespiary_codec.journal.record import AddRecord, Place, align8, encode_record
from vespiary_spec.errors import RemoteProtocolError, StreamFenced, StreamHeld


def stream_state(name: str, **changes: Any) -> StreamState:
    """A stream of the queue `orders` that a transaction holds up."""
    values: dict[str, Any] = {
        "name": name,
        "queue": "orders",
        "queue_id": 1,
        "address": "orders",
        "owner": "query",
        "epoch": 3,
        "lease_s": 60.0,
        "lease_left_s": 59.5,
        "acknowledged": 2,
        "head": 9,
        "lag": 7,
        "cap": "prepared-transaction",
        "capped_by": "7:aa:01",
        "capped_s": 61.5,
    }
    return StreamState(**values | changes)


class MemoryStreams:
    """Streams in a dictionary; message 3 is there, 4 has expired."""

    def __init__(self) -> None:
        self.states: dict[str, StreamState] = {}
        self.asked: list[tuple[int, ...]] = []

    def names(self) -> list[str]:
        return sorted(self.states)

    def get(self, name: str) -> StreamState | None:
        return self.states.get(name)

    async def claim(self, name: str, queue: str, owner: str, lease_s: float) -> StreamState:
        state = self.states.get(name) or stream_state(name, queue=queue, owner=owner, epoch=0)
        if state.owner != owner:
            raise StreamHeld(f"the stream {name} is held by {state.owner}")
        self.states[name] = replace(state, epoch=state.epoch + 1, lease_s=lease_s)
        return self.states[name]

    async def head(self, name: str, epoch: int) -> StreamState:
        self._check(name, epoch)
        return self.states[name]

    async def range(self, name: str, epoch: int, after: int, to: int, max_bytes: int) -> Range:
        self._check(name, epoch)
        self.asked.append((after, to, max_bytes))
        blocks = RangeBlocks(1, max_bytes)
        record = encode_record(AddRecord((Place(1, 3),), b"a:1\n", b"three", 1000))
        blocks.add(record.ljust(align8(len(record)), b"\0"), 1)
        return Range(blocks.finish(), 1, to, [Gap(4, to, GapReason.EXPIRED)])

    async def body(
        self, name: str, epoch: int, sequence: int, offset: int, max_bytes: int
    ) -> bytes:
        self._check(name, epoch)
        self.asked.append((sequence, offset, max_bytes))
        return b"piece"

    async def acknowledge(self, name: str, epoch: int, sequence: int) -> StreamState:
        self._check(name, epoch)
        self.states[name] = replace(self.states[name], acknowledged=sequence)
        return self.states[name]

    async def remove(self, name: str) -> None:
        if self.states[name].queue == "prices":
            raise RemoteProtocolError("it cannot go now")
        del self.states[name]

    def _check(self, name: str, epoch: int) -> None:
        if self.states[name].epoch != epoch:
            raise StreamFenced(f"the stream {name} was claimed by another run")

"""The reader of a stream of a real broker, over its HTTP API, as a Spark source calls it.

Owns `StreamReader` and `StreamProblem`. Used by the tests of streams.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from vespiary_codec.journal.ranges import RangeAnswer, decode_range
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_testkit.broker_calls import address
from vespiary_testkit.broker_process import BrokerProcess

_CALL_S = 60.0


class StreamProblem(Exception):  # noqa: N818  (an answer, not a fault)
    """A call was refused.

    Attributes:
        status: HTTP status.
        code: Code of the error, such as VSP-P109; empty if it has none.
    """

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem["detail"])
        self.status = status
        self.code = problem["type"].rpartition(":")[2] if "urn:" in problem["type"] else ""


@dataclass
class Answered:
    """An answer to `range`: all of its bytes, and what they say."""

    data: bytes
    answer: RangeAnswer

    @property
    def records(self) -> list[AddRecord]:
        found = []
        for payload, count in self.answer.payloads:
            for raw in walk_records(payload, count):
                record = decode_record(raw)
                assert isinstance(record, AddRecord)
                found.append(record)
        return found

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(record.body) for record in self.records]

    @property
    def sequences(self) -> list[int]:
        return [record.places[0].sequence for record in self.records]

    @property
    def gaps(self) -> list[tuple[int, int, str]]:
        return [tuple(gap) for gap in self.answer.gaps]  # type: ignore[misc]


class StreamReader:
    """One run that reads a stream; `claim` first."""

    def __init__(self, broker: BrokerProcess, name: str, queue: str, owner: str = "query") -> None:
        self.broker = broker
        self.name = name
        self.queue = queue
        self.owner = owner
        self.epoch = 0
        self.queue_id = 0

    def claim(self, lease_s: float = 60.0) -> dict[str, Any]:
        body = {"name": self.name, "queue": self.queue, "owner": self.owner, "leaseS": lease_s}
        state: dict[str, Any] = json.loads(self._call("POST", "/streams", body)[0])
        self.epoch, self.queue_id = state["epoch"], state["queueId"]
        return state

    def head(self) -> int:
        return int(self.head_state()["head"])

    def head_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._get("head")[0])
        return state

    def range(self, after: int, to: int, max_bytes: int | None = None) -> Answered:
        more = {} if max_bytes is None else {"maxBytes": max_bytes}
        data, headers = self._get("range", after=after, to=to, **more)
        length = int(headers["Vespiary-Blocks-Length"])
        return Answered(data, decode_range(data, length, self.queue_id))

    def body(self, sequence: int, offset: int = 0, max_bytes: int = 2**20) -> bytes:
        return self._get("body", sequence=sequence, offset=offset, maxBytes=max_bytes)[0]

    def acknowledge(self, sequence: int) -> dict[str, Any]:
        path = f"/streams/{self.name}/acknowledge"
        body = {"epoch": self.epoch, "sequence": sequence}
        state: dict[str, Any] = json.loads(self._call("POST", path, body)[0])
        return state

    def _get(self, what: str, **query: int) -> tuple[bytes, Any]:
        text = urlencode({"epoch": self.epoch} | query)
        return self._call("GET", f"/streams/{self.name}/{what}?{text}")

    def _call(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        request = urllib.request.Request(
            f"{address(self.broker)}/api/v1{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            raise StreamProblem(error.code, json.loads(error.read())) from error

"""The calls of a stream over the broker's HTTP API (docs/howto/streams.md).

Owns which calls there are. Must never decide when to acknowledge. Opened where it is used, on the
driver and on executors; nothing of it is pickled but the options.
"""

from __future__ import annotations

import http
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from vespiary_pipeline.broker_api import PAUSE_S, BrokerApi
from vespiary_pipeline.stream.stream_options import StreamOptions
from vespiary_spec.errors import BrokerRefused, StreamHeld

_BLOCKS_LENGTH: Final = "Vespiary-Blocks-Length"


class Claim(NamedTuple):
    """A stream that this run holds.

    Attributes:
        name: The stream.
        epoch: Number of the claim.
        queue_id: Number of its queue.
    """

    name: str
    epoch: int
    queue_id: int


class StreamClient:
    """Calls one broker. Owner: the process that made it.

    Args:
        options: Where the broker is, and who calls.
        keeps_open: Make all calls over one connection, until `close`. In the driver calls are few,
            and Spark does not say when a query ends.
        clock_s: The monotonic clock.

    Raises:
        ConfigError: The URL is none, or holds a password.
        NativeError: The password's file can't be read.
    """

    def __init__(
        self,
        options: StreamOptions,
        *,
        keeps_open: bool = False,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._api = BrokerApi(options.url, options.password_file, keeps_open=keeps_open)

    @property
    def place(self) -> str:
        """Where the broker is, for sentences."""
        return self._api.place

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    # --- calls ------------------------------------------------------------------------------------

    def show(self, name: str) -> dict[str, Any] | None:
        """Return what is known of a stream, without a look at its lease; None if there is none."""
        try:
            return self._api.json("GET", f"/streams/{quote(name, safe='')}")
        except BrokerRefused as refused:
            if refused.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def claim(self, name: str, queue: str, owner: str, lease_s: int) -> dict[str, Any]:
        """Make a stream or claim it; wait once for the lease of another owner.

        Args:
            name: The stream.
            queue: Its queue.
            owner: Who claims it.
            lease_s: Seconds that nobody else may.

        Raises:
            StreamHeld: Another owner held it all the time.
            BrokerRefused: The broker refused it for another reason.
            NativeError: The broker can't be reached.
        """
        wanted = {"name": name, "queue": queue, "owner": owner, "leaseS": lease_s}
        until_s: float | None = None
        while True:
            try:
                return self._api.json("POST", "/streams", wanted)
            except StreamHeld:
                # An earlier start of this query, which died before its first batch, may hold it.
                if until_s is None:
                    state = self.show(name) or {}
                    until_s = self._clock_s() + float(state.get("leaseLeftS", 0.0)) + 1.0
                if self._clock_s() >= until_s:
                    raise
                time.sleep(PAUSE_S)

    def head(self, claim: Claim) -> dict[str, Any]:
        """Return how far a stream can be read."""
        return self._api.json("GET", f"{_path(claim)}/head?epoch={claim.epoch}")

    def acknowledge(self, claim: Claim, sequence: int) -> None:
        """Acknowledge all up to a sequence.

        Durability: on return the broker never gives these messages again.
        """
        body = {"epoch": claim.epoch, "sequence": sequence}
        self._api.json("POST", f"{_path(claim)}/acknowledge", body)

    def range(self, claim: Claim, after: int, to: int, max_bytes: int) -> tuple[bytes, int]:
        """Return an answer and where its trailer begins."""
        query = {"epoch": claim.epoch, "after": after, "to": to, "maxBytes": max_bytes}
        data, headers = self._api.call("GET", f"{_path(claim)}/range?{urlencode(query)}")
        length = headers[_BLOCKS_LENGTH]
        if length is None or not length.isdecimal():
            raise self._api.foreign()
        return data, int(length)

    def body(self, claim: Claim, sequence: int, size_bytes: int, piece_bytes: int) -> bytes:
        """Return the body of a large message."""
        pieces: list[bytes] = []
        done = 0
        while done < size_bytes:
            query = {
                "epoch": claim.epoch, "sequence": sequence, "offset": done, "maxBytes": piece_bytes
            }  # fmt: skip
            piece, _ = self._api.call("GET", f"{_path(claim)}/body?{urlencode(query)}")
            if not piece:
                break
            pieces.append(piece)
            done += len(piece)
        return b"".join(pieces)


def _path(claim: Claim) -> str:
    return f"/streams/{quote(claim.name, safe='')}"

"""The calls of a stream over the broker's HTTP API (docs/howto/streams.md).

Owns requests, answers and their errors. Must never decide when to acknowledge. Opened where it is
used, on the driver and on executors; nothing of it is pickled but the options.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from vespiary_pipeline.stream.stream_options import StreamOptions
from vespiary_spec.errors import (
    ConfigError,
    NativeError,
    StreamFenced,
    StreamHeld,
    StreamRefused,
    VespiaryError,
)

PORT_HTTP: Final = 8161
_TIMEOUT_S: Final = 60.0
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_BLOCKS_LENGTH: Final = "Vespiary-Blocks-Length"
_CODES: Final[dict[str, type[VespiaryError]]] = {
    StreamHeld.code: StreamHeld,
    StreamFenced.code: StreamFenced,
}


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

    Raises:
        ConfigError: The URL is none, or holds a password.
        NativeError: The password's file can't be read.
    """

    def __init__(self, options: StreamOptions, *, keeps_open: bool = False) -> None:
        self._keeps_open = keeps_open
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(
                "this is no URL of a broker", path="url", value=options.url,
                allowed="http://user@host:port",
            )  # fmt: skip
        if parts.password is not None:
            raise ConfigError(
                "a password does not belong into a URL", path="url",
                cure="write it into a file and name that with passwordFile",
            )  # fmt: skip
        self.place = f"{parts.scheme}://{parts.hostname}:{parts.port or PORT_HTTP}"
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname, parts.port or PORT_HTTP, timeout=_TIMEOUT_S)
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            login = f"{parts.username}:{_password(options.password_file)}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    # --- calls ------------------------------------------------------------------------------------

    def show(self, name: str) -> dict[str, Any] | None:
        """Return what is known of a stream, without a look at its lease; None if there is none."""
        try:
            return self._json("GET", f"/streams/{quote(name, safe='')}")
        except StreamRefused as refused:
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
            StreamRefused: The broker refused it for another reason.
            NativeError: The broker can't be reached.
        """
        wanted = {"name": name, "queue": queue, "owner": owner, "leaseS": lease_s}
        until_s: float | None = None
        while True:
            try:
                return self._json("POST", "/streams", wanted)
            except StreamHeld:
                # An earlier start of this query, which died before its first batch, may hold it.
                if until_s is None:
                    state = self.show(name) or {}
                    until_s = time.monotonic() + float(state.get("leaseLeftS", 0.0)) + 1.0
                if time.monotonic() >= until_s:
                    raise
                time.sleep(_PAUSE_S)

    def head(self, claim: Claim) -> dict[str, Any]:
        """Return how far a stream can be read."""
        return self._json("GET", f"{_path(claim)}/head?epoch={claim.epoch}")

    def acknowledge(self, claim: Claim, sequence: int) -> None:
        """Acknowledge all up to a sequence.

        Durability: on return the broker never gives these messages again.
        """
        body = {"epoch": claim.epoch, "sequence": sequence}
        self._json("POST", f"{_path(claim)}/acknowledge", body)

    def range(self, claim: Claim, after: int, to: int, max_bytes: int) -> tuple[bytes, int]:
        """Return an answer and where its trailer begins."""
        query = {"epoch": claim.epoch, "after": after, "to": to, "maxBytes": max_bytes}
        data, headers = self._call("GET", f"{_path(claim)}/range?{urlencode(query)}")
        return data, int(headers[_BLOCKS_LENGTH])

    def body(self, claim: Claim, sequence: int, size_bytes: int, piece_bytes: int) -> bytes:
        """Return the body of a large message."""
        pieces: list[bytes] = []
        done = 0
        while done < size_bytes:
            query = {
                "epoch": claim.epoch, "sequence": sequence, "offset": done, "maxBytes": piece_bytes
            }  # fmt: skip
            piece, _ = self._call("GET", f"{_path(claim)}/body?{urlencode(query)}")
            if not piece:
                break
            pieces.append(piece)
            done += len(piece)
        return b"".join(pieces)

    # --- requests ---------------------------------------------------------------------------------

    def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        data, _ = self._call(method, path, body)
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _call(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        """Call; again after a broken connection: every call of a stream may be repeated."""
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(_TRIES):
            try:
                self._connection.request(method, f"/api/v1{path}", data, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if attempt + 1 == _TRIES:
                    raise NativeError(
                        f"the broker can't be reached ({error})",
                        where=self.place,
                        cure="is it running? `url` names its HTTP listener",
                    ) from error
                time.sleep(_PAUSE_S)
                continue
            if not self._keeps_open:
                self._connection.close()
            if answer.status >= http.HTTPStatus.BAD_REQUEST:
                raise self._refusal(answer.status, content)
            return content, answer.headers
        raise AssertionError("the loop returns or raises")

    def _refusal(self, status: int, content: bytes) -> VespiaryError:
        try:
            problem = json.loads(content)
            detail, kind = str(problem["detail"]), str(problem.get("type", ""))
        except (ValueError, KeyError, TypeError):
            detail, kind = f"it answered {status}", ""
        known = _CODES.get(kind.rpartition(":")[2])
        if known is not None:
            return known(detail, where=self.place)
        refused = StreamRefused(detail, where=self.place)
        refused.status = status
        return refused


def _path(claim: Claim) -> str:
    return f"/streams/{quote(claim.name, safe='')}"


def _password(file: str) -> str:
    if not file:
        raise ConfigError("a user needs a password", path="passwordFile", cure="name its file")
    try:
        return Path(file).read_text().rstrip("\n")
    except OSError as error:
        raise NativeError(
            "the password can't be read", error.errno or 0, where=file,
            cure="the file has to be there on every executor",
        ) from error  # fmt: skip

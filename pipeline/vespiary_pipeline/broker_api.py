"""Calls of a broker's HTTP API, from drivers and executors.

Owns requests, answers and their errors. Must never know what is called, nor decide what may be
repeated but broken connections: every call of the pipeline may. Opened where it is used; nothing of
it is pickled. Called by `stream.client` and `sink`.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from vespiary_spec.errors import (
    BrokerRefused,
    ConfigError,
    NativeError,
    StreamFenced,
    StreamHeld,
    VespiaryError,
)

PORT_HTTP: Final = 8161
TIMEOUT_S: Final = 60.0
TRIES: Final = 3
PAUSE_S: Final = 0.5
_CODES: Final[dict[str, type[VespiaryError]]] = {
    StreamHeld.code: StreamHeld,
    StreamFenced.code: StreamFenced,
}


class BrokerApi:
    """Calls one broker. Owner: the process that made it.

    Args:
        url: Its HTTP listener, `http://user@host:port`.
        password_file: File with the user's password; empty: no login.
        keeps_open: Make all calls over one connection, until `close`.

    Raises:
        ConfigError: The URL is none, or holds a password.
        NativeError: The password's file can't be read.
    """

    def __init__(self, url: str, password_file: str = "", *, keeps_open: bool = False) -> None:
        self._keeps_open = keeps_open
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(
                "this is no URL of a broker", path="url", value=url,
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
        self._connection = kind(parts.hostname, parts.port or PORT_HTTP, timeout=TIMEOUT_S)
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            login = f"{parts.username}:{read_password(password_file)}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the answer to a call.

        Args:
            method: HTTP method.
            path: Path below the API's.
            body: What to send as JSON; None for no body.

        Raises:
            BrokerRefused: The broker refused it.
            NativeError: The broker can't be reached.
        """
        data, _ = self.call(method, path, body)
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer

    def call(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        """Return an answer and its headers; ask again after a broken connection.

        Raises:
            BrokerRefused: The broker refused it.
            NativeError: The broker can't be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(TRIES):
            try:
                self._connection.request(method, f"/api/v1{path}", data, self._headers)
                answer = self._connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if attempt + 1 == TRIES:
                    raise NativeError(
                        f"the broker can't be reached ({error})",
                        where=self.place,
                        cure="is it running? `url` names its HTTP listener",
                    ) from error
                time.sleep(PAUSE_S)
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
        refused = BrokerRefused(detail, where=self.place)
        refused.status = status
        return refused


def read_password(file: str) -> str:
    """Return a user's password.

    Raises:
        ConfigError: No file is named.
        NativeError: It can't be read.
    """
    if not file:
        raise ConfigError("a user needs a password", path="passwordFile", cure="name its file")
    try:
        return Path(file).read_text().rstrip("\n")
    except OSError as error:
        raise NativeError(
            "the password can't be read", error.errno or 0, where=file,
            cure="the file has to be there on every executor",
        ) from error  # fmt: skip

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
from urllib.parse import unquote, urlsplit

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
CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A broker's answers have 16 MiB and a message at most; what has more is none of a broker's."""

TRIES: Final = 3
PAUSE_S: Final = 0.5
_REASON_CHARACTERS_MAX: Final = 200
_PASSWORD_CHARACTERS_MAX: Final = 65536
_CURE: Final = "is it running? `url` names its HTTP listener"
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
        scheme, host, port, user = _parts(url)
        self.place = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=CONNECT_TIMEOUT_S)
        self._headers = {"Content-Type": "application/json"}
        if user is not None:
            login = f"{user}:{read_password(password_file)}"
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
        try:
            answer = json.loads(data) if data else {}
        except ValueError as error:
            raise self.foreign() from error
        if not isinstance(answer, dict):
            raise self.foreign()
        return answer

    def foreign(self) -> BrokerRefused:
        """Return what is said of an answer that no broker gives."""
        return BrokerRefused(
            "what answers here is no broker's API", where=self.place,
            cure="`url` names the broker's HTTP listener",
        )  # fmt: skip

    def call(self, method: str, path: str, body: Any = None) -> tuple[bytes, Any]:
        """Return an answer and its headers; ask again after a broken connection.

        Raises:
            BrokerRefused: The broker refused it.
            NativeError: The broker can't be reached.
        """
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(TRIES):
            try:
                answer, content = self._answer(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                # Who was silent for so long is asked no more: three times that is no answer either.
                if attempt + 1 == TRIES or isinstance(error, TimeoutError):
                    raise self._unreachable(error) from error
                time.sleep(PAUSE_S)
                continue
            if not self._keeps_open:
                self._connection.close()
            if answer.status >= http.HTTPStatus.BAD_REQUEST:
                raise self._refusal(answer.status, content)
            return content, answer.headers
        raise AssertionError("the loop returns or raises")

    def _answer(
        self, method: str, path: str, data: bytes | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection.sock is None:
            self._connection.connect()
            opened: Any = self._connection.sock
            opened.settimeout(TIMEOUT_S)
        self._connection.request(method, f"/api/v1{path}", data, self._headers)
        answer = self._connection.getresponse()
        content = answer.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            self._connection.close()
            raise self.foreign()
        return answer, content

    def _unreachable(self, error: Exception) -> NativeError:
        if not isinstance(error, TimeoutError):
            return NativeError(
                f"the broker can't be reached ({_one_line(error)})", where=self.place, cure=_CURE
            )
        return NativeError(
            "the broker can't be reached, or answered nothing for"
            f" {TIMEOUT_S:g} s", where=self.place, cure=_CURE,
        )  # fmt: skip

    def _refusal(self, status: int, content: bytes) -> VespiaryError:
        try:
            problem = json.loads(content)
            detail, kind = str(problem["detail"]), str(problem.get("type", ""))
        except (ValueError, KeyError, TypeError):
            return BrokerRefused(
                f"the answer is {status} without a reason", where=self.place,
                cure="`url` names the broker's HTTP listener: is it that?",
            )  # fmt: skip
        known = _CODES.get(kind.rpartition(":")[2])
        if known is not None:
            return known(detail, where=self.place)
        refused = BrokerRefused(detail, where=self.place)
        refused.status = status
        return refused


def _parts(url: str) -> tuple[str, str, int, str | None]:
    """Return scheme, host, port and user of a URL.

    Raises:
        ConfigError: It is none of a broker, or holds a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORT_HTTP
    except ValueError:  # a port that is none, a bracket too many
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(
            "this is no URL of a broker", path="url", value=url, allowed="http://user@host:port"
        )
    if parts.password is not None:
        raise ConfigError(
            "a password does not belong into a URL", path="url",
            cure="write it into a file and name that with passwordFile",
        )  # fmt: skip
    user = None if parts.username is None else unquote(parts.username)
    return parts.scheme, parts.hostname, port, user


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_REASON_CHARACTERS_MAX] or type(error).__name__


def read_password(file: str) -> str:
    """Return a user's password.

    Raises:
        ConfigError: No file is named.
        NativeError: It can't be read.
    """
    if not file:
        raise ConfigError("a user needs a password", path="passwordFile", cure="name its file")
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(_PASSWORD_CHARACTERS_MAX)
    except UnicodeDecodeError as error:
        raise ConfigError(
            "this file holds no password: it is no text in UTF-8", path="passwordFile", value=file,
            cure="write the password into its first line",
        ) from error  # fmt: skip
    except OSError as error:
        raise NativeError(
            "the password can't be read", error.errno or 0, where=file,
            cure="the file has to be there, and readable, on every executor",
        ) from error  # fmt: skip
    return text.rstrip("\n")

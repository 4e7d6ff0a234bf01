"""A client of the HTTP API for the commands: standard library alone, so that it starts fast.

Owns: the URL, the login, pages, and the way from problems to sentences. Called by `administration`.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click

from vespiary_broker.cli.credentials import (
    password_file_option,
    read_password,
    refuse_password_in_url,
)
from vespiary_broker.cli.terminal import CommandFailed
from vespiary_spec import limits
from vespiary_spec.errors import NativeError

DEFAULT_URL: Final = f"http://127.0.0.1:{limits.PORT_HTTP}"
_TIMEOUT_S: Final = 30.0

F = TypeVar("F", bound=Callable[..., Any])


class NotAllowed(CommandFailed):
    """The user may not do or see that."""


def _kept(name: str) -> Callable[[click.Context, click.Parameter, Path | None], None]:
    """Return a callback that keeps an option for the `ApiClient` of the command."""

    def keep(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[f"{__name__}.{name}"] = value

    return keep


def _tls_option(name: str, variable: str, text: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        envvar=variable,
        expose_value=False,
        callback=_kept(name),
        help=text,
    )


def api_options(function: F) -> F:
    """Add `--api`, what TLS needs, `--password-file` and `--json`."""
    for option in (
        click.option("--json", "is_json", is_flag=True, help="Print the answer as JSON."),
        password_file_option,
        _tls_option(
            "client-key", "VESPIARY_CLIENT_KEY", "PEM file with the key of --client-certificate."
        ),
        _tls_option(
            "client-certificate",
            "VESPIARY_CLIENT_CERTIFICATE",
            "PEM file with a certificate to show to an https API; without a user in --api it is "
            "the login.",
        ),
        _tls_option(
            "ca",
            "VESPIARY_CA",
            "PEM file with the authorities to trust for https; without it, those of the system.",
        ),
        click.option(
            "--api",
            "api_url",
            default=DEFAULT_URL,
            envvar="VESPIARY_API",
            show_default=True,
            help="HTTP listener of the broker, as http://user@host:port, or https:// for TLS.",
        ),
    ):
        function = option(function)
    return function


class ApiClient:
    """Calls the API of one broker.

    Args:
        url: `http://user@host:port`, or `https://`.
        password_file: Where the user's password is; None for the other sources.

    Raises:
        CommandFailed: The URL is none, or holds a password, there is no password, or a file for
            TLS is not what it should be.
    """

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise CommandFailed(f"{url!r} is no URL: {error}") from error
        is_url = parts.scheme in ("http", "https") and parts.hostname and not parts.path.strip("/")
        if not is_url or parts.hostname is None:
            raise CommandFailed(f"{url!r} is no URL of a broker: write http://user@host:port")
        refuse_password_in_url(parts.password, parts.hostname)
        self._place = f"{parts.scheme}://{parts.hostname}:{port or limits.PORT_HTTP}"
        self._tls = _tls_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port or limits.PORT_HTTP
        self._headers = {"Accept": "application/json"}
        if parts.username is not None:
            login = f"{parts.username}:{read_password(parts.username, password_file)}"
            encoded = base64.b64encode(login.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"

    def call(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None
    ) -> Any:
        """Call one operation and return its answer; None if it has none.

        Args:
            method: HTTP method.
            path: Path below `/api/v1`, encoded (see `segment`).
            body: Plain data for the body; None for none.
            query: Parameters; None values are left out.

        Raises:
            CommandFailed: The broker refused, with its sentence.
            NativeError: The broker cannot be reached.
        """
        text = self._call(method, path, body, query)
        answer = _parsed(text)
        if text and answer is None:
            raise CommandFailed(f"{self._place} does not answer as a broker of this kind does")
        return answer

    def text(self, path: str) -> str:
        """Return the answer of an operation that answers with text.

        Args:
            path: Path below `/api/v1`.

        Raises:
            CommandFailed: As for `call`.
            NativeError: As for `call`.
        """
        return self._call("GET", path, None, None).decode(errors="replace")

    def _call(self, method: str, path: str, body: Any, query: dict[str, Any] | None) -> bytes:
        headers = dict(self._headers)
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        given = {name: value for name, value in (query or {}).items() if value is not None}
        target = f"/api/v1{path}" + (f"?{urlencode(given)}" if given else "")
        status, text = self._exchange(method, target, data, headers)
        if status >= 400:
            answer = _parsed(text)
            detail = answer.get("detail") if isinstance(answer, dict) else None
            failure = NotAllowed if status == http.client.FORBIDDEN else CommandFailed
            raise failure(detail or f"{self._place} answered {status} to {method} {target}")
        return text

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        place = self._host, self._port
        connection = (
            http.client.HTTPConnection(*place, timeout=_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(*place, timeout=_TIMEOUT_S, context=self._tls)
        )
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except ssl.SSLError as error:
            raise CommandFailed(f"{self._place}: {_tls_problem(error)}") from error
        except OSError as error:
            raise NativeError(
                "cannot reach the HTTP API" if error.errno else f"no answer: {error}",
                error.errno or 0,
                where=self._place,
                cure="is a broker running there? name its HTTP listener with --api, with https:// "
                "if it speaks TLS",
            ) from error
        except http.client.HTTPException as error:
            raise CommandFailed(f"{self._place} speaks no HTTP: {error!r}") from error
        finally:
            connection.close()

    def items(self, path: str, query: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Yield all items of a list, page by page.

        Args:
            path: Path of the list.
            query: Parameters other than those of paging.
        """
        after: str | None = None
        while True:
            page = self.call("GET", path, query={**(query or {}), "limit": 500, "after": after})
            yield from page["items"]
            after = page["next"]
            if after is None:
                return


def _tls_context() -> ssl.SSLContext:
    """Return what the options of the command say about TLS.

    Raises:
        CommandFailed: A file cannot be read, or is not what it should be.
    """
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta
    ca, certificate, key = (
        meta.get(f"{__name__}.{name}") for name in ("ca", "client-certificate", "client-key")
    )
    try:
        made = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise CommandFailed(f"--ca {ca}: {_why(error, 'certificates')}") from error
    if certificate is not None:
        try:
            made.load_cert_chain(certificate, key, password="")
        except OSError as error:
            files = certificate if key is None else f"{certificate} and {key}"
            reason = _why(error, "a certificate and its key, without a password,")
            raise CommandFailed(f"--client-certificate {files}: {reason}") from error
    return made


def _why(error: OSError, wanted: str) -> str:
    if isinstance(error, ssl.SSLError) or error.strerror is None:
        return f"it does not hold {wanted} in PEM form"
    return error.strerror


def _tls_problem(error: ssl.SSLError) -> str:
    """Return why TLS with a broker failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}. Name its authority with --ca"
        )
    reason = str(getattr(error, "reason", None) or error)
    if reason in ("WRONG_VERSION_NUMBER", "TLSV1_ALERT_PROTOCOL_VERSION", "RECORD_LAYER_FAILURE"):
        return "the port does not speak TLS: write http:// instead of https://"
    if "CERTIFICATE_REQUIRED" in reason or "UNKNOWN_CA" in reason:
        return "the broker wants another client certificate: name one with --client-certificate"
    return f"TLS failed: {reason}"


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def segment(name: str) -> str:
    """Return a name as a segment of a path."""
    return quote(name, safe="")

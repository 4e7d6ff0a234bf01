"""The API server as the benchmark uses it: raw JSON over the kubernetes package's connections.

Owns: one client; every call names the path itself. Must never: retry, or decide anything.
Called by every module of `benchmarks.operator`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import kubernetes
import msgspec

from vespiary_operator.kinds import Kind

TIMEOUT_S = 30
THREADS = 8
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refused a call.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def path_of(kind: Kind, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of a collection, an object, or a part of one."""
    parts = ["", "apis", kind.group] if kind.group else ["", "api"]
    parts.append(kind.version)
    if namespace:
        parts += ["namespaces", namespace]
    parts.append(kind.plural)
    return "/".join([*parts, *(part for part in (name, subresource) if part)])


class Api:
    """One API server; may be used from several threads."""

    def __init__(self) -> None:
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
        configuration.connection_pool_maxsize = THREADS
        configuration.retries = False
        self.host = str(configuration.host)
        self._client = kubernetes.client.ApiClient(configuration)

    def _open(self, method: str, path: str, body: Any, content_type: str, timeout_s: float) -> Any:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        self._client.update_params_for_auth(
            headers, [], ["BearerToken"], path, method, body, request_auth=None
        )
        return self._client.rest_client.pool_manager.request(
            method,
            self.host + path,
            headers=headers,
            body=None if body is None else json.dumps(body),
            timeout=timeout_s,
            preload_content=False,
        )

    def call(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """Make one call and return the document that answers it.

        Raises:
            ApiError: The API server refused.
        """
        response = self._open(method, path, body, content_type, TIMEOUT_S)
        data = response.data
        response.release_conn()
        if not 200 <= response.status <= 299:
            raise ApiError(response.status, data.decode("utf-8", "replace")[:500])
        return msgspec.json.decode(data) if data else None

    def find(self, path: str) -> Any:
        """Return an object; None if it is not there."""
        try:
            return self.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a collection."""
        found: list[dict[str, Any]] = self.call("GET", f"{path}?{urlencode(query)}")["items"]
        return found

    def merge(self, path: str, body: Any) -> Any:
        """Change an object by a merge patch."""
        return self.call("PATCH", path, body, MERGE)

    def remove(self, path: str, **query: str) -> None:
        """Delete an object or a collection; one that is gone is fine."""
        try:
            self.call("DELETE", f"{path}?{urlencode(query)}")
        except ApiError as error:
            if error.status != 404:
                raise

    def watch(self, path: str, timeout_s: int, **query: str) -> Iterator[tuple[str, Any]]:
        """Yield (type, object) of a collection's changes, from its present state on.

        Args:
            path: The collection.
            timeout_s: When the API server ends the stream.
            query: Selectors.
        """
        asked = urlencode({**query, "watch": "true", "timeoutSeconds": str(timeout_s)})
        response = self._open("GET", f"{path}?{asked}", None, "application/json", timeout_s + 10)
        try:
            rest = b""
            for chunk in response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = msgspec.json.decode(line)
                    yield event["type"], event["object"]
        finally:
            response.close()

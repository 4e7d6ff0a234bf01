"""Every request to the API server, counted where it leaves the process.

Owns: what a method and a path mean in the words of access rules. Counting here rather than
where calls are written shows what was really asked for, so that a right which nothing uses, or
one that is missing, can be found.
Never: changes, delays or repeats a request. Called by: `cluster`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject


class ApiRequest(NamedTuple):
    """One request as access rules have it.

    Attributes:
        verb: Such as `list`.
        resource: Plural name, such as `pods`.
        subresource: Such as `status`; empty for the object itself.
    """

    verb: str
    resource: str
    subresource: str = ""


Count = Callable[[ApiRequest, int, str], None]
"""Takes a request, its HTTP status (0 if there was no answer), and the reason of a refusal."""

FORBIDDEN = 403

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def understood(method: str, url: str) -> ApiRequest | None:
    """Return what a request asks for; None if it is for no resource, as discovery is.

    Args:
        method: HTTP method.
        url: The whole URL, or its path and query.
    """
    parts = urlsplit(url)
    path = [part for part in parts.path.split("/") if part]
    if path[:1] == ["api"]:
        rest = path[2:]
    elif path[:1] == ["apis"]:
        rest = path[3:]
    else:
        return None
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return None
    resource, name, subresource = (*rest, "", "")[:3]
    verb = _VERBS.get(method.upper(), "")
    if method.upper() == "DELETE":
        verb = "delete" if name else "deletecollection"
    elif not verb:
        is_watch = parse_qs(parts.query).get("watch", ["false"])[0] in ("true", "1", "True")
        verb = "get" if name else "watch" if is_watch else "list"
    return ApiRequest(verb, resource, subresource)


def refusal(body: str | bytes | None) -> str:
    """Return the reason of a refusal: `Forbidden`, or `NamespaceTerminating`, which is its cause.

    Args:
        body: The API server's Status.
    """
    try:
        said = json.loads(body or "{}")
        causes = (said.get("details") or {}).get("causes") or ()
        cause = next((str(c.get("reason", "")) for c in causes), "")
        return cause if cause == "NamespaceTerminating" else str(said.get("reason") or "")
    except (ValueError, AttributeError):
        return ""


class CountingRest(RESTClientObject):
    """The client's transport, which counts.

    Args:
        configuration: Of the client.
        count: Takes each request and its status, in the thread that made it.
    """

    def __init__(self, configuration: Any, count: Count) -> None:
        super().__init__(configuration)
        self._count = count

    def request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        """Make a request; as the base class does."""
        asked = understood(method, url)
        status, reason = 0, ""
        try:
            response = super().request(  # type: ignore[no-untyped-call]
                method, url, *arguments, **options
            )
            status = int(response.status)
            if status == FORBIDDEN:
                reason = refusal(response.read())  # the response keeps what was read
        except ApiException as error:
            status = int(error.status or 0)
            if status == FORBIDDEN:
                reason = refusal(error.body)
            raise
        else:
            return response
        finally:
            if asked is not None:
                self._count(asked, status, reason)

"""The API server, with the user's own configuration and rights.

Owns: the one client. Of Secrets only the metadata is ever asked for, so that no secret reaches this
process. Never: uses the operator's rights; retries.
Called by: the commands of `kubectl vespiary`.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlencode

import kubernetes
import msgspec
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from vespiary_operator.kinds import Kind
from vespiary_spec.errors import ReconcileError

TIMEOUT_S = 30
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
MERGE = "application/merge-patch+json"


class AccessError(ReconcileError):
    """The API server refused or did not answer.

    Attributes:
        status: HTTP status; 0 without an answer.
    """

    def __init__(self, what: str, *, where: str, status: int = 0) -> None:
        cure = "ask for a role that allows it" if status == 403 else ""
        super().__init__(what, where=where, measured=status or None, cure=cure)
        self.status = status


class Api(Protocol):
    """What the commands need of the API server."""

    namespace: str

    def get(self, path: str, accept: str = "application/json", **query: str) -> bytes:
        """Return the body of an answer."""

    def merge(self, path: str, body: Any, *, is_tried: bool = False) -> None:
        """Change an object."""

    def execute(self, pod: str, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a pod; return its exit code and what it printed."""


def path_of(kind: Kind, namespace: str = "", name: str = "", part: str = "") -> str:
    """Return the path of a collection, an object, or a part of one."""
    parts = ["", "apis", kind.group] if kind.group else ["", "api"]
    parts.append(kind.version)
    if namespace:
        parts += ["namespaces", namespace]
    return "/".join([*parts, kind.plural, *(each for each in (name, part) if each)])


class Access:
    """The API server of a kubeconfig.

    Args:
        context: Name of the context; None takes the current one.
        namespace: Namespace; None takes the context's.

    Raises:
        AccessError: There is no such configuration.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        configuration = kubernetes.client.Configuration()
        try:
            kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
                context=context, client_configuration=configuration
            )
            contexts, current = kubernetes.config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
        except kubernetes.config.ConfigException as error:
            raise AccessError(str(error), where="kubeconfig") from error
        chosen = current if context is None else _named(contexts, context)
        self.namespace = namespace or chosen["context"].get("namespace") or "default"
        configuration.retries = False
        self._client = kubernetes.client.ApiClient(configuration)

    def _call(self, method: str, path: str, body: Any, headers: dict[str, str]) -> bytes:
        try:
            request = self._client.param_serialize(
                method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            response = self._client.call_api(*request, _request_timeout=TIMEOUT_S)
            data: bytes = response.read() or b""  # type: ignore[no-untyped-call]
        except ApiException as error:
            raise AccessError(
                f"the API server refused: {error.reason}", where=path, status=int(error.status or 0)
            ) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise AccessError(f"the API server did not answer: {error}", where=path) from error
        if not 200 <= response.status <= 299:
            raise AccessError(_said(data), where=path, status=response.status)
        return data

    def get(self, path: str, accept: str = "application/json", **query: str) -> bytes:
        """Return the body of an answer.

        Raises:
            AccessError: The API server refused or did not answer.
        """
        whole = f"{path}?{urlencode(query)}" if query else path
        return self._call("GET", whole, None, {"Accept": accept})

    def merge(self, path: str, body: Any, *, is_tried: bool = False) -> None:
        """Change an object by a merge patch.

        Args:
            path: Its path.
            body: The patch.
            is_tried: Have it checked, and keep nothing of it.

        Raises:
            AccessError: The API server refused or did not answer.
        """
        whole = f"{path}?dryRun=All" if is_tried else path
        self._call("PATCH", whole, body, {"Accept": "application/json", "Content-Type": MERGE})

    def execute(self, pod: str, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a pod; return its exit code and what it printed.

        Raises:
            AccessError: The API server refused or did not answer.
        """
        from kubernetes.stream import stream  # websockets: only for those who need it

        core = kubernetes.client.CoreV1Api(self._client)
        try:
            answer = stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container=container,
                command=command,
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            printed = []
            while answer.is_open():
                answer.update(timeout=TIMEOUT_S)
                # Not `read_all`: it throws away the channel with the exit code.
                printed += [answer.read_stdout(timeout=0), answer.read_stderr(timeout=0)]
            printed += [answer.read_stdout(timeout=0), answer.read_stderr(timeout=0)]
            return _exit_code(answer), "".join(printed)
        except ApiException as error:
            raise AccessError(
                f"the command could not be run: {error.reason}",
                where=f"{self.namespace}/{pod}",
                status=int(error.status or 0),
            ) from error


def _exit_code(answer: Any) -> int:
    """Return the exit code of a command; 1 if the connection ended before it was told.

    The client fails with a TypeError on an answer without the closing word of the API server.
    """
    try:
        return int(answer.returncode or 0)
    except TypeError:
        return 1


def _said(data: bytes) -> str:
    """Return what the API server said about a refusal."""
    try:
        said = msgspec.json.decode(data)
        return f"the API server refused: {said.get('message', 'no reason given')}"
    except (msgspec.DecodeError, AttributeError):
        return f"the API server refused: {data[:200].decode('utf-8', 'replace')}"


def _named(contexts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for found in contexts:
        if found["name"] == name:
            return found
    raise AccessError(f"there is no context {name}", where="kubeconfig")


def document(api: Api, path: str) -> dict[str, Any]:
    """Return an object.

    Raises:
        AccessError: The API server refused or did not answer.
    """
    found: dict[str, Any] = msgspec.json.decode(api.get(path))
    return found


def items(api: Api, path: str, accept: str = "application/json", **query: str) -> list[Any]:
    """Return the objects of a collection.

    Raises:
        AccessError: The API server refused or did not answer.
    """
    found: list[Any] = msgspec.json.decode(api.get(path, accept, **query)).get("items") or []
    return found

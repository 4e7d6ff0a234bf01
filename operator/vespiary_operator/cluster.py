"""The API server, as the operator uses it: reads, server-side apply, create once, delete by UID.

Owns: the client and the threads that its calls run in. Every call is checked against `rbac`, and
every read of a Secret against `secret_access`.
Never: decides anything; retries a write (the work queue has the whole pass made anew).
Called by: `observer`, `apply`, `announcements`, `reconciler`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import kubernetes
import msgspec
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from kubernetes.dynamic.resource import Resource
from urllib3.exceptions import HTTPError

from vespiary_operator import api_errors, kinds, names, rbac
from vespiary_operator.api_errors import (
    ApiRefusedError,
    ApiUnavailableError,
    KindNotServedError,
    NotLeadingError,
)
from vespiary_operator.api_requests import Count, CountingRest
from vespiary_operator.kinds import Kind
from vespiary_operator.secret_access import SecretAccess
from vespiary_spec.errors import ReconcileError

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30
"""One call to the API server may take this long."""

READ_PAUSES_S = (0.2, 1.0)
"""Pauses before a read that failed at once is tried again. A pass makes about fifteen; without
this, of a server that fails at one read in twenty hardly a pass would reach its end."""

THREADS = 8

PAGE_OBJECTS = 250
"""Objects in one page of a long list."""

MISSING_KIND_S = 20.0
"""A kind that the API server does not know is not asked for again for so long."""

_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"


class Page(NamedTuple):
    """A part of a list.

    Attributes:
        items: Objects, as JSON.
        version: Resource version of the whole list.
        next: What asks for the next page; empty after the last.
    """

    items: list[msgspec.Raw]
    version: str
    next: str


class _ListMetadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")
    next: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


def _document(response: Any) -> dict[str, Any]:
    """Return the object that an answer holds; the client's own wrappers cost ten times as much."""
    found: dict[str, Any] = msgspec.json.decode(response.data)
    return found


class Cluster:
    """The API server.

    Owned by the operator's main loop; its calls run in a small pool of threads.

    Args:
        client: A configured client of the kubernetes package.
        is_cluster_wide: Whether the operator has the rights that hold for the whole cluster.
        secrets: Which Secrets may be read; the reconciler tells it of Brokers.

    Attributes:
        on_written: Takes each object as it is after a write.
        may_write: Asked in a thread right before each write; where several operators take turns,
            one that was held up must not write after its turn.
    """

    def __init__(
        self, client: Any, *, is_cluster_wide: bool = True, secrets: SecretAccess | None = None
    ) -> None:
        self._client = client
        self._is_cluster_wide = is_cluster_wide
        self._secrets = secrets or SecretAccess()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
        self.on_written: Callable[[Kind, dict[str, Any]], None] | None = None
        self.may_write: Callable[[], bool] = lambda: True
        self._missing_until: dict[Kind, float] = {}

    @functools.cached_property
    def _dynamic(self) -> Any:
        """The dynamic client, which asks nothing before it is asked."""
        return DynamicClient(  # type: ignore[no-untyped-call]
            self._client, discoverer=lambda *_: None
        )

    def close(self) -> None:
        """Let no more calls begin, and forget the ones that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _resource(self, kind: Kind) -> Any:
        """Return the client's handle of a kind.

        Nothing is asked for it: the table of kinds has all of it. The client's own discovery takes
        a group that is not to be had for the moment (503) for one that is not there, asks without
        a time limit, and keeps what it found in a file.
        """
        return Resource(  # type: ignore[no-untyped-call]
            prefix="apis" if kind.group else "api",
            group=kind.group,
            api_version=kind.version,
            kind=kind.name,
            namespaced=kind.is_namespaced,
            name=kind.plural,
            client=self._dynamic,
            subresources={
                "status": {
                    "name": f"{kind.plural}/status",
                    "kind": kind.name,
                    "namespaced": kind.is_namespaced,
                }
            },
        )

    async def _call(self, what: str, function: Callable[[], T]) -> T:
        """Run one call in a thread and name its failure."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function)
        except (DynamicApiError, HTTPError, OSError, msgspec.DecodeError) as error:
            raise api_errors.explained(error, what) from error

    async def _read(self, what: str, function: Callable[[], T]) -> T:
        """Run one call that reads, and again if the API server failed just then."""
        for pause_s in READ_PAUSES_S:
            try:
                return await self._call(what, function)
            except ApiUnavailableError as error:
                if error.pause_s is None or error.pause_s > READ_PAUSES_S[-1]:
                    raise
                await asyncio.sleep(max(pause_s, error.pause_s))
        return await self._call(what, function)

    async def _write(self, what: str, function: Callable[[], T]) -> T:
        """Run one call that writes, if this process still may when its turn comes."""

        def write() -> T:
            if not self.may_write():
                raise NotLeadingError("this operator no longer holds the Lease", where=what)
            return function()

        return await self._call(what, write)

    @staticmethod
    def _check(verb: str, kind: Kind, subresource: str = "") -> None:
        assert rbac.is_allowed(verb, kind, subresource), (
            f"{verb} {kind.plural} is not in rbac.RULES"
        )

    async def is_served(self, kind: Kind) -> bool:
        """Return whether the API server knows a kind; asks anew each time."""
        where = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"

        def look() -> bool:
            found = _document(
                self._dynamic.request(
                    "get", where, serialize=False, _request_timeout=REQUEST_TIMEOUT_S
                )
            )
            return any(one.get("name") == kind.plural for one in found.get("resources") or ())

        try:
            return await self._read(f"discover {kind.plural}", look)
        except KindNotServedError:
            return False

    async def get(
        self,
        kind: Kind,
        name: str,
        namespace: str = "",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any] | None:
        """Return an object; None if it is not there.

        Args:
            kind: Kind of the object.
            name: Its name.
            namespace: Its namespace; empty for a kind that has none.
            timeout_s: How long the answer may take, in seconds.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("get", kind)
        if kind == kinds.SECRET:
            self._secrets.check_name(namespace, name)

        def read() -> dict[str, Any]:
            return _document(
                self._resource(kind).get(
                    name=name,
                    namespace=namespace or None,
                    serialize=False,
                    _request_timeout=timeout_s,
                )
            )

        try:
            return await self._read(f"get {kind.plural} {namespace}/{name}", read)
        except ApiRefusedError as error:
            if error.status == 404:
                return None
            raise

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels select.

        Args:
            kind: Kind of the objects.
            namespace: Their namespace; empty means all.
            selector: Label selector; empty means every object.
            fields: Field selector; empty means every object.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("list", kind)
        if kind == kinds.SECRET:
            self._secrets.check_selector(selector)

        def read() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = _document(
                self._resource(kind).get(
                    namespace=namespace or None,
                    label_selector=selector or None,
                    field_selector=fields or None,
                    serialize=False,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
            ).get("items", [])
            for item in found:  # the API server says it once, for the list
                item.setdefault("apiVersion", kind.api_version)
                item.setdefault("kind", kind.name)
            return found

        return await self._read(f"list {kind.plural} {namespace}", read)

    async def page(self, kind: Kind, namespace: str, selector: str, following: str = "") -> Page:
        """Return a part of a list, its objects as JSON that nobody has taken apart yet.

        Args:
            kind: Kind of the objects.
            namespace: Their namespace; empty means all.
            selector: Label selector; empty means every object.
            following: `next` of the page before; empty begins.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("list", kind)
        if kind == kinds.SECRET:
            self._secrets.check_selector(selector)

        def read() -> Page:
            response = self._resource(kind).get(
                namespace=namespace or None,
                label_selector=selector or None,
                limit=PAGE_OBJECTS,
                _continue=following or None,
                serialize=False,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
            found = msgspec.json.decode(response.data, type=_List)
            return Page(found.items or [], found.metadata.version, found.metadata.next)

        return await self._read(f"list {kind.plural} {namespace}", read)

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a kind; None where that is not allowed, or not known."""
        if not self._is_cluster_wide and not rbac.is_namespaced("list", kind):
            return None
        try:
            return await self.items(kind)
        except KindNotServedError:
            return None
        except ApiRefusedError as error:
            if error.status == 403:
                return None
            raise

    async def get_if_served(
        self, kind: Kind, name: str, namespace: str = ""
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether the API server knows a kind, and an object of it if that is there.

        That a kind is missing is remembered for a while: finding out takes many requests.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        if time.monotonic() < self._missing_until.get(kind, 0.0):
            return False, None
        try:
            return True, await self.get(kind, name, namespace)
        except KindNotServedError:
            self._missing_until[kind] = time.monotonic() + MISSING_KIND_S
            return False, None

    async def apply(self, manifest: dict[str, Any], manager: str = "") -> dict[str, Any]:
        """Make an object as the manifest says; others keep the fields that it does not name.

        Args:
            manifest: The object, with what this operator wants of it and nothing else.
            manager: Field manager; empty means the usual one.

        Returns:
            The object as it is now.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        kind = kinds.of(manifest)
        self._check("patch", kind)
        metadata = manifest["metadata"]

        def write() -> dict[str, Any]:
            return _document(
                self._resource(kind).server_side_apply(
                    body=manifest,
                    name=metadata["name"],
                    namespace=metadata.get("namespace"),
                    field_manager=manager or names.MANAGER,
                    force_conflicts=True,
                    serialize=False,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
            )

        where = f"{metadata.get('namespace', '')}/{metadata['name']}"
        found = await self._write(f"apply {kind.plural} {where}", write)
        if self.on_written is not None:
            self.on_written(kind, found)
        return found

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        """Report a status; whatever else stood there goes away.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("patch", kind, "status")
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
            "status": status,
        }

        def patch(body: Any, content_type: str, **more: Any) -> Any:
            return _document(
                self._resource(kind).status.patch(
                    body=body,
                    name=name,
                    namespace=namespace or None,
                    content_type=content_type,
                    field_manager=names.MANAGER,
                    serialize=False,
                    _request_timeout=REQUEST_TIMEOUT_S,
                    **more,
                )
            )

        def write() -> None:
            found = patch(body, _APPLY, force_conflicts=True)
            if found.get("status") != status:
                # Somebody else wrote into it, and what they own an apply leaves as it is.
                patch([{"op": "add", "path": "/status", "value": status}], _JSON_PATCH)

        await self._write(f"apply {kind.plural}/status {namespace}/{name}", write)

    async def create(
        self, manifest: dict[str, Any], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Any]:
        """Make an object that must not be there yet.

        Args:
            manifest: The object.
            timeout_s: How long the answer may take, in seconds.

        Raises:
            ReconcileError: It is there (status 409), or the API server refused or did not answer.
        """
        found = await self._put("create", manifest, timeout_s)
        if self.on_written is not None:
            self.on_written(kinds.of(manifest), found)
        return found

    async def replace(
        self, manifest: dict[str, Any], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Any]:
        """Put an object in the place of the one that was read, if that has not changed since.

        Args:
            manifest: The object, with the resource version that was read.
            timeout_s: How long the answer may take, in seconds.

        Raises:
            ReconcileError: It is another one by now (status 409), or the API server refused or did
                not answer.
        """
        assert manifest["metadata"].get("resourceVersion"), "else it would replace anything"
        return await self._put("update", manifest, timeout_s)

    async def _put(self, verb: str, manifest: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write a whole object: make it, or replace it."""
        kind = kinds.of(manifest)
        self._check(verb, kind)
        metadata = manifest["metadata"]

        def write() -> dict[str, Any]:
            resource = self._resource(kind)
            return _document(
                (resource.create if verb == "create" else resource.replace)(
                    body=manifest,
                    namespace=metadata.get("namespace"),
                    field_manager=names.MANAGER,
                    serialize=False,
                    _request_timeout=timeout_s,
                )
            )

        where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        return await self._write(f"{verb} {kind.plural} {where}", write)

    async def delete(
        self, kind: Kind, name: str, namespace: str, uid: str, *, orphans: bool = False
    ) -> None:
        """Delete one object, if it still is the one with this UID; one that is gone is fine.

        Args:
            kind: Kind of the object.
            name: Its name.
            namespace: Its namespace.
            uid: The UID that it has to have.
            orphans: Whether what belongs to it stays.

        Raises:
            ReconcileError: Another object has its name now (status 409), or the API server refused
                or did not answer.
        """
        self._check("delete", kind)

        def write() -> None:
            self._resource(kind).delete(
                name=name,
                namespace=namespace or None,
                body={
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "preconditions": {"uid": uid},
                    "propagationPolicy": "Orphan" if orphans else "Background",
                },
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        try:
            await self._write(f"delete {kind.plural} {namespace}/{name}", write)
        except ApiRefusedError as error:
            if error.status != 404:
                raise


def configuration() -> Any:
    """Return how to reach the cluster that this runs in, or else the one of `KUBECONFIG`.

    Raises:
        ReconcileError: There is neither.
    """
    found = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=found
        )
    except kubernetes.config.ConfigException:
        try:
            kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=found
            )
        except kubernetes.config.ConfigException as error:
            raise ReconcileError(
                f"there is no cluster to talk to: {error}",
                cure="run the operator in a pod, or name a configuration with KUBECONFIG",
            ) from error
    found.connection_pool_maxsize = THREADS
    found.retries = False
    return found


def resources_of(found: Any) -> Callable[[Kind], Any]:
    """Return the dynamic client's handles, with no rights but the API server's own in the way.

    Args:
        found: From `configuration`.
    """
    dynamic = DynamicClient(kubernetes.client.ApiClient(found))  # type: ignore[no-untyped-call]
    return lambda kind: dynamic.resources.get(api_version=kind.api_version, kind=kind.name)


def connect(
    *,
    is_cluster_wide: bool = True,
    count: Count | None = None,
    secrets: SecretAccess | None = None,
) -> Cluster:
    """Return the cluster that the operator runs in, or else the one of `KUBECONFIG`.

    Args:
        is_cluster_wide: Whether the operator has the rights that hold for the whole cluster.
        count: Takes every request and its HTTP status.
        secrets: Which Secrets may be read.

    Raises:
        ReconcileError: There is neither.
    """
    found = configuration()
    client = kubernetes.client.ApiClient(found)
    if count is not None:
        client.rest_client = CountingRest(found, count)
    return Cluster(client, is_cluster_wide=is_cluster_wide, secrets=secrets)

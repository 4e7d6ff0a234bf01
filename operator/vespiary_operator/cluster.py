"""The API server, as the operator uses it: reads, server-side apply, create once, delete by UID.

Owns: the client and the threads that its calls run in. Every call is checked against `rbac`.
Never: decides anything; retries (the work queue does).
Called by: `observation`, `apply`, `announcements`, `reconciler`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import kubernetes
import urllib3.exceptions
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError

from vespiary_operator import names, rbac
from vespiary_operator.kinds import BY_NAME, Kind
from vespiary_spec.errors import ReconcileError, TemporaryReconcileError

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30
"""One call to the API server may take this long."""

THREADS = 8

_APPLY = "application/apply-patch+yaml"


class ApiRefusedError(ReconcileError):
    """The API server refused a call.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, what: str, *, where: str, status: int, cure: str = "") -> None:
        super().__init__(what, where=where, measured=status, cure=cure)
        self.status = status


def _message(error: DynamicApiError) -> str:
    """Return what the API server said, without the headers that the client adds."""
    try:
        said = json.loads(error.body or "{}").get("message", "")
    except (ValueError, AttributeError, TypeError):
        said = ""
    return str(said or error.reason or "no reason given")


class Cluster:
    """The API server.

    Owned by the operator's main loop; its calls run in a small pool of threads.

    Args:
        client: A configured client of the kubernetes package.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
        self._lock = threading.Lock()
        self._dynamic: Any = None

    def close(self) -> None:
        """Let no more calls begin, and forget the ones that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _resource(self, kind: Kind) -> Any:
        with self._lock:
            if self._dynamic is None:
                self._dynamic = DynamicClient(self._client)  # type: ignore[no-untyped-call]
            return self._dynamic.resources.get(api_version=kind.api_version, kind=kind.name)

    async def _call(self, what: str, function: Callable[[], T]) -> T:
        """Run one call in a thread and name its failure."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function)
        except ResourceNotFoundError as error:
            raise TemporaryReconcileError(
                "the API server does not know this kind", where=what, cure="install the CRDs"
            ) from error
        except DynamicApiError as error:
            cure = ""
            if error.status == 403:
                cure = "compare the operator's role with the chart's rbac.yaml"
            raise ApiRefusedError(
                f"the API server refused: {_message(error)}",
                where=what,
                status=int(error.status or 0),
                cure=cure,
            ) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise TemporaryReconcileError(
                f"the API server did not answer: {error}", where=what, delay_s=5.0
            ) from error

    @staticmethod
    def _check(verb: str, kind: Kind, subresource: str = "") -> None:
        assert rbac.is_allowed(verb, kind, subresource), (
            f"{verb} {kind.plural} is not in rbac.RULES"
        )

    async def is_served(self, kind: Kind) -> bool:
        """Return whether the API server knows a kind; asks anew each time."""

        def search() -> bool:
            with self._lock:
                if self._dynamic is None:
                    self._dynamic = DynamicClient(self._client)  # type: ignore[no-untyped-call]
                self._dynamic.resources.invalidate_cache()
                try:
                    self._dynamic.resources.get(api_version=kind.api_version, kind=kind.name)
                except ResourceNotFoundError:
                    return False
                return True

        return await self._call(f"discover {kind.plural}", search)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object; None if it is not there.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("get", kind)

        def read() -> dict[str, Any]:
            found: dict[str, Any] = (
                self._resource(kind)
                .get(name=name, namespace=namespace or None, _request_timeout=REQUEST_TIMEOUT_S)
                .to_dict()
            )
            return found

        try:
            return await self._call(f"get {kind.plural} {namespace}/{name}", read)
        except ApiRefusedError as error:
            if error.status == 404:
                return None
            raise

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels select.

        Args:
            kind: Kind of the objects.
            namespace: Their namespace; empty means all.
            selector: Label selector; empty means every object.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        self._check("list", kind)

        def read() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (
                self._resource(kind)
                .get(
                    namespace=namespace or None,
                    label_selector=selector or None,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
                .to_dict()
                .get("items", [])
            )
            return found

        return await self._call(f"list {kind.plural} {namespace}", read)

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a kind; None where the operator may not see them."""
        try:
            return await self.items(kind)
        except ApiRefusedError as error:
            if error.status == 403:
                return None
            raise

    async def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Make an object as the manifest says; others keep the fields that it does not name.

        Args:
            manifest: The object, with what this operator wants of it and nothing else.

        Returns:
            The object as it is now.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        kind = BY_NAME[manifest["kind"]]
        self._check("patch", kind)
        metadata = manifest["metadata"]

        def write() -> dict[str, Any]:
            found: dict[str, Any] = (
                self._resource(kind)
                .server_side_apply(
                    body=manifest,
                    name=metadata["name"],
                    namespace=metadata.get("namespace"),
                    field_manager=names.MANAGER,
                    force_conflicts=True,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
                .to_dict()
            )
            return found

        where = f"{metadata.get('namespace', '')}/{metadata['name']}"
        return await self._call(f"apply {kind.plural} {where}", write)

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        """Report a status; fields that were reported before and are not now go away.

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

        def write() -> None:
            self._resource(kind).status.patch(
                body=body,
                name=name,
                namespace=namespace or None,
                content_type=_APPLY,
                field_manager=names.MANAGER,
                force_conflicts=True,
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        await self._call(f"apply {kind.plural}/status {namespace}/{name}", write)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Make an object that must not be there yet.

        Raises:
            ReconcileError: It is there (status 409), or the API server refused or did not answer.
        """
        kind = BY_NAME[manifest["kind"]]
        self._check("create", kind)
        metadata = manifest["metadata"]

        def write() -> dict[str, Any]:
            found: dict[str, Any] = (
                self._resource(kind)
                .create(
                    body=manifest,
                    namespace=metadata.get("namespace"),
                    field_manager=names.MANAGER,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
                .to_dict()
            )
            return found

        where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        return await self._call(f"create {kind.plural} {where}", write)

    async def delete(self, kind: Kind, name: str, namespace: str, uid: str) -> None:
        """Delete one object, if it still is the one with this UID; one that is gone is fine.

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
                    "propagationPolicy": "Background",
                },
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        try:
            await self._call(f"delete {kind.plural} {namespace}/{name}", write)
        except ApiRefusedError as error:
            if error.status != 404:
                raise


def connect() -> Cluster:
    """Return the cluster that the operator runs in, or else the one of `KUBECONFIG`.

    Raises:
        ReconcileError: There is neither.
    """
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
    except kubernetes.config.ConfigException:
        try:
            kubernetes.config.load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
        except kubernetes.config.ConfigException as error:
            raise ReconcileError(
                f"there is no cluster to talk to: {error}",
                cure="run the operator in a pod, or name a configuration with KUBECONFIG",
            ) from error
    configuration.connection_pool_maxsize = THREADS
    configuration.retries = False
    return Cluster(kubernetes.client.ApiClient(configuration))

"""Objects of the API server, read without a process of kubectl for each look.

Tests look several times a second at what they wait for; a start of kubectl is a tenth of a second
of a processor, which the brokers need. Called by `kubernetes_cluster`, which asks kubectl wherever
this has no answer.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import kubernetes
import urllib3

READ_S = 10.0
"""So long is waited for an answer; then kubectl is asked, which says what is wrong."""


class Unknown(Exception):  # noqa: N818 - no failure: kubectl is asked
    """The API server did not answer, or not with what was asked for."""


class Resource(NamedTuple):
    """Where objects of a kind are.

    Attributes:
        path: Of the API's group and version.
        plural: Name of the resource.
        is_namespaced: Whether they are in namespaces.
        kind: Their kind.
        version: Their `apiVersion`.
    """

    path: str
    plural: str
    is_namespaced: bool
    kind: str
    version: str


class ApiReads:
    """Reads of one cluster, as whoever KUBECONFIG names; may be used by several threads."""

    def __init__(self) -> None:
        settings = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=settings)
        settings.retries = False
        self._client = kubernetes.client.ApiClient(settings)
        self._resources: dict[str, Resource] = {}

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """Return an object as `kubectl get -o json` does; None if there is none.

        Raises:
            Unknown: There is no answer.
        """
        resource = self._resource(kind)
        try:
            found = self._read(f"{self._folder(resource, namespace)}/{name}")
        except kubernetes.client.ApiException as error:
            if error.status != 404 or not _is_of_object(error, resource, name):
                raise Unknown(str(error)) from error
            return None
        found["metadata"].pop("managedFields", None)
        return found

    def items(self, kind: str, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return objects as `kubectl get -o json` does.

        Raises:
            Unknown: There is no answer.
        """
        resource = self._resource(kind)
        query = [("labelSelector", selector)] if selector else []
        try:
            found = self._read(self._folder(resource, namespace), query)["items"]
        except kubernetes.client.ApiException as error:
            raise Unknown(str(error)) from error
        for item in found:  # in a list they do not say what they are
            item |= {"apiVersion": resource.version, "kind": resource.kind}
            item["metadata"].pop("managedFields", None)
        items: list[dict[str, Any]] = found
        return items

    @staticmethod
    def _folder(resource: Resource, namespace: str) -> str:
        if not resource.is_namespaced:
            return f"{resource.path}/{resource.plural}"
        if not namespace:
            raise Unknown("kubectl knows a namespace of its own")
        return f"{resource.path}/namespaces/{namespace}/{resource.plural}"

    def _read(self, path: str, query: list[tuple[str, str]] | None = None) -> Any:
        request = self._client.param_serialize(
            "GET",
            path,
            query_params=query or [],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=READ_S)
            body = answer.read()
        except urllib3.exceptions.HTTPError as error:
            raise Unknown(str(error)) from error
        if answer.status != 200:
            raise kubernetes.client.ApiException(status=answer.status, body=body)
        return json.loads(body)

    def _resource(self, kind: str) -> Resource:
        """Return where a kind is, by any name that kubectl takes; new ones are looked for."""
        if "," in kind:
            raise Unknown("several kinds at once")
        if kind not in self._resources:
            try:
                self._resources = self._discovered()
            except kubernetes.client.ApiException as error:
                raise Unknown(str(error)) from error
        if kind not in self._resources:
            raise Unknown(f"{kind} is no resource")
        return self._resources[kind]

    def _discovered(self) -> dict[str, Resource]:
        groups = self._read("/apis")["groups"]
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        found: dict[str, Resource] = {}
        for version in versions:
            path = "/api/v1" if version == "v1" else f"/apis/{version}"
            group = version.partition("/")[0] if "/" in version else ""
            for each in self._read(path)["resources"]:
                if "/" in each["name"]:  # a part of an object
                    continue
                place = Resource(path, each["name"], each["namespaced"], each["kind"], version)
                names = [each["name"], each["singularName"], *each.get("shortNames", ())]
                for name in names:
                    found.setdefault(name, place)  # of two groups, kubectl takes the first too
                    found.setdefault(f"{name}.{group}", place)
        return found


def _is_of_object(error: kubernetes.client.ApiException, resource: Resource, name: str) -> bool:
    """Whether an object is not there, and not its whole resource."""
    try:
        details = json.loads(error.body or "{}").get("details") or {}
    except ValueError:
        return False
    return bool(details.get("name") == name and details.get("kind") == resource.plural)

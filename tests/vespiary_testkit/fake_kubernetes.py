"""An API server in memory, with as much of Kubernetes as the operator's passes need.

Owns objects, resource versions, UIDs, label selection, and a StatefulSet controller that is run by
hand (`settle`). Server-side apply merges what a manifest says and keeps the rest. Every call is
checked against the operator's own table of rights and written down. Called by tests.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Mapping
from typing import Any

from vespiary_operator import kinds, names, rbac
from vespiary_operator.cluster import ApiRefusedError
from vespiary_operator.drift import ATOMIC_MAPS
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.tuning import NodeReport

Key = tuple[str, str, str]
_KEYED = ("name", "mountPath", "containerPort", "port", "uid")


def merged(old: Any, new: Any) -> Any:
    """Return `old` with everything that `new` says; items of lists are told apart by a key."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {
            **old,
            **{
                key: copy.deepcopy(value) if key in ATOMIC_MAPS else merged(old.get(key), value)
                for key, value in new.items()
            },
        }
    if isinstance(old, list) and isinstance(new, list):
        for key in _KEYED:
            if new and all(isinstance(item, Mapping) and key in item for item in (*old, *new)):
                before = {item[key]: item for item in old}
                after = {item[key] for item in new}
                kept = [item for item in old if item[key] not in after]
                return [merged(before.get(item[key]), item) for item in new] + kept
    return copy.deepcopy(new)


class FakeKubernetes:
    """Objects by kind, namespace and name.

    Attributes:
        calls: Every call so far: verb, kind, subresource.
        writes: Every write so far but those of a status, in words.
        forbidden: Kinds that may not be listed.
        refused_write: Number of the write, from 0, that is refused; -1 refuses none.
        verification: Termination message that new pods' verification leaves.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.calls: list[tuple[str, Kind, str]] = []
        self.writes: list[str] = []
        self.forbidden: set[str] = set()
        self.refused_write = -1
        self.verification = ""
        self._version = 0

    # --- what the operator calls ----------------------------------------------------------------

    def _call(self, verb: str, kind: Kind, subresource: str = "") -> None:
        assert rbac.is_allowed(verb, kind, subresource), f"{verb} {kind.plural} is in no rule"
        self.calls.append((verb, kind, subresource))

    def _write(self, what: str) -> None:
        self.writes.append(what)
        if len(self.writes) - 1 == self.refused_write:
            raise ApiRefusedError("refused for the test", where=what, status=503)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        self._call("get", kind)
        return copy.deepcopy(self.objects.get((kind.name, namespace, name)))

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = ""
    ) -> list[dict[str, Any]]:
        self._call("list", kind)
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            copy.deepcopy(found)
            for (of, where, _), found in sorted(self.objects.items())
            if of == kind.name
            and namespace in ("", where)
            and wanted.items() <= (found["metadata"].get("labels") or {}).items()
        ]

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        return None if kind.name in self.forbidden else await self.items(kind)

    async def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind = kinds.BY_NAME[manifest["kind"]]
        self._call("patch", kind)
        key = self._key(manifest)
        if key not in self.objects and kind is not kinds.CLAIM:
            self._call("create", kind)
        self._write(f"apply {kind.name}/{key[2]}")
        return self.put(manifest)

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        self._call("patch", kind, "status")
        found = self.objects[kind.name, namespace, name]
        found["status"] = json.loads(json.dumps(status))
        self._stamp(found)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind = kinds.BY_NAME[manifest["kind"]]
        self._call("create", kind)
        self._write(f"create {kind.name}/{manifest['metadata']['name']}")
        if self._key(manifest) in self.objects:
            raise ApiRefusedError("it exists", where=manifest["metadata"]["name"], status=409)
        return self.put(manifest)

    async def delete(self, kind: Kind, name: str, namespace: str, uid: str) -> None:
        self._call("delete", kind)
        self._write(f"delete {kind.name}/{name}")
        found = self.objects.get((kind.name, namespace, name))
        if found is None:
            return
        if found["metadata"]["uid"] != uid:
            raise ApiRefusedError("another UID", where=name, status=409)
        del self.objects[kind.name, namespace, name]

    # --- what tests call ------------------------------------------------------------------------

    @staticmethod
    def _key(document: Mapping[str, Any]) -> Key:
        metadata = document["metadata"]
        return document["kind"], metadata.get("namespace") or "", metadata["name"]

    def _stamp(self, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)

    def put(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a document into the object of its name, as an apply does; return the object."""
        key = self._key(document)
        old = self.objects.get(key)
        new = merged(old or {}, json.loads(json.dumps(document)))
        new["metadata"].setdefault("uid", str(uuid.uuid4()))
        if old is None or _spec(old) != _spec(new):
            new["metadata"]["generation"] = (old or new)["metadata"].get("generation", 0) + 1
        if old != new:
            self._stamp(new)
        self.objects[key] = new
        return copy.deepcopy(new)

    def one(self, kind: Kind, name: str, namespace: str = "ns") -> dict[str, Any]:
        return self.objects[kind.name, namespace, name]

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        return [found for (of, _, _), found in sorted(self.objects.items()) if of == kind.name]

    def settle(self, *, steps: int = 1, is_ready: bool = True) -> None:
        """Let the StatefulSet controller make or restart `steps` pods of each StatefulSet."""
        for stateful_set in self.of(kinds.STATEFUL_SET):
            for _ in range(steps):
                _control(self, stateful_set, is_ready=is_ready)


def _spec(document: Mapping[str, Any]) -> Any:
    return {k: v for k, v in document.items() if k not in ("metadata", "status")}


def _control(cluster: FakeKubernetes, stateful_set: dict[str, Any], *, is_ready: bool) -> None:
    """Do one step of the StatefulSet controller: observe, then make or replace one pod."""
    spec, metadata = stateful_set["spec"], stateful_set["metadata"]
    status = stateful_set.setdefault("status", {})
    newest = str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(spec["template"], sort_keys=True)))
    status.setdefault("currentRevision", newest)
    status["updateRevision"] = newest
    status["observedGeneration"] = metadata["generation"]
    partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
    found = {
        ordinal: cluster.objects.get(
            ("Pod", metadata["namespace"], f"{metadata['name']}-{ordinal}")
        )
        for ordinal in range(spec["replicas"])
    }
    for (kind, namespace, name), _ in list(cluster.objects.items()):
        tail = name.rpartition("-")[2]
        if kind == "Pod" and namespace == metadata["namespace"] and int(tail) >= spec["replicas"]:
            del cluster.objects[kind, namespace, name]
    for ordinal, pod in found.items():
        if pod is None:
            revision = newest if ordinal >= partition else status["currentRevision"]
            cluster.put(_pod(cluster, stateful_set, ordinal, revision, is_ready=is_ready))
            return
    for ordinal in reversed(range(partition, spec["replicas"])):
        pod = found[ordinal]
        assert pod is not None
        if pod["metadata"]["labels"][names.LABEL_REVISION] != newest:
            del cluster.objects["Pod", metadata["namespace"], pod["metadata"]["name"]]
            return
    if partition == 0 and all(
        pod is not None and pod["metadata"]["labels"][names.LABEL_REVISION] == newest
        for pod in found.values()
    ):
        status["currentRevision"] = newest


def _pod(
    cluster: FakeKubernetes,
    stateful_set: dict[str, Any],
    ordinal: int,
    revision: str,
    *,
    is_ready: bool,
) -> dict[str, Any]:
    metadata = stateful_set["metadata"]
    template = stateful_set["spec"]["template"]
    finished: dict[str, Any] = {"exitCode": 0, "message": cluster.verification}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{ordinal}",
            "namespace": metadata["namespace"],
            "labels": {**template["metadata"]["labels"], names.LABEL_REVISION: revision},
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{"uid": metadata["uid"]}],
        },
        "spec": {**template["spec"], "nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "initContainerStatuses": [{"name": "verify", "state": {"terminated": finished}}],
            "containerStatuses": [{"name": "broker", "state": {"running": {}}, "restartCount": 0}],
        },
    }


class FakeRemote:
    """Running pods that answer as they are told to.

    Attributes:
        broker: What every broker answers; None for silence.
        node: What every tuning pod answers; None for silence.
        passwords: Passwords that brokers were asked with.
    """

    def __init__(self) -> None:
        self.broker: BrokerAnswer | None = None
        self.node: NodeReport | None = None
        self.passwords: list[str] = []

    async def answer(self, pod: Mapping[str, Any], port: int, password: str) -> BrokerAnswer | None:
        self.passwords.append(password)
        return self.broker

    async def node_report(self, pod: Mapping[str, Any]) -> NodeReport | None:
        return self.node

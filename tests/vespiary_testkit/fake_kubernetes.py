"""An API server in memory, with as much of Kubernetes as the operator's passes need.

Owns objects, resource versions, UIDs, label selection, and a StatefulSet controller that is run by
hand (`settle`). Server-side apply merges what a manifest says and keeps the rest. Every call is
checked against the operator's own table of rights and written down. Called by tests.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from vespiary_operator import kinds, names, rbac
from vespiary_operator.admin_ports import AdminPort
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_operator.broker_calls import BrokerCall, DrainAnswer, described
from vespiary_operator.cluster import Page
from vespiary_operator.drift import ATOMIC_MAPS, quantity
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import BrokerAnswer, Space
from vespiary_operator.observer import HashedUsers
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.tuning import NodeReport
from vespiary_spec.resources import Auth
from vespiary_testkit.fake_disks import FakeDisks

Key = tuple[str, str, str]
T = TypeVar("T")
_KEYED = ("name", "mountPath", "containerPort", "port", "uid")


_OWN_REQUEST = {
    "manager": names.MANAGER,
    "operation": "Apply",
    "fieldsV1": {"f:spec": {"f:resources": {"f:requests": {"f:storage": {}}}}},
}


def plain_copy(document: T) -> T:
    """Return a copy of a JSON document; many times faster than `copy.deepcopy`."""
    copied: T = msgspec.json.decode(msgspec.json.encode(document))
    return copied


class Killed(BaseException):
    """The operator's process is no more."""


def merged(old: Any, new: Any) -> Any:
    """Return `old` with everything that `new` says; items of lists are told apart by a key."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {
            **old,
            **{
                key: value if key in ATOMIC_MAPS else merged(old.get(key), value)
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
    return new


class FakeKubernetes:
    """Objects by kind, namespace and name.

    Attributes:
        calls: Every call so far: verb, kind, subresource.
        writes: Every write so far but those of a status, in words.
        forbidden: Kinds that may not be listed.
        refused_write: Number of the write, from 0, that is refused; -1 refuses none.
        unserved: Kinds that the API server does not know.
        verification: Termination message that new pods' verification leaves.
        bad_images: Images whose brokers end as soon as they begin.
        missing_images: Images that cannot be pulled.
        compatibility: What images say about formats of files; others cannot be pulled.
        killed_at: Number of the write, from 0 and those of a status with them, after which the
            operator ends; -1 never.
        kills_before: Whether it ends before that write instead.
        at_write: Called right before and right after each write; None: nothing is called.
        disks: Makes and grows claims; None: there are none.
        now: The time, RFC 3339.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.calls: list[tuple[str, Kind, str]] = []
        self.writes: list[str] = []
        self.forbidden: set[str] = set()
        self.refused_write = -1
        self.unserved: set[str] = set()
        self.verification = ""
        self.bad_images: set[str] = set()
        self.missing_images: set[str] = set()
        self.compatibility: dict[str, str] = {}
        self.killed_at = -1
        self.kills_before = False
        self.at_write: Callable[[], None] | None = None
        self.disks: FakeDisks | None = None
        self.now = "2026-01-01T00:00:00Z"
        self.all_writes = 0
        self._version = 0

    def copied(self) -> FakeKubernetes:
        """Return a cluster with the same content; later changes of one do not reach the other."""
        found = copy.copy(self)
        found.at_write = None
        found.objects = {key: plain_copy(document) for key, document in self.objects.items()}
        for name in ("calls", "writes", "forbidden", "unserved", "bad_images", "missing_images",
                     "compatibility"):  # fmt: skip
            setattr(found, name, copy.copy(getattr(self, name)))
        return found

    def content(self) -> bytes:
        """Return all objects as bytes, to compare states of a cluster."""
        return msgspec.json.encode([*self.objects.values()])

    async def is_served(self, kind: Kind) -> bool:
        return kind.name not in self.unserved

    # --- what the operator calls ----------------------------------------------------------------

    def _call(self, verb: str, kind: Kind, subresource: str = "") -> None:
        assert rbac.is_allowed(verb, kind, subresource), f"{verb} {kind.plural} is in no rule"
        self.calls.append((verb, kind, subresource))

    @contextlib.contextmanager
    def _killable(self) -> Iterator[None]:
        """Let one write be the last that an operator makes, or the first that it does not."""
        number, self.all_writes = self.all_writes, self.all_writes + 1
        if number == self.killed_at and self.kills_before:
            raise Killed
        if self.at_write is not None:
            self.at_write()
        yield
        if self.at_write is not None:
            self.at_write()
        if number == self.killed_at:
            raise Killed

    def _write(self, what: str) -> None:
        self.writes.append(what)
        if len(self.writes) - 1 == self.refused_write:
            raise ApiRefusedError("refused for the test", where=what, status=503)

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        self._call("get", kind)
        return plain_copy(self.objects.get((kind.name, namespace, name)))

    async def get_if_served(
        self, kind: Kind, name: str, namespace: str = ""
    ) -> tuple[bool, dict[str, Any] | None]:
        found = await self.get(kind, name, namespace)
        return kind.name not in self.unserved, found

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        self._call("list", kind)
        chosen = dict(part.split("=") for part in fields.split(",") if part)
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            plain_copy(found)
            for (of, where, _), found in sorted(self.objects.items())
            if of == kind.name
            and namespace in ("", where)
            and wanted.items() <= (found["metadata"].get("labels") or {}).items()
            and all(_at(found, path) == value for path, value in chosen.items())
        ]

    async def page(self, kind: Kind, namespace: str, selector: str, following: str = "") -> Page:
        """Two objects a page, as JSON."""
        found = await self.items(kind, namespace, selector)
        begin = int(following or 0)
        raw = [msgspec.Raw(json.dumps(item).encode()) for item in found[begin : begin + 2]]
        rest = str(begin + 2) if begin + 2 < len(found) else ""
        return Page(raw, str(self._version), rest)

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        return None if kind.name in self.forbidden else await self.items(kind)

    async def apply(self, manifest: dict[str, Any], manager: str = "") -> dict[str, Any]:
        kind = kinds.BY_NAME[manifest["kind"]]
        self._call("patch", kind)
        key = self._key(manifest)
        if key not in self.objects and kind is not kinds.CLAIM:
            self._call("create", kind)
        with self._killable():
            self._write(f"apply {kind.name}/{key[2]}")
            _refuse_fixed_fields(self.objects.get(key), manifest)
            self.put(manifest)
            if kind is kinds.CLAIM:
                self.objects[key]["metadata"]["managedFields"] = [_OWN_REQUEST]
        return plain_copy(self.objects[key])

    async def apply_status(
        self, kind: Kind, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        self._call("patch", kind, "status")
        with self._killable():
            found = self.objects[kind.name, namespace, name]
            found["status"] = plain_copy(status)
            self._stamp(found)

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        kind = kinds.BY_NAME[manifest["kind"]]
        self._call("create", kind)
        with self._killable():
            self._write(f"create {kind.name}/{manifest['metadata']['name']}")
            if self._key(manifest) in self.objects:
                raise ApiRefusedError("it exists", where=manifest["metadata"]["name"], status=409)
            found = self.put(manifest)
        return found  # noqa: RET504 - the write is over before it is answered

    async def delete(
        self, kind: Kind, name: str, namespace: str, uid: str, *, orphans: bool = False
    ) -> None:
        self._call("delete", kind)
        with self._killable():
            self._write(f"{'orphan' if orphans else 'delete'} {kind.name}/{name}")
            found = self.objects.get((kind.name, namespace, name))
            if found is None:
                return
            if found["metadata"]["uid"] != uid:
                raise ApiRefusedError("another UID", where=name, status=409)
            self.remove(kind, name, namespace, orphans=orphans)

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
        new = merged(old or {}, plain_copy(document))
        new["metadata"].setdefault("uid", str(uuid.uuid4()))
        if old is None or _spec(old) != _spec(new):
            new["metadata"]["generation"] = (old or new)["metadata"].get("generation", 0) + 1
        if old != new:
            self._stamp(new)
        self.objects[key] = new
        return plain_copy(new)

    def remove(
        self, kind: Kind, name: str, namespace: str = "ns", *, orphans: bool = False
    ) -> None:
        """Take an object away with what it owns, or without; what that owns in turn stays."""
        uid = self.objects.pop((kind.name, namespace, name))["metadata"]["uid"]
        for key, other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or []
            left = [owner for owner in owners if owner["uid"] != uid]
            if left == owners:
                continue
            if not orphans and not left:
                del self.objects[key]
                continue
            other["metadata"]["ownerReferences"] = left
            self._stamp(other)

    def one(self, kind: Kind, name: str, namespace: str = "ns") -> dict[str, Any]:
        return self.objects[kind.name, namespace, name]

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        return [found for (of, _, _), found in sorted(self.objects.items()) if of == kind.name]

    def settle(self, *, steps: int = 1, is_ready: bool = True) -> None:
        """Let the StatefulSet controller make or restart `steps` pods of each StatefulSet."""
        for stateful_set in self.of(kinds.STATEFUL_SET):
            for _ in range(steps):
                before = plain_copy(stateful_set.get("status"))
                _control(self, stateful_set, is_ready=is_ready)
                if stateful_set.get("status") != before:
                    self._stamp(stateful_set)
        if self.disks is not None:
            self.disks.work(self)
        for pod in self.of(kinds.POD):
            if pod["metadata"]["labels"].get(names.LABEL_COMPONENT) == "upgrade-check":
                _ask_images(self, pod)


def _at(document: Mapping[str, Any], path: str) -> Any:
    """Return what a field selector selects by."""
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _spec(document: Mapping[str, Any]) -> Any:
    return {k: v for k, v in document.items() if k not in ("metadata", "status")}


def _control(cluster: FakeKubernetes, stateful_set: dict[str, Any], *, is_ready: bool) -> None:
    """Do one step of the StatefulSet controller: observe, then make or replace one pod."""
    spec, metadata = stateful_set["spec"], stateful_set["metadata"]
    status = stateful_set.setdefault("status", {})
    newest = _adopt(cluster, stateful_set)
    image = spec["template"]["spec"]["containers"][0]["image"]
    status.setdefault("currentRevision", newest)
    status.setdefault("currentImage", image)
    status["updateRevision"] = newest
    status["observedGeneration"] = metadata["generation"]
    partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
    found = {
        ordinal: cluster.objects.get(
            ("Pod", metadata["namespace"], f"{metadata['name']}-{ordinal}")
        )
        for ordinal in range(spec["replicas"])
    }
    for (kind, namespace, name), pod in list(cluster.objects.items()):
        is_ours = kind == "Pod" and any(
            owner["uid"] == metadata["uid"] for owner in pod["metadata"].get("ownerReferences", ())
        )
        if is_ours and int(name.rpartition("-")[2]) >= spec["replicas"]:
            del cluster.objects[kind, namespace, name]
    for ordinal, pod in found.items():
        if pod is None:
            if cluster.disks is not None:
                cluster.disks.claim(cluster, stateful_set, ordinal)
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
        status["currentImage"] = image


def _ask_images(cluster: FakeKubernetes, pod: dict[str, Any]) -> None:
    """Let the containers of a pod that asks images end with what the images say."""
    statuses = []
    for container in pod["spec"]["containers"]:
        said = cluster.compatibility.get(container["image"])
        state: dict[str, Any] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}}
        if said is not None:
            state = {"terminated": {"exitCode": 0, "message": said}}
        statuses.append({"name": container["name"], "state": state, "restartCount": 0})
    pod["status"] = {"phase": "Running", "containerStatuses": statuses}


def _adopt(cluster: FakeKubernetes, stateful_set: dict[str, Any]) -> str:
    """Take pods and revisions without an owner, and claims; return the newest revision's name."""
    spec, metadata = stateful_set["spec"], stateful_set["metadata"]
    owner = {"uid": metadata["uid"], "kind": "StatefulSet"}
    selected = spec["selector"]["matchLabels"].items()
    text = json.dumps(spec["template"], sort_keys=True)
    newest = f"{metadata['name']}-{uuid.uuid5(uuid.NAMESPACE_OID, text).hex[:10]}"
    for (kind, namespace, _), found in cluster.objects.items():
        if kind not in ("Pod", "ControllerRevision") or namespace != metadata["namespace"]:
            continue
        labels = found["metadata"].get("labels") or {}
        if selected <= labels.items() and not found["metadata"].get("ownerReferences"):
            found["metadata"]["ownerReferences"] = [owner]
    revisions = [
        r for r in cluster.of(kinds.CONTROLLER_REVISION) if r["metadata"]["name"] == newest
    ]
    highest = max((r["revision"] for r in cluster.of(kinds.CONTROLLER_REVISION)), default=0)
    if not revisions or revisions[0]["revision"] < highest:
        cluster.put(
            {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": newest,
                    "namespace": metadata["namespace"],
                    "labels": dict(selected),
                    "ownerReferences": [owner],
                },
                "data": {"spec": {"template": {**spec["template"], "$patch": "replace"}}},
                "revision": highest + 1,
            }
        )
    return newest


def _refuse_fixed_fields(live: dict[str, Any] | None, manifest: dict[str, Any]) -> None:
    """Refuse what the API server refuses of a StatefulSet that exists."""
    if live is None or manifest["kind"] != "StatefulSet":
        return
    for field in ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates"):
        if live["spec"].get(field) != manifest["spec"].get(field):
            raise ApiRefusedError(f"spec.{field} is forbidden", where="StatefulSet", status=422)


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
    image = template["spec"]["containers"][0]["image"]
    if revision != stateful_set["status"]["updateRevision"]:
        image = stateful_set["status"].get("currentImage", image)
    is_bad = image in cluster.bad_images
    is_missing = image in cluster.missing_images
    is_ready = is_ready and not is_bad and not is_missing
    state: dict[str, Any] = {"running": {}}
    if is_bad:
        state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    if is_missing:
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    spec = plain_copy(template["spec"])
    spec["containers"][0]["image"] = image
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{ordinal}",
            "namespace": metadata["namespace"],
            "labels": {**template["metadata"]["labels"], names.LABEL_REVISION: revision},
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{"uid": metadata["uid"], "kind": "StatefulSet"}],
            "creationTimestamp": cluster.now,
        },
        "spec": {**spec, "nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "initContainerStatuses": [{"name": "verify", "state": {"terminated": finished}}],
            "containerStatuses": [{"name": "broker", "state": state, "restartCount": int(is_bad)}],
        },
    }


class QuickUsers(HashedUsers):
    """A users file without the work of hashing, which is slow on purpose."""

    async def users_file(
        self, owner: tuple[str, str], passwords: Mapping[str, str], auth: Auth, now: str
    ) -> str:
        return now or "admin:quick\n"


def without_hashing(reconciler: Reconciler) -> Reconciler:
    """Spare an operator the hashing of passwords, which every new one would do first."""
    for observer in (reconciler._observer, reconciler._first_look):
        observer._users = QuickUsers()
    return reconciler


@dataclasses.dataclass(frozen=True)
class FilledVolumes:
    """Journals whose filesystems grow with their claims.

    Attributes:
        cluster: Where the claims are.
        used_bytes: How much of each filesystem is used.
    """

    cluster: FakeKubernetes
    used_bytes: int

    def __call__(self, pod: str) -> dict[str, Space]:
        claim = self.cluster.one(kinds.CLAIM, f"journal-{pod}")
        whole = int(quantity(claim["status"]["capacity"]["storage"]) or 0)
        size_bytes = whole - 16 * 1024**2
        free_bytes = max(0, size_bytes - self.used_bytes)
        space = Space(size_bytes=size_bytes, free_bytes=free_bytes, inodes=0, free_inodes=0)
        return {"journal": space}


class FakeRemote:
    """Running pods that answer as they are told to.

    Attributes:
        broker: What every broker answers; None for silence.
        by_image: What brokers of an image answer instead.
        spaces: Tells how full the volumes of a pod are, at each answer; None leaves it as it is.
        node: What every tuning pod answers; None for silence.
        passwords: Passwords that brokers were asked with.
        drains: What brokers say of their drain, by pod; silence where nothing stands.
        calls: What brokers were asked to do.
        called: The same, with where.
    """

    def __init__(self) -> None:
        self.broker: BrokerAnswer | None = None
        self.by_image: dict[str, BrokerAnswer] = {}
        self.spaces: Callable[[str], Mapping[str, Space]] | None = None
        self.node: NodeReport | None = None
        self.passwords: list[str] = []
        self.drains: dict[str, DrainAnswer] = {}
        self.calls: list[str] = []
        self.called: list[tuple[BrokerCall, AdminPort]] = []

    def copied(self, cluster: FakeKubernetes) -> FakeRemote:
        """Return pods that answer the same, in a copy of their cluster."""
        found = copy.copy(self)
        for name in ("by_image", "passwords", "drains", "calls", "called"):
            setattr(found, name, copy.copy(getattr(self, name)))
        if isinstance(self.spaces, FilledVolumes):
            found.spaces = dataclasses.replace(self.spaces, cluster=cluster)
        return found

    async def answer(
        self, pod: Mapping[str, Any], port: AdminPort, password: str
    ) -> BrokerAnswer | None:
        self.passwords.append(password)
        found = self.by_image.get(pod["spec"]["containers"][0]["image"], self.broker)
        if self.spaces is None:
            return found
        spaces = self.spaces(str(pod["metadata"]["name"]))
        return dataclasses.replace(found or BrokerAnswer(), spaces=spaces)

    async def drain_answer(
        self, pod: Mapping[str, Any], port: AdminPort, password: str
    ) -> DrainAnswer | None:
        return self.drains.get(str(pod["metadata"]["name"]))

    async def carry_out(self, call: BrokerCall, port: AdminPort, password: str) -> bool:
        self.calls.append(described(call))
        self.called.append((call, port))
        return True

    async def node_report(self, pod: Mapping[str, Any]) -> NodeReport | None:
        return self.node

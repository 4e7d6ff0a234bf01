"""A Node without a machine, and a kubelet that only says that pods are ready.

Owns: the Node object, its Lease, and the statuses of the pods on it. Each pod gets the answer of a
good verification and an address on loopback, where one small server answers for all brokers.
Must never: touch a pod of another node. Called by `benchmarks.operator.fleet`.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from benchmarks.operator.api import MERGE, Api, ApiError, path_of
from vespiary_operator import kinds
from vespiary_spec.verification import AioResult, VolumeResult, encode, summarise
from vespiary_spec.version import VERSION

NAME = "vespiary-benchmark"
LABEL = "vespiary.dev/benchmark"
VOLUMES = ("bindings", "journal", "paging", "large-messages")

_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NAME}"
_WATCH_S = 600


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _node() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME, "labels": {LABEL: "true"}},
        "spec": {"taints": [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]},
    }


def _node_status() -> dict[str, Any]:
    room = {"cpu": "100000", "memory": "100Ti", "pods": "100000", "ephemeral-storage": "100Ti"}
    return {
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Benchmark",
                    "message": "No machine is behind this node.",
                    "lastHeartbeatTime": _now(),
                    "lastTransitionTime": _now(),
                }
            ],
        }
    }


def _verification() -> str:
    volumes = tuple(
        VolumeResult(
            name=name,
            filesystem="xfs",
            path=f"/var/lib/vespiary/{name}",
            source="/dev/vdb",
            options="rw,relatime",
            device="254:16",
            direct_io=True,
            aio=True,
            flush_us_p50=310,
            flush_us_p99=900,
            free_bytes=1 << 30,
            size_bytes=1 << 30,
        )
        for name in VOLUMES
    )
    aio = AioResult(max_nr=1 << 20, nr=100, demand=500)
    return encode(summarise(volumes, aio, engine="ASYNCIO")).decode()


def ready_status(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a pod whose broker serves clients."""
    now = _now()
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]

    def statuses(containers: str, state: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": state,
            }
            for container in pod["spec"].get(containers) or ()
        ]

    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return {
        "phase": "Running",
        "startTime": now,
        "hostIP": "127.0.0.1",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": conditions,
        "initContainerStatuses": statuses(
            "initContainers", {"terminated": {**ended, "message": _verification()}}
        ),
        "containerStatuses": statuses("containers", {"running": {"startedAt": now}}),
    }


class _Answers(http.server.BaseHTTPRequestHandler):
    """What every broker says about itself."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """As a broker has it. The body is a segment of its own, which would wait for the delayed
    acknowledgement of the headers: 40 ms an answer."""

    def do_GET(self) -> None:
        body = json.dumps(
            {"items": [{"engine": "ASYNCIO", "durability": "D2", "version": VERSION}]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base has it
        """Say nothing about requests."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that the operator gave up is no finding."""


class FakeNode:
    """The node's kubelet.

    Attributes:
        admin_port: Port of loopback at which all its brokers answer.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Answers)
        self.admin_port = int(self._server.server_address[1])
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="kubelet")
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._server.serve_forever, self._heartbeat, self._follow)
        ]

    def broker_spec(self) -> dict[str, Any]:
        """Return what lets a Broker land on this node, and keeps it from asking for volumes."""
        return {
            "nodeSelector": {LABEL: "true"},
            "tolerations": [{"key": LABEL, "operator": "Exists"}],
            "admin": {"port": self.admin_port},
            "storage": {"ephemeral": True},
        }

    def start(self) -> None:
        """Make the node and look after its pods."""
        self._api.call("POST", path_of(kinds.NODE), _node())
        self._api.call("PATCH", path_of(kinds.NODE, "", NAME, "status"), _node_status(), MERGE)
        # The node controller taints a node that it has not heard of; ours is heard of now.
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take the node away."""
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._api.remove(path_of(kinds.NODE, "", NAME))
        self._api.remove(_LEASE)

    def _heartbeat(self) -> None:
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": NAME, "leaseDurationSeconds": 40},
        }
        while not self._stop.is_set():
            lease["spec"]["renewTime"] = datetime.now(UTC).strftime(  # type: ignore[index]
                "%Y-%m-%dT%H:%M:%S.%fZ"
            )
            path = f"{_LEASE}?fieldManager=benchmark&force=true"
            with contextlib.suppress(ApiError, OSError):
                self._api.call("PATCH", path, lease, "application/apply-patch+yaml")
            self._stop.wait(10)

    def _follow(self) -> None:
        while not self._stop.is_set():
            events = self._api.watch(
                path_of(kinds.POD), _WATCH_S, fieldSelector=f"spec.nodeName={NAME}"
            )
            with contextlib.suppress(OSError):
                for kind, pod in events:
                    if self._stop.is_set():
                        return
                    if kind in ("ADDED", "MODIFIED"):
                        self._pool.submit(self._serve, pod)

    def _serve(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        where = (metadata["namespace"], metadata["name"])
        with contextlib.suppress(ApiError):
            if metadata.get("deletionTimestamp"):
                self._api.remove(path_of(kinds.POD, *where), gracePeriodSeconds="0")
            elif (pod.get("status") or {}).get("phase") == "Pending":
                status = {"metadata": {"uid": metadata["uid"]}, "status": ready_status(pod)}
                self._api.call("PATCH", path_of(kinds.POD, *where, "status"), status, MERGE)


@contextlib.contextmanager
def present(api: Api) -> Iterator[FakeNode]:
    """Have the node as long as the context lasts."""
    node = FakeNode(api)
    try:
        node.start()
        yield node
    finally:
        node.stop()

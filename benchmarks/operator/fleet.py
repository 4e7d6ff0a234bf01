"""Many Brokers at once: how long until nothing is left to do, and in how much memory.

Owns: the Brokers of a namespace of its own, on a node without a machine. Two figures of time: from
the first Broker's apply until every one is Ready, which the controllers of Kubernetes have a part
in (20 calls a second, where nobody raised it); and from the start of an operator that finds them
all until it has looked at each and has nothing left to do, which is the operator's alone.
Called by `benchmarks.operator.__main__`.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.operator import process
from benchmarks.operator.api import Api, path_of
from benchmarks.operator.fake_node import FakeNode
from vespiary_operator import kinds
from vespiary_operator.kinds import Kind
from vespiary_spec.resources import API_VERSION

_QUIET_S = 3.0

_AT_REST_S = 115.0
"""The period of the resync and the time over which it spreads its looks: each Broker gets one."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured with many Brokers.

    Attributes:
        brokers: How many.
        children_s: Seconds from the first apply until every Broker's own objects were there.
        ready_s: Seconds from the first apply until every Broker was Ready.
        start_s: Seconds from the start of an operator that finds them all until it is at rest.
        start_cpu_s: CPU seconds of the operator for that.
        start_writes: Writes of the operator for that; there is nothing to write.
        create_cpu_s: CPU seconds of the operator until all were Ready.
        idle_cores: Share of a core that the operator takes at rest.
        idle_writes: Objects that changed at rest.
        pass_ms: Mean duration of a pass at rest, in ms.
        rss_bytes: Memory of the operator at rest.
        rss_peak_bytes: The most that it ever had, over both lives.
    """

    brokers: int
    children_s: float
    ready_s: float
    start_s: float
    start_cpu_s: float
    start_writes: float
    create_cpu_s: float
    idle_cores: float
    idle_writes: int
    pass_ms: float
    rss_bytes: int
    rss_peak_bytes: int


def broker(number: int, node: FakeNode) -> dict[str, Any]:
    """Return one of the Brokers."""
    return {
        "apiVersion": API_VERSION,
        "kind": kinds.BROKER.name,
        "metadata": {"name": f"fleet-{number:04d}"},
        "spec": node.broker_spec(),
    }


def is_ready(document: dict[str, Any]) -> bool:
    """Return whether a Broker is Ready in its present generation."""
    status = document.get("status") or {}
    return status.get("observedGeneration") == document["metadata"]["generation"] and any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions") or ()
    )


def versions(api: Api, namespace: str) -> dict[str, str]:
    """Return the version of every object that the operator made or reports on."""
    found = {}
    for kind in (kinds.BROKER, *kinds.WATCHED_CHILDREN):
        for item in api.items(path_of(kind, namespace)):
            metadata = item["metadata"]
            found[f"{kind.name}/{metadata['name']}"] = metadata["resourceVersion"]
    return found


def _wait(what: str, look: Any, timeout_s: float, pause_s: float = 0.5) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():
        if time.monotonic() > deadline:
            raise process.OperatorError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(pause_s)


def measure(
    api: Api, namespace: str, node: FakeNode, folder: Path, *, count: int, timeout_s: float = 600
) -> Fleet:
    """Make the Brokers, wait, start the operator anew, and look at it at rest.

    Args:
        api: The API server.
        namespace: An empty namespace.
        node: The node of the pods.
        folder: Where logs are written.
        count: How many Brokers.
        timeout_s: Longest wait for each step.
    """
    collection = path_of(kinds.BROKER, namespace)

    def made(kind: Kind, each: int) -> bool:
        return len(api.items(path_of(kind, namespace), resourceVersion="0")) >= each * count

    def all_ready() -> bool:
        found = api.items(collection, resourceVersion="0")
        return len(found) >= count and all(is_ready(item) for item in found)

    with process.running(folder, broker_image="vespiary/broker:benchmark") as operator:
        before = operator.usage()
        begun = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(
                    lambda number: api.call("POST", collection, broker(number, node)),
                    range(count),
                )
            )
        _wait("every StatefulSet", lambda: made(kinds.STATEFUL_SET, 1), timeout_s)
        children_s = time.monotonic() - begun
        _wait("every Broker Ready", all_ready, timeout_s)
        ready_s = time.monotonic() - begun
        used = operator.usage().since(before)
        peak = used.rss_peak_bytes
    with process.running(folder, broker_image="vespiary/broker:benchmark") as operator:
        begun = time.monotonic()
        start_s = _rest(operator, count, timeout_s) - begun
        start = operator.usage()
        start_writes = operator.total("vespiary_operator_changes_total")
        at_rest = _at_rest(operator, api, namespace)
        end = operator.usage()
    return Fleet(
        brokers=count,
        children_s=children_s,
        ready_s=ready_s,
        start_s=start_s,
        start_cpu_s=start.user_s + start.system_s,
        start_writes=start_writes,
        create_cpu_s=used.user_s + used.system_s,
        rss_bytes=end.rss_bytes,
        rss_peak_bytes=max(peak, end.rss_peak_bytes),
        **at_rest,
    )


def _rest(operator: process.Operator, count: int, timeout_s: float) -> float:
    """Wait until each Broker was looked at and nothing more happens; return when that began."""
    seen, since = -1.0, time.monotonic()
    deadline = since + timeout_s
    while time.monotonic() < deadline:
        passes = operator.total("vespiary_operator_reconciles_total", kind="Broker")
        if passes != seen:
            seen, since = passes, time.monotonic()
        elif passes >= count and time.monotonic() - since >= _QUIET_S:
            return since
        time.sleep(0.25)
    raise process.OperatorError(f"the operator does not come to rest within {timeout_s:.0f} s")


def _at_rest(operator: process.Operator, api: Api, namespace: str) -> dict[str, Any]:
    """Look at each Broker's next pass, while nothing is asked of the operator."""
    name = "vespiary_operator_reconcile_seconds"

    def passes() -> tuple[float, float]:
        return (
            operator.total(f"{name}_count", kind="Broker"),
            operator.total(f"{name}_sum", kind="Broker"),
        )

    before, usage = versions(api, namespace), operator.usage()
    looks, seconds = passes()
    begun = time.monotonic()
    time.sleep(_AT_REST_S)
    used = operator.usage().since(usage)
    took = time.monotonic() - begun
    after = versions(api, namespace)
    all_looks, all_seconds = passes()
    if all_looks == looks:
        raise process.OperatorError(f"the operator looked at no Broker in {took:.0f} s")
    return {
        "idle_cores": (used.user_s + used.system_s) / took,
        "idle_writes": sum(
            1 for key in before.keys() | after.keys() if before.get(key) != after.get(key)
        ),
        "pass_ms": 1000 * (all_seconds - seconds) / (all_looks - looks),
    }

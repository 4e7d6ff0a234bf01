"""What proves that the operator has looked at a Broker, and that a Broker has come to rest.

"Nothing was done" is worth something only once a pass is over that could have done it. Called by
tests/e2e.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from vespiary_testkit.kubernetes_cluster import SYSTEM_NAMESPACE, KubernetesCluster, wait_for


def operator_page(cluster: KubernetesCluster) -> str:
    """Return the metrics of the installed operator; empty while none of its pods answers."""
    for pod in cluster.operators():
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{pod['metadata']['name']}:8080"
        page = cluster.kubectl("get", "--raw", f"{path}/proxy/metrics", check=False).stdout
        if page:
            return page
    return ""


def wait_for_a_look(cluster: KubernetesCluster, name: str, namespace: str) -> None:
    """Wait until the operator's process has ended a pass over a Broker: it has numbers of it."""
    labels = f'broker="{name}",condition="Ready",namespace="{namespace}"'

    def has_looked() -> bool:
        return f"vespiary_operator_broker_condition{{{labels}}}" in operator_page(cluster)

    wait_for(f"the operator has looked at {namespace}/{name}", has_looked, 240)


def wait_for_watch(
    cluster: KubernetesCluster,
    what: str,
    change: Callable[[], None],
    is_put_right: Callable[[], bool],
) -> None:
    """Wait until a change is put right that only a watch can have shown to the operator.

    The operator lists everything once a minute as well. If it did so in the meantime, the result
    proves nothing about watches, and the change is made again.
    """

    def is_seen_by_a_watch() -> bool:
        began = time.monotonic()
        change()
        wait_for(what, is_put_right, pause_s=0.1)
        listed = re.search(
            r"^vespiary_operator_resync_age_seconds (\S+)", operator_page(cluster), re.M
        )
        return listed is not None and float(listed[1]) > time.monotonic() - began

    wait_for(f"{what}, without a resync", is_seen_by_a_watch, pause_s=0)


def at_rest(cluster: KubernetesCluster, name: str, namespace: str) -> dict[str, Any]:
    """Return a Broker's status once it serves, every broker was asked, and nothing is under way."""

    def look() -> dict[str, Any] | None:
        status: dict[str, Any] = cluster.broker(name, namespace).get("status") or {}
        said = {c["type"]: c["status"] for c in status.get("conditions") or ()}
        wanted = {"Ready": "True", "Progressing": "False", "UpToDate": "True"}
        wanted |= {"ConfigApplied": "True", "StorageVerified": "True"}
        is_told = all(broker.get("durability") for broker in status.get("brokers") or ({},))
        is_quiet = is_told and "operation" not in status
        return status if is_quiet and wanted.items() <= said.items() else None

    return wait_for(f"the Broker {name} is at rest, and its brokers were asked", look, 240)

"""How many pods there should be now, and how many brokers there are whose data count.

The two differ while a Broker is hibernated: no pod runs, and all of its brokers have their
messages. The number of brokers is kept in an annotation of the StatefulSet, written together with
its replicas, so that waking up brings all of them back whatever `spec.replicas` says meanwhile.

Never: reads the cluster. Called by: `draining`, `plan`, `status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vespiary_operator import names
from vespiary_operator.actions import Block
from vespiary_spec.resources import Broker
from vespiary_spec.scaling import topology_problem


class Scale(NamedTuple):
    """How many brokers there are.

    Attributes:
        members: Brokers whose data count.
        pods: Pods that there should be now.
        keeps_claims: Whether claims stay although there are fewer pods, whatever the retention
            says: everybody sleeps, or goes without having been drained.
        is_kept_asleep: Whether brokers sleep on that are asked for.
    """

    members: int
    pods: int
    keeps_claims: bool = False
    is_kept_asleep: bool = False


def is_asleep(broker: Broker) -> bool:
    """Return whether no pod is to run, and everything to be kept."""
    return broker.spec.hibernate or broker.spec.replicas == 0


def pods_asked(broker: Broker) -> int:
    """Return how many brokers are to serve clients."""
    return 0 if broker.spec.hibernate else broker.spec.replicas


def scale(broker: Broker, live: Mapping[str, Any] | None, *, is_kept_asleep: bool = False) -> Scale:
    """Return how many brokers there are, and how many pods there should be.

    Args:
        broker: The Broker.
        live: Its StatefulSet; None if it is not there.
        is_kept_asleep: Whether brokers sleep on that are asked for.
    """
    known = members_of(broker, live)
    if is_asleep(broker) or is_kept_asleep:
        members = known or broker.spec.replicas
        return Scale(members, 0, keeps_claims=True, is_kept_asleep=is_kept_asleep)
    return Scale(
        broker.spec.replicas, broker.spec.replicas, keeps_claims=broker.spec.scale_down.force
    )


def members_of(broker: Broker, live: Mapping[str, Any] | None) -> int:
    """Return how many brokers have data, as it was noted; 0 if nothing was."""
    if live is not None:
        noted = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_MEMBERS, "")
        if noted.isdecimal() and noted.isascii() and len(noted) < 4:
            return int(noted)
    if broker.status.members is not None:
        return broker.status.members
    return int(((live or {}).get("spec") or {}).get("replicas") or 0)


def refused_topology(broker: Broker) -> Block | None:
    """Return why so many replicas are not made.

    The API server refuses them as well; a Broker may be older than that rule.
    """
    problem = topology_problem(broker.spec.replicas, broker.spec.topology)
    if not problem:
        return None
    return Block(reason="TopologyRefused", sentence=f"{problem[0].upper()}{problem[1:]}.")

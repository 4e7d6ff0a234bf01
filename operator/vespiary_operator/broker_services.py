"""The Services of single brokers: which there are, and which are done with.

With `topology: Independent` each broker has a Service of its own, named like its pod.

Never: reads the cluster. Called by: `children`, `observer` (for the names), `status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vespiary_operator import kinds, names
from vespiary_operator.actions import Delete, deletion
from vespiary_operator.builders import services
from vespiary_spec.resources import Broker
from vespiary_spec.scaling import Topology

if TYPE_CHECKING:
    from vespiary_operator.observation import Observed


def expected(broker: Broker) -> tuple[str, ...]:
    """Return the names of the Services of brokers that there should be.

    A hibernated Broker keeps them. One of a broker that is leaving goes with it.
    """
    if broker.spec.topology is not Topology.INDEPENDENT:
        return ()
    count = max(broker.spec.replicas, broker.status.members or 0)
    name = broker.metadata.name
    return tuple(names.broker_service(name, ordinal) for ordinal in range(count))


def host(broker: Broker, ordinal: int) -> str:
    """Return the name by which a broker is reached in the cluster; empty if it has no Service."""
    if broker.spec.topology is not Topology.INDEPENDENT:
        return ""
    return f"{names.broker_service(broker.metadata.name, ordinal)}.{broker.metadata.namespace}.svc"


def manifests(observed: Observed) -> Iterator[dict[str, Any]]:
    """Yield the Services of the brokers that there should be."""
    for ordinal in range(len(expected(observed.broker))):
        yield services.per_broker(observed.broker, ordinal)


def superseded(observed: Observed) -> Iterator[Delete]:
    """Yield the deletions of Services whose broker is gone, or that are not asked for any more."""
    broker = observed.broker
    wanted = expected(broker)
    prefix = f"{names.stateful_set(broker.metadata.name)}-"
    for (kind, name), found in observed.children.items():
        tail = name.removeprefix(prefix)
        if kind != kinds.SERVICE.name or tail == name or not tail.isdecimal() or name in wanted:
            continue
        owners = found["metadata"].get("ownerReferences") or ()
        if any(owner.get("uid") == broker.metadata.uid for owner in owners):
            yield deletion(kinds.SERVICE, found, "there is no broker of that number any more.")

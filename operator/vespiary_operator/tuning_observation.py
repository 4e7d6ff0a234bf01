"""What one pass of a BrokerNodeTuning looks at.

Owns: the set of reads, all of them live. Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_operator import kinds, names, pods, tuning
from vespiary_operator.builders import tuned as profiles
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import Object, Reader
from vespiary_operator.options import Options
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import BrokerNodeTuning, TuningMode


class TuningReader(Reader, Protocol):
    """What `observe` needs of the cluster."""

    async def is_served(self, kind: Kind) -> bool:
        """Return whether the API server knows a kind."""


class TunerReader(Protocol):
    """What `observe` needs of running tuning pods."""

    async def node_report(self, pod: Object) -> tuning.NodeReport | None:
        """Return what a tuning pod says; None if it cannot be asked."""


async def observe(
    cluster: TuningReader, tuners: TunerReader, resource: BrokerNodeTuning, options: Options
) -> tuning.ObservedTuning:
    """Read everything about one BrokerNodeTuning.

    Args:
        cluster: The API server.
        tuners: Running tuning pods.
        resource: The resource as it is now.
        options: With the node tuning's namespace.

    Raises:
        ReconcileError: The API server refused or did not answer.
    """
    own = options.place_of_tuning
    name = names.tuning(resource.metadata.name)
    broker_pods = await cluster.items(
        kinds.POD,
        "",
        names.selector(
            {
                names.LABEL_MANAGED_BY: names.MANAGER,
                names.LABEL_COMPONENT: names.COMPONENT_BROKER,
            }
        ),
    )
    found = await cluster.items(kinds.POD, own, names.selector(names.tuning_labels(resource)))
    by_node, reports, waiting = {}, {}, {}
    for pod in found:
        node = pods.node(pod)
        if pods.is_terminating(pod) or not node:
            continue
        by_node[node] = pod
        report = await tuners.node_report(pod) if pods.is_ready(pod) else None
        if report is not None:
            reports[node] = report
        else:
            waiting[node] = f"{pods.name(pod)}: {pods.waits_for(pod)}"
    is_tuned_served = False
    tuned: Object | None = None
    if resource.spec.mode is TuningMode.TUNED or resource.status.profile:
        is_tuned_served = await cluster.is_served(kinds.TUNED)
        if is_tuned_served:
            tuned = await cluster.get(kinds.TUNED, name, profiles.NAMESPACE)
    return tuning.ObservedTuning(
        tuning=resource,
        others=await _others(cluster, resource),
        nodes=tuple(await cluster.items(kinds.NODE)),
        broker_pods=tuple(broker_pods),
        tuners=by_node,
        reports=reports,
        waiting=waiting,
        daemon_set=await cluster.get(kinds.DAEMON_SET, name, own),
        orders=await cluster.get(kinds.CONFIG_MAP, name, own),
        is_tuned_served=is_tuned_served,
        tuned=tuned,
    )


async def _others(
    cluster: TuningReader, resource: BrokerNodeTuning
) -> tuple[BrokerNodeTuning, ...]:
    """Return the other BrokerNodeTunings; one that cannot be read looks after nothing."""
    others = []
    for document in await cluster.items(kinds.NODE_TUNING):
        metadata = document["metadata"]
        if metadata["name"] == resource.metadata.name or metadata.get("deletionTimestamp"):
            continue
        try:
            others.append(
                BrokerNodeTuning.from_dict(
                    {
                        "apiVersion": kinds.NODE_TUNING.api_version,
                        "kind": kinds.NODE_TUNING.name,
                        "metadata": metadata,
                        "spec": document.get("spec"),
                    }
                )
            )
        except ConfigError:
            continue
    return tuple(others)

"""Which pods may have the newest template: the StatefulSet's partition, lowered gate by gate.

The partition rests at the number of replicas, so a pod that dies comes back as it was, and a
template that a stranger changed reaches nobody before it is put back. A change is carried out by
lowering it by one whenever the gate is open. When every pod has the newest template and is ready,
the controller makes that revision the current one, and the partition goes back up.

Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vespiary_operator import pods
from vespiary_operator.pods import Pod


class Rollout(NamedTuple):
    """Where a change of the pods stands.

    Attributes:
        partition: What the partition should be now.
        is_complete: Whether every pod has the newest template.
        reason: One sentence.
        restarts: Name of the pod that this step restarts; empty if none.
    """

    partition: int
    is_complete: bool
    reason: str
    restarts: str = ""


def current_partition(stateful_set: Mapping[str, Any]) -> int:
    """Return the partition of a StatefulSet; 0 where it is not given."""
    strategy = (stateful_set.get("spec") or {}).get("updateStrategy") or {}
    return int((strategy.get("rollingUpdate") or {}).get("partition") or 0)


def is_settled(stateful_set: Mapping[str, Any]) -> bool:
    """Return whether the controller has seen the newest spec."""
    seen = (stateful_set.get("status") or {}).get("observedGeneration") or 0
    return int(seen) >= int(stateful_set["metadata"].get("generation") or 0)


def next_step(
    stateful_set: Mapping[str, Any],
    running: Iterable[Pod],
    *,
    replicas: int,
    floor: int = 0,
    hold: str = "",
) -> Rollout:
    """Decide the partition for a StatefulSet whose template is as wanted.

    Args:
        stateful_set: The live object.
        running: Its pods.
        replicas: How many there should be.
        floor: Brokers below this ordinal are not restarted.
        hold: Why no further broker may be restarted now; empty if one may.
    """
    partition = min(current_partition(stateful_set), replicas)
    if not is_settled(stateful_set):
        return Rollout(partition, False, "The StatefulSet controller has yet to see the change.")
    status = stateful_set.get("status") or {}
    newest = status.get("updateRevision", "")
    wanted = range(replicas)
    by_ordinal = {pods.ordinal(pod): pod for pod in running}
    old = [o for o, pod in by_ordinal.items() if o in wanted and pods.revision(pod) != newest]
    missing = [ordinal for ordinal in wanted if ordinal not in by_ordinal]
    is_current = status.get("currentRevision") == newest
    if not old and is_current:
        # Nothing to do: what is missing comes back with the current template.
        return Rollout(replicas, True, "All brokers run with the current settings.")
    if not old and not missing:
        if all(pods.is_ready(by_ordinal[ordinal]) for ordinal in range(replicas)):
            # The controller makes a revision the current one only at partition 0.
            return Rollout(0, True, "All brokers run with the current settings.")
        partition = 0
    waiting = [o for o in wanted if o not in by_ordinal or not pods.is_ready(by_ordinal[o])]
    for ordinal in waiting:
        if ordinal >= partition:
            where = by_ordinal.get(ordinal)
            said = pods.waits_for(where) if where is not None else "It is being made."
            return Rollout(
                partition,
                not old and not missing,
                f"The change waits for broker {ordinal}, which has the new settings. {said}",
            )
    step = partition - 1
    if step < 0:
        return Rollout(0, not old, "The change has reached every broker.")
    if hold or step < floor:
        waits = "The brokers before it wait until the first one has shown that it is healthy."
        return Rollout(partition, False, hold or waits)
    awaited = next((o for o in waiting if o != step and not _is_stuck(by_ordinal.get(o))), None)
    if awaited is not None:
        return Rollout(
            partition, False, f"The change waits for broker {awaited} to be ready again."
        )
    target = by_ordinal.get(step)
    if target is not None and pods.revision(target) == newest:
        return Rollout(step, False, f"Broker {step} has the new settings already.")
    return Rollout(
        step,
        False,
        f"Broker {step} is restarted with the new settings.",
        pods.name(target) if target is not None else "",
    )


def _is_stuck(pod: Pod | None) -> bool:
    return pod is not None and pods.is_stuck(pod)

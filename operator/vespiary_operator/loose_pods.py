"""Pods that belong to nothing any more, because their Broker went while nothing held them.

A StatefulSet is replaced by leaving its pods behind for a second or two (`replacement`). A Broker
that is deleted just then takes everything with it but these: they have no owner that the garbage
collector could miss, and no pass would make the StatefulSet again. They would run for ever, and
hold their volumes. So they are ended here, as they would have been with their StatefulSet.

Owns: which pods those are. Claims are never touched: a claim that its StatefulSet has let go stays.
Never: reads the cluster. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vespiary_operator import kinds, names, pods
from vespiary_operator.actions import Delete, deletion
from vespiary_operator.pods import Pod


def selector(broker: str) -> str:
    """Return the labels of the pods that a Broker of this name has or had."""
    return names.selector(
        {
            names.LABEL_INSTANCE: broker,
            names.LABEL_COMPONENT: names.COMPONENT_BROKER,
            names.LABEL_MANAGED_BY: names.MANAGER,
        }
    )


def is_loose(pod: Pod) -> bool:
    """Return whether a pod has no owner, and is not on its way out."""
    return not pod["metadata"].get("ownerReferences") and not pods.is_terminating(pod)


def ends(found: Iterable[Pod]) -> Iterator[Delete]:
    """Yield what ends the pods of a Broker that is gone.

    Args:
        found: The pods that `selector` finds. One that anything owns is left to its owner: whoever
            deletes a Broker with `--cascade=orphan` keeps the StatefulSet with its pods.
    """
    for pod in found:
        if is_loose(pod):
            yield deletion(
                kinds.POD, pod, "its Broker and its StatefulSet are gone; its claims stay."
            )

"""What brokers ask of each node's `fs.aio-max-nr`, and which BrokerNodeTuning looks after a node.

Owns: the sums by node, and the rule for tunings that overlap. Pure.
Never: decides what is done about it. Called by: `tuning`, `tuning_status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vespiary_operator import names, pods
from vespiary_operator.observation import Object
from vespiary_operator.pods import Pod
from vespiary_spec.resources import BrokerNodeTuning
from vespiary_spec.settings import JournalType


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What is known about one node from the brokers on it.

    Attributes:
        demand: What its brokers ask for, also those that wait.
        reserved: What they hold already.
        aio_max_nr: `fs.aio-max-nr` as the latest broker read it; None if none did.
        aio_nr: `fs.aio-nr` at that moment, before that broker took its share.
        missing: How many requests a broker lacks that has yet to get them.
    """

    demand: int = 0
    reserved: int = 0
    aio_max_nr: int | None = None
    aio_nr: int | None = None
    missing: int = 0


def is_selected(node: Object, selector: Mapping[str, str] | None) -> bool:
    """Return whether a node has the labels."""
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (selector or {}).items())


def _rank(tuning: BrokerNodeTuning) -> tuple[int, str, str]:
    metadata = tuning.metadata
    return -len(tuning.spec.node_selector or {}), metadata.creation_timestamp, metadata.name


def looked_after_by(node: Object, tunings: Iterable[BrokerNodeTuning]) -> str:
    """Return the name of the BrokerNodeTuning that looks after a node; empty if none does.

    Of those that select it, it is the one whose selector has most labels; then the oldest one.

    Args:
        node: The node.
        tunings: All BrokerNodeTunings, whatever their mode.
    """
    own = [tuning for tuning in tunings if is_selected(node, tuning.spec.node_selector)]
    return min(own, key=_rank).metadata.name if own else ""


def demand_of(pod: Pod) -> int:
    """Return how many AIO requests a broker's pod asks for; 0 if it does not say."""
    text = str((pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_DEMAND, "0"))
    return int(text) if text.isdecimal() else 0


def budgets(broker_pods: Iterable[Pod]) -> dict[str, Budget]:
    """Add up what the brokers on each node ask for and hold.

    Args:
        broker_pods: Pods of all Brokers.
    """
    found: dict[str, Budget] = {}
    ordered = sorted(broker_pods, key=lambda p: str((p.get("status") or {}).get("startTime", "")))
    for pod in ordered:
        node = pods.node(pod)
        phase = (pod.get("status") or {}).get("phase")
        if not node or phase in ("Succeeded", "Failed"):
            continue
        before = found.get(node, Budget())
        answer = pods.verified(pod)
        demand = demand_of(pod)
        is_served = (
            answer is not None and answer.engine == JournalType.ASYNCIO.value and pods.is_ready(pod)
        )
        missing = 0
        numbers = answer.aio if answer is not None and answer.aio.max_nr is not None else None
        if numbers is not None and not numbers.is_enough and not is_served:
            missing = numbers.demand + (numbers.nr or 0) - (numbers.max_nr or 0)
        max_nr = numbers.max_nr if numbers is not None else before.aio_max_nr
        if numbers is not None and is_served and not numbers.is_enough:
            # It waited, and then got what it had read to be missing.
            max_nr = (numbers.nr or 0) + numbers.demand
        found[node] = Budget(
            demand=before.demand + demand,
            reserved=before.reserved + (demand if is_served else 0),
            aio_max_nr=max_nr,
            aio_nr=numbers.nr if numbers is not None else before.aio_nr,
            missing=max(before.missing, missing),
        )
    return found

"""`fs.aio-max-nr` as a budget: what brokers ask of each node, and whether it is there.

Owns: the plan and the status of a BrokerNodeTuning. Mode Verify starts nothing: it puts together
what the brokers' own verifications read on each node. Mode Raise runs the DaemonSet as well.
Never: reads the cluster, the clock or randomness. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vespiary_operator import kinds, names, pods
from vespiary_operator.builders import tuning as builders
from vespiary_operator.drift import difference
from vespiary_operator.observation import Object
from vespiary_operator.options import Options
from vespiary_operator.plan import Action, Apply, Delete
from vespiary_operator.pods import Pod
from vespiary_operator.status import merged
from vespiary_spec.resources import BrokerNodeTuning, TuningMode
from vespiary_spec.settings import JournalType
from vespiary_spec.status import (
    BrokerNodeTuningStatus,
    ConditionStatus,
    ConditionType,
    TunedNode,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReport:
    """What the tuning pod of a node answered.

    Attributes:
        aio_max_nr: The value as last read; None if it could not be read.
        aio_nr: Requests in use by everyone.
        raised_from: Value before it was raised; None if it was not.
        message: One sentence.
        is_satisfied: Whether the value is enough.
    """

    aio_max_nr: int | None = None
    aio_nr: int | None = None
    raised_from: int | None = None
    message: str = ""
    is_satisfied: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTuning:
    """Everything that the plan of a BrokerNodeTuning is made from.

    Attributes:
        tuning: The resource.
        nodes: All nodes.
        broker_pods: Pods of all Brokers.
        reports: Answers of the tuning pods, by node.
        daemon_set: The live DaemonSet, or None.
        orders: The live ConfigMap, or None.
        waiting: What tuning pods wait for, by node.
    """

    tuning: BrokerNodeTuning
    nodes: tuple[Object, ...] = ()
    broker_pods: tuple[Pod, ...] = ()
    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    daemon_set: Object | None = None
    orders: Object | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What is known about one node from the brokers on it.

    Attributes:
        demand: What its brokers ask for.
        reserved: What they hold already.
        aio_max_nr: `fs.aio-max-nr` as the latest broker read it; None if none did.
        aio_nr: `fs.aio-nr` at that moment, before that broker took its share.
        missing: How many requests a broker lacked when it started.
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
        holds = (
            demand
            if answer is not None
            and answer.engine == JournalType.ASYNCIO.value
            and pods.is_ready(pod)
            else 0
        )
        missing = 0
        if answer is not None and answer.aio.max_nr is not None and not answer.aio.is_enough:
            missing = answer.aio.demand + (answer.aio.nr or 0) - answer.aio.max_nr
        numbers = answer.aio if answer is not None and answer.aio.max_nr is not None else None
        found[node] = Budget(
            demand=before.demand + demand,
            reserved=before.reserved + holds,
            aio_max_nr=numbers.max_nr if numbers is not None else before.aio_max_nr,
            aio_nr=numbers.nr if numbers is not None else before.aio_nr,
            missing=max(before.missing, missing),
        )
    return found


def plan(observed: ObservedTuning, options: Options) -> list[Action]:
    """Decide what to do about a BrokerNodeTuning; nothing if all is as wanted."""
    tuning = observed.tuning
    if tuning.spec.mode is not TuningMode.RAISE:
        return [
            Delete(
                kind=kind,
                name=found["metadata"]["name"],
                namespace=options.own_namespace,
                uid=found["metadata"]["uid"],
                reason="Deleted",
                sentence=f"The {kind.name} {found['metadata']['name']} is deleted: the mode is "
                f"{tuning.spec.mode.value}.",
            )
            for kind, found in (
                (kinds.DAEMON_SET, observed.daemon_set),
                (kinds.CONFIG_MAP, observed.orders),
            )
            if found is not None
        ]
    known = {
        node: {"demand": budget.demand, "reserved": budget.reserved}
        for node, budget in budgets(observed.broker_pods).items()
    }
    actions: list[Action] = []
    for manifest, found in (
        (builders.orders(tuning, options.own_namespace, known), observed.orders),
        (
            builders.daemon_set(
                tuning,
                options.own_namespace,
                image=options.operator_image,
                pull_policy=options.operator_pull_policy,
            ),
            observed.daemon_set,
        ),
    ):
        where = difference(manifest, found) if found is not None else "all of it"
        if where:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            actions.append(
                Apply(
                    manifest=manifest,
                    reason="Created" if found is None else "Changed",
                    sentence=f"The {kind} {name} is brought up to date ({where}).",
                )
            )
    return actions


def compute_status(
    observed: ObservedTuning, *, now: str, failure: str = ""
) -> BrokerNodeTuningStatus:
    """Return the status of a BrokerNodeTuning.

    Args:
        observed: What was found.
        now: The time, RFC 3339.
        failure: Why the plan could not be carried out; empty if it could.
    """
    tuning = observed.tuning
    selected = sorted(
        str(node["metadata"]["name"])
        for node in observed.nodes
        if is_selected(node, tuning.spec.node_selector)
    )
    known = budgets(observed.broker_pods)
    is_off = tuning.spec.mode is TuningMode.OFF
    nodes = () if is_off else tuple(_node(name, known, observed) for name in selected)
    lacking = [node for node in nodes if node.satisfied is False]
    unknown = [node for node in nodes if node.satisfied is None]
    state, reason, message = ConditionStatus.TRUE, "Enough", "Every node has what is asked for."
    if is_off:
        reason, message = "Off", "Nothing is looked at, as spec.mode: Off asks."
    elif failure:
        state, reason, message = ConditionStatus.FALSE, "ApplyFailed", failure
    elif lacking:
        state, reason = ConditionStatus.FALSE, "NotEnough"
        message = f"{lacking[0].name}: {lacking[0].message}"
    elif unknown:
        state, reason = ConditionStatus.UNKNOWN, "NotKnownYet"
        message = f"{unknown[0].name}: {unknown[0].message}"
    return BrokerNodeTuningStatus(
        observed_generation=tuning.metadata.generation,
        conditions=merged(
            tuning.status.conditions,
            {ConditionType.READY: (state, reason, message)},
            generation=tuning.metadata.generation,
            now=now,
        ),
        summary=f"{sum(1 for node in nodes if node.satisfied)}/{len(nodes)}" if nodes else "",
        nodes=nodes,
    )


def _node(name: str, known: Mapping[str, Budget], observed: ObservedTuning) -> TunedNode:
    spec = observed.tuning.spec
    budget = known.get(name, Budget())
    if spec.mode is TuningMode.RAISE:
        report = observed.reports.get(name)
        if report is None:
            waits = observed.waiting.get(name, "Its tuning pod has yet to answer.")
            return TunedNode(name=name, demand=budget.demand, message=waits)
        others = max(0, (report.aio_nr or 0) - budget.reserved)
        return TunedNode(
            name=name,
            aio_max_nr=report.aio_max_nr,
            aio_nr=report.aio_nr,
            demand=budget.demand,
            target=max(spec.floor, others + budget.demand + spec.margin),
            raised_from=report.raised_from,
            satisfied=report.is_satisfied,
            message=report.message,
        )
    if budget.aio_max_nr is None or budget.aio_nr is None:
        if budget.demand == 0:
            return TunedNode(
                name=name, demand=0, satisfied=True, message="No broker here uses AIO."
            )
        return TunedNode(
            name=name, demand=budget.demand, message="No broker has read the value here yet."
        )
    needed = max(spec.floor, budget.demand, budget.aio_max_nr + budget.missing)
    is_enough = budget.aio_max_nr >= needed
    message = f"fs.aio-max-nr={budget.aio_max_nr} is enough for {budget.demand} requests."
    if not is_enough:
        message = (
            f"fs.aio-max-nr={budget.aio_max_nr}, but {needed} is needed: set spec.mode to Raise, "
            f"or run `sysctl -w fs.aio-max-nr={needed + spec.margin}` on the node."
        )
    return TunedNode(
        name=name,
        aio_max_nr=budget.aio_max_nr,
        aio_nr=budget.aio_nr,
        demand=budget.demand,
        target=needed,
        satisfied=is_enough,
        message=message,
    )


def report_of(document: Any) -> NodeReport | None:
    """Read the answer of a tuning pod; None if it is no such answer."""
    if not isinstance(document, dict) or "message" not in document:
        return None

    def number(name: str) -> int | None:
        value = document.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return NodeReport(
        aio_max_nr=number("aio_max_nr"),
        aio_nr=number("aio_nr"),
        raised_from=number("raised_from"),
        message=str(document["message"])[:1000],
        is_satisfied=document.get("is_satisfied") is True,
    )

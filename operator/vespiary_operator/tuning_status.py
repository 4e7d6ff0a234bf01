"""The status of a BrokerNodeTuning: its nodes one by one, and what they come to.

Owns: the meaning of its conditions. Pure: time is an argument.
Never: decides what is done (that is `tuning`). Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Mapping

from vespiary_operator import names
from vespiary_operator.builders import tuned as profiles
from vespiary_operator.builders import tuning as builders
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding, merged
from vespiary_operator.node_tuning import order_of
from vespiary_operator.options import Options
from vespiary_operator.tuning import ObservedTuning, orders_of, profile_value
from vespiary_operator.tuning_budget import Budget, budgets
from vespiary_spec.resources import TuningMode
from vespiary_spec.status import BrokerNodeTuningStatus, TunedNode, TuningConditionType

_SHOWN_MAX = 5


def compute(
    observed: ObservedTuning, options: Options, *, now: str, failure: str = ""
) -> BrokerNodeTuningStatus:
    """Return the status of a BrokerNodeTuning.

    Args:
        observed: What was found.
        options: With the node tuning's namespace.
        now: The time, RFC 3339.
        failure: Why the plan could not be carried out; empty if it could.
    """
    tuning = observed.tuning
    mode = tuning.spec.mode
    nodes: tuple[TunedNode, ...] = ()
    if mode is not TuningMode.OFF:
        nodes = _nodes(observed, options)
    findings = {
        TuningConditionType.READY: _ready(observed, nodes, failure),
        TuningConditionType.OVERLAPPING: _overlapping(observed),
    }
    has_profile = mode is TuningMode.TUNED and observed.is_tuned_served
    return BrokerNodeTuningStatus(
        observed_generation=tuning.metadata.generation,
        conditions=merged(
            tuning.status.conditions,
            findings,
            generation=tuning.metadata.generation,
            now=now,
        ),
        summary=f"{sum(1 for node in nodes if node.satisfied)}/{len(nodes)}" if nodes else "",
        # Kept until the profile is gone, so that another mode knows that there is one to delete.
        profile=names.tuning(tuning.metadata.name)
        if has_profile or observed.tuned is not None
        else "",
        nodes=nodes,
    )


def _ready(observed: ObservedTuning, nodes: tuple[TunedNode, ...], failure: str) -> Finding:
    mode = observed.tuning.spec.mode
    if mode is TuningMode.OFF:
        return TRUE, "Off", "Nothing is looked at, as spec.mode: Off asks."
    if failure:
        return FALSE, "ApplyFailed", failure
    if mode is TuningMode.TUNED and not observed.is_tuned_served:
        return (
            FALSE,
            "TunedNotServed",
            "spec.mode is Tuned, but this API server has no tuned.openshift.io/v1: the Node Tuning "
            "Operator of OpenShift is not there. Set spec.mode to Raise, or to Verify.",
        )
    lacking = [node for node in nodes if node.satisfied is False]
    if lacking:
        return FALSE, "NotEnough", f"{lacking[0].name}: {lacking[0].message}"
    unknown = [node for node in nodes if node.satisfied is None]
    if unknown:
        return UNKNOWN, "NotKnownYet", f"{unknown[0].name}: {unknown[0].message}"
    if not nodes:
        return TRUE, "NoNodes", "It looks after no node at present."
    return TRUE, "Enough", "Every node has what is asked for."


def _overlapping(observed: ObservedTuning) -> Finding:
    """Say which selected nodes another tuning looks after, or the other way round."""
    own = observed.tuning.metadata.name
    elsewhere: dict[str, list[str]] = {}
    for node, owner in sorted(observed.selected().items()):
        if owner != own:
            elsewhere.setdefault(owner, []).append(node)
    if not elsewhere:
        return FALSE, "None", "No node that it selects is another BrokerNodeTuning's."
    said = []
    for owner, nodes in sorted(elsewhere.items()):
        shown = ", ".join(nodes[:_SHOWN_MAX])
        more = f" and {len(nodes) - _SHOWN_MAX} more" if len(nodes) > _SHOWN_MAX else ""
        said.append(f"{shown}{more} by {owner}")
    return (
        TRUE,
        "LookedAfterByAnother",
        f"Nodes that it selects are looked after by another BrokerNodeTuning: {'; '.join(said)}. "
        "The one with most labels in spec.nodeSelector has a node, then the oldest one; what this "
        "one says is not done there. Let their selectors be disjoint.",
    )


def _nodes(observed: ObservedTuning, options: Options) -> tuple[TunedNode, ...]:
    known = budgets(observed.broker_pods)
    before = {node.name: node for node in observed.tuning.status.nodes}
    if observed.tuning.spec.mode is not TuningMode.RAISE:
        return tuple(_reported_node(name, known, observed) for name in observed.own_nodes())
    text = orders_of(observed, options)["data"][builders.ORDERS_KEY]
    return tuple(
        _raised_node(name, known, observed, text, before.get(name)) for name in observed.own_nodes()
    )


def _raised_node(
    name: str,
    known: Mapping[str, Budget],
    observed: ObservedTuning,
    orders: str,
    before: TunedNode | None,
) -> TunedNode:
    """Return a node as its tuning pod reported it."""
    spec = observed.tuning.spec
    budget = known.get(name, Budget())
    # A new tuning pod does not know what the one before it did.
    was = before.raised_from if before is not None else None
    report = observed.reports.get(name)
    if report is None:
        waits = observed.waiting.get(name, "Its tuning pod has yet to answer.")
        return TunedNode(name=name, demand=budget.demand, raised_from=was, message=waits)
    others = max(0, (report.aio_nr or 0) - budget.reserved)
    is_current = report.orders == order_of(orders, name).digest
    target = max(spec.floor, others + budget.demand + spec.margin)
    satisfied: bool | None = report.is_satisfied
    message = report.message
    if not is_current and (report.aio_max_nr or 0) < target:
        satisfied, message = None, "Its tuning pod has yet to read its new orders."
    return TunedNode(
        name=name,
        aio_max_nr=report.aio_max_nr,
        aio_nr=report.aio_nr,
        demand=budget.demand,
        target=target,
        raised_from=min((v for v in (was, report.raised_from) if v is not None), default=None),
        satisfied=satisfied,
        message=message,
    )


def _reported_node(name: str, known: Mapping[str, Budget], observed: ObservedTuning) -> TunedNode:
    """Return a node as the brokers on it found it."""
    spec = observed.tuning.spec
    budget = known.get(name, Budget())
    is_tuned = spec.mode is TuningMode.TUNED
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
    if not is_enough and is_tuned:
        message = (
            f"fs.aio-max-nr={budget.aio_max_nr}, but {needed} is needed: the profile "
            f"{names.tuning(observed.tuning.metadata.name)} in {profiles.NAMESPACE} asks for "
            f"{profile_value(observed)}. If the node does not get it, see which profile the Node "
            "Tuning Operator gives it (`oc get profiles`), and include this one there."
        )
    elif not is_enough:
        message = (
            f"fs.aio-max-nr={budget.aio_max_nr}, but {needed} is needed: set spec.mode to Raise, "
            f"or run `sysctl -w fs.aio-max-nr={needed + spec.margin}` on the node."
        )
    return TunedNode(
        name=name,
        aio_max_nr=budget.aio_max_nr,
        aio_nr=budget.aio_nr,
        demand=budget.demand,
        target=profile_value(observed) if is_tuned else needed,
        satisfied=is_enough,
        message=message,
    )

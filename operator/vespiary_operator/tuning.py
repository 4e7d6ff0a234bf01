"""`fs.aio-max-nr` as a budget: what is done about it on each node.

Owns: the plan of a BrokerNodeTuning. Mode Verify starts nothing: it puts together what the brokers'
own verifications read on each node. Mode Raise runs a DaemonSet and gives it orders; mode Tuned
keeps a profile for OpenShift's Node Tuning Operator.
Never: reads the cluster, the clock or randomness. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vespiary_operator import kinds, names
from vespiary_operator.actions import Action, Apply, Delete
from vespiary_operator.builders import tuned as profiles
from vespiary_operator.builders import tuning as builders
from vespiary_operator.drift import difference
from vespiary_operator.node_tuning import order_of
from vespiary_operator.observation import Object
from vespiary_operator.options import Options
from vespiary_operator.pods import Pod
from vespiary_operator.tuning_budget import Budget, budgets, is_selected, looked_after_by
from vespiary_spec.resources import BrokerNodeTuning, TuningMode


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReport:
    """What the tuning pod of a node answered.

    Attributes:
        aio_max_nr: The value as last read; None if it could not be read.
        aio_nr: Requests in use by everyone.
        raised_from: Value before it was raised; None if it was not.
        message: One sentence.
        is_satisfied: Whether the value is enough.
        orders: Digest of the orders that this is about; empty if it has none.
    """

    aio_max_nr: int | None = None
    aio_nr: int | None = None
    raised_from: int | None = None
    message: str = ""
    is_satisfied: bool = False
    orders: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTuning:
    """Everything that the plan of a BrokerNodeTuning is made from.

    Attributes:
        tuning: The resource.
        others: The other BrokerNodeTunings.
        nodes: All nodes.
        broker_pods: Pods of all Brokers.
        tuners: The tuning pods, by node.
        reports: Their answers, by node.
        daemon_set: The live DaemonSet, or None.
        orders: The live ConfigMap, or None.
        waiting: What tuning pods wait for, by node.
        is_tuned_served: Whether the API server knows OpenShift's profiles; only looked at where it
            matters.
        tuned: The live profile, or None.
    """

    tuning: BrokerNodeTuning
    others: tuple[BrokerNodeTuning, ...] = ()
    nodes: tuple[Object, ...] = ()
    broker_pods: tuple[Pod, ...] = ()
    tuners: Mapping[str, Pod] = field(default_factory=dict)
    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    daemon_set: Object | None = None
    orders: Object | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    is_tuned_served: bool = False
    tuned: Object | None = None

    def selected(self) -> dict[str, str]:
        """Return the nodes that the selector takes, each with the tuning that looks after it."""
        return {
            str(node["metadata"]["name"]): looked_after_by(node, (self.tuning, *self.others))
            for node in self.nodes
            if is_selected(node, self.tuning.spec.node_selector)
        }

    def own_nodes(self) -> list[str]:
        """Return the names of the nodes that this tuning looks after, sorted."""
        own = self.tuning.metadata.name
        return sorted(name for name, owner in self.selected().items() if owner == own)


def plan(observed: ObservedTuning, options: Options) -> list[Action]:
    """Decide what to do about a BrokerNodeTuning; nothing if all is as wanted."""
    mode = observed.tuning.spec.mode
    actions: list[Action] = []
    if mode is TuningMode.RAISE:
        actions += _raising(observed, options)
    else:
        actions += _deletions(observed, options)
    if mode is TuningMode.TUNED and observed.is_tuned_served:
        actions += _profile(observed)
    elif observed.tuned is not None and mode is not TuningMode.TUNED:
        actions.append(_deletion(observed, kinds.TUNED, observed.tuned, profiles.NAMESPACE))
    return actions


def _deletions(observed: ObservedTuning, options: Options) -> list[Action]:
    return [
        _deletion(observed, kind, found, options.place_of_tuning)
        for kind, found in (
            (kinds.DAEMON_SET, observed.daemon_set),
            (kinds.CONFIG_MAP, observed.orders),
        )
        if found is not None
    ]


def _deletion(observed: ObservedTuning, kind: kinds.Kind, found: Object, namespace: str) -> Delete:
    name = found["metadata"]["name"]
    return Delete(
        kind=kind,
        name=name,
        namespace=namespace,
        uid=found["metadata"]["uid"],
        reason="Deleted",
        sentence=f"The {kind.name} {name} is deleted: the mode is "
        f"{observed.tuning.spec.mode.value}.",
    )


def _brought_up_to_date(manifest: dict[str, Any], found: Object | None) -> list[Action]:
    where = difference(manifest, found) if found is not None else "all of it"
    if not where:
        return []
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return [
        Apply(
            manifest=manifest,
            reason="Created" if found is None else "Changed",
            sentence=f"The {kind} {name} is brought up to date ({where}).",
        )
    ]


# --- mode Raise ---------------------------------------------------------------------------------


def orders_of(observed: ObservedTuning, options: Options) -> dict[str, Any]:
    """Return the ConfigMap with the orders for every node that the DaemonSet reaches."""
    tuning = observed.tuning
    known = budgets(observed.broker_pods)
    entries: dict[str, dict[str, int | bool]] = {}
    for name, owner in observed.selected().items():
        budget = known.get(name)
        if owner != tuning.metadata.name:
            entries[name] = {"excluded": True}
        elif budget is not None:
            entries[name] = {"demand": budget.demand, "reserved": budget.reserved}
    return builders.orders(tuning, options.place_of_tuning, entries)


def _raising(observed: ObservedTuning, options: Options) -> list[Action]:
    orders = orders_of(observed, options)
    daemon_set = builders.daemon_set(
        observed.tuning,
        options.place_of_tuning,
        image=options.operator_image,
        pull_policy=options.operator_pull_policy,
    )
    actions = _brought_up_to_date(orders, observed.orders)
    actions += _brought_up_to_date(daemon_set, observed.daemon_set)
    for node, pod in sorted(observed.tuners.items()):
        actions += _notice(orders, node, pod, observed.reports.get(node))
    return actions


def _notice(orders: dict[str, Any], node: str, pod: Pod, report: NodeReport | None) -> list[Action]:
    """Tell a tuning pod of new orders.

    A kubelet looks at a mounted ConfigMap once a minute, or when its pod changes; so the pod gets
    an annotation. Where that came before the ConfigMap did, the next look gives it another one.
    """
    digest = order_of(orders["data"][builders.ORDERS_KEY], node).digest
    if report is not None and report.orders == digest:
        return []
    annotations = pod["metadata"].get("annotations") or {}
    told, _, tries = str(annotations.get(names.ANNOTATION_ORDERS, "")).partition("-")
    value = digest
    if told == digest:
        if report is None or not report.orders:
            return []
        value = f"{digest}-{int(tries) + 1 if tries.isdecimal() else 1}"
    metadata = pod["metadata"]
    return [
        Apply(
            manifest={
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                    "annotations": {names.ANNOTATION_ORDERS: value},
                },
            },
            reason="Orders",
            sentence=f"The tuning pod {metadata['name']} on {node} is told of its new orders.",
        )
    ]


# --- mode Tuned ---------------------------------------------------------------------------------


def profile_value(observed: ObservedTuning) -> int:
    """Return what the profile asks for: one number for all nodes, and never less than before."""
    spec = observed.tuning.spec
    known = budgets(observed.broker_pods)
    wanted = [spec.floor]
    for name in observed.own_nodes():
        budget = known.get(name, Budget())
        # What others use is in the number that the last broker read; so may be some of our own.
        wanted.append((budget.aio_nr or 0) + budget.demand + spec.margin)
    return max(profiles.value_of(observed.tuned), min(max(wanted), spec.max))


def _profile(observed: ObservedTuning) -> list[Action]:
    manifest = profiles.tuned(observed.tuning, profile_value(observed))
    return _brought_up_to_date(manifest, observed.tuned)


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
        orders=str(document.get("orders", ""))[:64],
    )

"""Nodes that do not report any longer, or are gone, while a broker's pod is still bound to one.

Kubernetes moves such a pod only when it knows that it has ended: two brokers on one volume would be
worse than none. So this says what is known and what a person can do, and does nothing itself.

Owns: when a node counts as lost, and the sentence. Pure.
Never: deletes a pod, a node or a taint. Called by: `status`.
"""

from __future__ import annotations

from vespiary_operator import pods
from vespiary_operator.conditions import FALSE, Finding
from vespiary_operator.observation import Object, Observed
from vespiary_operator.pods import Pod

REASON = "NodeLost"


def lost(observed: Observed, pod: Pod) -> str:
    """Say what is wrong with the node of a pod and what to do; empty if nothing is known of it."""
    if observed.nodes is None or not pods.is_silent(pod, observed.now):
        return ""
    name, node = pods.name(pod), pods.node(pod)
    found = next((n for n in observed.nodes if n["metadata"]["name"] == node), None)
    if found is None:
        return (
            f"{name} is bound to the node {node}, which the cluster no longer has. Kubernetes "
            "removes the pod and makes it anew elsewhere; where it does not within minutes, and "
            f"the machine is off for good: kubectl delete pod {name} --force."
        )
    ready = _ready_condition(found)
    if ready.get("status") == "True":
        return ""
    since = str(ready.get("lastTransitionTime") or "")
    why = str(ready.get("message") or "it does not say why").rstrip(". ")
    said = f"{name} is on the node {node}, which is not ready{f' since {since}' if since else ''}: "
    return (
        f"{said}{why}. Its volumes stay with it until it is back, or known to be off. Bring the "
        "machine back; or, once it is switched off for certain: kubectl taint nodes "
        f"{node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, and the pod is made "
        "anew where its volumes can be had. Never while it may still run: two brokers would "
        "write to one volume."
    )


def finding(observed: Observed) -> Finding | None:
    """Return the first lost node that keeps a broker from serving; None if there is none."""
    for pod in observed.pods:
        said = lost(observed, pod)
        if said:
            return FALSE, REASON, said
    return None


def _ready_condition(node: Object) -> Object:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "Ready"), {})

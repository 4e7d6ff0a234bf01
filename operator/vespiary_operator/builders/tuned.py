"""The `Tuned` object of OpenShift's Node Tuning Operator, for mode Tuned.

Owns: the profile, and the rule that its value never falls: TuneD puts a value back when a profile
changes, so a lower one would take requests away from brokers that have them.
Never: reads the cluster. Called by: `tuning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vespiary_operator import names
from vespiary_spec.resources import BrokerNodeTuning

NAMESPACE = "openshift-cluster-node-tuning-operator"
"""Where the Node Tuning Operator looks for profiles, and nowhere else."""

ANNOTATION_VALUE = "vespiary.dev/aio-max-nr"
PRIORITY = 25
"""Before OpenShift's own profiles (30 and 40), behind those that people usually write (20)."""

PARENT = "openshift-node"


def value_of(live: Mapping[str, Any] | None) -> int:
    """Return the value of a live profile; 0 if there is none."""
    annotations = ((live or {}).get("metadata") or {}).get("annotations") or {}
    text = str(annotations.get(ANNOTATION_VALUE, "0"))
    return int(text) if text.isdecimal() else 0


def _recommendation(tuning: BrokerNodeTuning) -> dict[str, Any]:
    """Return the rule that gives the profile to the nodes; nested matches mean `and`."""
    rule: dict[str, Any] = {
        "profile": names.tuning(tuning.metadata.name),
        "priority": PRIORITY,
    }
    match: list[dict[str, Any]] = []
    for label, value in sorted((tuning.spec.node_selector or {}).items(), reverse=True):
        term: dict[str, Any] = {"label": label, "value": value}
        if match:
            term["match"] = match
        match = [term]
    if match:
        rule["match"] = match
    return rule


def tuned(tuning: BrokerNodeTuning, value: int) -> dict[str, Any]:
    """Return the Tuned object.

    Args:
        tuning: The resource.
        value: What `fs.aio-max-nr` should be at least.
    """
    name = names.tuning(tuning.metadata.name)
    data = "\n".join(
        (
            "[main]",
            f"summary=fs.aio-max-nr for the brokers that BrokerNodeTuning "
            f"{tuning.metadata.name} looks after",
            f"include={PARENT}",
            "[sysctl]",
            # `=>` leaves a value that is higher already as it is.
            f"fs.aio-max-nr=>{value}",
            "",
        )
    )
    return {
        "apiVersion": "tuned.openshift.io/v1",
        "kind": "Tuned",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": names.tuning_labels(tuning),
            "annotations": {ANNOTATION_VALUE: str(value)},
            "ownerReferences": [names.owner_reference(tuning)],
        },
        "spec": {
            "profile": [{"name": name, "data": data}],
            "recommend": [_recommendation(tuning)],
        },
    }

"""A StatefulSet is replaced where a field has to change that cannot: its pods never notice.

Claim templates, serviceName, selector and podManagementPolicy of a StatefulSet are fixed. So it is
deleted with its pods, claims and revisions left behind, and made again from the template that they
were made from; the new one adopts them. Nobody brings a dying pod back in between, so this is done
only while nothing else is on its way, and takes a second or two.

Owns: when that is done, and which step comes next. What is written down in `status.operation` says
which StatefulSet is meant, by its UID: it is written before anything is deleted, and the rest is
read off the cluster, so an operator that ends at any point is followed by one that goes on.
Never: reads the cluster; changes the template beside the fixed fields. Called by: `plan`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from vespiary_operator import kinds, names, pods
from vespiary_operator.actions import Action, Apply, deletion
from vespiary_operator.claims import ClaimSize
from vespiary_operator.drift import difference
from vespiary_operator.observation import Observed
from vespiary_operator.rollout import is_settled
from vespiary_operator.templates import ANNOTATION as TEMPLATES
from vespiary_spec.status import Operation

TYPE = "ReplaceStatefulSet"

FIXED_FIELDS = ("serviceName", "podManagementPolicy", "selector")
"""Fields of a StatefulSet's spec that cannot change, beside its claim templates."""


class Step(NamedTuple):
    """The next step of a replacement.

    Attributes:
        actions: What is done now.
        operation: What the status says about it; None once it is over.
    """

    actions: tuple[Action, ...]
    operation: Operation | None


def is_under_way(observed: Observed) -> bool:
    """Return whether the status says that a StatefulSet is being replaced."""
    operation = observed.broker.status.operation
    return operation is not None and operation.type == TYPE


def fixed_difference(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return where a StatefulSet differs in what cannot change; empty if it does not.

    Labels of claim templates are not worth a replacement; sizes and names are.
    """
    spec, found = wanted["spec"], live.get("spec") or {}
    for field in FIXED_FIELDS:
        where = difference(spec[field], found.get(field), f"spec.{field}")
        if where:
            return where
    return difference(_essence(spec), _essence(found), "spec.volumeClaimTemplates")


def _essence(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": template["metadata"]["name"], "spec": template["spec"]}
        for template in spec.get("volumeClaimTemplates") or ()
    ]


def with_fixed_fields(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return a StatefulSet with what cannot change as it is, so that it can be applied.

    What stands below its `spec` it shares with both: each pass makes one, mostly just to compare.
    """
    has = live.get("spec") or {}
    spec = wanted["spec"] | {field: has[field] for field in FIXED_FIELDS if field in has}
    if "volumeClaimTemplates" in spec:
        spec["volumeClaimTemplates"] = [
            {
                **{key: value for key, value in template.items() if key != "status"},
                "metadata": {
                    key: value
                    for key, value in template["metadata"].items()
                    if key in ("name", "labels", "annotations")
                },
            }
            for template in has.get("volumeClaimTemplates") or ()
        ]
    return {**wanted, "spec": spec}


def restored(observed: Observed, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a StatefulSet to make where the former one is gone and left its pods behind.

    Its template is the one that the pods were made from, so that it adopts them as they are; a
    template that has changed since is carried out afterwards, one broker after the other.

    Args:
        observed: What was found.
        wanted: The StatefulSet as it should be, with the partition at rest.

    Returns:
        None if no pod is left, or nothing tells what it was made from.
    """
    left = [pod for pod in observed.pods if not pods.is_terminating(pod)]
    used = {pods.revision(pod) for pod in left}
    found = [revision for revision in observed.revisions if revision["metadata"]["name"] in used]
    if not found:
        return None
    newest = max(found, key=lambda revision: int(revision.get("revision") or 0))
    template = ((newest.get("data") or {}).get("spec") or {}).get("template")
    if not template:
        return None
    restoring = copy.deepcopy(dict(wanted))
    # As many as there are: another number of brokers is a step of its own as well.
    replicas = max(pods.ordinal(pod) for pod in left) + 1
    restoring["spec"]["template"] = _plain(template)
    restoring["spec"]["replicas"] = replicas
    restoring["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = replicas
    members = max(replicas, observed.broker.status.members or 0)
    annotations = restoring["metadata"]["annotations"]
    annotations[names.ANNOTATION_MEMBERS] = str(members)
    operation = observed.broker.status.operation
    if operation is not None and operation.type == TYPE and operation.templates:
        annotations[TEMPLATES] = operation.templates
    return restoring


def _plain(template: Any) -> Any:
    """Return a template as it was, without the patch directive and without empty fields."""
    if isinstance(template, Mapping):
        return {
            key: _plain(value)
            for key, value in template.items()
            if key != "$patch" and value is not None
        }
    if isinstance(template, list):
        return [_plain(item) for item in template]
    return template


def begin(observed: Observed, wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Step | None:
    """Return the writing down of a replacement; None if there is nothing to replace.

    Only for a Broker with nothing else on its way.
    """
    where = fixed_difference(wanted, live)
    if not where or observed.broker.status.operation is not None:
        return None
    if any(pods.is_terminating(pod) for pod in observed.pods):
        return None
    metadata = live["metadata"]
    operation = Operation(
        type=TYPE,
        step="Delete",
        target=f"{kinds.STATEFUL_SET.name}/{metadata['name']}",
        uid=metadata["uid"],
        message=f"The StatefulSet {metadata['name']} is replaced, because its {where} cannot be "
        "changed; the brokers run on.",
        templates=(metadata.get("annotations") or {}).get(TEMPLATES, ""),
    )
    return Step((), operation)


def sizes_are_reached(found: tuple[ClaimSize, ...]) -> bool:
    """Return whether no claim is still on its way to the size that the Broker asks for.

    What a claim grows by itself is no matter of the claim templates.
    """
    return all(size.capacity is not None and size.capacity >= size.asked for size in found)


def proceed(observed: Observed, wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Step | None:
    """Return the next step of a replacement that is written down, while there is a StatefulSet.

    Args:
        observed: What was found.
        wanted: The StatefulSet as it should be, its partition at rest.
        live: The StatefulSet that there is.

    Returns:
        None if no replacement is under way.
    """
    operation = observed.broker.status.operation
    if operation is None or operation.type != TYPE:
        return None
    name = live["metadata"]["name"]
    if live["metadata"]["uid"] != operation.uid:
        return _adopted(observed, live, operation)
    if live["metadata"].get("deletionTimestamp"):
        return Step((), operation)
    if not fixed_difference(wanted, live):
        return Step((), None)  # the Broker asks for what there is again
    retention = (live.get("spec") or {}).get("persistentVolumeClaimRetentionPolicy") or {}
    if "Delete" in retention.values():
        manifest = with_fixed_fields(wanted, live)
        manifest["spec"]["template"] = _plain(live["spec"]["template"])
        manifest["spec"]["replicas"] = live["spec"]["replicas"]
        manifest["spec"]["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }
        sentence = f"The StatefulSet {name} lets go of the claims before it is replaced."
        return Step((Apply(manifest=manifest, reason="Gate", sentence=sentence),), operation)
    if _still_owned(observed, operation.uid) or not is_settled(live):
        return Step((), operation)
    delete = deletion(kinds.STATEFUL_SET, live, "it is made anew, and the brokers run on.")
    return Step((dataclasses.replace(delete, orphans=True),), operation)


def _still_owned(observed: Observed, uid: str) -> list[str]:
    """Return claims that would go with the StatefulSet of this UID."""
    return [
        name
        for name, claim in observed.claims.items()
        if any(o.get("uid") == uid for o in claim["metadata"].get("ownerReferences") or ())
    ]


def _adopted(observed: Observed, live: Mapping[str, Any], operation: Operation) -> Step:
    """Return the end of a replacement, or the wait for it."""
    uid = live["metadata"]["uid"]
    strangers = [
        pods.name(pod)
        for pod in observed.pods
        if not pods.is_terminating(pod)
        and all(o.get("uid") != uid for o in pod["metadata"].get("ownerReferences") or ())
    ]
    if strangers or not is_settled(live):
        return Step((), operation)
    return Step((), None)


def recreation(observed: Observed, manifest: dict[str, Any]) -> Apply:
    """Return what makes the StatefulSet again whose pods are still there."""
    count = len(observed.pods)
    are = "broker that runs" if count == 1 else "brokers that run"
    return Apply(
        manifest=manifest,
        reason="Recreated",
        sentence=f"The StatefulSet {manifest['metadata']['name']} is made again for the {count} "
        f"{are} already.",
    )

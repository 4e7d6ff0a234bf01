"""What claims that are there already say about themselves: labels, annotations, attributes class.

A StatefulSet gives its claims what its template said when they were made, and the template cannot
change. Later changes are applied to each claim, under a field manager of their own: what `claims`
says about sizes is another matter, and neither takes the other's fields away.

Never: reads the cluster; makes a claim. Called by: `plan`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_operator.actions import Action, Apply
from vespiary_operator.builders import statefulset
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.drift import difference
from vespiary_operator.observation import Object, Observed
from vespiary_operator.ownership import forgotten
from vespiary_spec.resources import Broker

MANAGER = f"{names.MANAGER}-claim-attributes"


def changes(observed: Observed) -> tuple[list[Action], list[str]]:
    """Return the claims to change, and what is asked for but can't be done."""
    broker = observed.broker
    actions: list[Action] = []
    warnings: list[str] = []
    if broker.spec.storage.ephemeral:
        return actions, warnings
    for volume in volumes_of(broker):
        missing = _missing_class(observed, volume)
        if missing:
            warnings.append(missing)
        prefix = f"{volume}-{names.stateful_set(broker.metadata.name)}-"
        for name, claim in observed.claims.items():
            if not name.startswith(prefix) or not name.removeprefix(prefix).isdecimal():
                continue
            manifest = _manifest(broker, volume, claim, keeps_class=bool(missing))
            said = {part: manifest[part] for part in ("metadata", "spec") if part in manifest}
            where = difference(said, claim) or forgotten(manifest, claim, MANAGER)
            if where:
                actions.append(
                    Apply(
                        manifest=manifest,
                        reason="ClaimChanged",
                        sentence=f"The claim {name} gets what the Broker asks for: {where}.",
                        manager=MANAGER,
                    )
                )
    return actions, warnings


def _missing_class(observed: Observed, volume: str) -> str:
    """Say that a volume's attributes class is not there; empty if it is, or is none's to see."""
    wanted = statefulset.volume_spec(observed.broker, volume).volume_attributes_class_name
    if (
        wanted is None
        or observed.attributes_classes is None
        or (wanted in observed.attributes_classes)
    ):
        return ""
    there = ", ".join(sorted(observed.attributes_classes)) or "none"
    return (
        f"The volume {volume} asks for the VolumeAttributesClass {wanted}, which does not exist "
        f"(there are: {there}). Create it, or name another one in "
        f"spec.storage.volumes.{names.spec_name(volume)}.volumeAttributesClassName."
    )


def _manifest(broker: Broker, volume: str, claim: Object, *, keeps_class: bool) -> dict[str, Any]:
    wanted = statefulset.volume_spec(broker, volume).volume_attributes_class_name
    has = (claim.get("spec") or {}).get("volumeAttributesClassName")
    metadata: dict[str, Any] = {
        "name": claim["metadata"]["name"],
        "namespace": broker.metadata.namespace,
    }
    labels, annotations = statefulset.claim_metadata(broker, volume)
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
    }
    # A class cannot be taken away again, so one that is there stays in what is applied.
    chosen = has if keeps_class or wanted is None else wanted
    if chosen is not None:
        manifest["spec"] = {"volumeAttributesClassName": chosen}
    return manifest

"""What a plan is made of: writes with their reasons, and what stands in the way of them.

Never: reads the cluster; decides. Called by: every module that plans, `apply`, `metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vespiary_operator import kinds
from vespiary_operator.kinds import Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Apply:
    """Make an object as the manifest says, by server-side apply.

    Attributes:
        manifest: The object.
        reason: One word for the Event: Created, Restored, Changed, RollingUpdate, Growing.
        sentence: Why.
        manager: Field manager; empty means the operator's usual one. A concern that has one of its
            own never takes away what others applied to the same object.
        is_independent: Whether what comes after it is done even if it is refused.
    """

    manifest: dict[str, Any]
    reason: str
    sentence: str
    manager: str = ""
    is_independent: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Create:
    """Make an object that must not be written if it is there already."""

    manifest: dict[str, Any]
    reason: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delete:
    """Delete one object, and no other that has taken its name since.

    Attributes:
        orphans: Whether what belongs to it stays.
    """

    kind: Kind
    name: str
    namespace: str
    uid: str
    reason: str
    sentence: str
    orphans: bool = False


Action = Apply | Create | Delete


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Why nothing, or no pod, is made.

    Attributes:
        reason: One word for the conditions.
        sentence: For people: what, where, and what to do.
        is_storage: Whether a volume is to blame.
    """

    reason: str
    sentence: str
    is_storage: bool = False


def deletion(kind: Kind, found: Mapping[str, Any], why: str) -> Delete:
    """Return what deletes a live object, and no other that has taken its name since."""
    metadata = found["metadata"]
    return Delete(
        kind=kind,
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        reason="Deleted",
        sentence=f"The {kind.name} {metadata['name']} is deleted: {why}",
    )


def restart(pod: Mapping[str, Any], reason: str, why: str) -> Delete:
    """Return what has a pod started again: its StatefulSet makes another."""
    return replace(
        deletion(kinds.POD, pod, ""),
        reason=reason,
        sentence=f"The pod {pod['metadata']['name']} is started again: {why}",
    )


def described(action: Action) -> str:
    """Return an action in short, for the log: verb, kind and name."""
    if isinstance(action, Delete):
        return f"delete {action.kind.name}/{action.name}"
    verb = "create" if isinstance(action, Create) else "apply"
    return f"{verb} {action.manifest['kind']}/{action.manifest['metadata']['name']}"

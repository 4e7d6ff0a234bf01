"""Carrying out a plan.

Owns: the order of the writes, and what became of each. Stops at the first refusal.
Never: decides what to write. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from vespiary_operator.kinds import Kind
from vespiary_operator.plan import Action, Create, Delete


class Writer(Protocol):
    """What `carry_out` needs of the cluster."""

    async def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Apply a manifest."""

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""

    async def delete(self, kind: Kind, name: str, namespace: str, uid: str) -> None:
        """Delete an object."""


class Outcome(NamedTuple):
    """What became of an action.

    Attributes:
        action: The action.
        is_change: Whether the cluster is different now.
    """

    action: Action
    is_change: bool


async def carry_out(
    cluster: Writer, actions: Iterable[Action], versions: dict[tuple[str, str], str]
) -> list[Outcome]:
    """Carry out actions in their order.

    Args:
        cluster: The API server.
        actions: What to do.
        versions: Resource versions by kind and name as they were observed, to tell writes that
            changed something from those that did not.

    Raises:
        ReconcileError: A write was refused; those before it were done.
    """
    done = []
    for action in actions:
        if isinstance(action, Delete):
            await cluster.delete(action.kind, action.name, action.namespace, action.uid)
            done.append(Outcome(action, True))
            continue
        write = cluster.create if isinstance(action, Create) else cluster.apply
        found = await write(action.manifest)
        key = (action.manifest["kind"], action.manifest["metadata"]["name"])
        version = found["metadata"].get("resourceVersion", "")
        done.append(Outcome(action, versions.get(key) != version))
    return done

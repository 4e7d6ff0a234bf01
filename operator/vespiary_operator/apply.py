"""Carrying out a plan.

Owns: the order of the writes, and what became of each. Stops at the first refusal, but for writes
that nothing after them depends on.
Never: decides what to write. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from vespiary_operator.actions import Action, Apply, Create, Delete
from vespiary_operator.kinds import Kind
from vespiary_spec.errors import ReconcileError, TemporaryReconcileError


class Writer(Protocol):
    """What `carry_out` needs of the cluster."""

    async def apply(self, manifest: dict[str, Any], manager: str = "") -> dict[str, Any]:
        """Apply a manifest under a field manager; empty means the usual one."""

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""

    async def delete(
        self, kind: Kind, name: str, namespace: str, uid: str, *, orphans: bool = False
    ) -> None:
        """Delete an object."""


class Outcome(NamedTuple):
    """What became of an action.

    Attributes:
        action: The action.
        is_change: Whether the cluster is different now.
    """

    action: Action
    is_change: bool


class Done(NamedTuple):
    """What became of a plan.

    Attributes:
        outcomes: What was done, in this order.
        failure: Why not all of it was; None if it was.
    """

    outcomes: list[Outcome]
    failure: ReconcileError | None = None


async def carry_out(
    cluster: Writer, actions: Iterable[Action], versions: dict[tuple[str, str], str]
) -> Done:
    """Carry out actions in their order, to the first that fails.

    A refusal of an independent one is remembered, and the others are done.

    Args:
        cluster: The API server.
        actions: What to do.
        versions: Resource versions by kind and name as they were observed, to tell writes that
            changed something from those that did not.
    """
    done: list[Outcome] = []
    refused: ReconcileError | None = None
    for action in actions:
        try:
            done.append(Outcome(action, await _carry_out(cluster, action, versions)))
        except ReconcileError as error:
            is_independent = isinstance(action, Apply) and action.is_independent
            if not is_independent or isinstance(error, TemporaryReconcileError):
                return Done(done, error)
            refused = refused or error
    return Done(done, refused)


async def _carry_out(cluster: Writer, action: Action, versions: dict[tuple[str, str], str]) -> bool:
    """Carry out one action; return whether the cluster is different now."""
    if isinstance(action, Delete):
        await cluster.delete(
            action.kind, action.name, action.namespace, action.uid, orphans=action.orphans
        )
        return True
    if isinstance(action, Create):
        found = await cluster.create(action.manifest)
    else:
        found = await cluster.apply(action.manifest, action.manager)
    key = (action.manifest["kind"], action.manifest["metadata"]["name"])
    return versions.get(key) != str(found["metadata"].get("resourceVersion", ""))

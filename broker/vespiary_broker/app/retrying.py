"""`retry`: messages go back to the queues that they came from, of which some may be gone.

Owns which of them go: those alone to whose address the one who asks may send, and whose queue is
there or can be made again, as sending to it would make it. What stays, and why, is told by the
task. The rules are `engine.departures`'. Called by `message_acts`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.departures import (
    ORIGINS_MAX,
    Origin,
    is_open_to,
    leave,
    make_origin,
    missing_origin,
    missing_origins_text,
    origin_of,
)
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.restaging import Staged
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.app.queue_walk import QueueWalk
    from vespiary_broker.app.tasks import Task
    from vespiary_broker.engine.core import MessageView
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue

_TRIED_MAX: Final = 10_000


class OriginsMissing(Exception):  # noqa: N818  (a state, not a fault)
    """Queues that messages came from are gone, and it was not tried to make them.

    Args:
        retry: Makes them.
        origins: The queues.
    """

    def __init__(self, retry: Retry, origins: Collection[Origin]) -> None:
        super().__init__()
        self._retry = retry
        self._origins = origins

    async def make(self) -> None:
        """Make those that may be made.

        Durability: on return they survive a power loss.
        """
        await self._retry.make(self._origins)


class Retry:
    """One retry.

    Args:
        engine: The engine.
        queue: The queue that the messages wait in.
        task: Tells what stays.
        user: Who asks; empty: who may send everywhere.
    """

    def __init__(self, engine: Engine, queue: Queue, task: Task, user: str) -> None:
        self._core = engine.core
        self._registry = engine.registry
        self._mover = engine.fates.mover
        self._queue = queue
        self._task = task
        self._user = user
        self._tried: set[Origin] = set()
        self._missing: set[Origin] = set()
        self._closed: set[str] = set()

    def stage(self, walk: QueueWalk, views: list[MessageView]) -> Staged:
        """Set those messages aside that go back.

        Args:
            walk: Has seen them.
            views: The messages.

        Raises:
            OriginsMissing: Nothing was done; `make` and look again.
        """
        missing = {view.sequence: missing_origin(self._registry, view) for view in views}
        unknown = {origin for origin in missing.values() if origin is not None} - self._tried
        if unknown:
            raise OriginsMissing(self, unknown)
        going = []
        for view in views:
            origin = missing[view.sequence]
            if origin is not None:
                self._missing.add(origin)
            elif self._may_go(view):
                going.append(view)
        self._tell()
        walk.take_in(view.sequence for view in going)
        count = sum(
            leave(self._core, self._mover, self._queue, view, Reason.RETRIED) for view in going
        )
        return Staged(len(views), count, False, None)

    async def make(self, origins: Collection[Origin]) -> None:
        """Make queues that messages came from, as far as auto-creation and permissions let it.

        Durability: on return those that were made survive a power loss.
        """
        if len(self._tried) + len(origins) > _TRIED_MAX:
            self._tried.clear()
        for origin in sorted(origins):
            self._tried.add(origin)
            try:
                await make_origin(self._registry, origin, self._user)
            except VespiaryError:
                continue  # it stays missing, which the task tells

    def _may_go(self, view: MessageView) -> bool:
        """Return whether a message goes back to a queue that is there."""
        name = origin_of(view)
        if not name:
            return False
        address = self._registry.queues[name].address.name
        if is_open_to(self._registry, address, self._user):
            return True
        self._closed.add(address)
        return False

    def _tell(self) -> None:
        """Say what stays: of very many missing queues and closed addresses only the first."""
        self._missing = set(sorted(self._missing)[: ORIGINS_MAX + 1])
        self._closed = set(sorted(self._closed)[: ORIGINS_MAX + 1])
        parts = [missing_origins_text(self._missing)] if self._missing else []
        if self._closed:
            names = ", ".join(sorted(self._closed)[:ORIGINS_MAX])
            more = " and others" if len(self._closed) > ORIGINS_MAX else ""
            parts.append(
                f"the user {self._user} has no permission send at the addresses that messages came "
                f"from: {names}{more}"
            )
        self._task.kept_reason = "; ".join(parts)

"""Routes: which queues get the messages of an address, kept in step with the core.

Owns the core's route handles. The rule (the reference system's): a message goes to every MULTICAST
queue and to one of the ANYCAST queues, in turn; a sender may ask for one kind alone. With at most
one ANYCAST queue that is one route of the core, which connections are taught, so the core routes
without asking. With several there is one route for each of them; nobody is taught, and the engine
takes them in turn. Called by `registry`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import Queue
from vespiary_spec.settings import RoutingType


def groups_of(queues: Iterable[Queue], routing_type: RoutingType | None) -> list[list[int]]:
    """Return the sets of queue numbers that messages go to in turn; at least one, maybe empty.

    Args:
        queues: The queues of an address.
        routing_type: What senders ask for; None is both.
    """
    queues = list(queues)
    anycast = [q.id for q in queues if q.routing_type is RoutingType.ANYCAST]
    multicast = [q.id for q in queues if q.routing_type is RoutingType.MULTICAST]
    if routing_type is RoutingType.MULTICAST:
        return [multicast]
    if routing_type is RoutingType.ANYCAST:
        multicast = []
    return [[*multicast, queue_id] for queue_id in anycast] or [multicast]


class Route:
    """Where the messages of an address go, for one routing type.

    Invariant: a connection knows `handles[0]` only while it is the only one.

    Args:
        core: The core.
        groups: Sets of queue numbers, taken in turn.
    """

    __slots__ = ("_core", "_handles", "_turn")

    def __init__(self, core: Core, groups: list[list[int]]) -> None:
        self._core = core
        self._handles = [core.open_route(group) for group in groups]
        self._turn = 0

    @property
    def is_teachable(self) -> bool:
        """Whether all messages go the same way, so that connections may be taught the handle."""
        return len(self._handles) == 1

    def next_handle(self) -> int:
        """Return the core's route for the next message."""
        handles = self._handles
        if len(handles) == 1:
            return handles[0]
        self._turn = (self._turn + 1) % len(handles)
        return handles[self._turn]

    def set_groups(self, groups: list[list[int]]) -> None:
        """Route to other queues; connections that were taught ask again where that is needed."""
        core, handles = self._core, self._handles
        if len(handles) == 1 and len(groups) > 1:
            core.close_route(handles.pop())
        while len(handles) > len(groups):
            core.close_route(handles.pop())
        for handle, group in zip(handles, groups, strict=False):
            core.set_route(handle, group)
        handles.extend(core.open_route(group) for group in groups[len(handles) :])

    def close(self) -> None:
        """Forget it; connections that were taught it ask again."""
        for handle in self._handles:
            self._core.close_route(handle)
        self._handles.clear()

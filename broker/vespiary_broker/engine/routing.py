"""Routes: which queues get the messages of an address, kept in step with the core.

Owns the core's route handles. The rule (the reference system's): a message goes to every MULTICAST
queue and to one of the ANYCAST queues, in turn; a sender may ask for one kind alone. Wildcard
addresses that cover the address count as well: every MULTICAST queue of theirs, and of each of them
one of its ANYCAST queues. With at most one ANYCAST queue each that is one route of the core, which
connections are taught, so the core routes without asking. With several there is one route for each
turn; nobody is taught, and the engine takes them in turn. Called by `registry`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import Queue
from vespiary_spec.settings import RoutingType

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address

_TURNS_MAX: Final = 256
"""Most sets of queues that senders take in turn; with more, some come more often than others."""


def groups_of(queues: Iterable[Queue], routing_type: RoutingType | None) -> list[list[int]]:
    """Return the sets of queue numbers that messages go to in turn; at least one, maybe empty.

    Args:
        queues: The queues of an address, and of the wildcard addresses that cover it.
        routing_type: What senders ask for; None is both.
    """
    multicast: list[int] = []
    anycast: dict[Address, list[int]] = {}
    for queue in queues:
        if routing_type not in (None, queue.routing_type):
            continue
        if queue.routing_type is RoutingType.MULTICAST:
            multicast.append(queue.id)
        else:
            anycast.setdefault(queue.address, []).append(queue.id)
    choices = list(anycast.values())
    sizes = [len(choice) for choice in choices]
    turns = math.lcm(*sizes)
    if turns > _TURNS_MAX:
        turns = max(sizes)
    return [
        [*multicast, *(choice[turn % len(choice)] for choice in choices)] for turn in range(turns)
    ]


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

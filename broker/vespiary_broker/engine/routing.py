"""Routes: the core's handles for where the messages of an address go, kept in step with it.

Owns these handles. With at most one ANYCAST queue for each address, and no filters, there is one
route of the core, which connections are taught, so the core routes without asking. With several
there is one route for each turn; nobody is taught, and the engine takes them in turn. With filters
on queues or diverts a `Switch` chooses by message. Called by `registry`.
"""

from __future__ import annotations

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.reach import Reach
from vespiary_broker.engine.switching import Switch, SwitchCounters


class Route:
    """Where the messages of an address go, for one routing type.

    Invariant: a connection knows `handles[0]` only while it is the only one, and there is no
        switch.

    Attributes:
        places_max: Most queues that a message can get to.
        switch: Chooses by message; None where all messages are alike.

    Args:
        core: The core.
        reach: What messages can get to.
        address: Name of the address that they are sent to.
        counters: Where what goes nowhere is counted.
    """

    __slots__ = ("_address", "_core", "_counters", "_handles", "_turn", "places_max", "switch")

    def __init__(self, core: Core, reach: Reach, address: str, counters: SwitchCounters) -> None:
        self._core = core
        self._address = address
        self._counters = counters
        self._handles: list[int] = []
        self._turn = 0
        self.places_max = 0
        self.switch: Switch | None = None
        self.lead(reach)

    @property
    def is_teachable(self) -> bool:
        """Whether all messages go the same way, so that connections may be taught the handle."""
        return len(self._handles) == 1

    def next_handle(self) -> int:
        """Return the core's route for the next message; -1 if the switch has to be asked."""
        handles = self._handles
        if len(handles) == 1:
            return handles[0]
        if self.switch is not None:
            return -1
        self._turn = (self._turn + 1) % len(handles)
        return handles[self._turn]

    def lead(self, reach: Reach) -> None:
        """Lead to other queues; connections that were taught ask again where that is needed."""
        self.places_max = len({queue.id for queue in reach.queues})
        if next(reach.selectors, None) is not None:
            self._close_handles()
            if self.switch is None:
                self.switch = Switch(self._core, reach, self._address, self._counters)
            else:
                self.switch.lead(reach)
            return
        if self.switch is not None:
            self.switch.close()
            self.switch = None
        self._set_groups(reach.groups())

    def _set_groups(self, groups: list[list[int]]) -> None:
        core, handles = self._core, self._handles
        if len(handles) == 1 and len(groups) > 1:
            core.close_route(handles.pop())
        while len(handles) > len(groups):
            core.close_route(handles.pop())
        for handle, group in zip(handles, groups, strict=False):
            core.set_route(handle, group)
        handles.extend(core.open_route(group) for group in groups[len(handles) :])

    def _close_handles(self) -> None:
        for handle in self._handles:
            self._core.close_route(handle)
        self._handles.clear()

    def close(self) -> None:
        """Forget it; connections that were taught it ask again."""
        self._close_handles()
        if self.switch is not None:
            self.switch.close()

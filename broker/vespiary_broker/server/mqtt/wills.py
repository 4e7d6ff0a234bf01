"""Wills: messages that the broker sends for clients that are gone.

Owns those that wait for their delay, and the sending. Called by the clients' handlers; owner: the
event loop.

Source: MQTT 5.0 §3.1.2.5 and §3.1.3.2.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vespiary_broker.engine.address_memory import Verdict
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.transactions import Outgoing
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.message_sender import Stage

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Will:
    """The will of one connection.

    Attributes:
        client_id: Its client.
        message: What to send.
        stage: Stages it.
        delay_s: Seconds that the client has to come back.
        prepare: Makes what staging needs.
    """

    client_id: str
    message: Callable[[], Outgoing]
    stage: Stage
    delay_s: float
    prepare: Callable[[], Coroutine[Any, Any, Any]]


class Wills:
    """The wills of clients that are gone.

    Attributes:
        sent: How many were sent.

    Args:
        cycle: What all connections share.
    """

    def __init__(self, cycle: Cycle) -> None:
        self.sent = 0
        self._cycle = cycle
        self._waiting: dict[str, tuple[Will, Any]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for their delay."""
        return len(self._waiting)

    def leave(self, will: Will, delay_s: float) -> None:
        """Send a will after a delay, unless its client comes back before.

        Args:
            will: The will.
            delay_s: Seconds; 0 for now.
        """
        if delay_s <= 0:
            self._cycle.spawn(self._send(will))
            return
        timer = self._cycle.loop.call_later(delay_s, self.release, will.client_id)
        self._waiting[will.client_id] = (will, timer)

    def withdraw(self, client_id: str) -> None:
        """Forget the will of a client that has come back."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            waiting[1].cancel()

    def release(self, client_id: str) -> None:
        """Send a client's will that waits, if there is one: its time has come."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            waiting[1].cancel()
            self._cycle.spawn(self._send(waiting[0]))

    def close(self) -> None:
        """Forget all that wait: the broker stops."""
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    async def _send(self, will: Will) -> None:
        try:
            await will.prepare()
            await self._stage(will)
        except VespiaryError as error:
            log.warning("a will was not sent client=%r reason=%r", will.client_id, str(error))

    async def _stage(self, will: Will) -> None:
        """Stage a will as soon as there is room; a full address drops it or takes it."""
        cycle, message = self._cycle, will.message()
        registry, memory = cycle.engine.registry, cycle.engine.memory
        while not cycle.failure:
            target = find_target(registry, message.destination)
            if target is None:
                target = await make_target(registry, message.destination)
            address = registry.addresses.get(message.destination.address)
            if address is not None and not memory.is_open(target.route, address):
                verdict, state = memory.decide(address)
                if state is not None and verdict is Verdict.DROP:
                    memory.drop(state)
                    return
            try:
                will.stage(message, target)
            except NoRoom:
                await cycle.space()
                continue
            self.sent += 1
            cycle.touch()
            return

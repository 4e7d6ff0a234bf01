"""The work of one turn of the event loop: flush, confirm, dispatch, once for all connections.

Owns the order: what was read in this turn is handed to the journal's writer, what became durable is
confirmed, what became deliverable is delivered. Connections only say that something happened
(`touch`). Must never work for one message alone. Owner: the event loop; called by connections,
sessions and the journal's callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from vespiary_broker.engine.engine import Engine
from vespiary_broker.engine.ports import Journal, Spawn
from vespiary_broker.engine.stall_watch import StallWatch
from vespiary_broker.engine.stalls import Stalls
from vespiary_broker.engine.subscriptions import forbidden_consumers
from vespiary_broker.server.amqp.annotations import ChangedAnnotations
from vespiary_broker.server.amqp.receivers import Receivers
from vespiary_broker.server.amqp.unsettled import DurableLinks
from vespiary_broker.server.blocked_producers import BlockedProducers
from vespiary_broker.server.buffers import SharedBuffer
from vespiary_broker.server.client_lines import ClientLines
from vespiary_broker.server.closed_clients import ClosedClients
from vespiary_broker.server.dead_peers import DeadPeers
from vespiary_broker.server.deadline import Deadline
from vespiary_broker.server.fate_clock import FateClock
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_broker.server.reaping import Reaping
from vespiary_broker.server.turns import Turns
from vespiary_broker.store.large_messages import LargeMessages
from vespiary_spec.errors import JournalError

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.mqtt.hub import MqttHub

T = TypeVar("T")

SWEEP_PERIOD_S: Final = 1.0
log = logging.getLogger(__name__)


class Cycle:
    """What all connections of a broker share.

    Args:
        engine: The engine.
        journal: The journal.
        spawn: Runs a coroutine in the background.
        large: Bodies in files; None: there are none.
    """

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        spawn: Spawn,
        large: LargeMessages | None = None,
    ) -> None:
        self.large = large
        if large is not None:
            large.on_wanted = self.touch
            large.on_full = self._on_large_full
        self.engine = engine
        engine.dispatcher.later = self.later
        engine.turn_time.next_turn = asyncio.get_running_loop().call_soon
        self.core = engine.core
        self.spawn = spawn
        self.loop = asyncio.get_running_loop()
        self.buffer = SharedBuffer(engine.core)
        self.mqtt: MqttHub | None = None
        self.connections: dict[int, Connection] = {}
        self.partial: set[Connection] = set()
        self.errors: Counter[str] = Counter()
        self.frames = 0
        self.annotations = ChangedAnnotations()
        self.durable_links = DurableLinks(self)
        self.receivers = Receivers()
        self.connections_total = 0
        self.failure = ""
        self.is_stopping = False
        self.cordon = ""  # why nobody is let in; empty: everybody is
        self._journal = journal
        self._is_scheduled = False
        self._blocked: set[Connection] = set()
        self._space_waiters = 0
        self._recheck: list[Connection] = []
        self._space: dict[Connection | None, list[asyncio.Future[None]]] = {}
        self.producers = BlockedProducers(engine.memory)
        self.closed_clients = ClosedClients(
            self.loop, partial(self.count_error, "gone-while-waiting")
        )
        self.turns = Turns(self.loop, spawn, self.closed_clients, lambda: self._journal.is_writing)
        self.passwords = PasswordChecks(engine.logins)
        self.client_lines = ClientLines()
        self._thread = ThreadPoolExecutor(1, "parsers")
        self._fate_clock = FateClock(engine.fates, self.loop, self.touch)
        engine.fates.mover.on_no_room = journal.request_space
        engine.fates.wake = self.touch
        self._sweep: Deadline | None = None
        self._scan: asyncio.TimerHandle | None = None
        self._reaping = Reaping(engine.reaper, self.loop, self.touch)
        self._measuring = Reaping(engine.slow_consumers, self.loop, self.touch)
        dead_peers = DeadPeers(self.connections.values, self.loop.time)
        self._seeking = Reaping(dead_peers, self.loop, self.touch)
        self.stalls = Stalls(
            engine, self.producers.count_for, lambda: journal.blocked, self.waits_for_room
        )
        self.stall_watch = StallWatch(engine, self.stalls, self.loop.time)
        self._sampling = Reaping(self.stall_watch, self.loop, self.touch)

    def start(self) -> None:
        """Begin to watch for connections that send too slowly, and transactions without end."""
        self._sweep = Deadline(self.loop, SWEEP_PERIOD_S, self._sweep_partial)
        self._scan_transactions()
        self._reaping.start()
        self._measuring.start()
        self._seeking.start()
        self._sampling.start()
        self.touch()  # what was restored may be due, or have expired

    def settings_changed(self) -> None:
        """Go on by other settings: what waited may go on, and consumers may have to be measured."""
        self._measuring.begin_again()
        self.touch()

    def permissions_changed(self) -> None:
        """Have senders ask again, and end connections whose users may not consume any more."""
        registry = self.engine.registry
        registry.permissions_changed()
        for consumer, error in list(forbidden_consumers(registry)):
            connection = self.connections.get(consumer.output.handle)
            if connection is not None and consumer.is_open:
                connection.refuse_error(error)
        for queue_id in registry.guards.renew():
            self.engine.dispatcher.poke(queue_id)
        self.touch()

    def close(self) -> None:
        """Stop watching, and let go of who waits for room; the listeners close connections."""
        self._fate_clock.close()
        for timer in (self._sweep, self._scan):
            if timer is not None:
                timer.cancel()
        self._reaping.close()
        self._measuring.close()
        self._seeking.close()
        self._sampling.close()
        self._let_go_on()
        self.turns.close()
        self.producers.let_go_all()
        self.closed_clients.close()
        self.passwords.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run something that needs milliseconds of CPU without stopping the loop."""
        return await self.loop.run_in_executor(self._thread, function)

    # --- one turn -------------------------------------------------------------------------------

    def tell_time(self) -> None:
        """Tell the core when the messages arrive that a connection is about to take."""
        self.turns.open()
        self.core.set_time(time.time_ns() // 1_000_000)

    def drop_bodies(self, large_ids: list[int]) -> None:
        """Remove bodies in files of messages that were never staged."""
        if large_ids and self.large is not None:
            self.large.remove(large_ids)

    def touch(self) -> None:
        """Make sure that the work of a turn is done before the loop sleeps."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._turn)

    def received(self) -> None:
        """Have what a connection has sent seen to in this turn.

        What was begun before comes first, so the disk is not kept waiting for it.
        """
        self.touch()
        if self.turns.is_begun:
            self._journal.kick()

    def _turn(self) -> None:
        self._is_scheduled = False
        self._journal.kick()
        self.release()

    def release(self) -> None:
        """Confirm what became durable and deliver what became deliverable.

        Called in every turn, and by the journal when a write is done.

        Durability: only what the core says is durable is confirmed.
        """
        dispatcher, fates = self.engine.dispatcher, self.engine.fates
        self._release_output()
        recheck, self._recheck = self._recheck, []
        for connection in recheck:
            if not connection.is_write_paused:
                dispatcher.output_ready(connection)
        acted = dispatcher.messages_out + dispatcher.messages_replaced
        # Before messages are given out: what has expired by now is not.
        is_staged = fates.work()
        ready = self.core.take_ready_queues()
        fates.arrived(ready)
        dispatcher.dispatch(ready)
        if dispatcher.is_counting_ahead:
            self._release_output()  # what waits for no count
        large = self.large
        if large is not None and large.live_count:
            large.remove(self.core.take_done_large())
        if self.engine.memory.refresh():
            self.producers.let_go()
        self._fate_clock.set()
        if dispatcher.has_more or self._recheck or fates.has_more:
            self.touch()
        elif is_staged:
            self._journal.kick()
        elif (
            dispatcher.messages_out + dispatcher.messages_replaced != acted
            and self.core.has_unwritten()
        ):
            self._journal.kick()  # deliveries without acknowledgement stage records of their own

    def _release_output(self) -> None:
        """Send what waited for a flush that has come: receipts, and messages with their counts."""
        dispatcher = self.engine.dispatcher
        for handle, data in self.core.take_receipts():
            connection = self.connections.get(handle)
            if connection is not None:
                connection.release(data)
                if dispatcher.is_counting_ahead:
                    dispatcher.output_ready(connection)

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something after some time, and what follows from it in the turn then."""

        def act() -> None:
            action()
            self.touch()

        self.loop.call_later(delay_s, act)

    def recheck(self, connection: Connection) -> None:
        """Look in the next turn whether a full connection has room again."""
        self._recheck.append(connection)

    # --- room in the journal --------------------------------------------------------------------

    def on_durable(self) -> None:
        """Go on after a write: confirm, deliver, and let those try again that found no memory."""
        if self._blocked or self._space:
            self._let_go_on()
        self.engine.fates.go_on()
        self.release()
        self.turns.written()

    @property
    def full_disk(self) -> JournalError | None:
        """Why no journal file can be made, if addresses have policies for that; else None."""
        return self._journal.blocked if self.engine.full_disk.has_policies else None

    @property
    def journal_waiters(self) -> int:
        """Those who wait because no journal file can be made; 0 while there is room."""
        if self._journal.blocked is None:
            return 0
        return len(self._blocked) + self._space_waiters

    def waits_for_room(self, handle: int) -> bool:
        """Whether a connection waits for room in the journal, with all that its client sent since.

        Args:
            handle: That of its output.
        """
        connection = self.connections.get(handle)
        return connection is not None and (connection in self._blocked or connection in self._space)

    def on_blocked(self) -> None:
        """Let policies decide about those that wait for room: the disk is full."""
        if self.large is None or self.large.full is None:
            self.engine.full_disk.begin()
        if self.engine.full_disk.has_policies:
            self._let_go_on()
            self.touch()

    def _on_large_full(self) -> None:
        if self._journal.blocked is None:
            self.engine.full_disk.begin()

    def on_space(self) -> None:
        """Let those go on that found no room in the journal's files."""
        self.engine.dispatcher.room_made()
        self.engine.fates.go_on()
        self._let_go_on()
        self.touch()

    def _let_go_on(self) -> None:
        blocked, self._blocked = self._blocked, set()
        for connection in blocked:
            self.closed_clients.forget(connection)
            connection.go_on()
        for owner in list(self._space):
            self._release_waiters(owner)

    def _release_waiters(self, connection: Connection | None) -> None:
        """Let what waits for room on behalf of a connection try again."""
        for waiter in self._space.pop(connection, ()):
            if not waiter.done():
                waiter.set_result(None)

    def block(self, connection: Connection) -> None:
        """Note a connection that goes on reading when the journal has room."""
        self._blocked.add(connection)
        self.watch(connection)
        self._journal.request_space()

    def watch(self, connection: Connection) -> None:
        """Cut a connection that is not read off when its client closes; until it is forgotten."""
        self.closed_clients.watch(connection, is_consuming=_is_consuming(connection))

    def unblock(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        self._blocked.discard(connection)
        self.closed_clients.forget(connection)
        self.producers.end(connection)
        # What waits holds bodies in files, which may be what fills the disk.
        self._release_waiters(connection)

    async def space(self, connection: Connection | None = None) -> None:
        """Wait until the journal may have room.

        Args:
            connection: Whose work waits: the wait ends with it, and it is cut off if its client
                closes meanwhile. None: the wait does not depend on a connection.
        """
        waiter = self.loop.create_future()
        self._space.setdefault(connection, []).append(waiter)
        self._journal.request_space()
        self.touch()
        self._space_waiters += 1
        try:
            with self.watching(connection) if connection is not None else nullcontext():
                await waiter
        finally:
            self._space_waiters -= 1
            if waiter in (waiting := self._space.get(connection, [])):  # it was cancelled
                waiting.remove(waiter)

    def watching(self, connection: Connection) -> AbstractContextManager[None]:
        """Have a connection that is not read cut off when its client closes, in a `with` block."""
        return self.closed_clients.watching(connection, is_consuming=_is_consuming(connection))

    async def durable(self) -> None:
        """Wait until all that is staged is durable.

        Raises:
            WriterFailed: It will never be.
        """
        self.touch()
        await self._journal.wait_durable()

    # --- transactions without end ---------------------------------------------------------------

    def _scan_transactions(self) -> None:
        period_s = self.engine.transaction_scan_period_s
        self._scan = self.loop.call_later(period_s, self._scan_transactions)
        self.expire_transactions(self.loop.time())

    def expire_transactions(self, now_s: float) -> None:
        """Roll back transactions that take too long, local ones and branches.

        Args:
            now_s: The loop's clock.
        """
        branches = self.engine.branches
        before_s = now_s - branches.timeout_s
        for connection in self.connections.values():
            if connection.handler is not None:
                branches.timed_out += connection.handler.expire_transactions(before_s)
        if branches.tick(now_s) | self.engine.fences.tick():
            self.touch()

    # --- failures -------------------------------------------------------------------------------

    def fail(self, sentence: str) -> None:
        """Tell all clients that nothing will be confirmed any more, and disconnect them.

        Args:
            sentence: Why.
        """
        self.failure = sentence
        for connection in list(self.connections.values()):
            connection.refuse(sentence)

    def count_error(self, kind: str) -> None:
        """Count an error that a client caused, by its kind."""
        self.errors[kind] += 1

    def _sweep_partial(self, now_s: float) -> None:
        self._sweep = Deadline(self.loop, SWEEP_PERIOD_S, self._sweep_partial)
        # What frees memory outside of a turn, and those who were let go in vain, are found here.
        self.engine.memory.refresh()
        self.producers.let_go()
        self.engine.registry.unrouted_messages.report()
        for connection in list(self.partial):
            connection.check_rate(now_s)


def _is_consuming(connection: Connection) -> bool:
    """Whether a connection has consumers: they hold messages that others could have."""
    return connection.handler is not None and bool(connection.handler.subscriptions_count)

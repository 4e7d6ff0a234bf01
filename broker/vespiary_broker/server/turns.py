"""What frames may take of a turn of the loop, so that all other connections have theirs.

Owns two bounds. A connection whose frames have taken long since it was read goes on behind the
others. And of the frames that need a task (subscriptions, commits), of all connections together, as
many begin in a turn as turns have time for; the rest wait in their order, each with all that its
connection sent behind it. What follows from the end of a connection stands in the same order: who
comes back finds given back what it had. While the journal writes, turns count as one, up to
`HOLD_S`: the loop is to be free when the write ends, for those whom it confirms. Must never know
what a frame asks for. Called by `connection` and `cycle`; owner: the event loop.

How many begin is found by measuring whole turns, as a frame's price is not known before: as many as
would have fitted into a turn that took too long, twice as many after a short one, and never none.

Frames that wait, for their turn or for what they need, hold up the reading of their connections, so
the end of a client is not read. Those who are gone are cut off instead of being worked for: clients
that come, send thousands of frames and go would be served one after the other otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Protocol

from vespiary_broker.engine.ports import Spawn
from vespiary_broker.server.closed_clients import ClosedClients, Watched

SHARE_S: Final = 0.004
"""Seconds of the processor that frames of one connection take before others have their turn."""
LOOK_FRAMES: Final = 16
"""Frames between two looks at the clock."""
TURN_S: Final = 0.0005
"""Seconds of the processor that a turn may take in which frames of that kind begin."""
HOLD_S: Final = 0.002
"""Seconds that a write holds up frames of that kind, at most."""
BEGUN_MAX: Final = 32
"""Most that begin in one turn."""


class Worker(Watched, Protocol):
    """A connection whose frames need tasks.

    Attributes:
        is_busy: Whether a frame is being handled by a task.
    """

    is_busy: bool


class Rest:
    """Done in the next turn: what is awaited for nothing but the turn of others."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


REST: Final = Rest()


class Done(Rest):
    """All is done: nothing is awaited but that a task begins, in the next turn."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE: Final = Done()


class Begun:
    """The rest of a coroutine that has run until it waits for the first time.

    Args:
        work: The coroutine, suspended.
        waits_for: What it yielded to its task: a future, or None for the next turn.
    """

    __slots__ = ("_waits_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        work, waits_for = self._work, self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # the task is cancelled
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration:
            return


class Turns:
    """The turns of the loop.

    Attributes:
        most: How many frames that need a task begin in a turn now.
        clock: Seconds that the loop's thread has had of the processor.
        hold_s: Seconds that a write holds up frames of that kind, at most.

    Args:
        loop: The event loop.
        spawn: Runs a coroutine in the background.
        closed_clients: Cuts off those who wait in vain.
        is_writing: Whether a write of the journal is in flight; `written` is called at its end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spawn: Spawn,
        closed_clients: ClosedClients,
        is_writing: Callable[[], bool],
    ) -> None:
        self.most = BEGUN_MAX
        self.clock: Callable[[], float] = time.thread_time
        self.hold_s = HOLD_S
        self._loop = loop
        self._spawn = spawn
        self._closed_clients = closed_clients
        self._is_writing = is_writing
        self._waiting: deque[tuple[Worker, Coroutine[Any, Any, None]]] = deque()
        self._frames = 0
        self._until_s = 0.0
        self._is_ticking = self._is_closed = False
        self._turn_s = 0.0  # when this turn began
        self._started: list[Worker] = []  # in this turn: they have run until they waited
        self._begun: list[Worker] = []  # in this turn: they run in the next one
        self._running: list[Worker] = []
        self._begun_count = 0  # of `most`
        self._counted_since_s = 0.0
        self._held: asyncio.TimerHandle | None = None  # nothing is done before the write's end

    @property
    def waiting_count(self) -> int:
        """Frames that have not begun."""
        return len(self._waiting)

    @property
    def is_begun(self) -> bool:
        """Whether frames that have begun come before what else there is to do."""
        return bool(self._started or self._begun or self._running)

    # --- the share of one connection --------------------------------------------------------------

    def open(self) -> None:
        """Begin a connection's share: it was read, or goes on."""
        self._frames = 0
        self._until_s = self.clock() + SHARE_S

    @property
    def is_over(self) -> bool:
        """Whether the connection whose share was begun last has taken all of it."""
        return self.clock() >= self._until_s

    def rest(self) -> Rest | None:
        """Return what a connection has to wait for behind a frame; None: nothing."""
        self._frames += 1
        return REST if self._frames % LOOK_FRAMES == 0 and self.is_over else None

    # --- frames that need a task ------------------------------------------------------------------

    def started(self, connection: Worker, work: Awaitable[None] | None) -> Awaitable[None] | None:
        """Run the work of a frame until it waits, if this turn has time for it.

        So a frame takes effect before what others send after it: a message that is published after
        a SUBSCRIBE was read reaches the subscription.

        Args:
            connection: Whose frame it is.
            work: What is left to do; None: nothing.

        Returns:
            What is left to do now; None: nothing. The next frame of the connection waits for the
            next turn, so each connection has a turn before one has two.

        Raises:
            VespiaryError: The work raised it.
        """
        if not isinstance(work, Coroutine) or self._is_closed or self._has_to_wait():
            return work
        self._started.append(connection)
        self._begun_count += 1
        try:
            waits_for = work.send(None)
        except StopIteration:
            return _DONE
        return Begun(work, waits_for)

    def begin(
        self, connection: Worker, work: Coroutine[Any, Any, None], *, is_rest: bool = False
    ) -> None:
        """Run what a frame needs a task for, when there is time.

        Args:
            connection: Whose frame it is; cut off if its client is gone before that is done.
            work: The task.
            is_rest: Whether it costs nothing now: it only waits for the next turn, or it was
                started and counted.
        """
        if is_rest or self._is_closed:
            self._spawn(work)
            return
        if self._has_to_wait():
            self._watch(connection)
            self._waiting.append((connection, work))
            return
        self._begin(connection, work)

    def leave(self, connection: Worker, act: Callable[[], None]) -> None:
        """Do what follows from the end of a connection, when there is time.

        Thousands may end at once. What others send after it is begun after it.

        Args:
            connection: The one that is gone.
            act: Gives back what it had.
        """
        if self._is_closed or not self._has_to_wait():
            self._begun_count += 1
            act()
        else:
            self._waiting.append((connection, _done(act)))

    def end(self, connection: Worker, *, is_watched: bool) -> None:
        """Note that a frame's task is done.

        Args:
            connection: Whose.
            is_watched: Whether somebody else has it watched.
        """
        if not is_watched:
            self._closed_clients.forget(connection)

    def _watch(self, connection: Worker) -> None:
        # As long as it may read, its client is served: what it sent may be all that it wanted.
        self._closed_clients.watch(connection, is_consuming=False)

    def written(self) -> None:
        """Go on: a write of the journal has ended, and who waited for it has been told."""
        if self._held is not None:
            self._tick()

    def close(self) -> None:
        """Run all that waits: the broker stops."""
        self._is_closed = True
        while self._waiting:
            self._begin(*self._waiting.popleft())

    def _has_to_wait(self) -> bool:
        """Begin a turn if none is going on, and return whether it has no time left."""
        if not self._is_ticking:
            self._is_ticking = True
            self._turn_s = self.clock()
            self._count_anew()
            self._loop.call_soon(self._tick)
        return bool(self._waiting) or self._begun_count >= self.most

    def _begin(self, connection: Worker, work: Coroutine[Any, Any, None]) -> None:
        self._begun.append(connection)
        self._begun_count += 1
        self._spawn(work)

    def _count_anew(self) -> None:
        """Let as many begin as may in a turn, unless it belongs to the turn before."""
        now_s = time.monotonic()
        if not self._is_writing() or now_s >= self._counted_since_s + self.hold_s:
            self._begun_count, self._counted_since_s = 0, now_s

    def _tick(self) -> None:
        """End a turn, and begin in the next one what there is time for."""
        if self._held is not None:
            self._held.cancel()
            self._held = None
        ran = self._running + self._started
        self._learn(len(ran))
        for connection in ran:
            if connection.is_busy:  # it waits for something
                self._watch(connection)
        self._running, self._begun, self._started = self._begun, [], []
        self._count_anew()
        while self._waiting and self._begun_count < self.most:
            self._begin(*self._waiting.popleft())
        if self._begun or self._running:
            self._loop.call_soon(self._tick)
        elif self._waiting:
            self._held = self._loop.call_later(self.hold_s, self._tick)
        else:
            self._is_ticking = False

    def _learn(self, ran: int) -> None:
        """Find out how many fit into a turn, of which so many have run."""
        now_s = self.clock()
        took_s, self._turn_s = now_s - self._turn_s, now_s
        if not ran:
            return
        if took_s > TURN_S:
            self.most = max(1, int(ran * TURN_S / took_s))
        elif took_s < TURN_S / 2 and ran >= self.most:
            self.most = min(BEGUN_MAX, self.most * 2)


async def _done(act: Callable[[], None]) -> None:
    act()

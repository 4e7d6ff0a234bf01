"""Time of one turn of the event loop for work whose cost clients choose.

Owns the bound: filters, selectors and patterns of all clients together get `SHARE_S` of a turn, and
what is begun by then comes to its end. Whoever finds no time left goes on in a later turn, in the
order in which that was noticed, so that nobody is left out. Must never know what is done. Asked by
`switching`, `dispatch`, `fates`, and by whoever walks over a queue or what is retained; owner: the
event loop.

What is begun is one evaluation of one selector, whose cost `selection.costs` bounds, the
compilation of one, whose words `selection.grammar` bounds, or a step of other work of which clients
choose the amount: a batch of messages that move, a filter of a SUBSCRIBE, a retained message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

SHARE_S: Final = 0.005
"""Seconds of one turn that such work may take."""
LOOK_US: Final = 100.0
"""Work, by its estimate, between two looks at the clock."""
_PATIENCE_TURNS: Final = 4
"""Turns in which the first of those that wait need not ask again."""
_HEADERS_BYTES: Final = 65_536
_HEADERS_US: Final = 3000.0
"""What it costs to find values in so many bytes of headers, at most."""


class NextTurn:
    """Done in the next turn: what is awaited by whoever found no time in this one."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


NEXT_TURN: Final = NextTurn()


def evaluation_us(cost_us: float, headers_bytes: int) -> float:
    """Return about what the evaluation of a selector costs at most, in microseconds.

    Args:
        cost_us: The selector's cost for the longest headers.
        headers_bytes: How long they are.
    """
    return 1.0 + (cost_us + _HEADERS_US) * headers_bytes / _HEADERS_BYTES


class TurnTime:
    """See the module's docstring.

    Attributes:
        clock_s: Tells how long something takes.
        next_turn: Calls something in the next turn of the loop; the server sets it. None: there
            are no turns, and no bound.
        waits: How often somebody found no time left.
    """

    __slots__ = (
        "_first", "_first_turns", "_is_turning", "_served", "_spent_s", "_waiting", "clock_s",
        "next_turn", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.clock_s: Callable[[], float] = time.perf_counter
        self.next_turn: Callable[[Callable[[], None]], object] | None = None
        self.waits = 0
        self._spent_s = 0.0
        self._served: Hashable = None  # who has this turn's time now
        self._waiting: dict[Hashable, None] = {}
        self._first: Hashable = None  # who was the first to wait when the last turn began
        self._first_turns = 0  # turns since then
        self._is_turning = False  # the next turn will be noticed

    def share(self, who: Hashable) -> Share:
        """Return what somebody has of this turn; to be ended in the same turn.

        Args:
            who: Whose work it is, for the order of those that wait.
        """
        return Share(self, who)

    async def run(self, act: Callable[[], T]) -> T:
        """Do something in this turn if there is time, or in a later one.

        Args:
            act: What is done; it comes to its end in that turn.

        Raises:
            Exception: What `act` raises.
        """
        stint = Stint(self)
        await stint.time()
        try:
            return act()
        finally:
            stint.end()

    def may(self, who: Hashable) -> bool:
        """Return whether there is time left; False: whoever asks is to ask again in a later turn.

        Args:
            who: Whose work it is.
        """
        if self.next_turn is None:
            return True
        waiting = self._waiting
        if self._spent_s < SHARE_S:
            if who == self._served:
                return True
            if not waiting or next(iter(waiting)) == who:
                waiting.pop(who, None)
                self._served = who
                return True
        if who not in waiting:
            waiting[who] = None
            self.waits += 1
            self._await_turn()
        return False

    def spend(self, spent_s: float) -> None:
        """Take note of work that was done."""
        self._spent_s += spent_s
        self._await_turn()

    def _await_turn(self) -> None:
        if not self._is_turning and self.next_turn is not None:
            self._is_turning = True
            self.next_turn(self._turn)

    def _turn(self) -> None:
        """Begin a turn."""
        self._spent_s, self._served, self._is_turning = 0.0, None, False
        if not self._waiting:
            self._first = None
            return
        first = next(iter(self._waiting))
        self._first_turns = self._first_turns + 1 if first == self._first else 0
        self._first = first
        if self._first_turns > _PATIENCE_TURNS:  # it is gone, and may hold up nobody
            del self._waiting[first]
        self._await_turn()


class Share:
    """What somebody has of one turn.

    Args:
        turn_time: The turn's time.
        who: Who it is.
    """

    __slots__ = ("_began_s", "_is_granted", "_turn_time", "_unseen_us", "_who")

    def __init__(self, turn_time: TurnTime, who: Hashable) -> None:
        self._turn_time = turn_time
        self._who = who
        self._unseen_us = 0.0
        self._is_granted = turn_time.may(who)
        self._began_s = turn_time.clock_s()

    @property
    def has_time(self) -> bool:
        """Whether something more may be begun; False: in a later turn."""
        if self._unseen_us >= LOOK_US:
            self.end()
            self._unseen_us = 0.0
            self._is_granted = self._is_granted and self._turn_time.may(self._who)
        return self._is_granted

    def did(self, cost_us: float) -> None:
        """Take note of work; the clock is looked at when there is enough of it.

        Args:
            cost_us: What it costs at most, about, in microseconds.
        """
        self._unseen_us += cost_us

    def end(self) -> None:
        """Take note of the time that was taken."""
        now_s = self._turn_time.clock_s()
        self._turn_time.spend(now_s - self._began_s)
        self._began_s = now_s


class Stint:
    """Work of a task that goes over as many turns as it needs.

    Args:
        turn_time: The turns' time.
    """

    __slots__ = ("_share", "_turn_time")

    def __init__(self, turn_time: TurnTime) -> None:
        self._turn_time = turn_time
        self._share: Share | None = None

    async def time(self) -> None:
        """Wait until there is time for something more: in this turn, or in a later one."""
        while True:
            if self._share is None:
                self._share = self._turn_time.share(self)
            if self._share.has_time:
                return
            self.end()
            await NEXT_TURN

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a part of the work in this turn if there is time, or in a later one.

        Args:
            work: The part; its time counts until it waits for something.

        Raises:
            Exception: What `work` raises.
        """
        try:
            await self.time()
        except BaseException:
            work.close()
            raise
        self.did(LOOK_US)
        return await _Measured(self, work)

    async def run_all(self, works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Do all parts of the work, one after the other; return their results.

        The first begins at once: work of one part waits for nobody.

        Args:
            works: The parts, made when it is their turn.

        Raises:
            Exception: What a part raises; none is done behind it.
        """
        results: list[T] = []
        for work in works:
            results.append(await (self.run(work) if results else work))
        self.end()
        return results

    def did(self, cost_us: float) -> None:
        """Take note of work that followed `time` (see `Share.did`)."""
        if self._share is not None:
            self._share.did(cost_us)

    def end(self) -> None:
        """Take note of the time that was taken; to be called before anything else is awaited."""
        if self._share is not None:
            self._share.end()
            self._share = None


class _Measured(Generic[T]):
    """A part of the work of a stint, which ends it where it waits for something."""

    __slots__ = ("_stint", "_work")

    def __init__(self, stint: Stint, work: Coroutine[Any, Any, T]) -> None:
        self._stint = stint
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        work = self._work
        try:
            waits_for = work.send(None)
            self._stint.end()
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:  # the task is cancelled
                    waits_for = work.throw(error)
                else:
                    waits_for = work.send(sent)
        except StopIteration as stop:
            result: T = stop.value
            return result

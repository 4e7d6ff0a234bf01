"""Checks of passwords away from the event loop: one thread, a fair queue, one hash for all who ask.

Owns the thread, the queue of what waits for it, and who waits for each hash. Logins of the same
user with the same password share one hash, so that thousands of clients that reconnect cost a few
of them. Must never log or keep a password longer than its check takes. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from vespiary_broker.engine.login_queue import LoginQueue, Rank
from vespiary_broker.engine.logins import Check, Logins
from vespiary_broker.server.failed_logins import FailedLogins
from vespiary_spec.errors import LoginBusy

WAITING_MAX: Final = 1024
"""Hashes that wait, each of another user or password; each takes about a quarter of a second."""
_WAITERS_LOOKED_AT: Final = 256
"""Those who wait for one hash, from which on it is looked at times who of them has left."""
_LEFT: Final = "the client left before its password was checked"


class _Job:
    """One hash, and who waits for it."""

    def __init__(
        self,
        work: Callable[[], Any],
        rank: Rank,
        key: object = None,
        pair: tuple[str, str] = ("", ""),
    ) -> None:
        self.work = work
        self.key = key
        self.pair = pair  # name and network
        self.rank = rank
        self.is_begun = False
        self.waiters: list[tuple[asyncio.Future[Any], Callable[[], bool]]] = []
        self._look_at = _WAITERS_LOOKED_AT
        self.on_done: Callable[[Any], None] = lambda _: None

    def join(self, waiter: asyncio.Future[Any], is_there: Callable[[], bool]) -> None:
        """Add somebody who waits for the result, at times in place of all who have left.

        A client that connects, sends a password and leaves, again and again, would fill the memory
        otherwise while its job waits.

        Args:
            waiter: Takes the result.
            is_there: Whether it is still there.
        """
        self.waiters.append((waiter, is_there))
        if len(self.waiters) < self._look_at:
            return
        present = []
        for each in self.waiters:
            if each[1]():
                present.append(each)
            elif not each[0].done():
                each[0].set_exception(LoginBusy(_LEFT))
        self.waiters = present
        self._look_at = max(_WAITERS_LOOKED_AT, 2 * len(present))

    @property
    def is_wanted(self) -> bool:
        """Whether somebody who waits for it is still there."""
        return any(not waiter.done() and is_there() for waiter, is_there in self.waiters)

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Tell everybody who waits."""
        for waiter, _ in self.waiters:
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(result)


class PasswordChecks:
    """Checks passwords, one after another.

    Attributes:
        failures: Logs failed logins.
        on_outdated: Called with a check whose password is right and whose hash is weaker than
            those that are made now.
        begun: Hashes of passwords that were computed since the start.

    Args:
        logins: Is told what was found, before those are who wait for it.
        waiting_max: Most hashes that wait.
        derive: Computes a hash and compares; runs in the thread.
    """

    def __init__(
        self,
        logins: Logins,
        waiting_max: int = WAITING_MAX,
        derive: Callable[[Check], bool] = Check.is_good,
    ) -> None:
        self.on_outdated: Callable[[Check], None] = lambda _: None
        self.begun = 0
        self.failures = FailedLogins()
        self._logins = logins
        self._derive = derive
        self._queue: LoginQueue[_Job] = LoginQueue(waiting_max)
        self._jobs: dict[object, _Job] = {}
        self._pairs: Counter[tuple[str, str]] = Counter()  # of those jobs
        self._thread = ThreadPoolExecutor(1, "passwords")
        self._is_running = False
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Hashes that wait for the thread."""
        return len(self._queue)

    async def is_good(self, check: Check, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Return whether a password is right.

        Args:
            check: The check.
            is_wanted: Whether the client is still there: nothing is computed for one that left.

        Raises:
            LoginBusy: Too many others wait, or the client has left.
        """
        await self.pause(check.name, check.peer, is_wanted)
        if (verdict := self._logins.verdict(check)) is not None:
            return verdict
        rank = self._logins.rank_of(check, asyncio.get_running_loop().time())
        pair = (check.name, check.network)
        if rank is Rank.FRIEND and self._pairs[pair]:
            rank = Rank.STRANGER  # of several passwords of one user, at most one is right
        job = self._jobs.get(check.key)
        if job is None:
            job = _Job(lambda: self._derive(check), rank, check.key, pair)
            self._jobs[check.key] = job
            self._pairs[pair] += 1
            job.on_done = lambda is_good: self._learn(check, is_good=is_good)
            is_new = True
        else:
            is_new = rank < job.rank
        return bool(await self._wait(job, rank, check.network, is_wanted, is_new=is_new))

    async def pause(self, name: str, peer: str, is_wanted: Callable[[], bool]) -> None:
        """Wait as long as a login has to after failed ones.

        Args:
            name: The name that the client gave.
            peer: Address of its machine.
            is_wanted: Whether the client is still there.

        Raises:
            LoginBusy: The client has left.
        """
        pause_s = self._logins.pause_s(name, peer, asyncio.get_running_loop().time())
        if pause_s:
            with self._logins.pausing(name, peer):
                await asyncio.sleep(pause_s)
            if not is_wanted():
                raise LoginBusy(_LEFT)

    async def when_idle(self, work: Callable[[], Any]) -> Any:
        """Run work of the same kind that no client waits for; return what it returns.

        Raises:
            LoginBusy: The queue is full.
        """
        job = _Job(work, Rank.IDLE)
        return await self._wait(job, Rank.IDLE, "", lambda: True, is_new=True)

    def close(self) -> None:
        """End the thread; nothing is checked any more."""
        self._is_closed = True
        while (job := self._queue.take()) is not None:
            job.end(error=LoginBusy("the broker is stopping"))
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _wait(
        self, job: _Job, rank: Rank, network: str, is_wanted: Callable[[], bool], *, is_new: bool
    ) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job.join(waiter, is_wanted)
        if is_new and not job.is_begun:
            job.rank = rank  # it may wait in two places; the better one counts
            dropped = self._queue.put(job, rank, network)
            if dropped is not None and not dropped.is_begun:
                self._drop(dropped, LoginBusy("too many logins wait for their turn"))
        self._go_on()
        return await waiter

    def _go_on(self) -> None:
        """Begin the next hash if the thread is free."""
        while not self._is_running and not self._is_closed:
            job = self._queue.take()
            if job is None:
                return
            if job.is_begun:
                continue
            if not job.is_wanted:
                self._drop(job, LoginBusy(_LEFT))
                continue
            job.is_begun = self._is_running = True
            self.begun += 1
            running = asyncio.get_running_loop().run_in_executor(self._thread, job.work)
            running.add_done_callback(partial(self._done, job))

    def _done(self, job: _Job, done: asyncio.Future[Any]) -> None:
        self._is_running = False
        self._forget(job)
        if done.cancelled():
            job.end(error=LoginBusy("the broker is stopping"))
        elif (error := done.exception()) is not None:
            job.end(error=error)
        else:
            job.on_done(done.result())
            job.end(done.result())
        self._go_on()

    def _drop(self, job: _Job, error: LoginBusy) -> None:
        job.is_begun = True  # it may still wait in another place
        self._forget(job)
        job.end(error=error)

    def _forget(self, job: _Job) -> None:
        if self._jobs.pop(job.key, None) is None:
            return
        self._pairs[job.pair] -= 1
        if not self._pairs[job.pair]:
            del self._pairs[job.pair]

    def _learn(self, check: Check, *, is_good: bool) -> None:
        self._logins.learn(check, is_good=is_good)
        if is_good and check.user.is_outdated:
            self.on_outdated(check)

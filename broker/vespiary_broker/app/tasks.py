"""Work that administrators began and that goes on by itself: what it is, how far it is, its end.

Owns the tasks: a bounded number that runs, and a bounded number of ended ones that can be asked
for. They are not kept over a restart. Must never know what they do: `message_acts` does. Owner: the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from vespiary_broker.engine.ports import Spawn
from vespiary_spec.errors import RemoteProtocolError, VespiaryError

RUNNING_MAX: Final = 16
KEPT_MAX: Final = 200

log = logging.getLogger(__name__)


class TaskState(StrEnum):
    """How a task is."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class TaskStopped(Exception):  # noqa: N818  (a state, not a fault)
    """A task is to end before it is done."""


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """One piece of work.

    Attributes:
        id: Its number, from 1 in the order of their beginnings.
        act: What it does.
        queue: The queue whose messages it is about.
        to: The queue that they go to, or the dead letter or expiry address; empty: none.
        filter_string: Selector of the messages; empty: all.
        total: Messages that there were to look at when it began.
        looked: Messages that it has looked at.
        messages: Messages with which it was done.
        kept: Messages that were chosen, and stay: their target does not take them.
        kept_reason: Which queues are missing that some of these go back to, and how to make them,
            or where they may not be sent;
            empty: none is, and their target does not take them.
        state: How it is.
        reason: Why it failed or stopped, as a sentence; empty if it did not.
        started_ms: When it began, milliseconds since 1970.
        ended_ms: When it ended; 0 while it runs.
        failure: What it failed of.
    """

    id: int = 0
    act: str
    queue: str
    to: str = ""
    filter_string: str = ""
    total: int = 0
    looked: int = 0
    messages: int = 0
    kept: int = 0
    kept_reason: str = ""
    state: TaskState = TaskState.RUNNING
    reason: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    failure: VespiaryError | None = None
    _stop_reason: str = ""
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        """Go on.

        Raises:
            TaskStopped: It was cancelled.
        """
        if self._stop_reason:
            raise TaskStopped(self._stop_reason)

    def stop(self, reason: str) -> None:
        """Have it end with its next step.

        Args:
            reason: Why, as a sentence.
        """
        self._stop_reason = self._stop_reason or reason

    def end(self, state: TaskState, reason: str, now_ms: int) -> None:
        """Note that it has ended."""
        self.state = state
        self.reason = reason
        self.ended_ms = now_ms
        self._ended.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or until some time is over.

        Args:
            timeout_s: Most seconds to wait, 0 or more.
        """
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return


Work = Callable[[Task], Awaitable[None]]


class Tasks:
    """The tasks of one broker.

    Args:
        spawn: Runs a coroutine in the background.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(
        self,
        spawn: Spawn,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._spawn = spawn
        self._clock_ms = clock_ms
        self._tasks: dict[int, Task] = {}
        self._last_id = 0
        self._is_closed = False

    def check_room(self) -> None:
        """Refuse one more task.

        Raises:
            RemoteProtocolError: As many run as may.
        """
        running = sum(task.state is TaskState.RUNNING for task in self._tasks.values())
        if running >= RUNNING_MAX:
            raise RemoteProtocolError(
                "too many tasks are running",
                measured=f"{running} tasks",
                allowed=f"at most {RUNNING_MAX}",
                cure="wait for one of them, or cancel one",
            )

    def start(self, task: Task, work: Work) -> Task:
        """Begin a task.

        Args:
            task: It; gets its number and time.
            work: Does it, and counts in the task.

        Raises:
            RemoteProtocolError: As many run as may.
        """
        self.check_room()
        self._last_id += 1
        task.id, task.started_ms = self._last_id, self._clock_ms()
        self._tasks[task.id] = task
        ended = [id_ for id_, known in self._tasks.items() if known.state is not TaskState.RUNNING]
        for id_ in ended[: max(0, len(self._tasks) - KEPT_MAX)]:
            del self._tasks[id_]
        if self._is_closed:
            task.stop("the broker is stopping")
        self._spawn(self._run(task, work))
        return task

    async def _run(self, task: Task, work: Work) -> None:
        state, reason = TaskState.FAILED, "a defect of the broker; its log has the details"
        try:
            await work(task)
            state, reason = TaskState.DONE, ""
        except TaskStopped as stopped:
            state, reason = TaskState.CANCELLED, str(stopped)
        except VespiaryError as error:
            task.failure, reason = error, str(error)
        finally:
            task.end(state, reason, self._clock_ms())
            log.info(
                "task ended act=%s queue=%s to=%s state=%s messages=%d kept=%d reason=%r",
                *(task.act, task.queue, task.to, task.state, task.messages, task.kept, reason),
            )

    def all(self) -> list[Task]:
        """Return those that run and those that ended last, oldest first."""
        return list(self._tasks.values())

    def get(self, task_id: int) -> Task | None:
        """Return a task; None: there is none of that number, or it ended long ago."""
        return self._tasks.get(task_id)

    def cancel(self, task: Task) -> None:
        """Have a task end with its next step; what it has done stays done."""
        task.stop("it was cancelled by an administrator")

    def close(self) -> None:
        """Have all tasks end: the broker stops."""
        self._is_closed = True
        for task in self._tasks.values():
            task.stop("the broker is stopping")

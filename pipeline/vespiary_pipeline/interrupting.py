"""Ctrl-C: what Spark does is ended first, then whoever waits for it.

Owns the handler of SIGINT of a session, and what becomes of a Java that is starting. PySpark's own
handler calls Spark over the connection that the interrupted call is waiting on, which breaks it:
the jobs go on, and what they write may come back behind the clearing up. A Java whose start was
interrupted finds nobody to tell its port to, and would wait for ever. Called by `session`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

_CANCEL_TIMEOUT_S: Final = 5.0


@contextmanager
def interruptible(cancel_jobs: Callable[[], object]) -> Iterator[None]:
    """Have SIGINT end Spark's jobs, then raise KeyboardInterrupt, while the block runs.

    A second one raises at once. Outside of the main thread nothing is changed, as Python handles
    signals there alone.

    Args:
        cancel_jobs: Ends all jobs; called in a thread of its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_first = True

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            # A thread has a connection of its own; one that gets no answer is not waited for.
            canceller = threading.Thread(target=cancel_jobs, name="cancel", daemon=True)
            canceller.start()
            canceller.join(_CANCEL_TIMEOUT_S)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ending_children() -> Iterator[None]:
    """End the processes that the block has begun if it is interrupted."""
    before = _children()
    try:
        yield
    except KeyboardInterrupt:
        for child in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        raise


def _children() -> set[int]:
    """Return the processes that this thread has begun and not yet buried."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    try:
        return {int(word) for word in path.read_text().split()}
    except FileNotFoundError:  # a kernel that does not tell: nothing is known to be ours
        return set()

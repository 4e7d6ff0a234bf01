"""`HeldExecutor`: work for a thread waits until a test says that it is its turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class HeldExecutor(Executor):
    """Keeps what it is given until `release`.

    Attributes:
        waiting: The works, in the order in which they came.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_holding = True

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*args, **kwargs)))
        if not self.is_holding:
            self.release()
        return future

    def release(self, number: int = 0) -> None:
        """Do one of the works that wait, in the caller's thread."""
        future, work = self.waiting.pop(number)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def let_go(self) -> None:
        """Do all of it, and what comes from now on at once."""
        self.is_holding = False
        while self.waiting:
            self.release()

"""A core that says `NoRoom` when the test wants it: a disk that is full at one step of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from vespiary_native.abc import Core, NoRoom


class RefusingCore:
    """Hands all calls on, but those that are to be refused.

    Attributes:
        refusals: How often a method is refused from now on, by its name.
        failures: What a method raises from now on, by its name, given its arguments; None: nothing.
        calls: Calls that were handed on, by name.

    Args:
        core: A real core.
    """

    def __init__(self, core: Core) -> None:
        self.refusals: Counter[str] = Counter()
        self.failures: dict[str, Callable[..., Exception | None]] = {}
        self.calls: Counter[str] = Counter()
        self._core = core

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self.refusals[name] > 0:
            self.refusals[name] -= 1
            raise NoRoom(f"the test has {name} refused")
        failure = self.failures[name](*arguments) if name in self.failures else None
        if failure is not None:
            raise failure
        self.calls[name] += 1
        return method(*arguments, **named)

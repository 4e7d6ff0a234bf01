"""Threads and sockets that are late, at random: what a busy machine does now and then.

A test, or the product, that takes for granted what comes right after something else fails here in
minutes, not once in ten thousand runs. `make verify PART=late` puts this folder on PYTHONPATH, so
that it is in the tests and in all Python processes that they start. Owns nothing; does nothing
without VESPIARY_LATE, the share of results that are late (0 to 1).

What is late: the start of work in a thread, its result, and what a selector says is ready (asked
again, it says so again); with uvloop, whose selector is in C, what the readers of descriptors are
called for. Threads change a hundred times as often.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DELAY_MAX_S = 0.02
SWITCH_S = 1e-4
_chance = random.Random()  # of its own: a test that seeds the common one gets its numbers
_share = float(os.environ.get("VESPIARY_LATE") or 0)


def _be_late() -> None:
    if _chance.random() < _share:
        time.sleep(_chance.random() * DELAY_MAX_S)


def _late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is called some time later."""

    def called_late(*args: Any, **names: Any) -> Any:
        _be_late()
        return function(*args, **names)

    return called_late


def _partly(select: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `select` that leaves half of what is ready for the next call, now and then.

    Not of a subclass: that of the virtual clock has to know when nothing is ready.
    """

    def selected(selector: Any, *args: Any, **names: Any) -> Any:
        ready = select(selector, *args, **names)
        is_plain = type(selector).__module__ == "selectors"
        if ready and is_plain and _chance.random() < _share:
            ready = [one for one in ready if _chance.random() < 0.5]
        return ready

    return selected


def _partly_called(add_reader: Callable[..., None]) -> Callable[..., None]:
    """Return an `add_reader` whose readers are not called for what is ready, now and then."""

    def added(loop: Any, descriptor: Any, reader: Callable[..., Any], *args: Any) -> None:
        def called(*values: Any) -> None:
            if _chance.random() >= _share or _chance.random() < 0.5:
                reader(*values)

        add_reader(loop, descriptor, called, *args)

    return added


class _Finder:
    """Makes everything late once asyncio is imported: what never is starts as quickly as ever."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "asyncio.base_events":
            _make_late()
        if name != "uvloop":
            return None
        sys.meta_path.remove(self)  # it imports asyncio first
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_late(module: ModuleType) -> None:
                load(module)
                module.Loop.add_reader = _partly_called(module.Loop.add_reader)

            spec.loader.exec_module = load_late  # type: ignore[method-assign]
        return spec


def _make_late() -> None:
    import concurrent.futures.thread
    import selectors

    work, future = concurrent.futures.thread._WorkItem, concurrent.futures.Future
    work.run = _late(work.run)  # type: ignore[method-assign]
    future.set_result = _late(future.set_result)  # type: ignore[method-assign]
    future.set_exception = _late(future.set_exception)  # type: ignore[method-assign]
    selectors.EpollSelector.select = _partly(selectors.EpollSelector.select)  # type: ignore[method-assign]


if _share:
    sys.setswitchinterval(SWITCH_S)
    sys.meta_path.insert(0, _Finder())

"""The parser of selectors is built once, in a thread that keeps the event loop waiting shortly."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from vespiary_broker.engine.selection.selector import Selector
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.server import compiling_in_time
from vespiary_broker.server.compiling_in_time import SWITCH_S, compile_in_time
from vespiary_testkit import product_loop

_WAITING = 20


class Parser:
    """Stands in for the parser of the process, which other tests may have built.

    Args:
        act: What building it does.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
        self.is_built = False
        self.threads: list[int] = []
        self._act = act
        monkeypatch.setattr(compiling_in_time, "is_parser_prepared", lambda: self.is_built)
        monkeypatch.setattr(compiling_in_time, "prepare_parser", self._build)

    def _build(self) -> None:
        self.threads.append(threading.get_ident())
        self._act()
        self.is_built = True


def test_all_that_wait_have_the_parser_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    all_wait = threading.Event()
    parser = Parser(monkeypatch, lambda: assert_set(all_wait))
    turn_time = TurnTime()

    async def compile_all() -> list[Selector | None]:
        begun = [
            asyncio.ensure_future(compile_in_time("a = 1", turn_time)) for _ in range(_WAITING)
        ]
        await asyncio.sleep(0)  # each has asked for the parser
        all_wait.set()
        return await asyncio.gather(*begun)

    found = product_loop.run(compile_all())
    assert [selector.text for selector in found if selector is not None] == ["a = 1"] * _WAITING
    assert len(parser.threads) == 1
    assert parser.threads[0] != threading.get_ident()


def test_the_loop_gets_the_interpreter_often_while_the_parser_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual_s = sys.getswitchinterval()
    seen_s: list[float] = []
    Parser(monkeypatch, lambda: seen_s.append(sys.getswitchinterval()))
    compiled()
    assert seen_s == [pytest.approx(SWITCH_S)]
    assert sys.getswitchinterval() == pytest.approx(usual_s)


def test_a_parser_that_could_not_be_built_is_built_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual_s = sys.getswitchinterval()
    failures = [OSError(24, "Too many open files")]
    parser = Parser(monkeypatch, lambda: fail_with(failures))
    with pytest.raises(OSError, match="Too many open files"):
        compiled()
    assert sys.getswitchinterval() == pytest.approx(usual_s)
    assert compiled() is not None
    assert len(parser.threads) == 2


def compiled() -> Selector | None:
    """Compile a selector on a loop of its own."""
    return product_loop.run(compile_in_time("a = 1", TurnTime()))


def assert_set(event: threading.Event) -> None:
    """Wait for an event that has to come."""
    assert event.wait(60)


def fail_with(failures: list[OSError]) -> None:
    """Raise the first failure that is left."""
    if failures:
        raise failures.pop()

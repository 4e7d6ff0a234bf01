"""Compiling the selectors of clients so that nobody else waits for long.

Owns when that is done: the parser is built in a thread, once for all that wait for it, and
selectors are compiled in the time that a turn of the event loop has for them. Must never keep a
selector. Asked before a subscription or a look at a queue, by the HTTP API, and when the
configuration is read again; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from vespiary_broker.engine.selection.selector import (
    Selector,
    compile_selector,
    is_parser_prepared,
    prepare_parser,
)
from vespiary_broker.engine.turn_time import TurnTime

SWITCH_S: Final = 0.0005
"""Seconds after which the thread that builds the parser lets the event loop have the interpreter.

With Python's default of 0.005 s the loop could wait that long after each system call.
"""

_builder: Final = ThreadPoolExecutor(1, thread_name_prefix="selectors")
"""Has one thread: whoever comes while it builds finds the parser built."""


async def compile_in_time(text: str, turn_time: TurnTime) -> Selector | None:
    """Compile a selector in this turn, or in a later one that has time.

    Args:
        text: The selector; empty: there is none.
        turn_time: What a turn of the loop has for it.

    Returns:
        The selector. Whoever compiles the same text finds it as long as somebody has it, or if
        nothing else is compiled meanwhile. None: there is none.

    Raises:
        InvalidSelector: It is no condition; says where, and what was expected.
    """
    if not text:
        return None
    if not is_parser_prepared():
        await asyncio.get_running_loop().run_in_executor(_builder, _build)
    return await turn_time.run(partial(compile_selector, text))


def _build() -> None:
    """Build the parser, unless it was built meanwhile."""
    if is_parser_prepared():
        return
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        prepare_parser()
    finally:
        sys.setswitchinterval(usual_s)

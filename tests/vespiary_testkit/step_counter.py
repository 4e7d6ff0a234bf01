"""Counts the lines of Python that work executes: a measure of its cost that knows no clock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooManySteps(AssertionError):  # noqa: N818 (raised inside the work, which it ends)
    """Work that would take for ever is ended."""


def steps_of(work: Callable[[], object], most: int = 20_000_000) -> int:
    """Do some work; return how many lines it executed, each as often as it ran.

    What C does in one call (`str.find`, a regular expression) is part of one line. The garbage
    collector is off meanwhile.

    Args:
        work: What is measured.
        most: Where it is ended.

    Raises:
        TooManySteps: It has come to `most`.
    """
    steps = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps > most:
                raise TooManySteps(f"more than {most} lines")
        return note

    before = sys.gettrace()
    gc.disable()  # a collection calls what was registered for it, by Hypothesis for one
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps

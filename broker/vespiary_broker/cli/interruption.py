"""Ctrl-C and SIGTERM where they do no harm: while a command waits.

Owns the two signals while a command takes messages. A message that is printed has to be
acknowledged before the command ends, so the first signal is kept until the command waits next; the
second one ends it at once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Raises `KeyboardInterrupt` for a signal; use `caught` around all and `waiting` in it."""

    def __init__(self) -> None:
        self._signals = 0
        self._is_due = False
        self._is_waiting = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Take the signals while the block runs; only in the main thread."""
        before = {number: signal.signal(number, self._handle) for number in ENDING_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the first signal end the block.

        Raises:
            KeyboardInterrupt: A signal came, in the block or since the last one.
        """
        self._is_waiting = True
        try:
            if self._is_due:
                self._is_due = False
                raise KeyboardInterrupt
            yield
        finally:
            self._is_waiting = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        if self._is_waiting or self._signals > 1:
            raise KeyboardInterrupt
        self._is_due = True

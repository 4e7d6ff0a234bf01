"""The clocks that the engine goes by; tests have others.

Owns nothing but their types. Used by `engine`, which hands them on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Clocks(NamedTuple):
    """Two clocks, in milliseconds.

    Attributes:
        wall_ms: Since 1970. Somebody may set it: only what is meant by it may depend on it.
        steady_ms: Nobody sets this one: delays and periods are measured by it.
    """

    wall_ms: Callable[[], int] = _wall_ms
    steady_ms: Callable[[], int] = _steady_ms

"""Axes: where ticks stand, and what they say.

Owns: the choice of round steps. Must never draw. Called by `charts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from vespiary_pipeline.report import measures

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_TIME_STEPS_S: Final = (
    1, 5, 15, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY,
    30 * _DAY, 90 * _DAY, 365 * _DAY, 1825 * _DAY,
)  # fmt: skip


class Tick(NamedTuple):
    """A place on an axis, and its label."""

    value: float
    label: str


def _steps(high: float, step: float, label: Callable[[float], str]) -> list[Tick]:
    last = math.ceil(high / step - 1e-9)
    return [Tick(n * step, label(n * step)) for n in range(last + 1)]


def count_ticks(high: float, ticks: int = 4) -> list[Tick]:
    """Return whole ticks from 0 to at least `high`, in steps of 1, 2 or 5 times a power of ten.

    Args:
        high: The largest value, 0 or more.
        ticks: About how many steps.
    """
    rough = max(high, 1) / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    return _steps(max(high, 1), max(step, 1.0), measures.short_count)


def size_ticks(high: float, ticks: int = 4) -> list[Tick]:
    """Return ticks of bytes from 0 to at least `high`, in steps of powers of two.

    Args:
        high: The largest value in bytes, 0 or more.
        ticks: About how many steps.
    """
    step = 2.0 ** max(0, math.ceil(math.log2(max(high, 1) / ticks) - 1e-9))
    return _steps(max(high, 1), step, measures.size)


def time_ticks(low: datetime, high: datetime, ticks: int = 6) -> list[tuple[datetime, str]]:
    """Return round times in UTC between two, with labels as short as they can be.

    Args:
        low: Beginning of the axis, an aware time.
        high: Its end, not before `low`.
        ticks: About how many.
    """
    seconds = max((high - low).total_seconds(), 1.0)
    step = next((s for s in _TIME_STEPS_S if s * ticks >= seconds), None)
    if step is None:
        step = math.ceil(seconds / ticks / _TIME_STEPS_S[-1]) * _TIME_STEPS_S[-1]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    number = math.ceil((low - epoch).total_seconds() / step)
    found: list[tuple[datetime, str]] = []
    day = None
    while (at := number * step) <= (high - epoch).total_seconds():
        when = epoch + timedelta(seconds=at)
        found.append((when, _time_label(when, step, is_new_day=when.date() != day)))
        day = when.date()
        number += 1
    return found


def _time_label(when: datetime, step: int, *, is_new_day: bool) -> str:
    if step >= 90 * _DAY:
        return when.strftime("%Y-%m")
    if step >= _DAY or (when.hour == when.minute == when.second == 0 and is_new_day):
        return f"{when:%b} {when.day}"
    return when.strftime("%H:%M:%S" if step < _MINUTE else "%H:%M")

"""Counts what work does in each of its turns (`vespiary_broker.store.turns`), without a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from vespiary_broker.store.turns import Work

T = TypeVar("T")


class _Counted(list[int]):
    """Ids that count each look at one of them."""

    def __init__(self, looks: CountedLooks, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self._looks = looks

    def __iter__(self) -> Iterator[int]:
        for one in super().__iter__():
            self._looks.number += 1
            yield one


class CountedLooks:
    """How often something was looked at.

    Attributes:
        number: Looks since the last reset.
    """

    def __init__(self) -> None:
        self.number = 0

    def counted(self, ids: Sequence[int]) -> list[int]:
        """Return ids that count when they are looked at."""
        return _Counted(self, ids)

    def busy(self, _: int) -> bool:
        """Count a look at a file that is not busy."""
        self.number += 1
        return False


def ended(work: Work[T]) -> T:
    """Do all of some work at once; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def turns_of(work: Work[Any], looks: CountedLooks) -> list[int]:
    """Do all of some work; return the looks of each turn."""
    found = []
    while True:
        looks.number = 0
        try:
            next(work)
        except StopIteration:
            return [*found, looks.number]
        found.append(looks.number)

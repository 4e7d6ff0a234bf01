"""A model of routing: which queues get a message, without routes, steps or ranks kept in order.

Knows queues with filters, those of one client with ranks (`QueueTraits.rank`), wildcards and
diverts, and that something is under way. Compared with the engine by test_routing_machine.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vespiary_broker.engine.queue_traits import RETIRED
from vespiary_spec.diverts import Divert

Headers = Mapping[str, str]
SELECTORS: dict[str, Callable[[Headers], bool]] = {
    "": lambda _: True,
    "n = '1'": lambda headers: headers.get("n") == "1",
    "n = '1' OR m = '2'": lambda headers: headers.get("n") == "1" or headers.get("m") == "2",
    "m IS NULL": lambda headers: "m" not in headers,
}


def covers(pattern: str, address: str) -> bool:
    """Whether an address is, or matches, what may be a wildcard."""
    words = {"*": r"\.[^.]+", "#": r"(\..+)?"}
    parts = [words.get(word, rf"\.{word}") for word in pattern.split(".")]
    return re.fullmatch("".join(parts), f".{address}") is not None


@dataclass(eq=False)
class ModelQueue:
    """A queue.

    Attributes:
        is_coming: It is being made.
        is_confirmed: Its client knows that it is there.
        former: Its ranks before the changes that are under way.
    """

    number: int
    address: str
    selector: str = ""
    rank: int | None = None
    is_coming: bool = True
    is_confirmed: bool = False
    former: list[int | None] = field(default_factory=list)

    def place(self, choose: Callable[[list[int]], int]) -> tuple[int, int]:
        """Its place among those with ranks, which are one client's; the highest gets messages.

        Args:
            choose: Which of the ranks that it may have now.
        """
        return choose([rank or 0 for rank in (self.rank, *self.former)]), -self.number

    @property
    def is_required(self) -> bool:
        """Whether it, or one in its place, has to get messages."""
        return self.is_confirmed and RETIRED not in (self.rank, *self.former)


class Choice(NamedTuple):
    """Queues of which one gets a message; perhaps none if it is not required."""

    queues: set[str]
    is_required: bool


class Model:
    """What there is, and where messages go. While the diverts change, either of two may hold."""

    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {}
        self.diverts: list[dict[str, Divert]] = [{}]

    def choices(
        self, address: str, headers: Headers, diverts: dict[str, Divert]
    ) -> Iterator[Choice]:
        """Yield who gets a message: one queue of each choice."""
        for place in set(self._places(address, headers, diverts)):
            here = {name: q for name, q in self.queues.items() if covers(q.address, place)}
            for name, queue in here.items():
                if queue.rank is None and SELECTORS[queue.selector](headers):
                    yield Choice({name}, queue.is_required)
            ranked = {
                name: q
                for name, q in here.items()
                if q.rank is not None and {q.rank, *q.former} != {RETIRED}
            }
            least = max((q.place(min) for q in ranked.values() if q.is_required), default=None)
            names = {name for name, q in ranked.items() if least is None or q.place(max) >= least}
            yield Choice(names, least is not None)

    def _places(self, address: str, headers: Headers, diverts: dict[str, Divert]) -> Iterator[str]:
        met = [each for each in diverts.values() if covers(each.address, address)]
        met = [each for each in met if SELECTORS[each.filter_string](headers)]
        exclusive = [each for each in met if each.exclusive]
        if not exclusive:
            yield address
        for divert in exclusive or met:
            yield from self._places(divert.forwarding_address, headers, diverts)


def judge(taken: set[str], choices: list[Choice]) -> str:
    """Return what is wrong with who got a message; empty if nothing is.

    Args:
        taken: The queues that it is in.
        choices: What the model says.
    """
    allowed = Counter(name for choice in choices for name in choice.queues)
    if taken - allowed.keys():
        return f"not for {sorted(taken - allowed.keys())}"
    for queues, is_required in choices:
        if is_required and not taken & queues:
            return f"in none of {sorted(queues)}"
        if sum(allowed[name] == 1 for name in taken & queues) > 1:
            return f"in more than one of {sorted(queues)}"
    return ""

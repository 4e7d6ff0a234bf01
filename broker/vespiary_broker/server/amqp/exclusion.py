"""Messages that one consumer must not be given again (`undeliverable-here`).

Owns which they are. The queue is examined from then on, since its order depends on the consumer
(`engine.examined`). Called by `outcomes` and `fitting`.
"""

from __future__ import annotations

from itertools import count
from typing import Final

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.examined import examine_anew
from vespiary_broker.engine.lanes import Match
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.settling import Judge
from vespiary_codec.journal.page_sketch import PageSketch

EXCLUDED_MAX: Final = 10_000
_NUMBERS: Final = count(1)
_LOOK_US: Final = 5.0
"""What it costs at most to look for a message, and to estimate its size."""


class Excluding:
    """What a consumer wants, but for some messages; keeps `lanes.Match`.

    Attributes:
        text: Its selector, and what tells it from those of others.
        excluded: Sequences of what it does not get; the oldest is forgotten for one too many.

    Args:
        before: Its selector; None: all.
    """

    def __init__(self, before: Match | None) -> None:
        self.excluded: dict[int, None] = {}
        self._before = before
        self.text = f"{before.text if before is not None else ''}\0{next(_NUMBERS)}"

    def add(self, sequence: int) -> None:
        """Exclude a message."""
        self.excluded[sequence] = None
        if len(self.excluded) > EXCLUDED_MAX:
            del self.excluded[next(iter(self.excluded))]

    def wants(self, message: MessageView) -> bool:
        """Return whether a message may be given."""
        if message.sequence in self.excluded:
            return False
        return self._before is None or self._before.wants(message)

    def cost_us(self, message: MessageView) -> float:
        """Return about what `wants` costs at most, in microseconds."""
        return _LOOK_US if self._before is None else _LOOK_US + self._before.cost_us(message)

    def may_match(self, sketch: PageSketch) -> bool:
        """Return whether a message of a page may match; False: none does."""
        return self._before is None or self._before.may_match(sketch)


def exclude(core: Core, judge: Judge | None, consumer: Consumer, sequence: int) -> None:
    """Have a consumer not be given a message that it is about to give back.

    Args:
        core: The core.
        judge: Decides about special messages.
        consumer: The consumer, of a queue whose consumers take messages.
        sequence: The message.
    """
    match = consumer.match
    if isinstance(match, Excluding):
        match.add(sequence)
        return
    excluding = Excluding(match)
    excluding.add(sequence)
    take_match(core, judge, consumer, excluding)


def take_match(core: Core, judge: Judge | None, consumer: Consumer, match: Match) -> None:
    """Have a consumer be given what something else matches than before; its queue is examined.

    Args:
        core: The core.
        judge: Decides about special messages.
        consumer: The consumer, of a queue whose consumers take messages.
        match: What it wants.
    """

    def change() -> None:
        consumer.match = match

    examine_anew(core, judge, consumer, change)

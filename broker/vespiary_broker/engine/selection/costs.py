"""What it costs to evaluate a selector, as far as its text says.

Owns the figures. They are for one message with as many headers as a message may have (64 KiB), all
of which are what is worst for the selector, on a machine of 2020; most messages cost a thousandth.
They need to be right about LIKE alone: what else there is costs less than a microsecond, and
`grammar` bounds how many there are. Called by `selector`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.selection import patterns
from vespiary_broker.engine.selection.expressions import (
    Calculated,
    Compared,
    Connected,
    Expression,
    Identifier,
    IsNull,
    Like,
    Literal,
    Negated,
    OneOf,
    Signed,
)

_STEP_US: Final = 0.5


def cost_us(expression: Expression) -> float:
    """Return what one evaluation costs at most, in microseconds.

    Args:
        expression: A condition that was compiled.
    """
    match expression:
        case Literal() | Identifier():
            return 0.0
        case Connected(terms=terms):
            return sum(map(cost_us, terms))
        case Negated(term=term) | Signed(term=term) | IsNull(term=term) | OneOf(term=term):
            return _STEP_US + cost_us(term)
        case Compared(left=left, right=right):
            return _STEP_US + cost_us(left) + cost_us(right)
        case Calculated(first=first, rest=rest):
            return cost_us(first) + sum(_STEP_US + cost_us(term) for _, term in rest)
        case Like(term=term, pattern=pattern, escape=escape):
            return patterns.cost_us(pattern, escape) + cost_us(term)

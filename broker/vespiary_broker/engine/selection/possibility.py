"""Whether any of many messages can match a selector, told from a sketch of them.

Owns the meaning of a selector over what messages may be: each name stands for all values that it
may have, each condition for all of true, false and unknown that it may be. Must never rule out what
a message could be: what it does not follow may be anything. Two conditions are judged apart, so a
"yes" is a guess, and a "no" is certain (docs/decisions/0012). Called by those who look for messages
in pages; the sketch is `vespiary_codec.journal.page_sketch`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from vespiary_broker.engine.selection.comparisons import (
    EQUALITIES,
    boolean_of,
    calculate,
    number_of,
)
from vespiary_broker.engine.selection.expressions import (
    Calculated,
    Compared,
    Connected,
    Expression,
    Identifier,
    IsNull,
    Kind,
    Like,
    Literal,
    Negated,
    OneOf,
    Signed,
)
from vespiary_broker.engine.selection.patterns import beginning_of, compile_like
from vespiary_codec.journal.page_sketch import BOUND_BYTES, NameSketch, PageSketch
from vespiary_codec.journal.record_types import RecordFlag

TRUE: Final = 1
FALSE: Final = 2
UNKNOWN: Final = 4
ANYTHING: Final = TRUE | FALSE | UNKNOWN
"""What a condition may be: one or more of these."""

_UNANSWERABLE: Final = frozenset(":\\\r\n\ufffd")
"""Names with these are no lines of a message as a sketch sees them; see `page_sketch`."""
_WHOLE_MAX: Final = 10**18
_NOT_FINITE: Final = ("inf", "-inf", "nan")
_DURABLE: Final = ("DURABLE", "NON_DURABLE")
_PERSISTENT: Final = ("PERSISTENT", "NON_PERSISTENT")
_HEADERS: Final = {
    "JMSExpiration": "expires",
    "JMSCorrelationID": "correlation-id",
    "JMSType": "type",
    "JMSReplyTo": "reply-to",
    "JMSDestination": "destination",
    "AMQExpiration": "expires",
    "AMQUserID": "JMSMessageID",
    "AMQGroupID": "JMSXGroupID",
}
"""Names that stand for headers; a header that really has such a name counts where there is none."""


# --- values ---------------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    """Numbers that something may be."""

    low: float
    high: float


_ANY_NUMBER: Final = _Numbers(-math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """What a name may stand for.

    Attributes:
        may_be_null: Some message may not have it.
        numbers: Values that can be read as numbers; None: none can.
        has_others: Some value may be no number.
        texts: Facts of the texts that it may be; empty: it is never a text.
        is_any: Nothing is known of it.
    """

    may_be_null: bool = True
    numbers: _Numbers | None = None
    has_others: bool = False
    texts: tuple[NameSketch, ...] = ()
    is_any: bool = False

    @property
    def may_be_value(self) -> bool:
        """Whether some message may have it."""
        return self.is_any or self.numbers is not None or self.has_others

    def may_equal(self, text: str) -> bool:
        """Whether it may be this text."""
        if self.is_any or "\ufffd" in text:
            return self.is_any or bool(self.texts)
        encoded = text.encode("utf-8", "surrogatepass")
        return any(facts.may_equal(encoded) for facts in self.texts)

    def may_begin(self, prefix: str) -> bool:
        """Whether it may be a text that begins so."""
        if self.is_any or "\ufffd" in prefix:
            return self.is_any or bool(self.texts)
        encoded = prefix.encode("utf-8", "surrogatepass")
        return any(facts.may_begin(encoded) for facts in self.texts)

    @property
    def only(self) -> str | None:
        """The one text that it is where it is anything; None: there may be others."""
        if self.is_any or len(self.texts) != 1 or self.texts[0].only is None:
            return None
        try:
            return self.texts[0].only.decode()
        except UnicodeDecodeError:
            return None

    def may_say(self, *, value: bool) -> bool:
        """Whether it may be a text that says `true`, or `false`, in any case."""
        if not self.texts:
            return self.is_any
        letters = ((one, one.upper()) for one in str(value).lower())
        return any(self.may_equal("".join(text)) for text in itertools.product(*letters))

    def may_be_number(self, low: float, high: float) -> bool:
        """Whether it may be a number within these bounds."""
        if self.is_any:
            return True
        if self.numbers is None or self.numbers.low > high or self.numbers.high < low:
            return False
        is_point = low == high and abs(low) < _WHOLE_MAX
        if not is_point or not self.texts or not all(one.is_whole for one in self.texts):
            return True
        return low == int(low) and self.may_equal(str(int(low)))


_ANY: Final = Domain(is_any=True)
_NOTHING: Final = Domain()


def _known_number(low: float, high: float) -> Domain:
    return Domain(may_be_null=False, numbers=_Numbers(low, high))


def _known_texts(*texts: str) -> Domain:
    facts = tuple(
        NameSketch(
            is_in_all=True,
            numbers=None,
            has_others=True,
            is_whole=False,
            low=text.encode()[:BOUND_BYTES],
            high=text.encode()[:BOUND_BYTES],
            bloom=b"",
        )
        for text in texts
    )
    return Domain(may_be_null=False, has_others=True, texts=facts)


def _of_header(sketch: PageSketch, name: str) -> Domain:
    """Return what a header may be."""
    if not _UNANSWERABLE.isdisjoint(name):
        return _ANY
    facts = sketch.names.get(name.encode("utf-8", "surrogatepass"))
    if facts is None:
        return _NOTHING if sketch.is_complete else _ANY
    return Domain(
        may_be_null=not facts.is_in_all,
        numbers=None if facts.numbers is None else _Numbers(*facts.numbers),
        has_others=facts.has_others,
        texts=(facts,),
    )


def _either(first: Domain, second: Domain) -> Domain:
    """Return what the first may be, or the second where the first is nothing."""
    if first.is_any or not first.may_be_null:
        return first
    if not second.may_be_value:
        return first
    if second.is_any:
        return _ANY
    numbers = [one.numbers for one in (first, second) if one.numbers is not None]
    return Domain(
        may_be_null=second.may_be_null,
        numbers=_Numbers(min(one.low for one in numbers), max(one.high for one in numbers))
        if numbers
        else None,
        has_others=first.has_others or second.has_others,
        texts=first.texts + second.texts,
    )


def _mode(sketch: PageSketch, texts: tuple[str, str]) -> Domain:
    """Return whether messages may be persistent, as one of these two texts."""
    is_any_volatile = bool(sketch.flags_of_any & RecordFlag.VOLATILE)
    return _known_texts(*(texts if is_any_volatile else texts[:1]))


_KNOWN: Final[dict[str, Callable[[PageSketch], Domain]]] = {
    "JMSPriority": lambda sketch: _known_number(*sketch.priorities),
    "AMQPriority": lambda sketch: _known_number(*sketch.priorities),
    "JMSTimestamp": lambda sketch: _known_number(*sketch.times_ms),
    "AMQTimestamp": lambda sketch: _known_number(*sketch.times_ms),
    "AMQSize": lambda sketch: _known_number(*sketch.sizes_bytes),
    "JMSXDeliveryCount": lambda _: _known_number(1, math.inf),
    "JMSDeliveryMode": lambda sketch: _mode(sketch, _PERSISTENT),
    "AMQDurable": lambda sketch: _mode(sketch, _DURABLE),
}


class Names:
    """What names may stand for in the messages of a page (see `message_values`).

    Args:
        sketch: The page's.
        address: Of its messages, for `AMQAddress`; empty if it is not known.
    """

    def __init__(self, sketch: PageSketch, address: str) -> None:
        self._sketch = sketch
        self._address = address
        self._domains: dict[str, Domain] = {}

    def domain(self, name: str) -> Domain:
        """Return what a name may stand for."""
        found = self._domains.get(name)
        if found is None:
            found = self._domains[name] = self._domain(name)
        return found

    def _domain(self, name: str) -> Domain:
        known = _KNOWN.get(name)
        if known is not None:
            return known(self._sketch)
        if name == "AMQAddress" and self._address:
            return _known_texts(self._address)
        header = _of_header(self._sketch, name)
        other = _HEADERS.get(name)
        return header if other is None else _either(_of_header(self._sketch, other), header)


# --- numbers --------------------------------------------------------------------------------------


def _constant(expression: Expression) -> int | float | None:
    """Return the number that an expression without names is; None: it is none, or has names."""
    match expression:
        case Literal(value=value):
            return None if isinstance(value, bool | str) else value
        case Signed(operator=operator, term=term):
            number = _constant(term)
            return number if number is None or operator != "-" else -number
        case Calculated(first=first, rest=rest):
            result = _constant(first)
            for operator, term in rest:
                number = _constant(term)
                if result is None or number is None:
                    return None
                result = calculate(operator, result, number)
            return result
        case _:
            return None


def _numbers_of(expression: Expression, names: Names) -> Domain:
    """Return what an expression may be beside a number."""
    number = _constant(expression)
    if number is not None:
        return _known_number(number, number)
    if isinstance(expression, Identifier):
        return names.domain(expression.name)
    return _ANY


_MAY_BE_TRUE: Final[dict[str, Callable[[_Numbers, _Numbers], bool]]] = {
    "=": lambda a, b: a.low <= b.high and b.low <= a.high,
    "<>": lambda a, b: not a.low == a.high == b.low == b.high,
    "<": lambda a, b: a.low < b.high,
    "<=": lambda a, b: a.low <= b.high,
    ">": lambda a, b: a.high > b.low,
    ">=": lambda a, b: a.high >= b.low,
}
_OPPOSITES: Final = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def _compare_numbers(operator: str, left: Domain, right: Domain) -> int:
    """Compare where one side is a number or nothing."""
    result = UNKNOWN if left.may_be_null or right.may_be_null else 0
    if left.is_any or right.is_any:
        return ANYTHING
    if not left.may_be_value or not right.may_be_value:
        return result
    if left.has_others or right.has_others or left.texts or right.texts:
        result |= FALSE  # a text is no number where its protocol has types
    if left.numbers is None or right.numbers is None:
        return result
    if _MAY_BE_TRUE[operator](left.numbers, right.numbers) and (
        operator != "="
        or (left.may_be_number(*right.numbers) and right.may_be_number(*left.numbers))
    ):
        result |= TRUE
    if _MAY_BE_TRUE[_OPPOSITES[operator]](left.numbers, right.numbers):
        result |= FALSE
    return result


# --- conditions -----------------------------------------------------------------------------------


def _test(domain: Domain, may_match: bool, matches: Callable[[str], bool]) -> int:
    """Return what a test of a text may say."""
    result = UNKNOWN if domain.may_be_null else 0
    if not domain.may_be_value:
        return result
    only = domain.only
    if only is not None and _is_plain(only):
        return result | (TRUE if matches(only) else FALSE)
    return result | FALSE | (TRUE if may_match else 0)


def _is_plain(text: str) -> bool:
    """Whether a text surely was one: it is not what a number or a boolean of AMQP is written as."""
    return number_of(text) is None and boolean_of(text) is None and text not in _NOT_FINITE


def _compare_texts(operator: str, left: Expression, right: Expression, names: Names) -> int:
    """Compare where one side is a string in the text, and the other one as well, or a name."""
    if not isinstance(right, Literal):
        left, right = right, left
    assert isinstance(right, Literal)
    text = str(right.value)
    if isinstance(left, Literal):
        return TRUE if EQUALITIES[operator](left.value, right.value) else FALSE
    if not isinstance(left, Identifier):
        return ANYTHING
    domain = names.domain(left.name)
    if domain.is_any:
        return ANYTHING
    if operator == "=":
        return _test(domain, domain.may_equal(text), lambda only: only == text)
    return _test(domain, bool(domain.texts), lambda only: only != text)


def _compared(expression: Compared, names: Names) -> int:
    operator, left, right = expression.operator, expression.left, expression.right
    kinds = (left.kind, right.kind)
    if Kind.STRING in kinds:
        return _compare_texts(operator, left, right, names)
    if Kind.NUMBER in kinds:
        return _compare_numbers(operator, _numbers_of(left, names), _numbers_of(right, names))
    if isinstance(left, Literal):
        left, right = right, left
    if not isinstance(left, Identifier):
        return ANYTHING
    domain = names.domain(left.name)
    if isinstance(right, Literal):
        value = bool(right.value) if operator == "=" else not right.value
        return _said(domain, value=value)
    if isinstance(right, Identifier):
        other = names.domain(right.name)
        if not domain.may_be_value or not other.may_be_value:
            return UNKNOWN
    return ANYTHING


def _said(domain: Domain, *, value: bool) -> int:
    """Return whether a name may say `true`, or `false`."""
    if domain.is_any:
        return ANYTHING
    may_say = domain.may_say(value=value)
    return _test(domain, may_say, lambda only: boolean_of(only) is value)


_NEGATED: Final = {TRUE: FALSE, FALSE: TRUE, UNKNOWN: UNKNOWN}


def _members(outcomes: int) -> list[int]:
    return [one for one in (TRUE, FALSE, UNKNOWN) if outcomes & one]


def _connected(expression: Connected, names: Names) -> int:
    """Connect what each term may be: AND is the least of them, OR the greatest."""
    is_or = expression.operator == "OR"
    order = (FALSE, UNKNOWN, TRUE)
    result = FALSE if is_or else TRUE
    choose = max if is_or else min
    for term in expression.terms:
        found = outcomes_of(term, names)
        result = sum(
            {
                choose(one, other, key=order.index)
                for one in _members(result)
                for other in _members(found)
            }
        )
    return result


def outcomes_of(expression: Expression, names: Names) -> int:
    """Return what a condition may be.

    Args:
        expression: A condition that was compiled (so its kinds fit).
        names: What its names may stand for.

    Returns:
        `TRUE`, `FALSE` and `UNKNOWN`, one or more of them.
    """
    match expression:
        case Literal(value=value):
            return TRUE if value is True else FALSE
        case Identifier(name=name):
            return _said(names.domain(name), value=True)
        case Connected():
            return _connected(expression, names)
        case Negated(term=term):
            return sum(_NEGATED[one] for one in _members(outcomes_of(term, names)))
        case Compared():
            return _compared(expression, names)
        case OneOf(term=term, strings=strings):
            if isinstance(term, Literal):
                return TRUE if term.value in strings else FALSE
            return _tested(
                term,
                names,
                lambda domain: any(map(domain.may_equal, strings)),
                strings.__contains__,
            )
        case Like(term=term, pattern=pattern, escape=escape):
            matches = compile_like(pattern, escape)
            if isinstance(term, Literal):
                return TRUE if matches(str(term.value)) else FALSE
            begin, is_whole = beginning_of(pattern, escape)
            return _tested(
                term,
                names,
                lambda domain: domain.may_equal(begin) if is_whole else domain.may_begin(begin),
                matches,
            )
        case IsNull(term=Identifier(name=name)):
            domain = names.domain(name)
            return (TRUE if domain.may_be_null else 0) | (FALSE if domain.may_be_value else 0)
        case _:
            return ANYTHING


def _tested(
    term: Expression,
    names: Names,
    may_match: Callable[[Domain], bool],
    matches: Callable[[str], bool],
) -> int:
    if not isinstance(term, Identifier):
        return ANYTHING
    domain = names.domain(term.name)
    return ANYTHING if domain.is_any else _test(domain, may_match(domain), matches)


def may_match(expression: Expression, sketch: PageSketch, address: str) -> bool:
    """Return whether a message of a page may match a selector.

    Args:
        expression: The selector's tree.
        sketch: The page's.
        address: Of its messages; empty if it is not known.

    Returns:
        False: none does.
    """
    return bool(outcomes_of(expression, Names(sketch, address)) & TRUE)

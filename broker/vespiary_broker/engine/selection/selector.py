"""Selectors, compiled.

Owns the entrance: from a text to something that says which messages match. Must never block: what
is too long is refused before it is parsed, and what would take too long for one message after that.
Called with the `selector` of a subscription, with the filters of queues and diverts, and by the
HTTP API.
"""

from __future__ import annotations

import logging
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from vespiary_broker.engine.selection.compiling import Evaluate, Values, compile_condition
from vespiary_broker.engine.selection.costs import cost_us
from vespiary_broker.engine.selection.problems import Problem
from vespiary_spec.errors import InvalidSelector
from vespiary_spec.limits import SELECTOR_CHARACTERS_MAX, SELECTOR_COST_MS_MAX

if TYPE_CHECKING:
    from vespiary_broker.engine.selection.expressions import Expression
    from vespiary_codec.journal.page_sketch import PageSketch

_CONVERT: Final = "convert_string_expressions:"
_HYPHENATED: Final = "hyphenated_props:"

log = logging.getLogger(__name__)


class Selector:
    """A condition on messages.

    Attributes:
        text: As it was given.
        names: Names whose values it needs.
        cost_us: What one evaluation costs at most, in microseconds; see `costs`.
        constant: What it always is when it needs none (None is "unknown", which selects nothing).
    """

    __slots__ = ("__weakref__", "_evaluate", "_tree", "constant", "cost_us", "names", "text")

    def __init__(
        self, text: str, evaluate: Evaluate, names: frozenset[str], tree: Expression
    ) -> None:
        self.text = text
        self.names = names
        self._evaluate = evaluate
        self._tree = tree
        self.cost_us = cost_us(tree) if names else 0.0
        self.constant: bool | None = None if names else evaluate({})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    @property
    def is_constant(self) -> bool:
        """Whether it says the same of all messages."""
        return not self.names

    def matches(self, values: Values) -> bool:
        """Return whether a message with these values is selected: the condition is true.

        Args:
            values: Values of `names`; a name that is not there is NULL.
        """
        return self._evaluate(values) is True

    def may_match(self, sketch: PageSketch, address: str) -> bool:
        """Return whether a message of a page may be selected; False: none is.

        Args:
            sketch: The page's.
            address: Of its messages, for `AMQAddress`; empty if it is not known.
        """
        # With the first look at a page alone.
        from vespiary_broker.engine.selection.possibility import may_match

        if self.is_constant:
            return self.constant is True
        return may_match(self._tree, sketch, address)


def compile_selector(text: str) -> Selector:
    """Return a selector.

    The reference system's prefix `convert_string_expressions:` is taken off: here the texts of
    headers are always compared as what they stand beside.

    Args:
        text: At most `SELECTOR_CHARACTERS_MAX` characters.

    Raises:
        InvalidSelector: It is no condition; says where, and what was expected. Or it has more than
            `SELECTOR_WORDS_MAX` words, or may take more than `SELECTOR_COST_MS_MAX` for a message.
    """
    found = _compiled(text, is_new=True)
    if found.cost_us > 1000 * SELECTOR_COST_MS_MAX:
        raise InvalidSelector(
            "the selector is too expensive",
            measured=_shown(found.cost_us),
            allowed=f"at most {SELECTOR_COST_MS_MAX} ms",
            cure="use fewer LIKE whose patterns have text between two %, and shorter ones with _",
        )
    return found


def _shown(cost_us: float) -> str:
    return f"{cost_us / 1000:.1f} ms for a message with 64 KiB of headers"


_in_use: WeakValueDictionary[tuple[str, bool], Selector] = WeakValueDictionary()


@lru_cache(maxsize=16)  # a subscription has it compiled for its queue, itself and its pages
def _compiled(text: str, *, is_new: bool) -> Selector:
    """Return a selector; one that somebody has is not compiled again."""
    found = _in_use.get((text, is_new))
    if found is None:
        found = _in_use[text, is_new] = _compile(text, is_new=is_new)
    return found


def _compile(text: str, *, is_new: bool) -> Selector:
    if len(text) > SELECTOR_CHARACTERS_MAX:
        raise InvalidSelector(
            "the selector is too long",
            measured=f"{len(text)} characters",
            allowed=f"at most {SELECTOR_CHARACTERS_MAX}",
        )
    condition = text.removeprefix(_CONVERT)
    start = len(text) - len(condition)
    # With the first selector alone: a broker without one never loads the parser.
    from vespiary_broker.engine.selection.grammar import check_words, parse

    try:
        if condition.startswith(_HYPHENATED):
            raise Problem(
                0, f"{_HYPHENATED} is not known", "put names with hyphens into double quotes"
            )
        if not condition.strip():
            raise Problem(0, "the selector is empty")
        if is_new:
            check_words(condition)
        tree = parse(condition)
        found = compile_condition(tree)
    except Problem as problem:
        raise _refusal(text, start + problem.position, problem) from problem
    return Selector(text, found.evaluate, found.names, tree)


def compile_stored_filter(text: str) -> Selector | None:
    """Return the selector of a filter that was accepted before; None for an empty one.

    Another version may have accepted what is too expensive now. A queue is not given up for that.

    Args:
        text: As it was stored.

    Raises:
        InvalidSelector: It is no condition.
    """
    if not text:
        return None
    found = _compiled(text, is_new=False)
    if found.cost_us > 1000 * SELECTOR_COST_MS_MAX:
        log.warning(
            "a stored filter costs %s, more than a new one may (%d ms); it may delay others: %s",
            _shown(found.cost_us), SELECTOR_COST_MS_MAX, text[:200],
        )  # fmt: skip
    return found


def compile_filter(text: str) -> Selector | None:
    """Return the selector of a filter; None for an empty one, which lets everything pass.

    Args:
        text: At most `SELECTOR_CHARACTERS_MAX` characters.

    Raises:
        InvalidSelector: It is no condition.
    """
    text = text.strip()
    return compile_selector(text) if text else None


def _refusal(text: str, position: int, problem: Problem) -> InvalidSelector:
    return InvalidSelector(problem.what, selector=text, position=position, cure=problem.hint)


@cache
def prepare_parser() -> None:
    """Import the parser library and build the parser: 0.15 s, once in the life of a process.

    Call it in one thread before the first selector is compiled, which otherwise pays for it.
    Threads that call it at the same time each build a parser.
    """
    compile_selector("TRUE")


def is_parser_prepared() -> bool:
    """Return whether `prepare_parser` was done."""
    return prepare_parser.cache_info().currsize > 0

"""The grammar of selectors, and its parser.

Owns the grammar, and what is said about a text that does not follow it. Must never evaluate
anything. Called by `selector`, which imports it with the first selector: a broker without one never
loads the parser's library.

Sources: Jakarta Messaging 3.1, section 3.8.1 (syntax); the Java Language Specification 3.8, 3.10
(identifiers and literals). Beyond them: names in double quotes, for headers with hyphens.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

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
from vespiary_broker.engine.selection.problems import Problem
from vespiary_spec.limits import SELECTOR_WORDS_MAX

DEPTH_MAX: Final = 100
"""Deepest nesting of operators; brackets alone do not count."""

_GRAMMAR: Final = r"""
start: condition

?condition: conjunction
    | conjunction (OR conjunction)+                         -> any_of
?conjunction: inversion
    | inversion (AND inversion)+                            -> all_of
?inversion: predicate
    | NOT inversion                                         -> negated
?predicate: sum
    | sum COMPARISON sum                                    -> compared
    | sum NOT? BETWEEN sum AND sum                          -> between
    | sum NOT? IN _OPEN STRING (_COMMA STRING)* _CLOSE      -> one_of
    | sum NOT? LIKE STRING (ESCAPE STRING)?                 -> like
    | sum IS NOT? NULL                                      -> is_null
?sum: product
    | product (SIGN product)+                               -> calculated
?product: unary
    | unary (FACTOR unary)+                                 -> calculated
?unary: primary
    | SIGN unary                                            -> signed
?primary: _OPEN condition _CLOSE
    | NAME                                                  -> identifier
    | QUOTED                                                -> quoted
    | STRING                                                -> string
    | FLOAT                                                 -> approximate
    | HEXADECIMAL                                           -> hexadecimal
    | DECIMAL                                               -> decimal
    | TRUE                                                  -> true
    | FALSE                                                 -> false

COMPARISON: "<>" | "<=" | ">=" | "=" | "<" | ">"
SIGN: "+" | "-"
FACTOR: "*" | "/"
_OPEN: "("
_CLOSE: ")"
_COMMA: ","
STRING: /'[^']*(?:''[^']*)*'/
QUOTED: /"[^"]*(?:""[^"]*)*"/
FLOAT.3: ((/[0-9]+\.[0-9]*/ | /\.[0-9]+/) EXPONENT? | /[0-9]+/ EXPONENT | WHOLE) /[fFdD]/?
EXPONENT: /[eE][+-]?[0-9]+/
WHOLE: /[0-9]+(?=[fFdD])/
HEXADECIMAL.2: /0[xX][0-9a-fA-F]+[lL]?/
DECIMAL.1: /[0-9]+[lL]?/
NAME: /(?:[^\W\d]|\$)[\w$]*/

%declare AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE FALSE
%ignore /[ \t\r\n\f]+/
"""

_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"}
)
_WORD: Final = re.compile(r"""'[^']*'|"[^"]*"|[\w$.]+|[^\s\w]""")
"""About what the lexer takes for a token; a string with a quote in it is two."""
_WORD_CHARACTERS: Final = 64
"""Characters of a long string that take as long as a word: it may be a pattern."""
_LONG_END: Final = 2**63
_DIGITS_MAX: Final = 400

_TOKEN_NAMES: Final = {
    "COMPARISON": "a comparison (=, <>, <, <=, >, >=)",
    "SIGN": "+ or -",
    "FACTOR": "* or /",
    "_OPEN": "(",
    "_CLOSE": ")",
    "_COMMA": "a comma",
    "STRING": "a string in single quotes",
    "NAME": "a name",
    "DECIMAL": "a number",
    "$END": "the end",
}
"""What a reader is told for a terminal; those that are not here are keywords."""

_NOT_TOLD: Final = frozenset({"QUOTED", "FLOAT", "HEXADECIMAL"})
"""Terminals that another one stands for in what a reader is told."""


def parse(text: str) -> Expression:
    """Return the tree of a selector.

    Args:
        text: The selector.

    Raises:
        Problem: It does not follow the grammar, a number is too large, or it nests too deeply.
    """
    try:
        tree: Any = _parser().parse(text)
    except UnexpectedCharacters as error:
        raise _unknown_character(text, error.pos_in_stream or 0) from error
    except UnexpectedToken as error:
        raise _unexpected(text, error) from error
    expression: Expression = tree
    return expression


def check_words(text: str) -> None:
    """Refuse what it would take long to parse and compile: some 10 us for each word.

    Args:
        text: The selector.

    Raises:
        Problem: It has more than `SELECTOR_WORDS_MAX` words.
    """
    count = 0
    for found in _WORD.finditer(text):
        count += 1 + (found.end() - found.start()) // _WORD_CHARACTERS
        if count > SELECTOR_WORDS_MAX:
            raise Problem(
                found.start(),
                "the selector has too many words",
                f"allowed: at most {SELECTOR_WORDS_MAX} names, values, operators, brackets; long "
                f"values count once more for each {_WORD_CHARACTERS} characters",
            )


def _unknown_character(text: str, position: int) -> Problem:
    character = text[position]
    if character in "'\"":
        what = "the string" if character == "'" else "the name"
        return Problem(position, f"{what} that begins here does not end")
    allowed = "names with other characters in double quotes" if character in "`[" else ""
    return Problem(position, f"the character {character!a} means nothing here", allowed)


def _unexpected(text: str, error: UnexpectedToken) -> Problem:
    names = sorted(_TOKEN_NAMES.get(name, name) for name in set(error.expected or ()) - _NOT_TOLD)
    allowed = "expected: " + ", ".join(names)
    token = error.token
    if token.type == "$END":
        return Problem(len(text), "the selector ends too early", allowed)
    shown = str(token) if len(token) <= 40 else f"{token[:40]}…"
    return Problem(token.start_pos, f"{shown!a} is not expected here", allowed)


@cache
def _parser() -> Lark:
    """Build the parser; once in the life of a process."""
    return Lark(
        _GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_TreeBuilder(),
        lexer_callbacks={"NAME": _keyword_or_name},
    )


def _keyword_or_name(token: Token) -> Token:
    upper = token.upper() if len(token) <= 7 else ""
    return token.update(type=upper) if upper in _KEYWORDS else token


def _deeper(position: int, *children: Expression) -> int:
    """Return the depth of a node with these children."""
    depth = 1 + max(child.depth for child in children)
    if depth > DEPTH_MAX:
        raise Problem(
            position, "the selector nests too deeply", f"allowed: at most {DEPTH_MAX} levels"
        )
    return depth


def _unquoted(token: Token) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


class _TreeBuilder(Transformer[Token, Expression]):
    """Makes nodes while the parser runs, so that nothing here recurses with the text's depth."""

    def start(self, children: list[Any]) -> Expression:
        found: Expression = children[0]
        return found

    def any_of(self, children: list[Any]) -> Expression:
        return self._connected("OR", children)

    def all_of(self, children: list[Any]) -> Expression:
        return self._connected("AND", children)

    def _connected(self, operator: str, children: list[Any]) -> Expression:
        terms, position = tuple(children[::2]), children[1].start_pos
        return Connected(operator, terms, position, _deeper(position, *terms))

    def negated(self, children: list[Any]) -> Expression:
        return self._not(children[0], children[1])

    def _not(self, token: Token, term: Expression) -> Expression:
        position = token.start_pos or 0
        return Negated(term, position, _deeper(position, term))

    def _maybe_not(self, token: Token, found: Expression) -> Expression:
        return self._not(token, found) if token.type == "NOT" else found

    def compared(self, children: list[Any]) -> Expression:
        left, token, right = children
        position = token.start_pos
        return Compared(str(token), left, right, position, _deeper(position, left, right))

    def between(self, children: list[Any]) -> Expression:
        term, token, low, high = children[0], children[1], children[-3], children[-1]
        position = token.start_pos
        depth = _deeper(position, term, low, high)
        bounds = (
            Compared(">=", term, low, position, depth),
            Compared("<=", term, high, position, depth),
        )
        return self._maybe_not(
            token, Connected("AND", bounds, position, _deeper(position, *bounds))
        )

    def one_of(self, children: list[Any]) -> Expression:
        term, token = children[0], children[1]
        position = token.start_pos
        strings = frozenset(_unquoted(child) for child in children[2:] if child.type == "STRING")
        return self._maybe_not(token, OneOf(term, strings, position, _deeper(position, term)))

    def like(self, children: list[Any]) -> Expression:
        term, token = children[0], children[1]
        position = token.start_pos
        strings = [child for child in children[2:] if child.type == "STRING"]
        escape = _unquoted(strings[1]) if len(strings) == 2 else ""
        if len(strings) == 2 and len(escape) != 1:
            raise Problem(strings[1].start_pos, "ESCAPE needs one character")
        found = Like(term, _unquoted(strings[0]), escape, position, _deeper(position, term))
        return self._maybe_not(token, found)

    def is_null(self, children: list[Any]) -> Expression:
        term, token = children[0], children[1]
        position = token.start_pos
        found = IsNull(term, position, _deeper(position, term))
        return self._not(token, found) if children[2].type == "NOT" else found

    def calculated(self, children: list[Any]) -> Expression:
        first, position = children[0], children[1].start_pos
        rest = tuple(
            (str(token), term) for token, term in zip(children[1::2], children[2::2], strict=True)
        )
        return Calculated(first, rest, position, _deeper(position, *children[::2]))

    def signed(self, children: list[Any]) -> Expression:
        token, term = children
        position = token.start_pos
        return Signed(str(token), term, position, _deeper(position, term))

    def identifier(self, children: list[Any]) -> Expression:
        return Identifier(str(children[0]), children[0].start_pos)

    def quoted(self, children: list[Any]) -> Expression:
        token = children[0]
        name = _unquoted(token)
        if not name:
            raise Problem(token.start_pos, "a name in double quotes is empty")
        return Identifier(name, token.start_pos)

    def string(self, children: list[Any]) -> Expression:
        return Literal(_unquoted(children[0]), Kind.STRING, children[0].start_pos)

    def approximate(self, children: list[Any]) -> Expression:
        token = children[0]
        return Literal(float(token.rstrip("fFdD")), Kind.NUMBER, token.start_pos)

    def hexadecimal(self, children: list[Any]) -> Expression:
        return self._whole(children[0], 16)

    def decimal(self, children: list[Any]) -> Expression:
        token = children[0]
        if len(token.rstrip("lL")) > 1 and token[0] == "0":
            raise Problem(
                token.start_pos,
                "a whole number begins with 0, which would make it octal in Java",
                "write it without, or as 0x and hexadecimal digits",
            )
        return self._whole(token, 10)

    def _whole(self, token: Token, base: int) -> Expression:
        digits = token.rstrip("lL")
        number = int(digits, base) if len(digits) <= _DIGITS_MAX else _LONG_END + 1
        if number > _LONG_END:
            raise Problem(token.start_pos or 0, "a whole number is too large", "allowed: 64 bits")
        return Literal(number, Kind.NUMBER, token.start_pos or 0)

    def true(self, children: list[Any]) -> Expression:
        return Literal(True, Kind.BOOLEAN, children[0].start_pos)

    def false(self, children: list[Any]) -> Expression:
        return Literal(False, Kind.BOOLEAN, children[0].start_pos)

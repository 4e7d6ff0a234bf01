"""Wildcards: what a pattern of names means, and which wildcard addresses cover a plain one.

Owns the meaning (words between delimiters, one sign for a single word, one for any number of words)
for addresses and for matches of settings alike, and the tree in which patterns are found. Must
never know queues. Called by `address_settings`, `registry` and `publishing`; owner: the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address


@dataclass(frozen=True, slots=True)
class WildcardSyntax:
    """How names are cut into words, and which words are wildcards.

    Attributes:
        delimiter: What stands between words; one character.
        any_words: The word that means any number of words, also none.
        single_word: The word that means exactly one.
        is_routing_enabled: Whether addresses may have wildcards; if not, these are words like any
            other there. Matches of settings have them in any case.
    """

    delimiter: str = "."
    any_words: str = "#"
    single_word: str = "*"
    is_routing_enabled: bool = True

    def words(self, name: str) -> list[str]:
        """Return the words of a name, empty ones included."""
        return name.split(self.delimiter)

    def is_wildcard(self, address: str) -> bool:
        """Return whether an address stands for others."""
        if not self.is_routing_enabled:
            return False
        if self.any_words not in address and self.single_word not in address:
            return False
        words = self.words(address)
        return self.any_words in words or self.single_word in words


DEFAULT_SYNTAX = WildcardSyntax()


class Pattern:
    """A pattern, made ready for many names.

    Args:
        text: Words and wildcards.
        syntax: What is a word and what a wildcard.
    """

    __slots__ = ("_delimiter", "_head", "_is_head_all", "_parts", "_syntax", "text")

    def __init__(self, text: str, syntax: WildcardSyntax = DEFAULT_SYNTAX) -> None:
        self.text = text
        self._syntax = syntax
        self._delimiter = syntax.delimiter
        self._parts = syntax.words(text)
        wild = (syntax.any_words, syntax.single_word)
        first = next((n for n, part in enumerate(self._parts) if part in wild), len(self._parts))
        self._head = syntax.delimiter.join(self._parts[:first])
        self._is_head_all = self._parts[first:] == [syntax.any_words]

    def is_match(self, name: str) -> bool:
        """Return whether the pattern covers a name.

        Args:
            name: A name without wildcards.
        """
        head = self._head
        if not name.startswith(head):
            return False
        if self._is_head_all:
            is_all = len(self._parts) == 1
            return is_all or len(name) == len(head) or name[len(head)] == self._delimiter
        return self._walk(self._syntax.words(name))

    def _walk(self, words: list[str]) -> bool:
        any_words, single_word = self._syntax.any_words, self._syntax.single_word
        # The numbers of words that the pattern so far can have taken: no backtracking, so no
        # pattern takes longer than words x parts.
        reached = {0}
        for part in self._parts:
            if not reached:
                return False
            if part == any_words:
                reached = set(range(min(reached), len(words) + 1))
            else:
                reached = {
                    n + 1
                    for n in reached
                    if n < len(words) and (part == single_word or words[n] == part)
                }
        return len(words) in reached


def is_hidden(name: str, pattern: str, syntax: WildcardSyntax = DEFAULT_SYNTAX) -> bool:
    """Return whether a name is one that a pattern of addresses does not cover, though it matches.

    A wildcard in first place does not match names that begin with `$` (MQTT 5.0 §4.7.2).
    """
    wild = (syntax.any_words, syntax.single_word)
    return name.startswith("$") and syntax.words(pattern)[0] in wild


def overlaps(one: str, other: str, syntax: WildcardSyntax = DEFAULT_SYNTAX) -> bool:
    """Return whether there may be a name that two patterns cover both."""
    any_words, single_word = syntax.any_words, syntax.single_word
    words = syntax.words(other)
    end = len(words)
    # Places in `other` that `one` so far can have come to: as `Pattern` walks, no backtracking.
    reached = _with_empty({0}, words, any_words)
    for part in syntax.words(one):
        if not reached:
            return False
        if part == any_words:
            reached = set(range(min(reached), end + 1))
            continue
        ahead = set()
        for place in reached:
            if place == end:
                continue
            if words[place] == any_words:
                ahead.add(place)  # that one takes the word, and may take more
            elif part == single_word or words[place] in (part, single_word):
                ahead.add(place + 1)
        reached = _with_empty(ahead, words, any_words)
    return end in reached


def _with_empty(places: set[int], words: list[str], any_words: str) -> set[int]:
    """Add the places behind wildcards that take no word at all."""
    found = set(places)
    for place in places:
        while place < len(words) and words[place] == any_words:
            place += 1
            found.add(place)
    return found


def contains(wide: str, narrow: str, syntax: WildcardSyntax = DEFAULT_SYNTAX) -> bool:
    """Return whether a pattern certainly covers every name that another one covers."""
    any_words, single_word = syntax.any_words, syntax.single_word
    words = syntax.words(narrow)
    reached = {0}
    for part in syntax.words(wide):
        if not reached:
            return False
        if part == any_words:
            reached = set(range(min(reached), len(words) + 1))
            continue
        reached = {
            place + 1
            for place in reached
            if place < len(words)
            and words[place] != any_words
            and part in (single_word, words[place])
        }
    return len(words) in reached


@dataclass(eq=False, slots=True)
class _Node:
    """A place in the tree of patterns.

    Attributes:
        is_any: Whether it stands behind a wildcard for any number of words, and so takes more.
        children: What may come next, by word.
        address: The wildcard address that ends here; None if none does.
    """

    is_any: bool = False
    children: dict[str, _Node] = field(default_factory=dict)
    address: Address | None = None


class WildcardTable:
    """The wildcard addresses, found by the names that they cover.

    A look takes one step for each word and each branch of the tree that is still possible, however
    many patterns there are.

    Args:
        syntax: What is a word and what a wildcard.
    """

    def __init__(self, syntax: WildcardSyntax) -> None:
        self.count = 0
        self._syntax = syntax
        self._root = _Node()

    def add(self, address: Address) -> None:
        """Take a wildcard address in."""
        node = self._root
        for word in self._syntax.words(address.name):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(is_any=word == self._syntax.any_words)
            node = child
        assert node.address is None
        node.address = address
        self.count += 1

    def remove(self, address: Address) -> None:
        """Take a wildcard address out, and the branches that only it needed."""
        path = [self._root]
        words = self._syntax.words(address.name)
        for word in words:
            path.append(path[-1].children[word])
        assert path[-1].address is address
        path[-1].address = None
        self.count -= 1
        for word, parent, node in zip(reversed(words), path[-2::-1], path[:0:-1], strict=True):
            if node.children or node.address is not None:
                return
            del parent.children[word]

    def covering(self, name: str) -> tuple[Address, ...]:
        """Return the wildcard addresses that cover a plain name, by name."""
        if not self.count:
            return ()
        single_word = self._syntax.single_word
        reached: dict[int, _Node] = {}
        self._reach(self._root, reached)
        for word in self._syntax.words(name):
            before, reached = reached, {}
            for node in before.values():
                if node.is_any:
                    self._reach(node, reached)
                for key in (word, single_word):
                    child = node.children.get(key)
                    if child is not None:
                        self._reach(child, reached)
        found = [
            node.address
            for node in reached.values()
            if node.address is not None and not is_hidden(name, node.address.name, self._syntax)
        ]
        return tuple(sorted(found, key=lambda address: address.name))

    def _reach(self, node: _Node | None, reached: dict[int, _Node]) -> None:
        """Note a node, and those that stand behind it without another word."""
        while node is not None and id(node) not in reached:
            reached[id(node)] = node
            node = node.children.get(self._syntax.any_words)

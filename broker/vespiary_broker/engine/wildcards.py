"""Wildcards: what a pattern of names means, and which wildcard addresses cover a plain one.

Owns the meaning (words between delimiters, one sign for a single word, one for any number of words)
for addresses and for matches of settings alike, and the tree in which patterns are found. Must
never know queues. Called by `address_settings`, `registry` and `publishing`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from vespiary_broker.engine.turn_time import LOOK_US, Stint, TurnTime

if TYPE_CHECKING:
    from vespiary_broker.engine.addresses import Address

T = TypeVar("T")

_BLOCK_WORDS: Final = 4096
_TREE_MAX: Final = 4096
"""At each level of the tree a name can match about L**n branches, where L is the number of levels
and n the number of single-word wildcards in a pattern."""


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

    __slots__ = (
        "_automaton", "_delimiter", "_head", "_is_head_all", "_parts", "_syntax", "text",
    )  # fmt: skip

    def __init__(self, text: str, syntax: WildcardSyntax = DEFAULT_SYNTAX) -> None:
        self.text = text
        self._syntax = syntax
        self._delimiter = syntax.delimiter
        self._parts = syntax.words(text)
        self._automaton: Patterns[str] | None = None
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
        if self._automaton is None:
            self._automaton = Patterns(self._syntax)
            self._automaton.add(self.text, self._parts)
        return bool(self._automaton.matching(words))


class Patterns(Generic[T]):
    """Patterns that are matched together, with one bit for each of their words.

    A bit is set while the words before it can have taken what came so far. Each word of a name
    takes the same few steps, whatever the patterns are, so no name takes longer than its words
    times the patterns' words, by 64 at a time.

    Attributes:
        bits: How many it has; those of patterns that were removed stay.
        live_bits: Those of the patterns that it has.

    Args:
        syntax: Which words are wildcards.
    """

    __slots__ = (
        "_any", "_any_words", "_by_end", "_ends", "_places", "_single", "_single_word", "_start",
        "_words", "bits", "live_bits",
    )  # fmt: skip

    def __init__(self, syntax: WildcardSyntax) -> None:
        self.bits = self.live_bits = 0
        self._any_words, self._single_word = syntax.any_words, syntax.single_word
        self._any = self._single = self._start = self._ends = 0
        self._words: dict[str, int] = {}
        self._by_end: dict[int, T] = {}
        self._places: dict[T, tuple[int, int]] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(self._places)

    def add(self, pattern: T, parts: Sequence[str]) -> None:
        """Take a pattern in.

        Args:
            pattern: What `matching` returns for it.
            parts: Its words.
        """
        begin = at = self.bits
        before = ""
        for part in parts:
            if part == self._single_word:
                self._single |= 1 << at
            elif part != self._any_words:
                self._words[part] = self._words.get(part, 0) | 1 << at
            elif before == part:
                continue  # two in a row mean the same as one
            else:
                self._any |= 1 << at
            before = part
            at += 1
        self._start |= 1 << begin
        self._ends |= 1 << at
        self._by_end[at] = pattern
        self._places[pattern] = (begin, at)
        self.bits = at + 1
        self.live_bits += self.bits - begin

    def remove(self, pattern: T) -> None:
        """Take a pattern out; its bits stay, but no name can reach them."""
        begin, end = self._places.pop(pattern)
        del self._by_end[end]
        self._start ^= 1 << begin
        self._ends ^= 1 << end
        self.live_bits -= end + 1 - begin

    def matching(self, words: list[str]) -> list[T]:
        """Return the patterns that cover a name.

        Args:
            words: The words of the name.
        """
        any_words, single, places = self._any, self._single, self._words
        state = self._start
        state |= (state & any_words) << 1
        for word in words:
            state = (state & (places.get(word, 0) | single)) << 1 | state & any_words
            if not state:
                return []
            state |= (state & any_words) << 1
        found = []
        ends = state & self._ends
        while ends:
            end = ends.bit_length() - 1
            found.append(self._by_end[end])
            ends ^= 1 << end
        return found


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
        children: What may come next, by word.
        address: The wildcard address that ends here; None if none does.
    """

    children: dict[str, _Node] = field(default_factory=dict)
    address: Address | None = None


class WildcardTable:
    """The wildcard addresses, found by the names that they cover.

    Most are found in a tree, where a look takes one step for each word and each branch that is
    still possible, however many patterns there are. Those with a wildcard for any number of words
    before their end would be possible everywhere, and those with wildcards for one word among many
    would leave very many branches possible; they are matched block by block.

    Attributes:
        tree_max: Most steps that patterns of one length may add to a look at the tree.
        block_words: Words of patterns that are matched together.

    Args:
        syntax: What is a word and what a wildcard.
    """

    def __init__(self, syntax: WildcardSyntax) -> None:
        self.tree_max = _TREE_MAX
        self.block_words = _BLOCK_WORDS
        self._syntax = syntax
        self._root = _Node()
        self._blocks: list[Patterns[Address]] = []
        self._block_of: dict[Address, Patterns[Address] | None] = {}  # None: it is in the tree
        self._last: tuple[str, tuple[Address, ...]] | None = None  # a new name is asked for thrice

    def add(self, address: Address) -> None:
        """Take a wildcard address in."""
        self._last = None
        words = self._syntax.words(address.name)
        singles = words.count(self._syntax.single_word)
        is_wide = singles > 0 and len(words) ** (singles + 1) > self.tree_max
        if is_wide or self._syntax.any_words in words[:-1]:
            self._add_to_block(address, words)
            return
        self._block_of[address] = None
        node = self._root
        for word in words:
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        assert node.address is None
        node.address = address

    def _add_to_block(self, address: Address, words: list[str]) -> None:
        if not self._blocks or self._blocks[-1].bits + len(words) > self.block_words:
            self._blocks.append(Patterns(self._syntax))
        block = self._block_of[address] = self._blocks[-1]
        block.add(address, words)

    def remove(self, address: Address) -> None:
        """Take a wildcard address out, and the branches that only it needed."""
        self._last = None
        words = self._syntax.words(address.name)
        block = self._block_of.pop(address)
        if block is None:
            self._remove_from_tree(address, words)
            return
        block.remove(address)
        if block.live_bits < block.bits / 2:
            self._blocks.remove(block)
            for other in block:
                self._add_to_block(other, self._syntax.words(other.name))

    def _remove_from_tree(self, address: Address, words: list[str]) -> None:
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        assert path[-1].address is address
        path[-1].address = None
        for word, parent, node in zip(reversed(words), path[-2::-1], path[:0:-1], strict=True):
            if node.children or node.address is not None:
                return
            del parent.children[word]

    def covering(self, name: str) -> tuple[Address, ...]:
        """Return the wildcard addresses that cover a plain name, by name."""
        if not self._block_of:
            return ()
        if self._last is None or self._last[0] != name:
            for _ in self._found(name):
                pass
        assert self._last is not None
        return self._last[1]

    async def find(self, name: str, turn_time: TurnTime) -> None:
        """Find the wildcard addresses that cover a name, in as many turns as needed.

        `covering` then returns them. Addresses may be removed meanwhile; the caller ensures that
        none is added.

        Args:
            name: A plain name.
            turn_time: What a turn of the loop has for it.
        """
        if not self._block_of:
            return
        stint = Stint(turn_time)
        await stint.time()
        for _ in self._found(name):
            stint.did(LOOK_US)
            await stint.time()
        stint.end()

    def _found(self, name: str) -> Iterator[None]:
        """Find what covers a name, and keep it; yield after each step."""
        words = self._syntax.words(name)
        found = self._in_tree(words)
        for block in list(self._blocks):
            yield
            found += block.matching(words)
        found = [
            one
            for one in dict.fromkeys(found)  # one may have moved to a later block meanwhile
            if one in self._block_of and not is_hidden(name, one.name, self._syntax)
        ]
        self._last = (name, tuple(sorted(found, key=lambda address: address.name)))

    def _in_tree(self, words: list[str]) -> list[Address]:
        any_words, single_word = self._syntax.any_words, self._syntax.single_word
        found: list[Address] = []
        reached = [self._root]
        for word in [*words, None]:
            for node in reached:
                rest = node.children.get(any_words)
                if rest is not None and rest.address is not None:
                    found.append(rest.address)
            if word is None:
                break
            before, reached = reached, []
            for node in before:
                for key in (word, single_word):
                    child = node.children.get(key)
                    if child is not None:
                        reached.append(child)
        found += [node.address for node in reached if node.address is not None]
        return found

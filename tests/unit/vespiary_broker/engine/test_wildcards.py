import itertools
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.turn_time import SHARE_S, TurnTime
from vespiary_broker.engine.wildcards import (
    DEFAULT_SYNTAX,
    Pattern,
    WildcardSyntax,
    WildcardTable,
    is_hidden,
)
from vespiary_spec.settings import RoutingType
from vespiary_testkit.step_counter import steps_of

SLASHES = WildcardSyntax(delimiter="/", any_words=">", single_word="+")

_WORDS = st.lists(st.sampled_from(["a", "b", "ab", ""]), min_size=1, max_size=5)
_PARTS = st.lists(st.sampled_from(["a", "b", "ab", "", "*", "#"]), min_size=1, max_size=5)


def covers(parts: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Say by definition whether a pattern covers a name; the oracle."""

    @cache
    def rest(part: int, word: int) -> bool:
        if part == len(parts):
            return word == len(words)
        if parts[part] == "#":
            return any(rest(part + 1, later) for later in range(word, len(words) + 1))
        if word == len(words):
            return False
        return parts[part] in ("*", words[word]) and rest(part + 1, word + 1)

    return rest(0, 0)


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("#", "a.b.c", True),
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a.b.b.d", False),
        ("*.b.*", "a.b.c", True),
        ("a.*", "a.b/c", True),
        ("../#", "../../etc", False),
        (".#", "a", False),
        (".#", ".a", True),
        (".#", "", True),
    ],
)
def test_match(pattern: str, address: str, expected: bool) -> None:
    assert Pattern(pattern).is_match(address) is expected


@given(_PARTS, _WORDS)
@example(["", "#"], ["a"])
def test_match_is_what_its_definition_says(parts: list[str], words: list[str]) -> None:
    expected = covers(tuple(parts), tuple(words))
    assert Pattern(".".join(parts)).is_match(".".join(words)) is expected


@pytest.mark.parametrize(
    ("parts", "words", "is_match"),
    [(["#"] * 200, ["a"] * 200, True), (["#", "a"] * 100 + ["x"], ["a"] * 400, False)],
)
def test_no_pattern_goes_back(parts: list[str], words: list[str], is_match: bool) -> None:
    pattern, name = Pattern(".".join(parts)), ".".join(words)
    most = 4 * len(parts) * len(words)
    assert steps_of(lambda: pattern.is_match(name), most) > 0
    assert pattern.is_match(name) is is_match


def test_another_syntax() -> None:
    assert Pattern("news/>", SLASHES).is_match("news/europe/de.fr")
    assert Pattern("news/+/#", SLASHES).is_match("news/europe/#")
    assert not Pattern("news/+", SLASHES).is_match("news")
    assert SLASHES.is_wildcard("news/+")
    assert not SLASHES.is_wildcard("news.#")


def test_wildcard_characters_inside_a_word_are_data() -> None:
    assert not DEFAULT_SYNTAX.is_wildcard("a*b.c#")
    assert DEFAULT_SYNTAX.is_wildcard("a.*")
    assert DEFAULT_SYNTAX.is_wildcard("#")
    assert not WildcardSyntax(is_routing_enabled=False).is_wildcard("a.#")


def _address(name: str) -> Address:
    return Address(name, {RoutingType.MULTICAST}, is_auto_created=False)


@given(
    st.sets(_PARTS.map(tuple), max_size=12),
    _WORDS,
    st.randoms(),
    st.sampled_from([0, 4096]),
    st.sampled_from([12, 4096]),
)
def test_the_table_finds_what_covers_a_name(
    patterns: set[tuple[str, ...]],
    words: list[str],
    random: object,
    tree_max: int,
    block_words: int,
) -> None:
    table = WildcardTable(DEFAULT_SYNTAX)
    addresses = [_address(".".join(parts)) for parts in sorted(patterns)]
    name = ".".join(words)
    table.tree_max, table.block_words = tree_max, block_words
    for address in addresses:
        table.add(address)
    while True:
        expected = [a.name for a in addresses if covers(tuple(a.name.split(".")), tuple(words))]
        assert [address.name for address in table.covering(name)] == sorted(expected)
        if not addresses:
            break
        index = random.randrange(len(addresses))  # type: ignore[attr-defined]
        table.remove(addresses.pop(index))
    assert not table._root.children
    assert not table._blocks


def test_those_that_cover_a_name_are_found_without_a_look_at_the_others() -> None:
    steps = []
    for count in (10, 10_000):
        table = WildcardTable(DEFAULT_SYNTAX)
        for number in range(count):
            table.add(_address(f"tenant.{number}.#"))
        table.add(_address("tenant.#"))
        found = table.covering("tenant.7.orders.eu")
        assert [address.name for address in found] == ["tenant.#", "tenant.7.#"]
        steps.append(steps_of(lambda table=table: table.covering("tenant.7.orders.eu")))
    assert steps[0] == steps[1]


@pytest.mark.parametrize("is_first", [False, True])
def test_no_wildcard_in_first_place_covers_a_name_that_begins_with_a_dollar(is_first: bool) -> None:
    """Whichever of the two addresses is there first."""
    patterns = ("#", "*.state", "*.*", "$SYS.#", "$SYS.*", "a.#")
    table = WildcardTable(DEFAULT_SYNTAX)
    for pattern in patterns:
        table.add(Address(pattern, set(), is_auto_created=True))
    if is_first:
        covering = [name for name in patterns if Pattern(name).is_match("$SYS.state")]
        covering = [name for name in covering if not is_hidden("$SYS.state", name)]
    else:
        covering = [address.name for address in table.covering("$SYS.state")]
    assert sorted(covering) == ["$SYS.#", "$SYS.*"]
    assert Pattern("#").is_match("$SYS.state"), "settings and permissions for # hold there"


def test_wildcards_in_front_take_a_few_steps_for_each_word() -> None:
    words = ["a"] * 200
    steps = []
    for count in (10, 300):
        table = WildcardTable(DEFAULT_SYNTAX)
        for number in range(count):
            table.add(_address(f"#.a.#.b{number}.#.a"))
        table.covering("x")
        steps.append(steps_of(lambda table=table: table.covering(".".join(words))))  # type: ignore[misc]
        assert table.covering("a.c.b3.a")[0].name == "#.a.#.b3.#.a"
    assert steps[1] < 3 * steps[0] + 1000


def test_the_first_look_after_many_were_added_is_like_any_other() -> None:
    table = WildcardTable(DEFAULT_SYNTAX)
    for number in range(2000):
        table.add(_address(f"#.a.b{number}"))
    first = steps_of(lambda: table.covering("a.c"))
    assert steps_of(lambda: table.covering("a.d")) == first


def test_what_is_left_of_many_is_matched_together() -> None:
    table = WildcardTable(DEFAULT_SYNTAX)
    kept = [_address(f"#.kept.{number}") for number in range(20)]
    gone = [_address(f"#.gone.{number}") for number in range(20 * 2000)]
    for number, address in enumerate(kept):
        table.add(address)
        for other in gone[2000 * number : 2000 * (number + 1)]:
            table.add(other)
    for address in gone:
        table.remove(address)
    assert len(table._blocks) == 1
    assert table.covering("a.kept.7") == (kept[7],)


def test_two_wildcards_among_many_words_leave_few_branches() -> None:
    """As many patterns as there are places for two wildcards, all of which match until the end."""
    words = ["a"] * 60
    steps = []
    for size in (10, 1000):
        table = WildcardTable(DEFAULT_SYNTAX)
        for number, places in enumerate(
            itertools.islice(itertools.combinations(range(60), 2), size)
        ):
            parts = ["*" if place in places else "a" for place in range(60)]
            table.add(_address(".".join([*parts, f"b{number}"])))
        name = ".".join([*words, "b3"])
        steps.append(steps_of(lambda table=table, name=name: table.covering(name)))  # type: ignore[misc]
        assert len(table.covering(name)) == 1
    assert steps[1] < 10 * steps[0] + 1000, "they share blocks"


def _many() -> tuple[WildcardTable, list[Address]]:
    """Make a table with ten blocks of patterns that cover `a`."""
    table = WildcardTable(DEFAULT_SYNTAX)
    addresses = [_address("#.a" + number * ".#") for number in range(10)]
    table.block_words = 1
    for address in addresses:
        table.add(address)
    return table, addresses


def test_a_look_at_many_blocks_goes_over_several_turns() -> None:
    table, addresses = _many()
    turn_time, later = TurnTime(), list[Callable[[], None]]()
    turn_time.clock_s = itertools.count(
        0.0, 0.6 * SHARE_S
    ).__next__  # each look takes more than half
    turn_time.next_turn = later.append
    work = table.find("a", turn_time).__await__()
    turns = 0
    while next(work, "done") is None:
        turns += 1
        if turns == 2:
            table.remove(addresses.pop(0))  # it was found in the first turn
        acts, later[:] = list(later), []
        for act in acts:
            act()
    assert turns >= 3
    found = table._last
    assert found is not None
    assert found[0] == "a"
    assert list(found[1]) == sorted(addresses, key=lambda address: address.name)
    assert table.covering("a") is found[1]


def test_what_moves_to_another_block_during_a_look_is_found_once() -> None:
    table, kept, gone = WildcardTable(DEFAULT_SYNTAX), _address("#.a"), _address("#.b.c.d.e")
    table.block_words = 11
    table.add(kept)
    table.add(gone)
    last = _address("#.a.#")
    table.add(last)
    steps = table._found("a")
    next(steps)
    next(steps)
    table.remove(gone)
    assert list(steps) == []
    assert table.covering("a") == (kept, last)

"""The window of an address' ids, against a list that does the same slowly."""

from __future__ import annotations

import sys
import uuid

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.duplicate_cache import AddressCache


def contents(cache: AddressCache) -> list[tuple[int, bytes, int]]:
    return list(cache.entries())


def test_the_oldest_id_is_displaced():
    cache = AddressCache(2)
    assert cache.add(1, b"a", 7) == []
    assert cache.add(2, b"b", 7) == []
    assert cache.add(3, b"c", 8) == [(7, b"a")]
    assert b"a" not in cache
    assert contents(cache) == [(2, b"b", 7), (3, b"c", 8)]
    assert cache.newest(1) == [b"c"]
    cache.move(2, 9)
    assert contents(cache)[0] == (2, b"b", 9)


@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 3), max_size=120),
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(1, 30),
)
def test_ids_of_a_file_are_found_in_pieces_of_bounded_size(
    size: int, files: list[int], wanted: int, size_bytes: int, looked_at: int
):
    cache = AddressCache(size)
    for number, file_id in enumerate(files, 1):
        cache.add(number, b"%d" % number, file_id)
    expected = [(n, t) for n, t, file_id in cache.entries() if file_id == wanted]
    assert [n for n, *_ in cache.entries()] == list(range(1, len(files) + 1))[-size:]
    found: list[tuple[int, bytes]] = []
    number = cache.first
    while number <= cache.last:
        ids, following = cache.standing_in(
            wanted, number, size_bytes=size_bytes, overhead_bytes=1, looked_at=looked_at
        )
        assert number < following <= number + looked_at
        assert sum(len(text) + 1 for _, text in ids[:-1]) < size_bytes
        found += ids
        number = following
    assert found == expected


def test_a_cache_of_no_size_remembers_nothing_and_goes_on_counting():
    cache = AddressCache(0)
    assert cache.add(1, b"a", 7) == [(7, b"a")]
    assert (len(cache), cache.last) == (0, 1)


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(1, 30), st.sampled_from([b"a", b"b", b"c", b"d"]))),
    st.integers(0, 12),
    st.permutations(range(30)),
)
def test_the_highest_numbers_count_in_whatever_order_they_are_found(
    size: int, records: list[tuple[int, bytes]], floor: int, order: list[int]
):
    by_number = dict(records)
    cache = AddressCache(size)
    for number in sorted(by_number, key=lambda n: order[n - 1]):
        cache.restore(number, by_number[number], 3)
    cache.settle(floor)
    last = max([*by_number, floor])
    window = {n: t for n, t in by_number.items() if n > last - size and n > floor}
    expected = {t: n for n, t in sorted(window.items())}
    assert contents(cache) == [(n, t, 3) for t, n in sorted(expected.items(), key=lambda x: x[1])]
    assert cache.last == last
    for text in (b"a", b"b", b"c", b"d"):
        assert (text in cache) == (text in expected)
    if size:
        cache.add(last + 1, b"new", 4)
        assert b"new" in cache
        assert len(cache) <= size


def test_many_records_of_old_ids_do_not_stay_in_memory():
    cache = AddressCache(10)
    for number in range(1, 20_000):
        cache.restore(number, b"%d" % number, 1)
    assert len(cache._found) < 2000
    cache.settle(0)
    assert contents(cache)[0] == (19_990, b"19990", 1)


def test_twenty_thousand_ids_take_little_memory():
    texts = [str(uuid.UUID(int=number)).encode() for number in range(20_000)]
    cache = AddressCache(20_000)
    for number, text in enumerate(texts):
        cache.add(number + 1, text, 3)
    own = sum(map(sys.getsizeof, (cache._ids, cache._files, cache._seen)))
    total = own + sum(map(sys.getsizeof, texts))
    assert total < 2.6e6, total
    for number in range(20_000, 50_000):
        cache.add(number + 1, b"%d" % number, 3)
    assert len(cache._ids) <= 20_000 * 9 / 8 + 1
    assert len(cache._ids) == len(cache._files)

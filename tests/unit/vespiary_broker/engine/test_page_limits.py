"""Limits on the pages of an address: when they are reached, and when there is room again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vespiary_broker.engine.page_limits import page_limits_of
from vespiary_spec.paging import PageFullPolicy
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings

PAGE = 100_000


def settings(**values: Any) -> AddressSettings:
    values = {"page_full_policy": PageFullPolicy.FAIL, "page_size_bytes": PAGE} | values
    return msgspec.structs.replace(ADDRESS_DEFAULTS, **values)


@pytest.mark.parametrize(
    "values",
    [{}, {"page_limit_bytes": PAGE, "page_full_policy": None}, {"page_limit_bytes": -1}],
)
def test_limits_need_a_limit_and_a_policy(values: dict[str, Any]) -> None:
    assert page_limits_of(settings(**values)) is None


def fullness(limits: Any, amounts: list[tuple[int, int]]) -> list[bool]:
    """Return whether pages are full after each amount of bytes and messages."""
    found = []
    for size_bytes, messages in amounts:
        was = limits.is_full
        assert limits.note(size_bytes, messages) is (limits.is_full != was)
        found.append(limits.is_full)
    return found


def test_pages_are_full_when_another_one_does_not_fit() -> None:
    limits = page_limits_of(settings(page_limit_bytes=10 * PAGE))
    amounts = [0, 9 * PAGE, 9 * PAGE + 1, 9 * PAGE, 7 * PAGE + 1, 7 * PAGE, 9 * PAGE]
    states = fullness(limits, [(size, 1 << 40) for size in amounts])
    assert states == [False, False, True, True, True, False, False]


def test_a_limit_of_one_page_lets_go_when_there_is_none() -> None:
    limits = page_limits_of(settings(page_limit_bytes=PAGE))
    assert fullness(limits, [(0, 0), (1, 1), (PAGE, 1), (1, 1), (0, 0)]) == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_messages_count_too() -> None:
    limits = page_limits_of(settings(page_limit_messages=10))
    amounts = [9, 10, 12, 9, 8, 9, 10]
    states = fullness(limits, [(1 << 40, count) for count in amounts])
    assert states == [False, True, True, True, False, False, True]


def test_a_limit_of_no_messages_is_always_reached() -> None:
    limits = page_limits_of(settings(page_limit_messages=0))
    assert fullness(limits, [(0, 0), (0, 1), (0, 0)]) == [True, True, True]


def test_either_limit_fills_and_both_have_to_let_go() -> None:
    limits = page_limits_of(settings(page_limit_bytes=10 * PAGE, page_limit_messages=10))
    amounts = [(10 * PAGE, 1), (PAGE, 10), (PAGE, 9), (PAGE, 8), (PAGE, 10)]
    assert fullness(limits, amounts) == [True, True, True, False, True]


def test_what_it_says_names_both_limits() -> None:
    limits = page_limits_of(settings(page_limit_bytes=PAGE, page_limit_messages=10))
    assert limits is not None
    limits.note(7, 5)
    assert limits.limits_text() == f"page-limit-bytes {PAGE}, page-limit-messages 10"
    assert limits.facts_text() == "7 bytes of pages with 5 messages"

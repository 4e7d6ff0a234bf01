"""The draw of mutations: which changes it knows, and that a seed always gives the same ones."""

from __future__ import annotations

import ast

import pytest

from vespiary_testkit.mutant_runner import ROOT
from vespiary_testkit.mutation_draw import SHARES, drawn, sites

pytestmark = pytest.mark.verify

_PYTHON = b"""\
def is_late(at: int, limit: int = 1) -> bool:
    assert at > 0
    log.info("asked", at + 1)
    count(f"{at + 1}")
    if at < limit and at:
        raise Late(at + 1)
    return at == limit - 1


def __repr__(self) -> str:
    return "a" if self.a else "b"
"""
_C = b"""\
static bool is_late(int at, int limit)
{
    /* at > 1 */
    count(at, "a > b");
    if (at < limit && (at))
        return true;
    return at == limit - 1;
}
"""


def _changes(path: str, source: bytes) -> set[str]:
    return {each.describe(source).partition(": ")[2] for each in sites(path, source)}


def test_changes_of_python() -> None:
    assert _changes("a.py", _PYTHON) == {
        '`count(f"{at + 1}")` -> `pass`',
        "`if at < limit and at:` -> `if (not (at < limit and at)):`",
        "`if at < limit and at:` -> `if at <= limit and at:`",
        "`if at < limit and at:` -> `if at < limit or at:`",
        "`return at == limit - 1` -> `return (not (at == limit - 1))`",
        "`return at == limit - 1` -> `return at != limit - 1`",
        "`return at == limit - 1` -> `return at == limit - 0`",
    }


def test_changes_of_c() -> None:
    assert _changes("a.c", _C) == {
        '`count(at, "a > b");` -> `;`',
        "`if (at < limit && (at))` -> `if (!(at < limit && (at)))`",
        "`if (at < limit && (at))` -> `if (at <= limit && (at))`",
        "`if (at < limit && (at))` -> `if (at < limit || (at))`",
        "`return true;` -> `return false;`",
        "`return at == limit - 1;` -> `return at != limit - 1;`",
        "`return at == limit - 1;` -> `return at == limit - 0;`",
    }


def test_the_draw_is_fixed_and_applies() -> None:
    first = drawn()
    assert first == drawn()
    assert len(set(first)) == len(first) == sum(count for _, count in SHARES) == 60
    for each in first:
        source = (ROOT / each.path).read_bytes()
        broken = each.apply(source)
        assert broken != source
        if each.path.endswith(".py"):
            ast.parse(broken)

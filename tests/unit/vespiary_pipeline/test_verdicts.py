"""Verdicts of a verification: what is damage, where it is, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from vespiary_pipeline.jobs.verifying import Damage, Verified, _damage, _verdict
from vespiary_pipeline.sources.bodies import NOT_THERE, UNREADABLE
from vespiary_spec.errors import SourceChanged

PATH = "/r/activemq-data-20261124012345-7.hq"
GOOD: dict[str, Any] = {
    "path": PATH, "used_bytes": 8192, "blocks": 2, "records": 5, "torn_at": None, "error": None,
}  # fmt: skip


def verdict(*broken: Row, **file: Any) -> Verified:
    return _verdict("/r", [Row(**GOOD), Row(**GOOD | file)], broken)


def test_files_are_counted_with_what_is_in_them() -> None:
    found = verdict()
    assert found == Verified("/r", "good", files=2, blocks=4, records=10, size_bytes=16384)
    assert not found.is_bad
    assert verdict(torn_at=4096).verdict == "torn"


def test_a_file_that_went_while_it_was_read_is_no_damage() -> None:
    gone = SourceChanged("the broker removed this file", where=PATH)
    assert verdict(error=str(gone), blocks=None).verdict == "good"


def test_the_same_damage_counts_once() -> None:
    hole = f"{PATH}:4096: a hole"
    found = verdict(Row(path=PATH, what=hole), error=hole)
    assert found.damage == (Damage(PATH, 4096, "a hole"),)
    assert found.is_bad


@pytest.mark.parametrize(
    ("said", "offset", "what"),
    [
        (f"{PATH}:4096: confirmed data is damaged", 4096, "confirmed data is damaged"),
        (f"{PATH}: the size is another", None, "the size is another"),
        ("members do not fit", 77, "members do not fit"),
        (f"{PATH}.msg: the body is not there", 77, f"{PATH}.msg: the body is not there"),
    ],
)
def test_file_and_offset_are_told_apart_from_what_is_wrong(
    said: str, offset: int | None, what: str
) -> None:
    found = _damage(PATH, said, 77 if offset == 77 else None)
    assert found == Damage(PATH, offset, what)
    assert found.place == (PATH if offset is None else f"{PATH}:{offset}")


def test_a_body_that_cannot_be_read_is_no_damage_unless_something_else_is() -> None:
    body = Row(path=PATH, offset=4160, what=f"a large message: {UNREADABLE}: Permission denied")
    assert verdict(body).verdict == "unread"
    assert verdict(body, error=f"{PATH}:4096: a hole").verdict == "damaged"
    missing = Row(path=PATH, offset=4160, what=f"a large message: {NOT_THERE}")
    assert verdict(missing).verdict == verdict(body, missing).verdict == "damaged"


def test_what_could_not_be_looked_at_is_bad_and_no_damage() -> None:
    found = Verified("/r", "unread", damage=(Damage("/r", None, "permission denied"),))
    assert found.is_bad
    assert found.message == "unread: it could not be looked at"

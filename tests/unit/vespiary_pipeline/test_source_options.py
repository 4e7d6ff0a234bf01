"""The options of the format: every one is read, and what is none of them is refused with a cure."""

from __future__ import annotations

import json

import pytest

from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.options import OPTIONS, Options, read_options
from vespiary_spec.errors import ConfigError, UnknownSetting

GOOD = {
    "table": ("Files", "files"),
    "columns": ("kind, block", ("kind", "block")),
    "journal": ("message, PAGE", ("message", "page")),
    "kinds": ("add,ACK", frozenset({RecordType.ADD, RecordType.ACK})),
    "members": ("true", True),
    "dead": ("False", False),
    "body": ("True", True),
    "verifyLarge": ("true", True),
    "data": ("true", True),
    "bindings": ("/b", "/b"),
    "largeMessages": ("/l", "/l"),
    "snapshot": ("nightly", "nightly"),
    "maxBodyBytes": ("1m", 1024 * 1024),
    "minFileId": ("7", 7),
    "maxFileId": ("9", 9),
    "minPosition": ("65536", 65536),
    "batchRows": ("1", 1),
    "batchBytes": ("64k", 65536),
    "maxPartitionBytes": ("1g", 1024**3),
    "onCorrupt": ("stop-file", "stop-file"),
    "consistency": ("best-effort", "best-effort"),
}
BAD = {
    "table": "rows",
    "columns": "kind,body_bites",
    "journal": "messages",
    "kinds": "ADD,DELETE",
    "members": "some",
    "dead": "no",
    "body": "yes",
    "verifyLarge": "both",
    "data": "1",
    "maxBodyBytes": "2g",
    "minFileId": "one",
    "maxFileId": "-2",
    "minPosition": "1.5",
    "batchRows": "0",
    "batchBytes": "2g",
    "maxPartitionBytes": "4k",
    "onCorrupt": "ignore",
    "consistency": "strict",
}
FREE = {"bindings", "largeMessages", "snapshot"}
"""Any text is a path or a name."""


def test_every_option_has_an_example() -> None:
    assert set(GOOD) == set(OPTIONS)
    assert set(BAD) | FREE == set(OPTIONS)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_each_is_read_in_whatever_case_it_comes(name: str) -> None:
    text, value = GOOD[name]
    table = {"table": text} if name == "table" else {}
    given = {"path": "/d", name.lower(): text, **table}
    if name == "table":
        given = {"path": "/d", "TABLE": text}
    assert getattr(read_options(given), OPTIONS[name].field) == value


@pytest.mark.parametrize("name", sorted(BAD))
def test_each_refuses_what_it_does_not_know(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({"path": "/d", name.lower(): BAD[name]})
    assert caught.value.where == name
    assert caught.value.allowed


def test_nothing_said_is_the_defaults() -> None:
    assert read_options({"path": "/d"}) == Options(paths=("/d",))


@pytest.mark.parametrize(
    ("given", "meant"), [("onCorupt", "onCorrupt"), ("bodies", "body"), ("minfile", "minFileId")]
)
def test_an_unknown_one_is_refused_with_the_nearest(given: str, meant: str) -> None:
    with pytest.raises(UnknownSetting, match=rf"Did you mean {meant}\?") as caught:
        read_options({"path": "/d", given: "x"})
    assert "maxPartitionBytes" in caught.value.allowed


def test_an_unknown_one_that_is_like_none_is_refused() -> None:
    with pytest.raises(UnknownSetting, match="no option of the format"):
        read_options({"path": "/d", "zzzzzz": "x"})


def test_paths_come_as_spark_gives_them() -> None:
    assert read_options({"paths": json.dumps(["/a", "file:///b"])}).paths == ("/a", "/b")
    assert read_options({"path": "file:///a/b"}).paths == ("/a/b",)
    with pytest.raises(ConfigError, match="no path is given"):
        read_options({"body": "true"})


def test_bodies_among_the_columns_have_to_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="has to be asked for"):
        read_options({"path": "/d", "columns": "kind,body"})
    assert read_options({"path": "/d", "columns": "kind,body", "body": "true"}).columns

"""What a replay selects, and what it sends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_broker.cli.replaying import (
    Outcome,
    Selection,
    _send_all,
    queue_numbers,
    resent_headers,
)
from vespiary_broker.cli.terminal import CommandFailed
from vespiary_broker.store.builder import JournalBuilder
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.files import BINDINGS_FORM
from vespiary_codec.journal.record import AddRecord, Place, PutRecord, RemoveRecord, encode_record
from vespiary_spec.errors import JournalError

HEADERS = {"destination": "/queue/orders", "region": "eu", "_AMQ_DUPL_ID": "x"}


def message(**changes: object) -> AddRecord:
    values = {"places": (Place(3, 17),), "properties": b"", "body": b"", "arrival_ms": 5000}
    return AddRecord(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "is_taken"),
    [
        (Selection(), True),
        (Selection(from_ms=5000, to_ms=5001), True),
        (Selection(from_ms=5001), False),
        (Selection(to_ms=5000), False),
        (Selection(address="orders"), True),
        (Selection(address="/queue/orders"), True),
        (Selection(address="order"), False),
        (Selection(queue_ids=frozenset({2, 3})), True),
        (Selection(queue_ids=frozenset({4})), False),
        (Selection(header=("region", "eu")), True),
        (Selection(header=("region", "us")), False),
        (Selection(header=("colour", "")), False),
    ],
)
def test_what_is_selected(wanted: Selection, is_taken: bool):
    assert wanted.takes(message(), HEADERS) is is_taken


def test_a_fully_qualified_destination_belongs_to_its_address():
    assert Selection(address="orders").takes(message(), {"destination": "orders::audit"})


def test_what_is_sent_again_has_an_id_of_its_own():
    moved = {**HEADERS, "_AMQ_ORIG_QUEUE": "orders", "_AMQ_ACTUAL_EXPIRY": "1"}
    assert resent_headers(message(priority=9), moved) == [
        ("region", "eu"),
        ("original-destination", "/queue/orders"),
        ("_AMQ_DUPL_ID", "replay-3-17-5000"),
        ("priority", "9"),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["."], "--target"),
        ([".", "--dry-run", "--from", "yesterday"], "is no time"),
        ([".", "--dry-run", "--filter", "region"], "header = value"),
    ],
)
def test_wrong_usage_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
):
    assert run_program(["journal", "replay", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_queue_is_found_by_its_name_in_the_bindings(tmp_path: Path):
    builder = JournalBuilder(
        tmp_path / "bindings", BINDINGS_FORM, 1 << 20, Disk(), journal_id=bytes(16)
    )
    (tmp_path / "bindings").mkdir()
    for number, name in ((3, "orders"), (7, "12"), (9, "audit"), (11, "audit")):
        builder.add(encode_record(PutRecord(f"queue/{number}", b'{"name":"%s"}' % name.encode())))
    builder.add(encode_record(RemoveRecord("queue/9")))
    builder.finish()
    builder.close()
    copies = tmp_path / "history"
    assert queue_numbers("orders", copies, None) == {3}
    assert queue_numbers("orders", tmp_path / "else/where", tmp_path / "bindings") == {3}
    assert queue_numbers("audit", copies, None) == {9, 11}, "one was deleted and made again"
    assert queue_numbers("12", copies, None) == {12}, "digits are a number"
    for name, folder in (("billing", copies), ("orders", tmp_path / "else/where")):
        with pytest.raises(CommandFailed, match=f"know no queue {name}.*--bindings"):
            queue_numbers(name, folder, None)


def test_a_folder_without_copies_is_an_error(tmp_path, capsys: pytest.CaptureFixture[str]):
    assert run_program(["journal", "replay", str(tmp_path), "--dry-run"]) == 1
    assert "no kept copies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (CommandFailed("the broker closed the connection"), CommandFailed, ""),
        (JournalError("the copy is damaged", cure="repair it"), JournalError, ""),
        (KeyboardInterrupt(), KeyboardInterrupt, "vespiary: continue with --skip 0\n"),
    ],
)
def test_a_replay_that_fails_says_why_and_where_to_go_on(
    error: BaseException,
    raised: type[BaseException],
    said: str,
    capsys: pytest.CaptureFixture[str],
):
    def fail(_: object) -> None:
        raise error

    client = SimpleNamespace(new_receipt_id=lambda: "1", send=lambda *_, **__: b"", unconfirmed=[])
    connection: Any = SimpleNamespace(client=client, write=fail)
    bodies: Any = None
    outcome = Outcome(selected=1)
    chosen = iter([(message(), dict(HEADERS))])
    with pytest.raises(raised) as caught:
        _send_all(connection, "/queue/a", [], chosen, outcome, bodies)
    shown = capsys.readouterr().err
    assert shown == said
    if not said:
        assert "continue with --skip 0" in str(caught.value)

"""What a replay selects, and what it sends."""

from __future__ import annotations

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_broker.cli.replaying import Selection, resent_headers
from vespiary_codec.journal.record import AddRecord, Place

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
        (Selection(queue_id=3), True),
        (Selection(queue_id=4), False),
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
    assert resent_headers(message(priority=9), HEADERS) == [
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


def test_a_folder_without_copies_is_an_error(tmp_path, capsys: pytest.CaptureFixture[str]):
    assert run_program(["journal", "replay", str(tmp_path), "--dry-run"]) == 1
    assert "no kept copies" in capsys.readouterr().err

"""`vespiary page`: a good page is good, and no byte of it may change unseen."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.page_files import PageFiles
from vespiary_broker.store.paging.verifying import find_pages, list_page, verify_page
from vespiary_codec.journal.page import decode_page_header, encode_page_header
from vespiary_testkit.page_builder import (
    JOURNAL_ID,
    SALT,
    Message,
    build_page,
    messages,
    parts_of,
)
from vespiary_testkit.seeds import seed_for

CONTENT = [*messages(30), Message(b"both", ((1, 31), (2, 1)))]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    files = PageFiles(PageFolders(tmp_path, Disk()), Disk(), journal_id=JOURNAL_ID, is_direct=False)
    files.write("a/b", 7, SALT, 5, parts_of(build_page(CONTENT, page_id=7)))
    return files.path("a/b", 7)


def test_a_good_page_is_described(page: Path) -> None:
    report = verify_page(page, Disk())
    assert report.problems == []
    assert (report.address, report.page_id, report.created_ms) == ("a/b", 7, 5)
    assert (report.blocks, report.records, report.places) == (5, 31, {1: 31, 2: 1})


def test_no_byte_of_a_page_changes_unseen(page: Path) -> None:
    data = page.read_bytes()
    chance = random.Random(seed_for("page bytes"))
    # Padding between blocks says nothing, and is not summed.
    used = [at for at in range(len(data)) if data[at]]
    for at in chance.sample(used, 150):
        spoiled = bytearray(data)
        spoiled[at] ^= 1 << chance.randrange(8)
        page.write_bytes(spoiled)
        report = verify_page(page, Disk())
        assert report.problems, at


@pytest.mark.parametrize("length", [0, 100, 4096, 8192, 8193])
def test_no_cut_goes_unseen(page: Path, length: int) -> None:
    page.write_bytes(page.read_bytes()[:length])
    assert verify_page(page, Disk()).problems


def test_an_index_that_lies_is_named(page: Path) -> None:
    files = PageFiles(
        PageFolders(page.parent.parent, Disk()), Disk(), journal_id=JOURNAL_ID, is_direct=False
    )
    last = Message(b"other", ((1, 32), (2, 1)))
    one, two = build_page(CONTENT, page_id=7), build_page([*CONTENT[:-1], last], page_id=7)
    page.unlink()
    blocks, footer = one[:-4096], two[-4096:]
    files.write("a/b", 7, SALT, 5, parts_of(blocks + footer))
    said = [problem.what for problem in verify_page(page, Disk()).problems]
    assert said == [
        "the trailer ends 5 other blocks; 5 are valid",
        "the index does not fit the records in the blocks",
        "the index does not fit the places of the records",
    ]


def test_a_sketch_that_lies_is_named(page: Path) -> None:
    data = bytearray(page.read_bytes())
    header = decode_page_header(data)
    assert header.sketch
    lie = bytes([*header.sketch[:2], header.sketch[2] + 1, *header.sketch[3:]])
    data[:4096] = encode_page_header(replace(header, sketch=lie))
    page.write_bytes(data)
    problems = verify_page(page, Disk()).problems
    assert [(problem.offset, problem.what) for problem in problems] == [
        (64 + len("a/b"), "the sketch does not fit the headers of the messages")
    ]
    of_another_version = bytes([200, *header.sketch[1:]])
    data[:4096] = encode_page_header(replace(header, sketch=of_another_version))
    page.write_bytes(data)
    assert verify_page(page, Disk()).is_good


def test_a_page_of_a_version_before_sketches_is_good(page: Path) -> None:
    data = bytearray(page.read_bytes())
    data[:4096] = encode_page_header(replace(decode_page_header(data), sketch=b""))
    page.write_bytes(data)
    assert verify_page(page, Disk()).is_good


def test_pages_are_found_from_each_level(page: Path) -> None:
    (page.parent / f"{page.name}.tmp").write_bytes(b"x")
    for place in (page, page.parent, page.parent.parent):
        assert find_pages(place, Disk()) == [page]


def test_records_are_listed_with_and_without_content(page: Path) -> None:
    first, *records = list(list_page(page, Disk()))
    assert first.operation.startswith("page 7 of 'a/b'")
    added = [entry for entry in records if entry.type == 1]
    assert len(added) == 31
    assert added[-1].content == b"both"
    assert added[0].properties == (("destination", "orders"),)
    assert {entry.content for entry in list_page(page, Disk(), is_safe=True)} == {None}


def test_the_command_says_what_it_found_and_writes_nothing(
    page: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in page.parent.parent.rglob("*")}
    assert run_program(["page", "verify", str(page.parent.parent)]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert "good: page 7 of 'a/b'" in out
    assert "places in queue 1: 31, queue 2: 1" in out
    assert "1 page, 0 damaged" in out
    assert run_program(["page", "print", "--safe", str(page)]) == 0
    assert "***" in capfdbinary.readouterr().out.decode()
    assert {path: path.stat().st_mtime_ns for path in page.parent.parent.rglob("*")} == before


def test_the_command_ends_with_1_for_a_damaged_page(
    page: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = bytearray(page.read_bytes())
    data[4200] ^= 1
    page.write_bytes(data)
    assert run_program(["page", "verify", "--json", str(page)]) == 1
    (report,) = json.loads(capfdbinary.readouterr().out)
    assert report["problems"][0]["offset"] == 4096
    data[0] ^= 1
    page.write_bytes(data)
    assert run_program(["page", "print", str(page)]) == 1
    assert run_program(["page", "verify"]) == 2
    assert run_program(["page", "verify", str(page.parent / "nothing")]) == 2

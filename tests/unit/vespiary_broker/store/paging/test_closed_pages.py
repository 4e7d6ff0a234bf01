"""What is known of closed pages: verdicts on sketches are remembered, within a bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.store.paging import closed_pages
from vespiary_broker.store.paging.closed_pages import ClosedPages
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.page_builder import JOURNAL_ID, SALT, Message, build_page, parts_of


class Numbered:
    """Matches messages with this number."""

    def __init__(self, number: int) -> None:
        self.text = str(number)

    def may_match(self, sketch: PageSketch) -> bool:
        return sketch.names[b"n"].may_equal(self.text.encode())


def written(*pages: bytes) -> tuple[PageFiles, dict[int, PageFile]]:
    """Write pages, each with one message of these properties."""
    disk = MemoryDisk()
    files = PageFiles(PageFolders(Path("/paging"), disk), disk, journal_id=JOURNAL_ID)
    known = {}
    for page_id, properties in enumerate(pages, start=1):
        message = Message(b"x", properties=properties, priority=page_id)
        data = build_page([message], page_id=page_id)
        known[page_id] = files.write("orders", page_id, SALT, 5, parts_of(data))
    return files, known


def test_a_page_is_judged_once_for_each_selector() -> None:
    files, known = written(b"colour:red\n", b"colour:blue\n")
    with ThreadPoolExecutor(1) as executor:
        closed = ClosedPages(files, known, executor)
        red, blue = SelectorMatch("colour = 'red'", ""), SelectorMatch("colour = 'blue'", "")
        for _ in range(3):
            assert [closed.may_match(page_id, red) for page_id in (1, 2)] == [True, False]
            assert [closed.may_match(page_id, blue) for page_id in (1, 2)] == [False, True]
        assert closed.judged == 4
        closed.forget(1)
        assert closed.may_match(1, red)
        assert closed.judged == 5
        files.sketches.forget(2)
        assert not closed.may_match(2, red)
        closed.forget(2)
        assert closed.may_match(2, red)


def test_verdicts_are_bounded() -> None:
    files, known = written(b"n:1\n", b"n:2\n", b"n:3\n")
    most = closed_pages._VERDICTS_MAX
    with ThreadPoolExecutor(1) as executor:
        closed = ClosedPages(files, known, executor)
        for number in range(most // 3 + 100):
            match = Numbered(number)
            for page_id in known:
                assert closed.may_match(page_id, match) == (page_id == number)
        held = sum(map(len, closed._verdicts.values()))
        assert 0 < held <= most
        assert closed._verdicts_left == most - held
        for page_id in list(known):
            closed.forget(page_id)
        assert closed._verdicts_left == most


def test_a_page_that_is_gone_leaves_nothing() -> None:
    files, known = written(b"n:1\n")
    with ThreadPoolExecutor(1) as executor:
        closed = ClosedPages(files, known, executor)
        del known[1]
        closed.forget(1)
        assert closed.may_match(1, SelectorMatch("n = 1", ""))
        assert closed.highest_priority(1) == 1
        assert not closed._verdicts
        assert not closed._highest


def test_the_highest_priority_of_a_page_is_known_from_its_sketch() -> None:
    files, _ = written(b"n:1\n", b"n:2\n")
    found = files.look(files.path("orders", 2), 2, SALT)
    assert found.highest_priority is None
    with ThreadPoolExecutor(1) as executor:
        closed = ClosedPages(files, {2: found}, executor)
        assert closed.highest_priority(2) == 2
        files.sketches.forget(1)
        closed = ClosedPages(files, {1: found}, executor)
        assert closed.highest_priority(1) == 9

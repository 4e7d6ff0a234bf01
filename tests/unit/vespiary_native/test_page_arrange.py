"""Pages in order of priority: C and its twin give the same bytes; nothing but the order is new."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_broker.store.paging.page_files import PagePart
from vespiary_codec.journal.block import FIRST_OFFSET, walk_blocks
from vespiary_codec.journal.page import PageIndex, block_file_id, decode_footer
from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_native import loader
from vespiary_native.page_arrange import page_arrange
from vespiary_native.twin.page_arrange import Arranging, arranged_footer
from vespiary_native.values_pages import PageView
from vespiary_testkit.page_builder import SALT, Message, build_page, whole_parts_of

Arranger = Callable[[Sequence[PagePart]], bytes | None]


def by_twin(parts: Sequence[PagePart]) -> bytes | None:
    pieces = [PageView(*part) for part in parts]
    footer = arranged_footer(pieces)
    if footer is None:
        return None
    end = memoryview(bytearray(footer))
    arranging = Arranging(pieces, end, SALT)
    return b"".join(arranging.next_part() for _ in pieces[:-1]) + bytes(end)


def as_chosen(parts: Sequence[PagePart]) -> bytes | None:
    arranged = page_arrange(parts, SALT)
    if arranged is None:
        return None
    offset, data = FIRST_OFFSET, bytearray()
    for piece in arranged.pieces():
        assert piece.offset == offset
        data += piece.data
        offset += len(piece.data)
    return bytes(data)


ARRANGERS = [by_twin, as_chosen] if loader.is_wanted() else [by_twin]


@pytest.fixture(params=ARRANGERS)
def arrange(request: pytest.FixtureRequest) -> Arranger:
    found: Arranger = request.param
    return found


def page_of(*priorities: int, body_bytes: int = 100, per_block: int = 10) -> bytes:
    return build_page(
        [
            Message(bytes([number % 256]) * body_bytes, ((1, number),), priority=priority)
            for number, priority in enumerate(priorities, start=1)
        ],
        per_block=per_block,
    )


def index_of(page: bytes) -> PageIndex:
    footer = whole_parts_of(page)[-1].data
    return decode_footer(footer, page_id=1, salt=SALT)


def records_of(page: bytes) -> Iterator[tuple[int, AddRecord]]:
    """Yield the messages as they stand in the blocks, after a look at every checksum."""
    blocks, _ = whole_parts_of(page)
    crc = number = 0
    end, is_sealed = FIRST_OFFSET, False
    walk = walk_blocks(blocks.data, offset=FIRST_OFFSET, salt=SALT, file_id=block_file_id(1))
    for offset, header, payload in walk:
        number += 1
        assert (header.sequence, header.previous_crc, offset) == (number, crc, end)
        crc, end, is_sealed = header.crc, offset + header.length, header.is_seal
        for raw in walk_records(payload, header.records, offset=offset + 64):
            record = decode_record(raw)
            if isinstance(record, AddRecord):
                yield raw.offset, record
    assert is_sealed
    assert end == FIRST_OFFSET + len(blocks.data)
    trailer = index_of(page).trailer
    assert (trailer.blocks, trailer.seal_crc) == (number, crc)


def test_high_priorities_come_first_and_each_level_keeps_its_order(arrange: Arranger) -> None:
    page = page_of(4, 9, 0, 4, 9, 5)
    arranged = arrange(whole_parts_of(page))
    assert arranged is not None
    assert len(arranged) == len(page)
    found = list(records_of(arranged))
    assert [record.priority for _, record in found] == [9, 9, 5, 4, 4, 0]
    assert [record.places[0].sequence for _, record in found] == [2, 5, 6, 1, 4, 3]


def test_its_index_tells_where_each_message_stands_now(arrange: Arranger) -> None:
    arranged = arrange(whole_parts_of(page_of(4, 9, 0, 4, 9, 5)))
    assert arranged is not None
    index = index_of(arranged)
    places = {offset: record.places[0].sequence for offset, record in records_of(arranged)}
    (queue,) = index.queues
    assert [place.sequence for place in queue.places] == [1, 2, 3, 4, 5, 6]
    assert [places[index.records[place.record].offset] for place in queue.places] == list(
        range(1, 7)
    )
    assert [record.offset for record in index.records] == sorted(places)


@pytest.mark.parametrize("priorities", [(4, 4, 4), (9, 8, 8, 0), (4,)])
def test_a_page_in_order_stays_as_it_is(arrange: Arranger, priorities: tuple[int, ...]) -> None:
    assert arrange(whole_parts_of(page_of(*priorities))) is None


def test_what_does_not_fit_in_another_order_stays_as_it_is(arrange: Arranger) -> None:
    # Two parts, each with a large message and a small one: both large ones first need three.
    small, large = b"s" * 1500, b"l" * 5500
    bodies = [(large, 4), (small, 0), (large, 4), (small, 0)]
    page = build_page(
        [
            Message(body, ((1, number),), b"", 8, priority)
            for number, (body, priority) in enumerate(bodies, start=1)
        ],
        per_block=2,
    )
    blocks, footer = whole_parts_of(page)
    assert len(blocks.data) == 2 * 8192 + 4096
    cuts = [(0, 8192), (8192, 16384 + 4096)]
    parts = [
        *(PagePart(blocks.data[begin:end], blocks.offset + begin) for begin, end in cuts),
        footer,
    ]
    assert arrange(parts) is None
    assert arrange(whole_parts_of(page)) is not None  # in one part there is room


def test_a_part_ends_where_it_did(arrange: Arranger) -> None:
    page = page_of(*[0, 9] * 40, body_bytes=900, per_block=4)  # 4 KiB a block
    blocks, footer = whole_parts_of(page)
    parts = [
        *(
            PagePart(blocks.data[at : at + 16384], blocks.offset + at)
            for at in range(0, len(blocks.data), 16384)
        ),
        footer,
    ]
    arranged = arrange(parts)
    assert arranged is not None
    found = list(records_of(arranged))
    assert [record.priority for _, record in found] == [9] * 40 + [0] * 40
    for offset, record in found:
        length = 24 + 16 + len(record.properties) + len(record.body)
        begin, end = offset - FIRST_OFFSET, offset - FIRST_OFFSET + length
        assert begin // 16384 == (end - 1) // 16384


@pytest.mark.parametrize(
    "spoil", ["offset", "length", "number", "places", "records", "trailer", "seal"]
)
def test_what_is_no_page_is_refused(arrange: Arranger, spoil: str) -> None:
    page = bytearray(page_of(4, 9, 0))
    blocks, footer = whole_parts_of(bytes(page))
    at = footer.offset - FIRST_OFFSET
    rows = at + 32 + 3 * 8
    where = {
        "offset": rows,
        "length": rows + 4,
        "number": at + 32 + 4,
        "places": len(page) - 64 + 36,
        "records": len(page) - 64 + 40,
        "trailer": len(page) - 64,
        "seal": at - 4096,
    }[spoil]
    page[where : where + 4] = (0x7FFFFFFF).to_bytes(4, "little")
    parts = [
        PagePart(memoryview(page)[:at], blocks.offset),
        PagePart(memoryview(page)[at:], footer.offset),
    ]
    with pytest.raises(ValueError, match="no page"):
        arrange(parts)


@pytest.mark.parametrize("parts", [[], [PagePart(memoryview(bytes(4096)), 4096)]])
def test_too_little_is_no_page(parts: list[PagePart]) -> None:
    with pytest.raises(ValueError, match="no page"):
        page_arrange(parts, SALT)


@pytest.mark.skipif(not loader.is_wanted(), reason="VESPIARY_NATIVE=0: there is one alone")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000), st.integers(1, 3)), min_size=1),
    st.integers(1, 12),
    st.sampled_from([4096, 8192, 16384, 1 << 20]),
)
def test_c_and_twin_agree(
    content: list[tuple[int, int, int]], per_block: int, part_bytes: int
) -> None:
    page = build_page(
        [
            Message(
                bytes([number % 256]) * size,
                tuple((queue, number) for queue in range(1, queues + 1)),
                priority=priority,
            )
            for number, (priority, size, queues) in enumerate(content, start=1)
        ],
        per_block=per_block,
    )
    blocks, footer = whole_parts_of(page)
    parts = [
        *(
            PagePart(blocks.data[at : at + part_bytes], blocks.offset + at)
            for at in range(0, len(blocks.data), part_bytes)
        ),
        footer,
    ]
    try:
        expected = by_twin(parts)
    except ValueError:
        with pytest.raises(ValueError, match="no page"):
            as_chosen(parts)
        return
    assert as_chosen(parts) == expected
    if expected is not None:
        before = sorted(record.body for _, record in records_of(page))
        assert sorted(record.body for _, record in records_of(expected)) == before
        rank = [record.priority for _, record in records_of(expected)]
        assert rank == sorted(rank, reverse=True)

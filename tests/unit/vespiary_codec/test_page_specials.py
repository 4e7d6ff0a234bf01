"""Whether a page's index says that it has special messages."""

from __future__ import annotations

import pytest

from vespiary_codec.journal.page import PagePlace, PageQueue, PageRecord, encode_footer
from vespiary_codec.journal.page_specials import has_specials
from vespiary_codec.journal.record_types import RecordFlag

OTHERS = 0xFF & ~RecordFlag.SPECIAL & ~1


def footer(flags: list[int]) -> bytes:
    # All other fields have the bit of the flag too, wherever they can.
    records = [
        PageRecord(4096 + 16 + 4096 * number, 0xFFFF, 0xFFFF, 1, each, 4, 0xFF)
        for number, each in enumerate(flags)
    ]
    places = tuple(PagePlace(17 + number, number) for number in range(len(flags)))
    return encode_footer(
        page_id=0x10,
        salt=0xFFFF,
        footer_offset=4096 * 1000,
        queues=[PageQueue(0x11, places)],
        records=records,
        blocks=0xFF,
        seal_crc=0xFFFFFFFF,
    )


@pytest.mark.parametrize("count", [1, 2, 255])
@pytest.mark.parametrize("at", [0, -1, None])
def test_one_special_message_is_enough(count: int, at: int | None) -> None:
    flags = [OTHERS] * count
    if at is not None:
        flags[at] |= RecordFlag.SPECIAL
    assert has_specials(footer(flags)) is (at is not None)

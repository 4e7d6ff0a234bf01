"""Whether a page has special messages: those with a time to live, or another order than their own.

Owns the look at the flags in a page's index (journal-format §7.2). Pure. Called by those who would
else have to look at every message of a page.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.page import PLACE, QUEUE, RECORD, TRAILER, TRAILER_BYTES
from vespiary_codec.journal.record_types import RecordFlag

_FLAGS_AT: Final = 12


def has_specials(footer: bytes | memoryview) -> bool:
    """Return whether any message of a page is special.

    Args:
        footer: All of it, verified.
    """
    fields = TRAILER.unpack_from(footer, len(footer) - TRAILER_BYTES)
    queues, places, records = fields[6], fields[7], fields[8]
    start = queues * QUEUE.size + places * PLACE.size + _FLAGS_AT
    end = start + records * RECORD.size - _FLAGS_AT
    kinds = set(bytes(footer[start : max(end, start) : RECORD.size]))
    return any(flags & RecordFlag.SPECIAL for flags in kinds)

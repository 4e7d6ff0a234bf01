"""Types and flags of records (journal-format §3.1).

Owns the numbers; what the records hold is in `record`, which exports these too. Must never change
a number that was once written. Used by everything that reads or writes records.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

SEQUENCE_MAX: Final = 2**63 - 1
"""The highest sequence of a queue. No message gets a higher one; a record with one is malformed."""


class RecordType(IntEnum):
    """Types of records."""

    ADD = 1
    ACK = 2
    COUNT = 3
    COMMIT = 4
    FILES = 5
    QUEUES = 6
    SEAL = 7
    PREPARE = 8
    ROLLBACK = 9
    DUPLICATE = 11
    PAGE_DONE = 13
    PUT = 32
    REMOVE = 33
    PAGE = 140  # bit 7: who does not know it must not read on


class RecordFlag(IntFlag):
    """Flags of ADD, ACK and DUPLICATE records."""

    TRANSACTIONAL = 1
    ESCAPED = 2
    LARGE = 4
    MOVED = 8
    SPECIAL = 16
    VOLATILE = 32

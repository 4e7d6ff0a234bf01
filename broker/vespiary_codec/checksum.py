"""CRC32C (Castagnoli), the checksum of everything that the broker writes.

Owns one function in two implementations that give the same numbers: the `crc32c` package, which
uses the processor's instruction, and a table in Python for interpreters that have nothing but the
standard library. The package takes longer to import than the few sums of a broker's start take by
the table, so it is imported when there is more to sum. Must never do I/O. Called by the journal
codec, by the broker and by the pipeline.

The polynomial is 0x1EDC6F41, reflected 0x82F63B78, with initial value and final XOR 0xFFFFFFFF
(RFC 3720, appendix B.4).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_REFLECTED_POLYNOMIAL: Final = 0x82F63B78


def _make_tables() -> tuple[tuple[int, ...], ...]:
    """Return eight tables of 256 entries: table k advances a byte over k further zero bytes."""
    first = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ _REFLECTED_POLYNOMIAL if crc & 1 else crc >> 1
        first.append(crc)
    tables = [tuple(first)]
    for _ in range(7):
        tables.append(tuple(crc >> 8 ^ first[crc & 0xFF] for crc in tables[-1]))
    return tuple(tables)


_TABLES: Final = _make_tables()


def crc32c_python(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC32C of `data`, computed by the tables in this module.

    Args:
        data: Bytes to sum; a memoryview must be contiguous.
        value: Checksum of the bytes that come before `data`, 0 to 2**32 - 1; 0 at the start.

    Returns:
        The checksum of everything so far, 0 to 2**32 - 1.
    """
    t0, t1, t2, t3, t4, t5, t6, t7 = _TABLES
    octets = memoryview(data).cast("B")
    crc = ~value & 0xFFFFFFFF
    whole = len(octets) & ~7
    # Eight bytes at a step: a step in Python costs nearly the same for one byte as for eight.
    for a, b, c, d, e, f, g, h in struct.iter_unpack("8B", octets[:whole]):
        crc = (
            t7[a ^ crc & 0xFF]
            ^ t6[b ^ crc >> 8 & 0xFF]
            ^ t5[c ^ crc >> 16 & 0xFF]
            ^ t4[d ^ crc >> 24]
            ^ t3[e]
            ^ t2[f]
            ^ t1[g]
            ^ t0[h]
        )
    for octet in octets[whole:]:
        crc = crc >> 8 ^ t0[(crc ^ octet) & 0xFF]
    return crc ^ 0xFFFFFFFF


class _Choice:
    """Which implementation sums, and when that is decided.

    Owner: everybody. Two threads may decide at once, since both decide the same.
    """

    def __init__(self) -> None:
        self.function: Callable[[bytes | bytearray | memoryview, int], int] | None = None
        self.left_bytes = _TABLE_BYTES

    def decide(self) -> Callable[[bytes | bytearray | memoryview, int], int]:
        """Import the package if it is there."""
        try:
            # Not at the top: it asks importlib.metadata for its version, which takes 20 ms.
            from crc32c import crc32c as crc32c_package
        except ImportError:
            # Spark executors and `python -S` have the standard library only.
            self.function = crc32c_python
        else:
            self.function = crc32c_package
        return self.function


_TABLE_BYTES: Final = 256 * 1024
"""So many bytes are summed by the table first: as long as the package takes to import."""
_CHOICE: Final = _Choice()


def implementation() -> str:
    """Return what sums larger data: "crc32c" for the package, "python" for the tables."""
    return "python" if (_CHOICE.function or _CHOICE.decide()) is crc32c_python else "crc32c"


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Return the CRC32C of `data` (RFC 3720, appendix B.4).

    Args:
        data: Bytes to sum; a memoryview must be contiguous.
        value: Checksum of the bytes that come before `data`, 0 to 2**32 - 1; 0 at the start.

    Returns:
        The checksum of everything so far, 0 to 2**32 - 1: `crc32c(b, crc32c(a)) == crc32c(a + b)`.
    """
    function = _CHOICE.function
    if function is None:
        _CHOICE.left_bytes -= memoryview(data).nbytes
        function = crc32c_python if _CHOICE.left_bytes >= 0 else _CHOICE.decide()
    return function(data, value)

"""What has a length of its own, copied out of a window: bodies, keys, headers.

Owns `gather`, `properties` and `header`, in Python: the specification of their C
forms. Must never read a file. Called by `vespiary_native.columns`, where the native part is not
there or not wanted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from vespiary_codec.journal.columns import Buffer, Columns, Maps, Strings
from vespiary_codec.journal.record_types import RecordFlag, RecordType

BYTES_MAX: Final = 2**31 - 1
"""Of the data of one column: Arrow's offsets have 32 bits."""

TOO_LONG: Final = f"a column of more bytes than fit into one batch: at most {BYTES_MAX}"
OUTSIDE: Final = "an entry that does not stand in the window"

_ESCAPES: Final = {b"n": b"\n", b"c": b":", b"r": b"\r", b"\\": b"\\"}


def gather(
    window: Buffer, at: Buffer, length: Buffer, chosen: Sequence[bool] | Buffer | None = None
) -> Strings:
    """Copy bytes of a window, one entry behind the other.

    Args:
        window: What was scanned.
        at: Where each entry begins, i64.
        length: How long it is, i64.
        chosen: Which entries are there; the others are null. None: all are.

    Raises:
        ValueError: It is more than 2**31 - 1 bytes, an entry is not in the window, or the
            arguments differ in their number of entries.
    """
    octets = memoryview(window)
    starts, lengths = memoryview(at).cast("B").cast("q"), memoryview(length).cast("B").cast("q")
    wanted = [True] * len(starts) if chosen is None else chosen
    return _strings(
        [
            _entry(octets, start, count) if is_wanted else None
            for start, count, is_wanted in zip(starts, lengths, wanted, strict=True)
        ]
    )


def _entry(octets: memoryview, start: int, count: int) -> bytes:
    if start < 0 or count < 0 or start + count > len(octets):
        raise ValueError(OUTSIDE)
    return bytes(octets[start : start + count])


def _strings(entries: Sequence[bytes | None]) -> Strings:
    """Return a column of these entries; None is null."""
    offsets = array("i", [0])
    total = 0
    for entry in entries:
        total += len(entry or b"")
        if total > BYTES_MAX:
            raise ValueError(TOO_LONG)
        offsets.append(total)
    valid = b""
    if None in entries:
        bits = bytearray((len(entries) + 7) // 8)
        for number, entry in enumerate(entries):
            if entry is not None:
                bits[number >> 3] |= 1 << (number & 7)
        valid = bytes(bits)
    return Strings(memoryview(offsets), b"".join(entry or b"" for entry in entries), valid)


def properties(window: Buffer, columns: Columns) -> Maps:
    """Return the headers of all ADD records; records of other kinds have none.

    The lines end at the first NUL, and the first one of a name counts. Lines without a colon or
    without a name are left out, and bytes that are not UTF-8 become U+FFFD.

    Args:
        window: What was scanned.
        columns: What `scan` made of it.

    Raises:
        ValueError: Names or values are more than 2**31 - 1 bytes, or it is another window.
    """
    offsets = array("i", [0])
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for lines in _all_headers(window, columns):
        keys += lines
        values += lines.values()
        offsets.append(len(keys))
    return Maps(memoryview(offsets), _strings(keys), _strings(values))


def header(window: Buffer, columns: Columns, name: bytes) -> Strings:
    """Return the value of one header of all ADD records; null where it is not there.

    Args:
        window: What was scanned.
        columns: What `scan` made of it.
        name: The header's name.

    Raises:
        ValueError: The values are more than 2**31 - 1 bytes, or it is another window.
    """
    return _strings([lines.get(name) for lines in _all_headers(window, columns)])


def _all_headers(window: Buffer, columns: Columns) -> Iterator[dict[bytes, bytes]]:
    octets = memoryview(window)
    starts = memoryview(columns.properties_at).cast("B").cast("q")
    lengths = memoryview(columns.properties_bytes).cast("B").cast("q")
    kinds, flags = memoryview(columns.kind), memoryview(columns.flags)
    for kind, flag, at, length in zip(kinds, flags, starts, lengths, strict=True):
        if kind != RecordType.ADD:
            yield {}
            continue
        yield _headers(_entry(octets, at, length), bool(flag & RecordFlag.ESCAPED))


def _headers(lines: bytes, has_escapes: bool) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines.partition(b"\0")[0].split(b"\n"):
        name, colon, value = line.partition(b":")
        if not colon or not name:
            continue
        if has_escapes:
            name, value = _unescaped(name), _unescaped(value)
        found.setdefault(_utf8(name), _utf8(value))
    return found


def _unescaped(text: bytes) -> bytes:
    r"""Take out `\n`, `\c`, `\r` and `\\` (STOMP 1.2, "Value Encoding"); others stay."""
    if b"\\" not in text:
        return text
    made = bytearray()
    at = 0
    while at < len(text):
        if text[at : at + 1] == b"\\" and text[at + 1 : at + 2] in _ESCAPES:
            made += _ESCAPES[text[at + 1 : at + 2]]
            at += 2
            continue
        made += text[at : at + 1]
        at += 1
    return bytes(made)


def _utf8(text: bytes) -> bytes:
    if text.isascii():
        return text
    return text.decode("utf-8", "replace").encode()

"""Records as columns, by C or by its twin in the codec: what the pipeline scans journals with.

Owns the choice of implementation (see `loader`), and the way of C's buffers into Python: each is
freed with the last view of it. Must never give a view of memory that is freed, and never hold the
interpreter's lock while C works. Called by the pipeline.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Sequence
from itertools import chain
from typing import Any, Final, Literal

from vespiary_codec.journal import column_parts, column_scan
from vespiary_codec.journal.column_parts import OUTSIDE, TOO_LONG
from vespiary_codec.journal.column_scan import ROWS_MAX
from vespiary_codec.journal.columns import Buffer, Columns, Maps, Scan, Stop, Strings
from vespiary_native import loader

__all__ = ["gather", "header", "properties", "scan"]

_KINDS: Final = range(256)
_REASONS: Final = ("end", "window", "rows", "invalid")


def scan(
    window: Buffer,
    *,
    offset: int,
    salt: int,
    file_id: int,
    previous: tuple[int, int] | None = None,
    kinds: Container[int] | None = None,
    members: bool = True,
    rows_max: int = ROWS_MAX,
) -> Scan:
    """Walk blocks while they are valid and follow one another; return their records as columns.

    A block whose records do not fit their fields ends the walk like one with a bad checksum, and
    none of its records is in the columns.

    Args:
        window: Bytes of a file from a block's start on.
        offset: Where `window` begins in the file.
        salt: Salt of the file.
        file_id: Id of the file.
        previous: Sequence and checksum of the block before; None: any block may be the first.
        kinds: Types of the records that are wanted; None: all.
        members: Want members and ends of transactions too, whatever their type.
        rows_max: Stop behind the block with which there are so many rows; a block is never split.

    Raises:
        OverflowError: The rows have more than 2**31 - 1 places.
        MemoryError: There is no memory.
    """
    if not loader.is_native():
        return column_scan.scan(
            window,
            offset=offset,
            salt=salt,
            file_id=file_id,
            previous=previous,
            kinds=kinds,
            members=members,
            rows_max=rows_max,
        )
    ffi = loader.ffi
    view = ffi.from_buffer("uint8_t[]", window)
    request = ffi.new("vespiary_scan_request *")
    request.offset, request.salt, request.file_id = offset, salt, file_id
    request.rows_max, request.members, request.has_previous = rows_max, members, bool(previous)
    request.previous_sequence, request.previous_crc = previous or (0, 0)
    ffi.buffer(request.kinds)[:] = bytes(kinds is None or kind in kinds for kind in _KINDS)
    out = ffi.new("vespiary_columns *")
    failed = loader.lib.vespiary_columns_scan(view, len(view), request, out)
    if failed == -errno.EOVERFLOW:
        raise OverflowError("the records of a window have more than 2**31 - 1 places")
    if failed:
        raise MemoryError("no memory for the columns of a window")
    columns = _columns(out)
    before = (out.sequence, out.crc) if previous or out.blocks else None
    stop = Stop(out.stop, _REASONS[out.reason], out.needed_bytes)
    if stop.reason == "invalid":
        rest = memoryview(window)[stop.offset - offset :]
        stop = _explained(rest, stop, salt=salt, file_id=file_id, before=before)
    sequence, crc = before or (0, 0)
    return Scan(columns, stop, out.blocks, out.records, sequence, crc, out.watermark, out.time_ms)


def _explained(
    rest: memoryview, stop: Stop, *, salt: int, file_id: int, before: tuple[int, int] | None
) -> Stop:
    """Return `stop` with what the twin says of the block that C refuses."""
    said = column_scan.scan(
        rest, offset=stop.offset, salt=salt, file_id=file_id, previous=before, kinds=(), rows_max=0
    ).stop
    assert said[:2] == stop[:2], f"the column scans differ: {said} and {stop}"
    return said


def _columns(out: Any) -> Columns:
    """Return the buffers of a scan, in the order of `Columns`."""
    octets = [_taken(buffer, out.rows, "B") for buffer in out.octets]
    numbers = [_taken(buffer, out.rows, "q") for buffer in out.numbers]
    places = [_taken(buffer, out.places, "q") for buffer in out.place_numbers]
    ends = _taken(out.places_from, out.rows + 1, "i")
    return Columns(out.rows, *chain(octets, numbers, [ends], places))


def _taken(buffer: Any, count: int, code: Literal["B", "i", "q"]) -> memoryview:
    """Return a view of a buffer of C; with the last view of it, it is freed."""
    ffi = loader.ffi
    size = count * {"B": 1, "i": 4, "q": 8}[code]
    owned = ffi.gc(buffer, loader.lib.vespiary_columns_free, size)
    return memoryview(ffi.buffer(owned, size)).cast(code)


# --- parts ----------------------------------------------------------------------------------------


def gather(
    window: Buffer, at: Buffer, length: Buffer, chosen: Sequence[bool] | Buffer | None = None
) -> Strings:
    """Copy bytes of a window, one entry behind the other.

    Args:
        window: What was scanned.
        at: Where each entry begins, i64.
        length: How long it is, i64.
        chosen: Which entries are there, by bytes the fastest; the others are null. None: all are.

    Raises:
        ValueError: It is more than 2**31 - 1 bytes, an entry is not in the window, or the
            arguments differ in their number of entries.
        MemoryError: There is no memory.
    """
    if not loader.is_native():
        return column_parts.gather(window, at, length, chosen)
    ffi = loader.ffi
    view = ffi.from_buffer("uint8_t[]", window)
    starts, lengths = ffi.from_buffer("int64_t[]", at), ffi.from_buffer("int64_t[]", length)
    wanted = ffi.NULL
    if chosen is not None:
        octets = bytes(map(bool, chosen)) if isinstance(chosen, list | tuple) else chosen
        wanted = ffi.from_buffer("uint8_t[]", octets)
    if len(lengths) != len(starts) or (chosen is not None and len(wanted) != len(starts)):
        raise ValueError("as many lengths and choices as places are needed")
    out = ffi.new("vespiary_strings *")
    _check(
        loader.lib.vespiary_columns_gather(
            view, len(view), starts, lengths, wanted, len(starts), out
        )
    )
    return _strings(out)


def properties(window: Buffer, columns: Columns) -> Maps:
    """Return the headers of all ADD records; records of other kinds have none.

    The first line of a name counts. Lines without a colon or without a name are left out, and bytes
    that are not UTF-8 become U+FFFD.

    Args:
        window: What was scanned.
        columns: What `scan` made of it.

    Raises:
        ValueError: Names or values are more than 2**31 - 1 bytes, or it is another window.
        MemoryError: There is no memory.
    """
    if not loader.is_native():
        return column_parts.properties(window, columns)
    entries = memoryview(bytearray(4 * (columns.rows + 1))).cast("i")
    keys, values = _headers(window, columns, None, entries)
    return Maps(entries, _strings(keys), _strings(values))


def header(window: Buffer, columns: Columns, name: bytes) -> Strings:
    """Return the value of one header of all ADD records; null where it is not there.

    Args:
        window: What was scanned.
        columns: What `scan` made of it.
        name: The header's name.

    Raises:
        ValueError: The values are more than 2**31 - 1 bytes, or it is another window.
        MemoryError: There is no memory.
    """
    if not loader.is_native():
        return column_parts.header(window, columns, name)
    keys, values = _headers(window, columns, name, None)
    _strings(keys)  # names as they were compared: freed
    return _strings(values)


def _headers(
    window: Buffer, columns: Columns, name: bytes | None, entries: memoryview | None
) -> tuple[Any, Any]:
    ffi = loader.ffi
    view = ffi.from_buffer("uint8_t[]", window)
    keys, values = ffi.new("vespiary_strings *"), ffi.new("vespiary_strings *")
    _check(
        loader.lib.vespiary_columns_headers(
            view,
            len(view),
            ffi.from_buffer("uint8_t[]", columns.kind),
            ffi.from_buffer("uint8_t[]", columns.flags),
            ffi.from_buffer("int64_t[]", columns.properties_at),
            ffi.from_buffer("int64_t[]", columns.properties_bytes),
            columns.rows,
            ffi.NULL if name is None else ffi.from_buffer("uint8_t[]", name),
            len(name or b""),
            ffi.NULL if entries is None else ffi.from_buffer("int32_t[]", entries),
            keys,
            values,
        )
    )
    return keys, values


def _strings(out: Any) -> Strings:
    offsets = _taken(out.offsets, out.rows + 1, "i")
    data = _taken(out.data, offsets[-1], "B")
    valid = _taken(out.valid, (out.rows + 7) // 8, "B")
    return Strings(offsets, data, valid if out.nulls else b"")


def _check(failed: int) -> None:
    if failed == -errno.ENOMEM:
        raise MemoryError("no memory for a column of a window")
    if failed:
        raise ValueError(TOO_LONG if failed == -errno.EOVERFLOW else OUTSIDE)

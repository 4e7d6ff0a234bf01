"""What is stored of an AMQP message behind its header lines (journal-format.md §3.2.1).

Owns the head of that part, the way to the application properties with their types, and the
changes that a broker makes there. Must never raise for what cannot be read: it was checked when it
came. Read by selectors, changed for dead letters; written by `storing` of AMQP's sessions.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection
from typing import Any, Final

from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.errors import ProtocolError
from vespiary_codec.wire.amqp.messages import (
    MessageProperties,
    Section,
    encode_section,
    read_sections,
)

NATIVE: Final = struct.Struct(">BBBBI")
"""version, section of the body, format code of its value, flags, bytes of the sections before the
body."""
NATIVE_VERSION: Final = 1
FIRST_ACQUIRER: Final = 1
"""Flag: the sender set first-acquirer, and no consumer had it before it was written here."""

_WIDTHS: Final = {b"\xc0": 1, b"\xc1": 1, b"\xd0": 4, b"\xd1": 4}
"""Bytes of the size behind the code of a list or a map."""
_FIXED: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
"""Bytes of a value behind its code, by the first half of the code (§1.2)."""
_SIZED: Final = (0xA, 0xB, 0xC, 0xD, 0xE, 0xF)
_STRING_HEADS: Final = {0xA1: 2, 0xB1: 5}
"""Bytes before the text of a string, by its code."""
_COMPOUND: Final = (0xC, 0xD, 0xE, 0xF)
"""Lists, maps and arrays: no selector knows them, and to decode a large one takes long."""
_DESCRIPTOR: Final = b"\x00\x53"
_CODE_AT: Final = 3
_FLAGS_AT: Final = 3


def application_properties(native: bytes, names: Collection[str]) -> dict[str, Any]:
    """Return application properties of a message with their types; none that it has not.

    Only the values that are asked for are decoded, and no lists, maps and arrays (AMQP 1.0 §3.2.5
    does not allow them here).

    Args:
        native: What stands behind the lines.
        names: Their names.
    """
    if len(native) < NATIVE.size or native[0] != NATIVE_VERSION:
        return {}
    end = NATIVE.size + NATIVE.unpack_from(native)[4]
    at = NATIVE.size
    try:
        while at < end:
            size = _section_bytes(native, at)
            if not size:
                return _by_decoding(native[at:end], names)
            if native[at + 2] == Section.APPLICATION_PROPERTIES:
                return _picked(native, at + _CODE_AT, at + size, names)
            at += size
    except (ProtocolError, UnicodeDecodeError, IndexError):
        return {}  # it was cut off
    return {}


def _picked(data: bytes, at: int, end: int, names: Collection[str]) -> dict[str, Any]:
    """Walk over a map from item to item; decode what is asked for."""
    found: dict[str, Any] = {}
    begin = at
    at += 1 + 2 * _WIDTHS[data[at : at + 1]]
    while at < end:
        name_at = at + _STRING_HEADS.get(data[at], 0)
        if name_at == at:
            return _chosen(Decoder(data, at=begin).value(), names)
        value = name_at + int.from_bytes(data[at + 1 : name_at], "big")
        name = data[name_at:value].decode()
        if name in names and data[value] >> 4 not in _COMPOUND:
            decoder = Decoder(data, at=value)
            found[name] = decoder.value()
            at = decoder.at
            continue
        width = _FIXED.get(data[value] >> 4)
        if width is not None:
            at = value + 1 + width
        elif data[value] >> 4 in _SIZED:
            size = 1 if data[value] & 0x10 == 0 else 4
            at = value + 1 + size + int.from_bytes(data[value + 1 : value + 1 + size], "big")
        else:
            return _chosen(Decoder(data, at=begin).value(), names)
    return found


def _chosen(found: Any, names: Collection[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if name in names}


def without_expiry(native: bytes) -> bytes:
    """Return the part without the time at which the message expires, which its client would heed.

    Args:
        native: What stands behind the lines.
    """
    if len(native) < NATIVE.size or native[0] != NATIVE_VERSION:
        return native
    version, section, code, flags, size = NATIVE.unpack_from(native)
    end = NATIVE.size + size
    before = native[NATIVE.size : end]
    try:
        found = read_sections(before)
    except ProtocolError:
        return native
    for place, value in found:
        if isinstance(value, MessageProperties) and value.absolute_expiry_time is not None:
            changed = encode_section(
                Section.PROPERTIES, dataclasses.replace(value, absolute_expiry_time=None)
            )
            before = before[: place.begin] + changed + before[place.end :]
            return NATIVE.pack(version, section, code, flags, len(before)) + before + native[end:]
    return native


def without_first_acquirer(native: bytes) -> bytes:
    """Return the part of a message that another link may have acquired (AMQP 1.0 §3.2.1).

    Args:
        native: What stands behind the lines.
    """
    if len(native) < NATIVE.size or native[0] != NATIVE_VERSION:
        return native
    flags = native[_FLAGS_AT] & ~FIRST_ACQUIRER
    return native[:_FLAGS_AT] + bytes([flags]) + native[_FLAGS_AT + 1 :]


def _section_bytes(data: bytes, at: int) -> int:
    """Return how long a section is that is written as all clients do; 0: it is not."""
    if data[at : at + 2] != _DESCRIPTOR:
        return 0
    code = data[at + _CODE_AT : at + _CODE_AT + 1]
    width = _WIDTHS.get(code, 0)
    first = at + _CODE_AT + 1
    size = int.from_bytes(data[first : first + width], "big")
    return _CODE_AT + 1 + width + size if width else 0


def _by_decoding(data: bytes, names: Collection[str]) -> dict[str, Any]:
    for place, value in read_sections(data):
        if place.section is Section.APPLICATION_PROPERTIES:
            return _chosen(value, names)
    return {}

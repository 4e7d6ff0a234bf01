"""The fields of a performative of AMQP 1.0, read one behind the other.

Owns the forms that the scanner knows. What is of another makes the whole odd, and is left to the
codec: nothing is refused here. Used by `amqp` and `amqp_sending`.

Source: AMQP 1.0 (OASIS, 2012) §1.6 and §2.7.
"""

from __future__ import annotations

from typing import Final

TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
ACCEPTED: Final = 0x24
_NULL: Final = 0x40
_EMPTY_LIST: Final = 0x45
_WIDTHS: Final = {0xC0: 1, 0xD0: 4}
_SMALL_DESCRIPTOR: Final = b"\0\x53"
_BOOLEANS: Final = {_NULL: False, 0x41: True, 0x42: False}


class Fields:
    """The fields of one list.

    Attributes:
        is_odd: Whether a field was of a form that is not known here.

    Args:
        view: The bytes.
        at: Where its first field begins.
        end: Where its last one ends.
        left: How many there are; behind the last one all are null.
    """

    def __init__(self, view: memoryview, at: int, end: int, left: int) -> None:
        self._view, self._at, self._end, self._left = view, at, end, left
        self.is_odd = False

    @property
    def is_read(self) -> bool:
        """Whether all fields were read, and as they have to be."""
        return not (self.is_odd or self._left) and self._at == self._end

    def _code(self) -> int:
        if not self._left:
            return _NULL
        self._left -= 1
        if self._at >= self._end:
            self.is_odd = True
            return _NULL
        self._at += 1
        return self._view[self._at - 1]

    def _bytes(self, length: int) -> bytes | None:
        if self._end - self._at < length:
            self.is_odd = True
            return None
        self._at += length
        return bytes(self._view[self._at - length : self._at])

    def uint(self) -> int | None:
        """Read a uint; None: it is null."""
        match self._code():
            case 0x40:
                return None
            case 0x43:
                return 0
            case 0x52:
                data = self._bytes(1)
            case 0x70:
                data = self._bytes(4)
            case _:
                self.is_odd = True
                return None
        return None if data is None else int.from_bytes(data, "big")

    def ubyte(self, otherwise: int) -> int:
        """Read a ubyte, or return what null means."""
        code = self._code()
        if code == _NULL:
            return otherwise
        data = self._bytes(1) if code == 0x50 else None
        self.is_odd |= data is None
        return data[0] if data is not None else otherwise

    def boolean(self) -> bool:
        """Read a boolean; null is false."""
        code = self._code()
        if code == 0x56:
            data = self._bytes(1)
            self.is_odd |= data is None or data[0] > 1
            return data == b"\1"
        self.is_odd |= code not in _BOOLEANS
        return _BOOLEANS.get(code, False)

    def is_null(self) -> bool:
        """Read a field that should be null; return whether it is."""
        return self._code() == _NULL

    def binary(self) -> bytes | None:
        """Read a binary; None: it is null."""
        code = self._code()
        if code == _NULL:
            return None
        size = self._bytes({0xA0: 1, 0xB0: 4}[code]) if code in (0xA0, 0xB0) else None
        self.is_odd |= size is None
        return None if size is None else self._bytes(int.from_bytes(size, "big"))

    def accepted(self) -> bool:
        """Read the outcome accepted, whatever its empty list looks like; False: it is another."""
        found = read_composite(self._view, self._at, self._end) if self._left else None
        if found is None or found[0] != ACCEPTED or not found[1].is_read:
            return False
        self._left -= 1
        self._at = found[2]
        return True


def read_list(view: memoryview, at: int, end: int) -> tuple[Fields, int] | None:
    """Begin to read a list.

    Returns:
        Its fields, and where it ends; None: it is no list, or cut off.
    """
    if at >= end:
        return None
    if view[at] == _EMPTY_LIST:
        return Fields(view, at + 1, at + 1, 0), at + 1
    width = _WIDTHS.get(view[at])
    if width is None or end - at < 1 + 2 * width:
        return None
    first = at + 1 + width
    size = int.from_bytes(view[at + 1 : first], "big")
    count = int.from_bytes(view[first : first + width], "big")
    if not width <= size <= end - first:
        return None
    return Fields(view, first + width, first + size, count), first + size


def read_composite(view: memoryview, at: int, end: int) -> tuple[int, Fields, int] | None:
    """Begin to read a composite with a small descriptor.

    Returns:
        The descriptor, the fields, and where it ends; None: it is none.
    """
    if end - at < 4 or bytes(view[at : at + 2]) != _SMALL_DESCRIPTOR:
        return None
    found = read_list(view, at + 3, end)
    return None if found is None else (view[at + 2], *found)

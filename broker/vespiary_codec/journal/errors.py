"""The one error of this package: bytes that are not what the format says.

Owns `JournalFormatError`. Never holds content of a journal, only places, numbers and rules. Raised
by the decoders of this package; the store turns it into its own errors, which name the file.
"""

from __future__ import annotations


class JournalFormatError(ValueError):
    """Bytes of a journal break a rule of its format.

    Attributes:
        offset: Place of the fault: bytes from the file's start, or from where the caller said that
            the data begins.
        found: What stands there: a number or a kind of thing, never content.
        expected: What should stand there.
    """

    def __init__(self, what: str, *, offset: int, found: object, expected: object) -> None:
        super().__init__(f"{what} at offset {offset}: found {found}, expected {expected}")
        self.what = what
        self.offset = offset
        self.found = found
        self.expected = expected

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the attributes when the error crosses a process border (Spark executors)."""
        return _rebuild, (self.what, self.offset, self.found, self.expected)


def _rebuild(what: str, offset: int, found: object, expected: object) -> JournalFormatError:
    return JournalFormatError(what, offset=offset, found=found, expected=expected)

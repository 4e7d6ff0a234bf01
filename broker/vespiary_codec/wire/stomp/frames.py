"""STOMP frames and the other things a decoder can hand out.

Owns the data types of the package. Must never parse or print bytes. Used by every module of this
package and by its callers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Literal, overload

Version = Literal["1.0", "1.1", "1.2"]
"""A version of the protocol, as its headers spell it."""

Headers = list[tuple[str, str]]
"""Headers in the order of the wire, repeats included, unescaped."""

VERSIONS: Final[tuple[Version, ...]] = ("1.0", "1.1", "1.2")
"""Every version that this package speaks, oldest first."""


@dataclass(slots=True)
class Frame:
    """One STOMP frame.

    Not frozen, because a frozen dataclass takes three times as long to make; treat it as if it
    were.

    Attributes:
        command: Name of the command, upper case.
        headers: Headers in the order of the wire, unescaped. Of a repeated header the first one
            counts (STOMP 1.2, "Repeated Header Entries"); the others stay, as a history.
        body: The body, without the NUL that ends the frame.
    """

    command: str
    headers: Headers = field(default_factory=list)
    body: bytes = b""

    @overload
    def get(self, name: str) -> str | None: ...
    @overload
    def get(self, name: str, default: str) -> str: ...
    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of the first header called `name`, or `default` if there is none."""
        for header_name, value in self.headers:
            if header_name == name:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        """Return the values of every header called `name`, the one that counts first."""
        return [value for header_name, value in self.headers if header_name == name]


@dataclass(frozen=True, slots=True)
class HeartBeat:
    """Ends of line between frames: a sign of life, or padding that clients put after a frame.

    Attributes:
        count: Number of ends of line, at least 1. How a run is cut into events depends on how the
            bytes arrived.
    """

    count: int = 1


class NeedData(enum.Enum):
    """Type of `NEED_DATA`."""

    NEED_DATA = enum.auto()


NEED_DATA: Final = NeedData.NEED_DATA
"""What a decoder answers when it has no complete event: feed it more bytes."""

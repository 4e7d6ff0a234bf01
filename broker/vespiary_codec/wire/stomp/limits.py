"""How much of a peer's input the decoder accepts.

Owns the bounds and their defaults. The broker fills them from its configuration. Checked as the
bytes arrive, so that no announced size makes the decoder wait for, or allocate, what it would
refuse in the end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StompLimits:
    """Bounds of one frame. All are inclusive, all count octets of the wire.

    Attributes:
        header_count: Headers in a frame, at least 1.
        header_line_bytes: One header line without its line feed, at least 16.
        header_bytes: The frame up to and with the blank line that ends the headers, at least 16.
        body_bytes: The body, 0 or more.
        before_login_bytes: The whole frame, as long as the connection is not logged in, at least
            16.
    """

    header_count: int = 100
    header_line_bytes: int = 8 * 1024
    header_bytes: int = 64 * 1024
    body_bytes: int = 100 * 1024 * 1024
    before_login_bytes: int = 8 * 1024

    def __post_init__(self) -> None:
        least = {
            "header_count": 1,
            "header_line_bytes": 16,
            "header_bytes": 16,
            "body_bytes": 0,
            "before_login_bytes": 16,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")

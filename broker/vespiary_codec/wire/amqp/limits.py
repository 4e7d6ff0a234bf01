"""How much of a peer's input the decoders accept.

Owns the bounds and their defaults. The broker fills them from its configuration. Checked as the
bytes arrive, so that no announced size makes a decoder wait for, or allocate, what it would refuse
in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

FRAME_BYTES_MIN = 512
"""Every peer takes frames of this size (AMQP 1.0 §2.3.1), and before `open` none that is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpLimits:
    """Bounds of one frame and of one encoded value. All are inclusive.

    Attributes:
        frame_bytes: A frame after `open`, 512 or more: our `max-frame-size`.
        before_open_bytes: A frame before it, 512 or more.
        depth: Lists, maps, arrays and described values within one another, 4 or more.
        items: Items of all lists, maps and arrays of one value, 16 or more.
    """

    frame_bytes: int = 64 * 1024
    before_open_bytes: int = FRAME_BYTES_MIN
    depth: int = 16
    items: int = 8192

    def __post_init__(self) -> None:
        least = {
            "frame_bytes": FRAME_BYTES_MIN,
            "before_open_bytes": FRAME_BYTES_MIN,
            "depth": 4,
            "items": 16,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")

"""The states of a connection, from its first byte to its end.

Owns their names alone. Called by `connection`.
"""

import enum


class State(enum.Enum):
    """Where a connection is.

    Attributes:
        OPEN: Frames are taken.
        ENDING: The last frame (ERROR, or the receipt of DISCONNECT) waits behind what is due.
        LINGERING: It is on its way; what still comes is thrown away. Then the transport is closed.
        CLOSED: The transport is gone.
    """

    OPEN = enum.auto()
    ENDING = enum.auto()
    LINGERING = enum.auto()
    CLOSED = enum.auto()

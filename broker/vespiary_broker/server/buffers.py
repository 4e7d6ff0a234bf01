"""Memory that connections read into: one buffer for all, a private one for a large frame.

Owns the buffers and their handles in the core. A read fills the shared buffer behind its headroom;
what a connection had left over is put in front of it, so a frame that came in pieces lies in one
piece. What does not fit into the headroom gets a buffer of its own, which grows as bytes arrive
and never holds more than twice what was received. Called by `connection`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.core import Core

HEADROOM_BYTES: Final = 64 * 1024
READ_BYTES: Final = 512 * 1024
READ_FIRST_BYTES: Final = 16 * 1024
"""Bytes that are read at once before the protocol is known."""
READ_LAST_BYTES: Final = 4 * 1024
"""Bytes that are read at once, to be thrown away, where frames of a framing still matter."""


class SharedBuffer:
    """The buffer of all connections. In use only within one callback of the loop.

    Attributes:
        memory: The bytes.
        handle: The core's handle.
        view: The part that reads fill.
    """

    __slots__ = ("_view", "handle", "memory", "view")

    def __init__(self, core: Core) -> None:
        self.memory = bytearray(HEADROOM_BYTES + READ_BYTES)
        self.handle = core.attach_buffer(self.memory)
        self._view = memoryview(self.memory)
        self.view = self._view[HEADROOM_BYTES:]

    def place(self, kept: bytes | bytearray) -> int:
        """Put at most `HEADROOM_BYTES` in front of what was read; return where they start."""
        start = HEADROOM_BYTES - len(kept)
        self._view[start:HEADROOM_BYTES] = kept
        return start

    def put(self, data: bytes | bytearray) -> int:
        """Put at most `READ_BYTES` as if they had just been read; return where they end."""
        end = HEADROOM_BYTES + len(data)
        self._view[HEADROOM_BYTES:end] = data
        return end


class PrivateBuffer:
    """A buffer of one connection, for a frame or a backlog that is larger than the headroom.

    Attributes:
        memory: The bytes.
        handle: The core's handle; valid until `release`.
        start: Where the bytes begin that were not taken.
        end: Where the bytes end that were received.
    """

    __slots__ = ("_core", "end", "handle", "memory", "start")

    def __init__(self, core: Core, data: bytes | bytearray | memoryview, needed: int) -> None:
        """Make one.

        Args:
            core: The core.
            data: What was received so far.
            needed: Bytes that the frame needs in all; 0 if that is not known.
        """
        self._core = core
        self.start = 0
        self.end = len(data)
        self.memory = bytearray(_capacity(self.end, needed))
        self.memory[: self.end] = data
        self.handle = core.attach_buffer(self.memory)

    def free_view(self, needed: int) -> memoryview:
        """Return the room behind what was received, at least one byte.

        Args:
            needed: As for the constructor.
        """
        if self.end == len(self.memory):
            self._grow(needed)
        return memoryview(self.memory)[self.end :]

    def _grow(self, needed: int) -> None:
        self._core.detach_buffer(self.handle)
        data = memoryview(self.memory)[self.start : self.end]
        self.end -= self.start
        self.start = 0
        memory = bytearray(_capacity(self.end, needed))
        memory[: self.end] = data
        self.memory = memory
        self.handle = self._core.attach_buffer(memory)

    def append(self, data: bytes | memoryview, needed: int) -> None:
        """Take in bytes that were read elsewhere."""
        while len(data):
            view = self.free_view(needed)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.end += count
            data = data[count:]

    def release(self) -> None:
        """Give the handle back."""
        self._core.detach_buffer(self.handle)


def _capacity(received: int, needed: int) -> int:
    """Return the size of a buffer: what is needed, at most twice what was received."""
    most = max(received * 2, received + 4096)
    return min(needed, most) if needed > received else most

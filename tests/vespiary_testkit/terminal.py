"""A terminal for what is drawn on one: a real one, whose other end is read as it comes."""

from __future__ import annotations

import os
import pty
import threading


class Terminal:
    """One terminal. Owner: the test.

    Attributes:
        file: Its own end, which programs and lines get.
    """

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.file = os.fdopen(slave, "w")
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def seen(self) -> str:
        """What was written to it up to now."""
        return self._seen.decode()

    def _read(self) -> None:
        while True:
            try:
                self._seen += os.read(self._master, 4096)
            except OSError:  # the other end was closed
                return

    def close(self) -> str:
        """Close it; return all that was written to it."""
        self.file.close()
        self._reader.join(10)
        os.close(self._master)
        return self.seen

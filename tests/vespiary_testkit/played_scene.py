"""A stock client's program that plays a scene: it says what happens, and waits where it is told to.

Owns the program's process. What it says are lines of JSON, each a list whose first item is the kind
of the event; a line of its input has it go on. Behind a `Relay` that holds back the broker's answer
a test knows that the client has not got it: no time has to pass to see that the client waits.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from vespiary_testkit.waiting import WAIT_S


class Scene:
    """A scene that is played. Use as a context manager.

    Args:
        command: The program and its arguments.
        folder: Where it runs; None: here.
    """

    def __init__(self, *command: str, folder: Path | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[list[Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def event(self) -> list[Any]:
        """Wait for what it says next."""
        return self._events.get(timeout=WAIT_S)

    def until(self, event: str) -> list[list[Any]]:
        """Return what it says up to and with an event."""
        seen = [self.event()]
        while seen[-1][0] != event:
            seen.append(self.event())
        return seen

    def is_silent(self) -> bool:
        """Whether it has said nothing that is still to be read."""
        return self._events.empty()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(WAIT_S)

    def go_on(self, word: str = "") -> None:
        """Have it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def rest(self) -> list[list[Any]]:
        """Return what it says until it ends."""
        assert self._process.stdin is not None
        self._process.stdin.close()  # else it waits for more of it
        assert self._process.wait(WAIT_S) == 0
        self._reader.join()
        return list(self._events.queue)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))

"""How full volumes are now: space and inodes, asked of the kernel whenever somebody wants to know.

Owns the question, and the thread that waits for its answer: a filesystem that hangs holds up that
thread, never the event loop or the end of the process. Must never judge. Called by `admin.volumes`;
owner: the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from typing import Final

import msgspec

from vespiary_broker.store.volumes import statfs

LOOK_S: Final = 1.0
"""Seconds that an answer may take; after it the volumes count as not known."""


class VolumeSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How full one volume is.

    Attributes:
        name: `bindings`, `journal`, `paging`, `large-messages` or `jms`.
        size_bytes: Size of its filesystem.
        free_bytes: Space left for the broker's user.
        inodes: Inodes of the filesystem; 0 where it has no fixed number.
        free_inodes: Inodes left; 0 where there is no fixed number.
    """

    name: str
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class SpaceLook:
    """Looks at volumes, with one look under way at a time.

    Args:
        volumes: Name and path of each.
    """

    def __init__(self, volumes: Iterable[tuple[str, str]]) -> None:
        self._volumes = tuple(volumes)
        self._pending: asyncio.Future[tuple[VolumeSpace, ...]] | None = None

    async def look(self) -> tuple[VolumeSpace, ...]:
        """Return how full the volumes are; those that do not answer in time are left out."""
        if not self._volumes:
            return ()
        if self._pending is None:
            loop = asyncio.get_running_loop()
            pending = self._pending = loop.create_future()

            def end(found: tuple[VolumeSpace, ...]) -> None:
                self._pending = None
                pending.set_result(found)

            def run() -> None:
                found = read(self._volumes)
                with contextlib.suppress(RuntimeError):  # the broker has ended meanwhile
                    loop.call_soon_threadsafe(end, found)

            threading.Thread(target=run, name="vespiary-space", daemon=True).start()
        done, _ = await asyncio.wait({self._pending}, timeout=LOOK_S)
        return done.pop().result() if done else ()


def read(volumes: Iterable[tuple[str, str]]) -> tuple[VolumeSpace, ...]:
    """Ask the kernel; a volume that cannot be asked is left out.

    Args:
        volumes: Name and path of each.
    """
    found = []
    for name, path in volumes:
        try:
            space = statfs.read(path)
        except OSError:
            continue
        found.append(
            VolumeSpace(
                name=name,
                size_bytes=space.size_bytes,
                free_bytes=space.free_bytes,
                inodes=space.inodes,
                free_inodes=space.free_inodes if space.inodes else 0,
            )
        )
    return tuple(found)

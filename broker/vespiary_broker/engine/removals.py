"""Keys on their way out of the bindings, and those who wait until they are gone for good.

Owns the background work of removing a key. Must never decide what is removed. Called by
`registry`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from vespiary_broker.engine.large_bodies import LargeBodies
from vespiary_broker.engine.ports import Bindings, Event, Spawn
from vespiary_spec.errors import VespiaryError


class _Removal:
    """A key on its way out of the bindings, and who waits for that."""

    def __init__(self, is_over: Event) -> None:
        self.failure: VespiaryError | None = None
        self.is_over = is_over

    async def wait(self) -> None:
        """Wait until it is durable; raise why it will not be."""
        await self.is_over.wait()
        if self.failure is not None:
            raise self.failure


class Removals:
    """Takes keys out of the bindings in the background.

    Args:
        bindings: The bindings journal.
        spawn: Runs a removal in the background.
        make_event: Makes what those wait for who want a removal to be durable.
        large_bodies: Bodies in files, held until their queue is gone; None: there are none.
    """

    def __init__(
        self,
        bindings: Bindings,
        spawn: Spawn,
        make_event: Callable[[], Event],
        large_bodies: LargeBodies | None,
    ) -> None:
        self._bindings = bindings
        self._spawn = spawn
        self._make_event = make_event
        self._large_bodies = large_bodies
        self._under_way: dict[str, _Removal] = {}
        self._failed: dict[str, _Removal] = {}

    def begin(self, key: str) -> None:
        """Remove a key in the background; those that failed before are tried again.

        Durability: the removal survives a power loss when `wait` returns.
        """
        for each in [*(other for other in self._failed if other != key), key]:
            self._begin(each)

    def _begin(self, key: str) -> None:
        self._failed.pop(key, None)
        self._under_way[key] = removal = _Removal(self._make_event())
        self._spawn(self._remove(key, removal))

    async def _remove(self, key: str, removal: _Removal) -> None:
        try:
            await self._bindings.remove(key)
        except VespiaryError as error:
            removal.failure = error
            if self._under_way.get(key) is removal:
                self._failed[key] = removal
            raise
        else:
            if self._large_bodies is not None and key.startswith("queue/"):
                self._large_bodies.release_removals()
        finally:
            if self._under_way.get(key) is removal:
                del self._under_way[key]
            removal.is_over.set()

    async def outlive(self, key: str) -> None:
        """Wait for the end of a removal of this key: written later it would end the new value."""
        self._failed.pop(key, None)  # nobody may try it again
        removal = self._under_way.get(key)
        if removal is not None:
            with suppress(VespiaryError):  # then the old binding stands, and is written over
                await removal.wait()
            self._failed.pop(key, None)

    async def wait(self, keys: Iterable[str]) -> None:
        """Wait until keys are gone from the bindings whose removal was begun.

        Args:
            keys: Keys; those whose removal was not begun, or has ended well, are not waited for.

        Raises:
            JournalFull: The disk of the bindings has no room: a key is still there.
            WriterFailed: The bindings have failed.

        Durability: on return nothing of it is back after a power loss.
        """
        for removal in [self._under_way.get(key) or self._failed.get(key) for key in keys]:
            if removal is not None:
                await removal.wait()

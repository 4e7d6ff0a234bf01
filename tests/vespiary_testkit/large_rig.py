"""A server without sockets whose large bodies go to a small disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from vespiary_broker.server.listener import LargeLimits
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_spec.settings import AddressSettings, DiskFullPolicy
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig

FOLDER = Path("/large")
LIMITS = LargeLimits(over_bytes=1000, record_bytes_max=100_000, size_bytes_max=1 << 30)
ROOM = 50_000
BODY = bytes(range(1, 251)) * 120  # 30 000 bytes, no NUL
POLICIES = {
    "failing": AddressSettings(disk_full_policy=DiskFullPolicy.FAIL),
    "dropping": AddressSettings(disk_full_policy=DiskFullPolicy.DROP),
}


class LargeRig(ServerRig):
    """A server whose large bodies go to a small disk in memory; `options` as for `ServerRig`."""

    def __init__(self, settings: dict[str, AddressSettings] | None = None, **options: Any) -> None:
        self.disk = MemoryDisk(capacity_bytes=ROOM)
        large = LargeMessageOptions(directory=FOLDER, retry_s=0.001)
        self.large = LargeMessages(large, self.disk, InlineExecutor())
        super().__init__(
            journal=MemoryJournal(files=2),
            settings=POLICIES | (settings or {}),
            large=self.large,
            large_limits=LIMITS,
            **options,
        )

    def make_full(self) -> None:
        """Leave room for a third of a body."""
        self.disk.capacity_bytes = self.disk.used_bytes() + len(BODY) // 3

    async def until_waiting(self, count: int) -> None:
        """Let the loop turn until so many wait for room; one that just tries again does not."""
        for _ in range(1000):
            await self.settle()
            if self.large.statistics().waiting == count:
                return
        assert self.large.statistics().waiting == count

    async def make_room(self) -> None:
        """Give the disk room, and wait until those who wait have tried again."""
        self.disk.capacity_bytes = 1 << 40
        for _ in range(5):
            await asyncio.sleep(0.002)
        await self.flush()

    async def close(self) -> None:
        await super().close()
        await self.large.close()
        assert self.large.statistics().receiving == 0

    def bodies(self) -> list[bytes]:
        """Return what is in the files."""
        return [bytes(self.disk.files[path].data) for path in sorted(self.disk.files)]


def rigged(
    test: Callable[[LargeRig], Awaitable[None]],
    runner: Callable[[Any], None] = product_loop.run,
) -> Any:
    """Run a test on a loop and a rig of its own."""

    @wraps(test)
    def run() -> None:
        async def scenario() -> None:
            rig = LargeRig()
            await test(rig)
            await rig.close()

        runner(scenario())

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture `rig`
    return run


def send(queue: str, receipt: object, *, has_length: bool = True, extra: str = "") -> bytes:
    """Return a SEND frame with the large body."""
    length = f"content-length:{len(BODY)}\n" if has_length else ""
    head = f"SEND\ndestination:/queue/{queue}\npersistent:true\n{length}{extra}"
    return f"{head}receipt:{receipt}\n\n".encode() + BODY + b"\0"


def receipts(peer: Peer) -> list[str]:
    """Return the ids of the receipts that came since the last look."""
    return [frame.get("receipt-id", "") for frame in peer.frames()]

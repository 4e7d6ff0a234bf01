"""How long paging waits for an address: until something can be moved, or until a page is worth it.

Owns the delays between two looks, which grow with the number of addresses that wait. Must never
hold anything of an address. Called by `pager`, on the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

_NOTHING_MOVED_S: Final = 0.1
_LOOKS_PER_S: Final = 500
"""Looks a second at addresses of which nothing can be moved, all together: thousands may page."""
_GATHER_S: Final = 0.1
"""So long a page that would be small waits for more: pages of single messages cost a flush each."""
_GATHER_STEP_S: Final = 0.005
"""How often it is looked whether memory is short: a fast producer sends 30 MB in 0.1 s."""


def pause_s(name: str, moves: int, *, least_s: float = _NOTHING_MOVED_S) -> float:
    """Return how long an address of which nothing could be moved waits to be looked at again.

    Addresses that were looked at together are spread, or each of their turns would be a long one.

    Args:
        name: The address.
        moves: Number of addresses whose messages are being moved, this one included.
        least_s: What a pause has at least, in seconds.
    """
    spread = 0.5 + zlib.crc32(name.encode()) / 2**32
    return max(least_s, spread * moves / _LOOKS_PER_S)


async def gather(name: str, moves: Callable[[], int], is_over: Callable[[], bool]) -> None:
    """Let more of an address come together than a small page, for a moment.

    Several large pages at once leave the disk to the journal for longer than one after the other.

    Args:
        name: The address.
        moves: Says how many addresses are being moved, this one included.
        is_over: Whether to wait no more.
    """
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + max(_GATHER_S, pause_s(name, moves()) / 2)
    while not is_over():
        left_s = end_s - now_s()
        if left_s <= 0:
            return
        await asyncio.sleep(min(pause_s(name, moves(), least_s=_GATHER_STEP_S), left_s))

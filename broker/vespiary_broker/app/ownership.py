"""The journal's ownership as `broker` wires it: claimed before anything is opened, let go of last.

Owns how a start waits for an owner that was not heard of. Must never decide who owns a journal:
`store.ownership` and `store.lease` do. Called by `broker`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from vespiary_broker.store.bindings import BindingsParts
from vespiary_broker.store.lease import Lease
from vespiary_broker.store.lock import LentLock
from vespiary_broker.store.opening import OpeningParts, prepare_folder
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.owned import Ownership
from vespiary_broker.store.ownership import Claim, OwnerOptions, begin_claim
from vespiary_spec.errors import JournalLocked, VespiaryError

log = logging.getLogger(__name__)


async def take_ownership(
    stack: AsyncExitStack,
    options: JournalOptions,
    *,
    lease_s: float,
    stop: asyncio.Event,
    on_wait: Callable[[str], None],
    journal_parts: OpeningParts | None = None,
    bindings_parts: BindingsParts | None = None,
) -> Ownership:
    """Make the journal this broker's: lock its folder, claim it, wait where that is needed.

    Args:
        stack: Lets go of it, after all that is entered later.
        options: The journal.
        lease_s: Seconds for which confirms leave after a look.
        stop: Ends the waiting.
        on_wait: Called with a sentence when the waiting begins.
        journal_parts: What the message journal is made of; None takes the real parts.
        bindings_parts: Likewise for bindings.

    Raises:
        JournalLocked: Another broker has it, or `stop` was set.
        VespiaryError: The block can't be had.
    """
    if not options.is_persistent:
        return Ownership(None, None, journal_parts, bindings_parts)
    owned = OwnerOptions(directory=options.directory, lease_s=lease_s, is_direct=options.is_direct)
    claim = await asyncio.to_thread(_begin, options, owned)
    try:
        if claim.wait_s:
            await _wait(claim, stop, on_wait)
            await asyncio.to_thread(claim.finish)
    except BaseException:
        claim.close()
        raise
    lease = Lease(claim, asyncio.get_running_loop())
    lease.start()
    stack.push_async_callback(asyncio.to_thread, lease.close)
    return Ownership(lease, LentLock(claim.lock), journal_parts, bindings_parts)


def _begin(options: JournalOptions, owned: OwnerOptions) -> Claim:
    prepare_folder(options, owned.disk)
    return begin_claim(owned)


async def _wait(claim: Claim, stop: asyncio.Event, on_wait: Callable[[str], None]) -> None:
    log.warning("%s", claim.reason)
    on_wait(claim.reason)
    try:
        await asyncio.wait_for(stop.wait(), claim.wait_s)
    except TimeoutError:
        return
    raise JournalLocked("the broker was stopped while it waited", where=str(claim.file.path))


def exit_code(failure: VespiaryError | None) -> int:
    """Return what the program ends with: 0 without a failure."""
    return 0 if failure is None else failure.exit_code

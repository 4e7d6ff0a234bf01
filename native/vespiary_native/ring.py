"""Chooses the ring: `open_ring` gives what was asked for, or says in a sentence why it does not.

Never: falls back silently, or to something less durable: both rings flush before they confirm.
Called by: the journal and page writers of `vespiary_broker.store`.

`VESPIARY_RING=threads` or `=aio` forces one for a test run.
"""

from __future__ import annotations

import os

from vespiary_native import loader
from vespiary_native.abc_ring import Ring, RingKind
from vespiary_native.threads import ThreadRing
from vespiary_spec.errors import ConfigError, EngineUnavailable, NativeError

SWITCH = "VESPIARY_RING"
_FORCED: dict[str, RingKind] = {"threads": "NIO", "aio": "ASYNCIO"}


def open_ring(
    kind: RingKind, depth: int, *, strict: bool, write_then_sync: bool = False
) -> tuple[Ring, str | None]:
    """Open a ring of the kind asked for, or the other one with the reason.

    Args:
        kind: "ASYNCIO" (Linux AIO) or "NIO" (a thread with pwritev and fdatasync).
        depth: Requests outstanding at once, 1 to `abc_ring.DEPTH_MAX`.
        strict: Raise instead of falling back.
        write_then_sync: ASYNCIO flushes by a second request and not by RWF_DSYNC: slower on a quiet
            machine, far faster where the processor that serves the disk is busy
            (docs/decisions/0001-durable-write.md). NIO always does.

    Returns:
        The ring, whose `name` is the effective kind, and one sentence that says why that is not
        `kind`, or None if it is.

    Raises:
        ValueError: `kind` or `depth` is out of range.
        EngineUnavailable: `strict`, and the kind can't be had; its errno is the kernel's.
        NativeError: Not even the fallback could be made.
        ConfigError: `VESPIARY_RING` or `VESPIARY_NATIVE` has an unknown value.

    Durability: the same for both kinds.
    """
    if kind not in ("ASYNCIO", "NIO"):
        raise ValueError(f"ring kind {kind!r} is unknown: allowed are 'ASYNCIO' and 'NIO'")
    forced = _forced_kind()
    if forced is not None and forced != kind:
        reason = f"{SWITCH}={os.environ[SWITCH]} forces {forced} where {kind} was asked for."
        if strict:
            raise EngineUnavailable(
                f"{kind} can't be used: {SWITCH} forces {forced}", cure=f"unset {SWITCH}"
            )
        # Forced AIO has no fallback: a test run that asks for it must not test something else.
        if forced == "NIO":
            return ThreadRing(depth), reason
        return _open_aio(depth, write_then_sync), reason
    if kind == "NIO":
        return ThreadRing(depth), None
    try:
        return _open_aio(depth, write_then_sync), None
    except NativeError as error:
        if strict or forced is not None:
            raise EngineUnavailable(
                f"ASYNCIO can't be used: {error.what}",
                error.errno or 0,
                cure=error.cure or "set journal-type to NIO",
            ) from error
        cure = f"; to change that, {error.cure}" if error.cure else ""
        return ThreadRing(depth), f"NIO is used, since ASYNCIO can't be: {error.what}{cure}."


def _open_aio(depth: int, write_then_sync: bool) -> Ring:
    """Open an AIO ring.

    Raises:
        NativeError: The native part or the kernel's AIO can't be had.
    """
    loader.load()
    # Imported here: with VESPIARY_NATIVE=0 the module cannot be imported at all.
    from vespiary_native.aio import AioRing

    return AioRing(depth, write_then_sync=write_then_sync)


def _forced_kind() -> RingKind | None:
    """Return the kind that the environment forces, or None."""
    value = os.environ.get(SWITCH, "")
    if value == "":
        return None
    if value not in _FORCED:
        raise ConfigError(
            "the switch of the ring has an unknown value",
            path=f"environment variable {SWITCH}",
            value=value,
            allowed="threads or aio",
        )
    return _FORCED[value]

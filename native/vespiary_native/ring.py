"""Chooses the ring: `open_ring` gives what was asked for, or says in a sentence why it does not.

Never: falls back silently, or to something less durable: all rings flush before they confirm.
Called by: the journal and page writers of `vespiary_broker.store`.

IO_URING falls back to ASYNCIO, and that to NIO. `VESPIARY_RING=threads`, `=aio` or `=uring` forces
one for a test run.
"""

from __future__ import annotations

import os

from vespiary_native import loader
from vespiary_native.abc_ring import Ring, RingKind
from vespiary_native.threads import ThreadRing
from vespiary_spec.errors import ConfigError, EngineUnavailable, NativeError

SWITCH = "VESPIARY_RING"
_FORCED: dict[str, RingKind] = {"threads": "NIO", "aio": "ASYNCIO", "uring": "IO_URING"}
_FALLBACKS: dict[RingKind, tuple[RingKind, ...]] = {
    "IO_URING": ("ASYNCIO", "NIO"),
    "ASYNCIO": ("NIO",),
    "NIO": (),
}


def open_ring(
    kind: RingKind, depth: int, *, strict: bool, write_then_sync: bool | None = None
) -> tuple[Ring, str | None]:
    """Open a ring of the kind asked for, or the next one that can be had, with the reason.

    Args:
        kind: "ASYNCIO" (Linux AIO), "IO_URING" or "NIO" (a thread with pwritev and fdatasync).
        depth: Requests outstanding at once, 1 to `abc_ring.DEPTH_MAX`.
        strict: Raise instead of falling back.
        write_then_sync: Flush by a second request and not by RWF_DSYNC. None takes what was found
            to be better: False with ASYNCIO (docs/decisions/0001-durable-write.md), True with
            IO_URING (docs/decisions/0005-io-uring-flushes-apart.md). NIO always does.

    Returns:
        The ring, whose `name` is the effective kind, and one sentence that says why that is not
        `kind`, or None if it is.

    Raises:
        ValueError: `kind` or `depth` is out of range.
        EngineUnavailable: `strict`, and the kind can't be had; its errno is the kernel's.
        NativeError: Not even the last fallback could be made.
        ConfigError: `VESPIARY_RING` or `VESPIARY_NATIVE` has an unknown value.

    Durability: the same for all kinds.
    """
    if kind not in _FALLBACKS:
        raise ValueError(f"ring kind {kind!r} is unknown: allowed are {', '.join(_FALLBACKS)}")
    forced = _forced_kind()
    if forced is not None and forced != kind:
        reason = f"{SWITCH}={os.environ[SWITCH]} forces {forced} where {kind} was asked for."
        if strict:
            raise EngineUnavailable(
                f"{kind} can't be used: {SWITCH} forces {forced}", cure=f"unset {SWITCH}"
            )
        # A forced one has no fallback: a test run that asks for it must not test something else.
        return _open(forced, depth, write_then_sync), reason
    try:
        return _open(kind, depth, write_then_sync), None
    except NativeError as error:
        if strict or forced is not None:
            raise EngineUnavailable(
                f"{kind} can't be used: {error.what}",
                error.errno or 0,
                cure=error.cure or "set journal-type to NIO",
            ) from error
        return _fall_back(kind, depth, write_then_sync, error)


def _fall_back(
    kind: RingKind, depth: int, write_then_sync: bool | None, error: NativeError
) -> tuple[Ring, str]:
    """Open the next kind that can be had, and say why in one sentence."""
    obstacle = _obstacle(kind, error)
    for other in _FALLBACKS[kind][:-1]:
        try:
            ring = _open(other, depth, write_then_sync)
        except NativeError as second:
            obstacle += f"; and {_obstacle(other, second)}"
        else:
            return ring, f"{other} is used, since {obstacle}."
    last = _FALLBACKS[kind][-1]
    return _open(last, depth, write_then_sync), f"{last} is used, since {obstacle}."


def _obstacle(kind: RingKind, error: NativeError) -> str:
    cure = f"; to change that, {error.cure}" if error.cure else ""
    return f"{kind} can't be: {error.what}{cure}"


def _open(kind: RingKind, depth: int, write_then_sync: bool | None) -> Ring:
    """Open a ring of this kind and no other.

    Raises:
        NativeError: The native part, or what it needs of the kernel, can't be had.
    """
    if kind == "NIO":
        return ThreadRing(depth)
    loader.load()
    # Imported here: with VESPIARY_NATIVE=0 the modules cannot be imported at all.
    if kind == "IO_URING":
        from vespiary_native.uring import UringRing

        return UringRing(depth, write_then_sync=write_then_sync is not False)
    from vespiary_native.aio import AioRing

    return AioRing(depth, write_then_sync=write_then_sync is True)


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
            allowed="threads, aio or uring",
        )
    return _FORCED[value]

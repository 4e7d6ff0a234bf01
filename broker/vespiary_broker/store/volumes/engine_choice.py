"""Which journal engine the broker will really use, and why.

Pure. The answer always has a reason, and another engine than the one asked for is never taken
silently: the reason goes to the log, the metric and the status. Called by `verification`.
"""

from __future__ import annotations

import msgspec

from vespiary_broker.store.volumes.aio_limits import AioLimits
from vespiary_broker.store.volumes.probe import Capability
from vespiary_spec.settings import JournalType

UNTRIED = Capability(None, "io_uring was not tried")


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The engine and its reason.

    Attributes:
        asked: What the configuration asks for.
        effective: What will be used; None when that is refused.
        reason: One sentence.
        waits: What the broker waits for before it can have the engine, as one sentence; empty if
            it need not wait.
    """

    asked: JournalType
    effective: JournalType | None
    reason: str
    waits: str = ""

    @property
    def is_as_asked(self) -> bool:
        """Whether the broker gets the engine that was asked for."""
        return self.effective is self.asked


def choose(
    asked: JournalType,
    *,
    direct: Capability,
    aio: Capability,
    limits: AioLimits,
    is_strict: bool,
    uring: Capability = UNTRIED,
    waits_for_aio: bool = False,
) -> EngineChoice:
    """Choose the journal engine from what was measured on the journal's volume.

    A trial that was not made (`works` is None) is no evidence against an engine: the ring itself
    then fails loudly at start-up if it can't be had.

    Args:
        asked: The configuration's `journal-type`.
        direct: Outcome of the O_DIRECT trial.
        aio: Outcome of the AIO trial.
        limits: The node's AIO numbers against the demand.
        is_strict: The configuration's `journal-type-strict`: refuse rather than take another
            engine.
        uring: Outcome of the io_uring trial.
        waits_for_aio: A lack of AIO requests is waited for; it is no reason for another engine.
    """
    if asked is JournalType.NIO:
        return EngineChoice(
            asked=asked,
            effective=JournalType.NIO,
            reason="NIO was asked for and needs nothing but pwrite and fdatasync.",
        )
    if asked is JournalType.IO_URING:
        if waits_for_aio and uring.works is False and not is_strict and _lacks_room(direct, limits):
            waits = (
                f"The broker waits for AIO requests, for io_uring can't be had: {limits.sentence}"
            )
            engine = JournalType.ASYNCIO
            return EngineChoice(asked=asked, effective=engine, reason=waits, waits=waits)
        return _choose_uring(direct, aio, uring, limits, is_strict=is_strict)
    if waits_for_aio and _lacks_room(direct, limits):
        waits = f"The broker waits for AIO requests: {limits.sentence}"
        return EngineChoice(asked=asked, effective=asked, reason=waits, waits=waits)
    obstacle = _obstacle(direct, aio, limits)
    if not obstacle:
        untried = next((trial.reason for trial in (direct, aio) if trial.works is None), None)
        tried = (
            "direct I/O and AIO work on the journal's volume"
            if untried is None
            else f"direct I/O and AIO were not tried on the journal's volume ({untried})"
        )
        return EngineChoice(
            asked=asked,
            effective=asked,
            reason=f"{asked} was asked for, {tried}, and {limits.sentence}",
        )
    if is_strict:
        return EngineChoice(
            asked=asked,
            effective=None,
            reason=f"{asked} can't work and journal-type-strict forbids NIO: {obstacle}",
        )
    return EngineChoice(
        asked=asked,
        effective=JournalType.NIO,
        reason=f"NIO is used instead of {asked}: {obstacle}",
    )


def _choose_uring(
    direct: Capability, aio: Capability, uring: Capability, limits: AioLimits, *, is_strict: bool
) -> EngineChoice:
    """Choose where IO_URING was asked for: ASYNCIO comes next, then NIO."""
    asked = JournalType.IO_URING
    obstacle = _no_direct(direct)
    if not obstacle and uring.works is not False:
        tried = "works" if uring.works else f"was not tried ({uring.reason})"
        reason = f"{asked} was asked for, and io_uring {tried} on the journal's volume."
        return EngineChoice(asked=asked, effective=asked, reason=reason)
    is_asyncio_possible = not _obstacle(direct, aio, limits)
    obstacle = obstacle or f"io_uring does not work on the journal's volume: {uring.reason}."
    if is_strict:
        reason = f"{asked} can't work and journal-type-strict forbids another engine: {obstacle}"
        return EngineChoice(asked=asked, effective=None, reason=reason)
    if is_asyncio_possible:
        reason = f"ASYNCIO is used instead of {asked}: {obstacle}"
        return EngineChoice(asked=asked, effective=JournalType.ASYNCIO, reason=reason)
    if uring.works is False and direct.works is not False:
        obstacle = f"{obstacle.rstrip('.')}; and {_obstacle(direct, aio, limits)}"
    reason = f"NIO is used instead of {asked}: {obstacle}"
    return EngineChoice(asked=asked, effective=JournalType.NIO, reason=reason)


def _lacks_room(direct: Capability, limits: AioLimits) -> bool:
    """Return whether more AIO requests would help."""
    return not limits.is_enough and direct.works is not False


def _no_direct(direct: Capability) -> str:
    if direct.works is False:
        return f"the journal's volume does not take direct I/O: {direct.reason}."
    return ""


def _obstacle(direct: Capability, aio: Capability, limits: AioLimits) -> str:
    # The limit first: with none of it left the trial fails as well, and tells less.
    if not limits.is_enough:
        return limits.sentence
    if without := _no_direct(direct):
        return without
    if aio.works is False:
        return f"Linux AIO does not work on the journal's volume: {aio.reason}."
    return ""

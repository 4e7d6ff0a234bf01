"""Which journal engine the broker will really use, and why.

Pure. The answer always has a reason, and another engine than the one asked for is never taken
silently: the reason goes to the log, the metric and the status. Called by `verification`.
"""

from __future__ import annotations

import msgspec

from vespiary_broker.store.volumes.aio_limits import AioLimits
from vespiary_broker.store.volumes.probe import Capability
from vespiary_spec.settings import JournalType


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The engine and its reason.

    Attributes:
        asked: What the configuration asks for.
        effective: What will be used; None when that is refused.
        reason: One sentence.
    """

    asked: JournalType
    effective: JournalType | None
    reason: str

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
    """
    if asked is JournalType.NIO:
        return EngineChoice(
            asked=asked,
            effective=JournalType.NIO,
            reason="NIO was asked for and needs nothing but pwrite and fdatasync.",
        )
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


def _obstacle(direct: Capability, aio: Capability, limits: AioLimits) -> str:
    # The limit first: with none of it left the trial fails as well, and tells less.
    if not limits.is_enough:
        return limits.sentence
    if direct.works is False:
        return f"the journal's volume does not take direct I/O: {direct.reason}."
    if aio.works is False:
        return f"Linux AIO does not work on the journal's volume: {aio.reason}."
    return ""

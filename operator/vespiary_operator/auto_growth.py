"""Claims that grow by themselves as their volumes fill up, within what `autoGrow` allows.

A decision is written onto the claim in the same write as the size that it asks for, so whoever
reads the claim knows both, whatever became of the operator or of the Broker's status. It says how
large the filesystem was: until a larger one has been seen, what is known of free space is from
before the growth, or the growth was no help, and nothing more is decided.

Owns: when a claim grows by itself, to which size, and that note. Pure.
Never: grows a claim that is on its way to another size, or beyond `maxSize`; reads the cluster.
Called by: `claims`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from vespiary_operator import names, pods
from vespiary_operator.builders import statefulset
from vespiary_operator.builders.pod_template import shared_volume
from vespiary_operator.observation import Observed, Space
from vespiary_spec.resources import Broker
from vespiary_spec.settings import BrokerSettings
from vespiary_spec.units import format_size_rounded
from vespiary_spec.volumes import AutoGrow

AHEAD_PERCENT = 10
"""So much of a volume before its broker takes no more messages, its claim grows."""

INODES_PERCENT = 5
"""With so few of its inodes left, it grows as well: most filesystems make more of them then."""

BACK_PERCENT = 2
"""So much more has to be free before room at the largest size no longer counts as short."""

FOREIGN_TIMES = 1.25
"""A filesystem that is so many times its claim is not the claim's alone: growth is no help."""

EXHAUSTED = "MaxSizeReached"

_GIB = 1024**3


class Growth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was decided about a claim, as it stands on it.

    Attributes:
        from_bytes: What it had.
        to_bytes: What it asks for since.
        filesystem_bytes: Size of its filesystem then.
        at: When, RFC 3339.
        why: In a few words.
    """

    from_bytes: int
    to_bytes: int
    filesystem_bytes: int
    at: str = ""
    why: str = ""


class Outlook(NamedTuple):
    """What is to be done about the room of one claim.

    Attributes:
        growth: The growth that is due; None if none is.
        is_exhausted: Whether its room is short and it is as large as it may become.
        hindrance: Why a growth would be of no use, as one sentence; empty if it would, or no room
            is needed.
    """

    growth: Growth | None = None
    is_exhausted: bool = False
    hindrance: str = ""


_NOTHING = Outlook()


def rule(broker: Broker, volume: str) -> AutoGrow | None:
    """Return how far the claims of a volume grow by themselves; None if they don't."""
    return statefulset.volume_spec(broker, volume).auto_grow


def noted(claim: Mapping[str, Any]) -> Growth | None:
    """Return the last decision about a claim; None if there is none, or none that can be read."""
    text = (claim["metadata"].get("annotations") or {}).get(names.ANNOTATION_GROWN)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Growth)
    except msgspec.DecodeError:
        return None  # somebody else wrote it


def note(growth: Growth) -> dict[str, str]:
    """Return the annotation of a claim that says what was decided."""
    return {names.ANNOTATION_GROWN: msgspec.json.encode(growth).decode()}


def outlook(
    observed: Observed, claim: Mapping[str, Any], volume: str, ordinal: int, capacity: int
) -> Outlook:
    """Return what is to be done about the room of a claim that is on its way to no other size.

    Args:
        observed: What was found.
        claim: The claim, bound.
        volume: Its volume.
        ordinal: Its broker.
        capacity: What it has, in bytes.
    """
    broker = observed.broker
    allowed = rule(broker, volume)
    space, is_now = _space(observed, volume, ordinal)
    if allowed is None or space is None or claim["metadata"].get("deletionTimestamp"):
        return _NOTHING
    name = claim["metadata"]["name"]
    is_largest = capacity >= allowed.max_size
    was_exhausted = is_largest and _was_exhausted(broker, name)
    settings = _settings(broker, ordinal)
    short = _shortage(
        space,
        settings,
        allowed,
        ahead=settings.journal_file_size if _holds_journal(broker, volume) else 0,
        more=BACK_PERCENT if was_exhausted else 0,
    )
    if not short:
        return _NOTHING
    if is_largest:
        return Outlook(is_exhausted=True)
    if space.size_bytes > capacity * FOREIGN_TIMES:
        return Outlook(
            hindrance=f"The claim {name} of {format_size_rounded(capacity)} does not grow by "
            f"itself although {short}: its filesystem has {format_size_rounded(space.size_bytes)}, "
            "so it is not the claim's alone and does not grow with it."
        )
    last = noted(claim)
    if last is not None and space.size_bytes <= last.filesystem_bytes:
        if not is_now:
            return _NOTHING  # it was looked at before it grew
        return Outlook(
            hindrance=f"The claim {name} has {format_size_rounded(capacity)}, but its filesystem "
            f"still has the {format_size_rounded(space.size_bytes)} of before it grew."
        )
    wanted = min(capacity + _step(allowed, capacity), allowed.max_size)
    return Outlook(
        growth=Growth(
            from_bytes=capacity,
            to_bytes=wanted,
            filesystem_bytes=space.size_bytes,
            at=observed.now,
            why=short,
        )
    )


def sentence(claim: str, growth: Growth, allowed: AutoGrow) -> str:
    """Say that a claim grows by itself, and why."""
    return (
        f"The claim {claim} grows by itself from {format_size_rounded(growth.from_bytes)} to "
        f"{format_size_rounded(growth.to_bytes)}, and to {format_size_rounded(allowed.max_size)} "
        f"at most (autoGrow): {growth.why}."
    )


def exhausted(claim: str, volume: str, allowed: AutoGrow) -> str:
    """Say that a claim may not grow further by itself, and is short of room."""
    return (
        f"The claim {claim} has reached the {format_size_rounded(allowed.max_size)} that it grows "
        "to by itself, and its room is short again. Have consumers take messages, or make "
        f"spec.storage.volumes.{names.spec_name(volume)}.autoGrow.maxSize larger."
    )


def _was_exhausted(broker: Broker, claim: str) -> bool:
    return any(
        condition.reason == EXHAUSTED and f" {claim} " in condition.message
        for condition in broker.status.conditions
    )


def _space(observed: Observed, volume: str, ordinal: int) -> tuple[Space | None, bool]:
    """Return how full a volume is, as its broker says; or as the verification of one that cannot.

    A broker may be unable to start for want of room, so what its pod found before counts as well,
    as long as it has not served since.

    Returns:
        None if nobody says; whether it is so at this moment.
    """
    pod = next((pod for pod in observed.pods if pods.ordinal(pod) == ordinal), None)
    if pod is None or pods.is_terminating(pod):
        return None, False
    said = observed.answers.get(pods.name(pod))
    if said is not None and volume in said.spaces:
        return said.spaces[volume], True
    found = None if pods.has_served(pod) else pods.verified(pod)
    for each in () if found is None else found.volumes:
        if each.name == volume and each.size_bytes and each.free_bytes is not None:
            space = Space(
                size_bytes=each.size_bytes,
                free_bytes=each.free_bytes,
                inodes=0 if each.free_inodes is None else each.inodes or 0,
                free_inodes=each.free_inodes or 0,
            )
            return space, False
    return None, False


def _settings(broker: Broker, ordinal: int) -> BrokerSettings:
    """Return the settings of one broker, with those that `perBroker` gives it alone."""
    for entry in broker.spec.per_broker:
        if entry.ordinal == ordinal:
            own = {
                name: value
                for name in ("max_disk_usage", "min_disk_free", "journal_file_size")
                if (value := getattr(entry.config, name)) is not None
            }
            return msgspec.structs.replace(broker.spec.config, **own)
    return broker.spec.config


def _holds_journal(broker: Broker, volume: str) -> bool:
    return volume in ("journal", shared_volume(broker, "journal"))


def _shortage(
    space: Space, settings: BrokerSettings, allowed: AutoGrow, *, ahead: int, more: int
) -> str:
    """Say what a volume lacks, in a few words; empty if it has enough.

    Args:
        space: How full it is.
        settings: Its broker's.
        allowed: What `autoGrow` says.
        ahead: Bytes that the broker takes at once, before which it looks at the limit.
        more: Percent that have to be free beyond what is enough.
    """
    size, free = space.size_bytes, space.free_bytes
    wait = settings.min_disk_free
    if wait < 0:
        wait = size * (100 - settings.max_disk_usage) // 100
    if allowed.min_free_percent is None:
        floor = wait + size * AHEAD_PERCENT // 100
    else:
        floor = size * allowed.min_free_percent // 100
    floor = max(floor, wait + ahead) + size * more // 100
    if free < floor:
        return f"{format_size_rounded(free)} of {format_size_rounded(size)} are free"
    inodes, left = space.inodes, space.free_inodes
    if inodes and left * 100 < inodes * (INODES_PERCENT + more):
        return f"{left} of {inodes} inodes are free"
    return ""


def _step(allowed: AutoGrow, capacity: int) -> int:
    """Return how much a claim grows at a time, in bytes."""
    if allowed.growth_step is not None:
        return allowed.growth_step
    return max(1, -(-capacity // (4 * _GIB))) * _GIB

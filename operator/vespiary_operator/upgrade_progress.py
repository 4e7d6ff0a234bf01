"""What the status says of an upgrade, from one pass to the next, and how it goes on.

Owns: which status is about the upgrade that is looked at, and its way to another stage.
Never: decides which way is taken; reads the clock. Called by: `upgrade`, `upgrade_refusal`.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from vespiary_operator import upgrade_stages
from vespiary_operator.observation import Observed
from vespiary_operator.upgrade_stages import Cause
from vespiary_spec.resources import UpgradeStrategy
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_spec.upgrade_status import UpgradeStatus


def reported(observed: Observed, revision: str, stages: frozenset[Stage]) -> UpgradeStatus | None:
    """Return the status as it was reported, if it is about this; None otherwise.

    Args:
        observed: What was found.
        revision: What is asked for.
        stages: Stages in which it may be.
    """
    found = observed.broker.status.upgrade
    if found is None or found.revision != revision:
        return None
    if found.stage in stages:
        return found
    # One that is behind the annotation stands where the write of the annotation left it.
    if found.stage not in (Stage.CHECKING, Stage.REFUSED):
        return None
    caught_up = passed(observed, found)
    return caught_up if caught_up.stage in stages else None


def passed(observed: Observed, status: UpgradeStatus, *, is_at_once: bool = False) -> UpgradeStatus:
    """Return the status of an upgrade whose every check says yes.

    Args:
        observed: What was found.
        status: The status so far.
        is_at_once: Whether no broker is the first, whatever the strategy.
    """
    strategy = observed.broker.spec.upgrade.strategy
    is_at_once = is_at_once or strategy is UpgradeStrategy.ROLLING_UPDATE
    cause = Cause.CHECKED_ALL_AT_ONCE if is_at_once else Cause.CHECKED
    status = msgspec.structs.replace(status, checked_for="", next_check_at="")
    return moved(observed, status, cause)


def moved(observed: Observed, status: UpgradeStatus, cause: Cause) -> UpgradeStatus:
    """Return the status in its next stage."""
    stage = upgrade_stages.following(status.stage, cause)
    return msgspec.structs.replace(status, stage=stage, stage_since=text(observed.time))


def completed(observed: Observed, status: UpgradeStatus) -> UpgradeStatus:
    """Return the status of an upgrade that has reached every broker."""
    status = moved(observed, status, Cause.DONE)
    message = f"Every broker has {status.to_version or status.to_image}."
    return msgspec.structs.replace(
        status, unhealthy_since="", baseline=None, reason="", message=message
    )


def text(when: datetime) -> str:
    """Return a time as the status has it."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(now: datetime, since: str) -> float:
    """Return how long ago a time in the status was; 0 for what is no time."""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return 0.0
    if then.tzinfo is None:
        return 0.0
    return (now - then).total_seconds()

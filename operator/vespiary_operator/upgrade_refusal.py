"""A version that was refused is looked at again, since what stood in its way may have gone.

A change of the Broker, or a word for it in one of two annotations, has it looked at anew and at
once. Otherwise it is after a pause that grows with the time that has passed; nothing is told of
it as long as the answer is the same.

Owns: when that is, and what the status keeps for it.
Never: makes a check (that is `upgrade_checks`); reads the clock.
Called by: `upgrade`, `upgrade_findings`, `reconciler`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from vespiary_operator import maintenance, upgrade_progress
from vespiary_operator.observation import Observed
from vespiary_operator.upgrade_stages import Cause
from vespiary_spec.resources import Broker
from vespiary_spec.upgrade_status import UpgradeStage as Stage
from vespiary_spec.upgrade_status import UpgradeStatus

FIRST_PAUSE_S = 60.0
LONGEST_PAUSE_S = 3600.0
"""Asking an image takes a pod, so one that goes on saying no is asked once in an hour."""


def refused(observed: Observed, status: UpgradeStatus) -> UpgradeStatus:
    """Return the status of an upgrade to which a check says no."""
    if status.stage is not Stage.REFUSED:
        status = upgrade_progress.moved(observed, status, Cause.WRONG)
    return postponed(observed, msgspec.structs.replace(status, checked_for=_words(observed.broker)))


def postponed(observed: Observed, status: UpgradeStatus) -> UpgradeStatus:
    """Return the status of a refused upgrade that is looked at after another pause."""
    age_s = upgrade_progress.age_s(observed.time, status.stage_since)
    pause_s = min(max(age_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
    due = upgrade_progress.text(observed.time + timedelta(seconds=pause_s))
    return msgspec.structs.replace(status, next_check_at=due)


def is_another(observed: Observed, status: UpgradeStatus) -> bool:
    """Return whether something else is asked than what was refused."""
    broker = observed.broker
    is_changed = broker.status.observed_generation != broker.metadata.generation
    return is_changed or status.checked_for != _words(broker)


def is_due(observed: Observed, status: UpgradeStatus) -> bool:
    """Return whether a refused upgrade is to be looked at, or is being looked at, again."""
    return not wait_s(status, observed.time)


def wait_s(status: UpgradeStatus, now: datetime) -> float:
    """Return for how long a refused upgrade is not looked at; 0 for a time that is none."""
    return max(0.0, -upgrade_progress.age_s(now, status.next_check_at))


def sentence(status: UpgradeStatus) -> str:
    """Return what is said of a refused upgrade: why, and when it is looked at again."""
    if not status.next_check_at:
        return status.message
    return f"{status.message} It is looked at again from {status.next_check_at} on."


def _words(broker: Broker) -> str:
    words = (maintenance.retry_asked(broker), maintenance.restored_snapshot(broker))
    return " ".join(word for word in words if word)

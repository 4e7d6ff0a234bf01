"""Events: what people read below `kubectl describe`.

Owns: which decisions are told, and the form of an Event. One for each thing that was changed and
one for each condition that turned, so a loop that changes nothing is silent.
Never: decides anything. Called by: `reconciler`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from vespiary_operator import archive_status, names, storage_status
from vespiary_operator.apply import Outcome
from vespiary_spec.archive_status import ArchiveConditionType, JournalArchiveStatus, RunOutcome
from vespiary_spec.resources import API_VERSION, Broker, BrokerNodeTuning, JournalArchive
from vespiary_spec.status import (
    BrokerStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    TuningConditionType,
)
from vespiary_spec.upgrade_status import UpgradeStage, UpgradeStatus

MESSAGE_CHARACTERS = 1024
"""Longest message that the API server takes."""

_GOOD_WHEN_FALSE = {
    ConditionType.PAUSED.value,
    ConditionType.DRAINING.value,
    ConditionType.DEGRADED.value,
    TuningConditionType.OVERLAPPING.value,
    ArchiveConditionType.STALLED.value,
}
_SILENT = ("Gate", "Orders")
"""Reasons of actions that are steps of another one."""

_QUIET = {
    ConditionType.PROGRESSING.value,
    ConditionType.AVAILABLE.value,
    ConditionType.DEGRADED.value,
    ConditionType.UP_TO_DATE.value,
    ArchiveConditionType.STALLED.value,
}
"""Conditions that say the same as another one at the same moment."""

_ALONE = (storage_status.PRODUCERS_WAIT,)
"""Reasons that only one of those has."""


_BAD_STAGES = (UpgradeStage.REFUSED, UpgradeStage.ROLLING_BACK, UpgradeStage.HALTED)


class Announcement(NamedTuple):
    """What an Event says.

    Attributes:
        reason: One word.
        message: One sentence.
        is_warning: Whether somebody should look.
    """

    reason: str
    message: str
    is_warning: bool = False


def of_outcomes(outcomes: Iterable[Outcome]) -> Iterator[Announcement]:
    """Yield an announcement for each action that changed something."""
    for outcome in outcomes:
        if outcome.is_change and outcome.action.reason not in _SILENT:
            is_warning = outcome.action.reason == "ForcedScaleDown"
            yield Announcement(outcome.action.reason, outcome.action.sentence, is_warning)


def of_conditions(
    before: Iterable[Condition], after: Iterable[Condition]
) -> Iterator[Announcement]:
    """Yield an announcement for each condition that turned, or has another reason now."""
    known = {condition.type: condition for condition in before}
    told = set()
    for condition in after:
        old = known.get(condition.type)
        is_same = old is not None and (old.status, old.reason) == (
            condition.status,
            condition.reason,
        )
        is_quiet = condition.type in _QUIET and condition.reason not in _ALONE
        if is_same or is_quiet or condition.status is ConditionStatus.UNKNOWN:
            continue
        is_ready = condition.type == ConditionType.READY.value
        is_bad = (condition.status is ConditionStatus.FALSE) != (condition.type in _GOOD_WHEN_FALSE)
        if is_ready and condition.reason == "Starting":
            continue
        if not is_bad and not is_ready and (old is None or old.status is ConditionStatus.UNKNOWN):
            continue  # good news is news after bad ones
        if condition.type == ConditionType.PAUSED.value or condition.reason == "Draining":
            is_bad = False
        if condition.message in told:
            continue
        told.add(condition.message)
        yield Announcement(condition.reason, condition.message, is_bad)


def of_upgrade(before: BrokerStatus, after: BrokerStatus) -> Iterator[Announcement]:
    """Yield an announcement for each new stage of an upgrade and each restart of a broker."""
    old, new = before.upgrade, after.upgrade
    if new is not None and (old is None or _step(old) != _step(new)):
        yield Announcement(f"Upgrade{new.stage.value}", new.message, new.stage in _BAD_STAGES)
    for record in after.restarts:
        if record in before.restarts:
            break
        yield Announcement(
            "BrokerRestarted",
            f"{record.broker} was restarted by {record.actor}, {record.reason}: {record.message}",
            record.actor != names.MANAGER,
        )


def of_adoptions(before: BrokerStatus, after: BrokerStatus) -> Iterator[Announcement]:
    """Yield an announcement for each volume that was adopted."""
    for record in after.adoptions:
        if record not in before.adoptions:
            yield Announcement("VolumeAdopted", record.message, True)


def of_run(before: JournalArchiveStatus, after: JournalArchiveStatus) -> Iterator[Announcement]:
    """Yield an announcement for a run of a JournalArchive that has ended."""
    run = after.last_run
    if run is None or run == before.last_run or run.outcome is RunOutcome.RUNNING:
        return
    _, reason, said = archive_status.ended(run)
    yield Announcement(reason, said, run.outcome is RunOutcome.FAILED)


def _step(upgrade: UpgradeStatus) -> tuple[str, str, str]:
    """Return what is told of an upgrade once; changed settings do not make it another one."""
    return upgrade.to_image, upgrade.began_at, upgrade.stage.value


def event(
    about: Broker | BrokerNodeTuning | JournalArchive, announcement: Announcement, now: datetime
) -> dict[str, Any]:
    """Return the Event.

    Args:
        about: The resource that it is about.
        announcement: What it says.
        now: The time, in UTC.
    """
    metadata = about.metadata
    namespace = metadata.namespace or "default"
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata.name}.{secrets.token_hex(8)}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": type(about).__name__,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "type": "Warning" if announcement.is_warning else "Normal",
        "reason": announcement.reason,
        "message": announcement.message[:MESSAGE_CHARACTERS],
        "source": {"component": names.MANAGER},
        "reportingComponent": names.MANAGER,
        "reportingInstance": names.MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }

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

from vespiary_operator import names
from vespiary_operator.apply import Outcome
from vespiary_spec.resources import API_VERSION, Broker, BrokerNodeTuning
from vespiary_spec.status import Condition, ConditionStatus, ConditionType

MESSAGE_CHARACTERS = 1024
"""Longest message that the API server takes."""

_GOOD_WHEN_FALSE = {ConditionType.PAUSED.value}
_QUIET = {
    ConditionType.PROGRESSING.value,
    ConditionType.AVAILABLE.value,
    ConditionType.DEGRADED.value,
    ConditionType.UP_TO_DATE.value,
}
"""Conditions that say the same as another one at the same moment."""


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
        if outcome.is_change and outcome.action.reason != "Gate":
            yield Announcement(outcome.action.reason, outcome.action.sentence)


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
        if is_same or condition.type in _QUIET or condition.status is ConditionStatus.UNKNOWN:
            continue
        is_ready = condition.type == ConditionType.READY.value
        is_bad = (condition.status is ConditionStatus.FALSE) != (condition.type in _GOOD_WHEN_FALSE)
        if is_ready and condition.reason == "Starting":
            continue
        if not is_bad and not is_ready and (old is None or old.status is ConditionStatus.UNKNOWN):
            continue  # good news is news after bad ones
        if condition.type == ConditionType.PAUSED.value:
            is_bad = False
        if condition.message in told:
            continue
        told.add(condition.message)
        yield Announcement(condition.reason, condition.message, is_bad)


def event(
    about: Broker | BrokerNodeTuning, announcement: Announcement, now: datetime
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

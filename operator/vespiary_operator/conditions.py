"""Conditions in the shape that `kubectl wait` reads, made from what was found.

Owns: when a condition's transition time changes. Never: knows what a condition is about.
Called by: `status`, `tuning`, and each module that finds one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TypeVar

from vespiary_spec.status import Condition, ConditionStatus

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

Kind = TypeVar("Kind", bound=enum.StrEnum)

Finding = tuple[ConditionStatus, str, str]
"""Status, reason and message of a condition."""


def merged(
    previous: Iterable[Condition],
    findings: Mapping[Kind, Finding],
    *,
    generation: int | None,
    now: str,
) -> tuple[Condition, ...]:
    """Make conditions of findings.

    Args:
        previous: The conditions so far.
        findings: What holds now.
        generation: Generation of the resource that this is about.
        now: The time, RFC 3339.
    """
    before = {condition.type: condition for condition in previous}
    found = []
    for kind, (state, reason, message) in findings.items():
        old = before.get(kind.value)
        since = old.last_transition_time if old is not None and old.status is state else now
        found.append(
            Condition(
                type=kind.value,
                status=state,
                reason=reason,
                message=message,
                last_transition_time=since or now,
                observed_generation=generation,
            )
        )
    return tuple(found)

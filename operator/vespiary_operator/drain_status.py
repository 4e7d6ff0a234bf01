"""What the status says of brokers that leave: the operation, the records, the condition.

Pure: time is an argument. Never: decides what is done (that is `draining`). Called by: `status`.
"""

from __future__ import annotations

import msgspec

from vespiary_operator.conditions import FALSE, TRUE, Finding
from vespiary_operator.plan import Plan
from vespiary_spec.resources import Broker
from vespiary_spec.scale_down import SCALE_DOWNS_MAX, ScaleDownRecord
from vespiary_spec.status import Operation


def operation(broker: Broker, plan: Plan, now: str) -> Operation | None:
    """Return the operation that is under way, with the time when it began."""
    kept = broker.status.scale_down
    if plan.drain is None:
        return kept
    found = plan.drain.operation
    if found is None:
        return None
    is_same = kept is not None and kept.target == found.target
    return msgspec.structs.replace(
        found, started_at=kept.started_at if kept is not None and is_same else now
    )


def records(broker: Broker, plan: Plan, now: str) -> tuple[ScaleDownRecord, ...]:
    """Return the brokers that left, and the one that is about to."""
    kept = broker.status.scale_downs
    if plan.drain is None or plan.drain.record is None:
        return kept
    added = msgspec.structs.replace(plan.drain.record, at=now)
    return (*kept, added)[-SCALE_DOWNS_MAX:]


def finding(broker: Broker, plan: Plan) -> Finding:
    """Return whether a broker is leaving."""
    found = broker.status.scale_down if plan.drain is None else plan.drain.operation
    if found is None:
        return FALSE, "NobodyLeaves", "No broker is leaving."
    if plan.drain is not None and plan.drain.problem:
        return TRUE, "DrainWaits", found.message
    return TRUE, "Draining", found.message

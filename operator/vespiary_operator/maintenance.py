"""What keeps the operator from restarting brokers: a pause, a closed window, a paused strategy.

Owns: the annotations by which people say so, and when a maintenance window is open.
Never: reads the clock. Called by: `plan`, `status`, `workload`, `upgrade`.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta

from vespiary_spec.resources import Broker, MaintenanceWindow, UpgradeStrategy, Weekday

ANNOTATION_PAUSED = "vespiary.dev/paused"
ANNOTATION_RETRY = "vespiary.dev/retry-upgrade"
"""Tries a version again that failed, once for each value; the time is a good one."""
ANNOTATION_RESTORED = "vespiary.dev/restored-snapshot"
"""Says that the copy of this name was put back on the volumes of every broker."""
ANNOTATION_IGNORE_WINDOWS = "vespiary.dev/ignore-maintenance-windows"
ANNOTATION_APPROVE = "vespiary.dev/approve"

_DAY = timedelta(days=1)
_WEEKDAYS = tuple(Weekday)
_LOOKAHEAD_DAYS = 8


def paused_by(broker: Broker) -> str:
    """Return what asks to change nothing at all; empty if nothing does."""
    if broker.spec.paused:
        return "spec.paused"
    if _is_true(broker, ANNOTATION_PAUSED):
        return f"the annotation {ANNOTATION_PAUSED}"
    return ""


def retry_asked(broker: Broker) -> str:
    """Return the word by which a version that failed is tried again; empty if there is none."""
    return broker.metadata.annotations.get(ANNOTATION_RETRY, "")


def restored_snapshot(broker: Broker) -> str:
    """Return the copy that was put back for every broker, as the user says; empty if none was."""
    return broker.metadata.annotations.get(ANNOTATION_RESTORED, "")


def no_restart(broker: Broker, now: datetime) -> str:
    """Return why the operator may not restart a broker now, as one sentence; empty if it may.

    Args:
        broker: The Broker.
        now: The time.
    """
    if broker.spec.upgrade.strategy is UpgradeStrategy.PAUSED:
        return "spec.upgrade.strategy is Paused: no broker is restarted until it is another one."
    windows = broker.spec.maintenance_windows
    if not windows or _is_true(broker, ANNOTATION_IGNORE_WINDOWS):
        return ""
    for window in windows:
        try:
            zoneinfo.ZoneInfo(window.time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return (
                f"spec.maintenanceWindows names the time zone {window.time_zone}, which is not "
                "known, so no broker is restarted. Write one such as Europe/Berlin."
            )
    if any(_is_open(window, now) for window in windows):
        return ""
    opens = min(_next_start(window, now) for window in windows)
    return (
        f"No maintenance window is open; the next one opens at {opens:%Y-%m-%dT%H:%M:%SZ}. "
        f"The annotation {ANNOTATION_IGNORE_WINDOWS}=true lets it go on now."
    )


def _is_true(broker: Broker, annotation: str) -> bool:
    return broker.metadata.annotations.get(annotation, "").lower() == "true"


def _start_on(window: MaintenanceWindow, day: datetime) -> datetime | None:
    """Return when a window opens on the day of a local time, in UTC; None if it does not."""
    if window.days and _WEEKDAYS[day.weekday()] not in window.days:
        return None
    hour, minute = map(int, window.start.split(":"))
    return day.replace(hour=hour, minute=minute, second=0, microsecond=0).astimezone(UTC)


def _is_open(window: MaintenanceWindow, now: datetime) -> bool:
    local = now.astimezone(zoneinfo.ZoneInfo(window.time_zone))
    for days in range(window.duration // 86400 + 2):
        start = _start_on(window, local - days * _DAY)
        if start is not None and start <= now < start + timedelta(seconds=window.duration):
            return True
    return False


def _next_start(window: MaintenanceWindow, now: datetime) -> datetime:
    local = now.astimezone(zoneinfo.ZoneInfo(window.time_zone))
    starts = (_start_on(window, local + days * _DAY) for days in range(_LOOKAHEAD_DAYS))
    return next(start for start in starts if start is not None and start > now)

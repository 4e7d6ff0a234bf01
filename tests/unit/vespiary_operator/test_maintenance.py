"""When the operator may restart brokers: windows over midnight, days, clock changes, pauses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from vespiary_operator import maintenance
from vespiary_spec.resources import API_VERSION, Broker


def broker(annotations: dict[str, str] | None = None, **spec: Any) -> Broker:
    metadata = {"name": "orders", "namespace": "ns", "annotations": annotations or {}}
    return Broker.from_dict(
        {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": spec}
    )


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


BERLIN = {"start": "22:00", "duration": 4 * 3600, "timeZone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("window", "now", "is_open"),
    [
        (BERLIN, "2026-11-23T20:59:00", False),
        (BERLIN, "2026-11-23T21:00:00", True),
        (BERLIN, "2026-11-24T00:59:59", True),  # over midnight
        (BERLIN, "2026-11-24T01:00:00", False),
        (BERLIN, "2026-07-01T20:00:00", True),  # summer: two hours before UTC
        (BERLIN, "2026-07-01T19:59:00", False),
        ({**BERLIN, "days": ["Monday"]}, "2026-11-23T21:00:00", True),
        ({**BERLIN, "days": ["Monday"]}, "2026-11-24T00:30:00", True),  # it began on Monday
        ({**BERLIN, "days": ["Monday"]}, "2026-11-24T21:00:00", False),
        ({"start": "00:00", "duration": 604800, "days": ["Sunday"]}, "2026-11-28T12:00:00", True),
    ],
)
def test_a_window_is_open_from_its_start_for_its_duration(
    window: dict[str, Any], now: str, is_open: bool
) -> None:
    said = maintenance.no_restart(broker(maintenanceWindows=[window]), at(now))
    assert (said == "") is is_open


def test_a_closed_window_says_when_the_next_one_opens() -> None:
    windows = [{**BERLIN, "days": ["Friday"]}, {"start": "03:00", "duration": 300}]
    said = maintenance.no_restart(broker(maintenanceWindows=windows), at("2026-11-23T12:00:00"))
    assert "opens at 2026-11-24T03:00:00Z" in said


def test_an_unknown_time_zone_restarts_nobody_and_is_named() -> None:
    windows = [{**BERLIN, "timeZone": "Europe/Atlantis"}]
    said = maintenance.no_restart(broker(maintenanceWindows=windows), at("2026-11-23T21:00:00"))
    assert "Europe/Atlantis" in said


def test_words_that_let_restarts_through_or_stop_them() -> None:
    now = at("2026-11-23T12:00:00")
    assert maintenance.no_restart(broker(), now) == ""
    passed = {maintenance.ANNOTATION_IGNORE_WINDOWS: "true"}
    assert maintenance.no_restart(broker(passed, maintenanceWindows=[BERLIN]), now) == ""
    paused = broker(passed, upgrade={"strategy": "Paused"})
    assert "Paused" in maintenance.no_restart(paused, now)
    assert maintenance.paused_by(broker()) == ""
    assert maintenance.paused_by(broker(paused=True)) == "spec.paused"
    assert maintenance.paused_by(broker({maintenance.ANNOTATION_PAUSED: "false"})) == ""
    assert "annotation" in maintenance.paused_by(broker({maintenance.ANNOTATION_PAUSED: "True"}))

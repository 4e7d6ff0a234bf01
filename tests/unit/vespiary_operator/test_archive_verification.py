"""What the operator says of runs that verify: good, damaged, or unable to look."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from vespiary_operator import announcements
from vespiary_operator.actions import Apply, Create
from vespiary_operator.archive import plan
from vespiary_operator.archive_metrics import ArchiveMetrics
from vespiary_operator.archive_status import compute
from vespiary_spec import archive_status
from vespiary_spec.archive_status import ArchiveRun, RunOutcome
from vespiary_testkit.archive_world import (
    CLAIMS,
    OPTIONS,
    actions,
    answer,
    archive,
    job,
    observed,
    pod,
    told,
    verification,
)


def damaged(name: str = "history-archive-1", began: str = "2026-11-24T11:50:00Z") -> dict[str, Any]:
    """Return the Job and the pod of a verification that found damage."""
    said = answer("2 damages were found.", is_good=False, rows=7, damages=2)
    failed = job(name, began, "Failed", reason="PodFailurePolicy")
    return {"jobs": (failed,), "pods": (pod(name, said, phase="Failed", exitCode=1),)}


def test_a_verification_needs_no_target_and_waits_for_the_broker_as_an_export_does() -> None:
    claims = {name: found for name, found in CLAIMS.items() if name != "exports"}
    (made,) = actions(observed(verification(), claims=claims))
    assert isinstance(made, Create)
    scheduled = verification(schedule="0 4 * * 0")
    (made,) = actions(observed(scheduled, claims=claims))
    assert isinstance(made, Apply)
    first = observed(verification(), claims=claims, broker_pod=None)
    assert told(first)["SourceReady"] == ("False", "BrokerNotStarted")
    assert not actions(first)
    (account, binding, _) = actions(observed(verification(executors=2), claims=claims))
    assert isinstance(account, Apply)
    assert isinstance(binding, Apply)


def test_a_verification_that_found_nothing_is_told_with_what_it_looked_at() -> None:
    ended = job("history-archive-1", "2026-11-24T11:50:00Z", "Complete")
    said = pod("history-archive-1", answer("7 records.", rows=7, damages=0), phase="Succeeded")
    found = observed(verification(), jobs=(ended,), pods=(said,))
    run = compute(found, plan(found, OPTIONS)).last_run
    assert run is not None
    assert (run.outcome, run.rows, run.bytes, run.files, run.damages) == (
        *(RunOutcome.SUCCEEDED, 7, 70, 1, 0),
    )
    assert told(found)["Ready"] == ("True", "RunSucceeded")


def test_damage_has_a_reason_of_its_own_and_counts_as_having_looked() -> None:
    found = observed(verification(), **damaged())
    status = compute(found, plan(found, OPTIONS))
    run = status.last_run
    assert run is not None
    assert (run.outcome, run.rows, run.bytes, run.files, run.damages) == (
        *(RunOutcome.FAILED, 7, 70, 1, 2),
    )
    assert told(found)["Ready"] == ("False", "DamageFound")
    assert told(found)["Stalled"] == ("True", "DamageFound")
    assert status.conditions[0].message == "history-archive-1: 2 damages were found."
    assert (status.last_success_time, status.lag_seconds) == ("2026-11-24T11:50:00Z", 600)
    (event,) = announcements.of_run(archive().status, status)
    assert (event.reason, event.is_warning) == ("DamageFound", True)
    assert not actions(observed(verification(status=status))), "it is not tried again"
    later = observed(verification(status=status), jobs=damaged()["jobs"])
    assert compute(later, plan(later, OPTIONS)).last_run == run, "its pod is gone"


def test_a_verification_that_could_not_look_is_no_damage() -> None:
    failed = job("history-archive-1", "2026-11-24T11:50:00Z", "Failed")
    said = answer("It could not look: permission denied.", is_good=False)
    found = observed(
        verification(), jobs=(failed,), pods=(pod("history-archive-1", said, phase="Failed"),)
    )
    status = compute(found, plan(found, OPTIONS))
    assert told(found)["Ready"] == ("False", "RunFailed")
    assert status.last_run is not None
    assert (status.last_run.damages, status.lag_seconds) == (None, None)


def test_damage_is_told_until_another_run_has_looked() -> None:
    scheduled = verification(schedule="0 * * * *")
    first = damaged()
    found = observed(scheduled, **first)
    status = compute(found, plan(found, OPTIONS))
    running = job("history-archive-2", "2026-11-24T11:59:00Z")
    goes_on = {"jobs": (*first["jobs"], running), "pods": first["pods"]}
    meanwhile = observed(verification(schedule="0 * * * *", status=status), **goes_on)
    assert told(meanwhile)["Ready"] == ("False", "DamageFound")
    again = compute(meanwhile, plan(meanwhile, OPTIONS))
    assert "history-archive-1: 2 damages" in again.conditions[0].message
    edited = verification(schedule="0 * * * *", status=status, generation=2)
    assert told(observed(edited, **goes_on))["Ready"] == ("True", "Running"), "of another spec"
    good = job("history-archive-2", "2026-11-24T11:59:00Z", "Complete")
    ended = observed(verification(schedule="0 * * * *", status=again), jobs=(good,))
    assert told(ended)["Ready"] == ("True", "RunSucceeded")


def test_an_operator_that_was_away_learns_of_every_run_that_looked() -> None:
    first, running = damaged(), job("history-archive-2", "2026-11-24T11:59:00Z")
    found = observed(
        verification(schedule="0 * * * *"), jobs=(*first["jobs"], running), pods=first["pods"]
    )
    assert compute(found, plan(found, OPTIONS)).last_success_time == "2026-11-24T11:50:00Z"


def test_damages_are_a_metric_until_another_run_has_looked() -> None:
    registry = CollectorRegistry()
    metrics = ArchiveMetrics(registry)

    def page(outcome: RunOutcome, damages: int | None) -> str:
        run = ArchiveRun(name="a", outcome=outcome, damages=damages)
        metrics.show("ns", "weekly", archive_status.JournalArchiveStatus(last_run=run))
        return generate_latest(registry).decode()

    shown = 'vespiary_operator_archive_last_run_damages{archive="weekly",namespace="ns"}'
    assert f"{shown} 2.0" in page(RunOutcome.FAILED, 2)
    assert f"{shown} 2.0" in page(RunOutcome.RUNNING, None)
    assert f"{shown} 2.0" in page(RunOutcome.FAILED, None), "it could not look"
    assert f"{shown} 0.0" in page(RunOutcome.SUCCEEDED, 0)
    assert shown not in page(RunOutcome.SUCCEEDED, None), "it exports now"
    metrics.forget("ns", "weekly")
    assert "weekly" not in generate_latest(registry).decode()

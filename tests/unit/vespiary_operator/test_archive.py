"""A JournalArchive planned and reported: what stands in its way, its CronJob or Job, its runs."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from vespiary_operator import announcements, kinds, names
from vespiary_operator.actions import Apply, Create, Delete
from vespiary_operator.archive import plan
from vespiary_operator.archive_metrics import ArchiveMetrics
from vespiary_operator.archive_status import compute, lag_s, refused, unreadable
from vespiary_spec import archive_status
from vespiary_spec.archive_status import ArchiveRun, RunOutcome
from vespiary_testkit.archive_world import (
    CLAIMS,
    NOW,
    OPTIONS,
    actions,
    answer,
    archive,
    broker,
    broker_pod,
    claim,
    job,
    observed,
    pod,
    told,
)

# --- what stands in the way -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        ({"broker": None}, "BrokerMissing", "no Broker ns/orders"),
        ({"broker": None, "broker_error": "bad."}, "BrokerUnreadable", "bad."),
        ({"broker": broker(storage={"ephemeral": True})}, "NothingKept", "spec.storage.ephemeral"),
        (
            {"broker": broker(config={"persistenceEnabled": False})},
            "NothingKept",
            "persistenceEnabled: false",
        ),
        ({"broker": broker(storage={})}, "RetentionOff", "spec.storage.volumes.retention"),
        ({"claims": {"exports": claim("exports")}}, "SourceClaimMissing", "retention-orders-0"),
        (
            {
                "claims": CLAIMS
                | {
                    "retention-orders-0": {
                        "metadata": {},
                        "spec": {"accessModes": ["ReadWriteOncePod"]},
                    }
                }
            },
            "SourceNotShared",
            "retention-orders-0 is ReadWriteOncePod",
        ),
        ({"broker_pod": None}, "BrokerNotStarted", "orders-0 has not started yet"),
        ({"broker_pod": broker_pod({"waiting": {}})}, "BrokerNotStarted", "mounted its volumes"),
    ],
)
def test_a_source_that_cannot_be_read_is_said_in_a_sentence(
    found: dict[str, Any], reason: str, words: str
) -> None:
    looked = observed(**found)
    assert told(looked) == {
        "Ready": ("False", reason),
        "SourceReady": ("False", reason),
        "Stalled": ("True", reason),
    }
    assert words in compute(looked, plan(looked, OPTIONS)).conditions[0].message
    assert not actions(looked)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "TargetMissing"),
        ({"exports": claim("exports") | {"status": {"phase": "Lost"}}}, "TargetLost"),
        (
            {"exports": claim("exports", **{names.LABEL_COMPONENT: names.COMPONENT_BROKER})},
            "TargetIsSource",
        ),
    ],
)
def test_a_target_that_cannot_be_written_is_said_and_is_no_fault_of_the_source(
    claims: dict[str, Any], reason: str
) -> None:
    others = {name: found for name, found in CLAIMS.items() if name != "exports"}
    looked = observed(claims=others | claims)
    assert told(looked) == {
        "Ready": ("False", reason),
        "SourceReady": ("True", "SourceFound"),
        "Stalled": ("True", reason),
    }
    assert not actions(looked)


def test_the_brokers_volumes_are_mounted_by_nobody_before_it_but_by_runs_ever_after() -> None:
    never = observed(broker_pod=None)
    assert not actions(never)
    assert actions(observed(broker_pod=broker_pod({"terminated": {}})))
    stopped = broker(hibernate=True)
    assert actions(observed(broker=stopped, broker_pod=None)), "it ran, or had no claims"
    succeeded = archive_status.JournalArchiveStatus(last_success_time=NOW)
    assert actions(observed(archive(status=succeeded), broker_pod=None)), "it is only restarted"


def test_a_broker_that_there_is_not_is_told_by_its_number() -> None:
    looked = observed(archive(brokerRef={"name": "orders", "ordinal": 3}))
    sentence = compute(looked, plan(looked, OPTIONS)).conditions[0].message
    assert "no claim retention-orders-3" in sentence
    assert "spec.replicas of the Broker is 1: correct spec.brokerRef.ordinal" in sentence


def test_a_schedule_begins_nothing_that_could_only_fail() -> None:
    scheduled = archive(schedule="0 3 * * *")
    (made,) = actions(observed(scheduled))
    assert isinstance(made, Apply)
    live = made.manifest | {"status": {}}
    (suspended,) = actions(observed(scheduled, cron_job=live, broker=None))
    assert isinstance(suspended, Apply)
    assert suspended.manifest["spec"] == live["spec"] | {"suspend": True}
    gone = observed(scheduled, cron_job=suspended.manifest, broker=None)
    assert not actions(gone), "it is suspended already"
    (resumed,) = actions(observed(scheduled, cron_job=suspended.manifest))
    assert isinstance(resumed, Apply)
    assert resumed.manifest["spec"]["suspend"] is False


def test_what_is_somebody_elses_is_neither_changed_nor_deleted() -> None:
    foreign = {"apiVersion": "v1", "kind": "CronJob", "spec": {"schedule": "@daily"}}
    foreign["metadata"] = {"name": "history-archive", "namespace": "ns", "uid": "x"}
    scheduled = observed(archive(schedule="0 3 * * *"), cron_job=foreign)
    assert told(scheduled)["Ready"] == ("False", "NameTaken")
    sentence = compute(scheduled, plan(scheduled, OPTIONS)).conditions[0].message
    assert "The CronJob ns/history-archive is not this JournalArchive's" in sentence
    assert not actions(scheduled)
    for name in ("account", "role_binding"):
        assert told(observed(archive(executors=1), **{name: foreign}))["Ready"][1] == "NameTaken"
        (made,) = actions(observed(archive(), cron_job=foreign, **{name: foreign}))
        assert isinstance(made, Create), "it needs neither, so neither is in its way"


def test_executors_come_with_what_lets_runs_make_them() -> None:
    account, binding, made = actions(observed(archive(executors=2)))
    assert isinstance(account, Apply)
    assert isinstance(binding, Apply)
    assert isinstance(made, Create)
    live = {
        "account": account.manifest,
        "role_binding": binding.manifest,
        "jobs": (job("history-archive-1", "2026-11-24T11:00:00Z"),),
    }
    assert not actions(observed(archive(executors=2), **live))
    found = live | {"role_binding": binding.manifest}
    found["role_binding"]["metadata"]["uid"] = "r"
    (gone,) = actions(observed(archive(), **found))
    assert isinstance(gone, Delete)
    assert gone.kind == kinds.ROLE_BINDING


# --- what is done ---------------------------------------------------------------------------------


def test_a_schedule_becomes_a_cron_job_and_then_nothing_is_written() -> None:
    scheduled = archive(schedule="0 3 * * *", timeZone="Europe/Berlin")
    (made,) = actions(observed(scheduled))
    assert isinstance(made, Apply)
    spec = made.manifest["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("0 3 * * *", "Europe/Berlin")
    assert spec["concurrencyPolicy"] == "Forbid"
    assert not actions(observed(scheduled, cron_job=made.manifest))
    later = archive(schedule="0 4 * * *", timeZone="Europe/Berlin")
    (changed,) = actions(observed(later, cron_job=made.manifest))
    assert changed.reason == "Changed"
    assert "spec.schedule" in changed.sentence


def test_without_a_schedule_there_is_one_job_for_a_generation() -> None:
    (made,) = actions(observed(archive(generation=4)))
    assert isinstance(made, Create)
    assert made.manifest["metadata"]["name"] == "history-archive-4"
    running = job("history-archive-4", "2026-11-24T11:00:00Z")
    assert not actions(observed(archive(generation=4), jobs=(running,)))


def test_a_job_that_has_ended_and_is_gone_is_not_made_again() -> None:
    status = archive_status.JournalArchiveStatus(
        last_run=ArchiveRun(name="history-archive-4", outcome=RunOutcome.SUCCEEDED)
    )
    assert not actions(observed(archive(generation=4, status=status)))
    (made,) = actions(observed(archive(generation=5, status=status)))
    assert isinstance(made, Create)


def test_another_spec_begins_when_the_run_before_has_ended() -> None:
    running = job("history-archive-1", "2026-11-24T11:00:00Z")
    (ended,) = actions(observed(archive(generation=2), jobs=(running,)))
    assert isinstance(ended, Delete)
    assert (ended.kind, ended.name) == (kinds.JOB, "history-archive-1")
    leaving = observed(archive(generation=2), pods=(pod("history-archive-1"),))
    assert not actions(leaving), "its pod still writes to the same folder"
    gone = observed(archive(generation=2), pods=(pod("history-archive-1", phase="Failed"),))
    (made,) = actions(gone)
    assert isinstance(made, Create)


def test_a_schedule_that_was_taken_out_takes_its_cron_job_with_it() -> None:
    (made,) = actions(observed(archive(schedule="0 3 * * *")))
    assert isinstance(made, Apply)
    live = made.manifest | {"metadata": made.manifest["metadata"] | {"uid": "c"}}
    first, second = actions(observed(archive(generation=2), cron_job=live))
    assert isinstance(first, Delete)
    assert first.kind == kinds.CRON_JOB
    assert isinstance(second, Create)


def test_nothing_begins_while_it_is_suspended() -> None:
    assert not actions(observed(archive(suspend=True)))
    (made,) = actions(observed(archive(suspend=True, schedule="0 3 * * *")))
    assert isinstance(made, Apply)
    assert made.manifest["spec"]["suspend"] is True


def test_old_jobs_go_when_they_are_told_of() -> None:
    jobs = tuple(
        job(f"history-archive-{number}", f"2026-11-24T1{number}:00:00Z", "Complete")
        for number in range(1, 4)
    )
    limited = {"successfulJobsHistoryLimit": 1, "suspend": True}
    assert not actions(observed(archive(**limited), jobs=jobs)), "the status does not know them"
    status = compute(observed(archive(**limited), jobs=jobs), plan(observed(jobs=jobs), OPTIONS))
    gone = actions(observed(archive(status=status, **limited), jobs=jobs))
    assert {action.name for action in gone if isinstance(action, Delete)} == {
        "history-archive-1",
        "history-archive-2",
    }
    others = tuple(
        found | {"metadata": found["metadata"] | {"ownerReferences": []}} for found in jobs
    )
    assert not actions(observed(archive(status=status, **limited), jobs=others)), "a CronJob's own"


# --- what is said ---------------------------------------------------------------------------------


def test_a_run_is_told_with_what_it_wrote() -> None:
    ended = job("history-archive-1", "2026-11-24T11:50:00Z", "Complete")
    said = pod("history-archive-1", answer("7 messages.", rows=7), phase="Succeeded")
    found = observed(jobs=(ended,), pods=(said,))
    status = compute(found, plan(found, OPTIONS))
    run = status.last_run
    assert run is not None
    assert (run.outcome, run.rows, run.bytes) == (RunOutcome.SUCCEEDED, 7, 70)
    assert status.last_success_time == "2026-11-24T11:50:00Z"
    assert status.lag_seconds == 600
    assert told(found)["Ready"] == ("True", "RunSucceeded")
    assert status.conditions[0].message == "history-archive-1: 7 messages."
    later = compute(observed(archive(status=status), jobs=(ended,)), plan(observed(), OPTIONS))
    assert later.last_run == run, "what a pod said stays when the pod is gone"
    (event,) = announcements.of_run(archive().status, status)
    assert (event.reason, event.is_warning) == ("RunSucceeded", False)
    assert not list(announcements.of_run(status, later))


@pytest.mark.parametrize(
    ("message", "terminated", "condition", "words"),
    [
        (answer("the folder is full.", is_good=False), {}, {}, "the folder is full."),
        ("", {"reason": "OOMKilled"}, {}, "raise spec.resources.limits.memory"),
        ("Traceback\nKeyError: 1", {"exitCode": 1}, {}, "KeyError: 1"),
        ("", {}, {"reason": "DeadlineExceeded"}, "after 60 s, as spec.activeDeadlineSeconds"),
        ("", {}, {"message": "Job has reached the limit"}, "Job has reached the limit"),
    ],
)
def test_a_failed_run_is_told_with_its_reason(
    message: str | bytes, terminated: Any, condition: Any, words: str
) -> None:
    failed = job("history-archive-1", "2026-11-24T11:00:00Z", "Failed", **condition)
    said = pod("history-archive-1", message, phase="Failed", **terminated)
    found = observed(jobs=(failed,), pods=(said,))
    status = compute(found, plan(found, OPTIONS))
    assert status.last_run is not None
    assert words in status.last_run.message
    assert told(found)["Ready"] == ("False", "RunFailed")
    assert told(found)["Stalled"] == ("True", "RunFailed")
    assert status.lag_seconds is None
    (event,) = announcements.of_run(archive().status, status)
    assert (event.reason, event.is_warning) == ("RunFailed", True)


def test_a_run_that_goes_on_is_unknown_unless_others_follow() -> None:
    running = job("history-archive-1", "2026-11-24T11:00:00Z")
    assert told(observed(jobs=(running,)))["Ready"] == ("Unknown", "Running")
    assert told(observed())["Ready"] == ("Unknown", "Running")
    scheduled = archive(schedule="0 3 * * *")
    assert told(observed(scheduled, jobs=(running,)))["Ready"] == ("True", "Running")
    assert told(observed(scheduled))["Ready"] == ("True", "Scheduled")
    assert told(observed(archive(suspend=True)))["Ready"] == ("True", "Suspended")


def test_a_run_of_the_spec_before_does_not_count() -> None:
    ended = job("history-archive-1", "2026-11-24T11:00:00Z", "Complete")
    assert told(observed(archive(generation=2), jobs=(ended,)))["Ready"] == ("Unknown", "Running")


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]},
            "RunNotScheduled",
            "no room",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "name": names.PIPELINE_CONTAINER,
                        "image": "r/none",
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}},
                    }
                ]
            },
            "RunStuck",
            "ErrImagePull (image r/none): not found.",
        ),
    ],
)
def test_a_run_that_cannot_begin_says_what_it_waits_for(
    status: dict[str, Any], reason: str, words: str
) -> None:
    running = job("history-archive-1", "2026-11-24T11:00:00Z")
    waiting = pod("history-archive-1") | {"status": status}
    found = observed(jobs=(running,), pods=(waiting,))
    assert told(found)["Ready"] == ("False", reason)
    assert told(found)["Stalled"] == ("True", reason)
    assert words in compute(found, plan(found, OPTIONS)).conditions[0].message


@pytest.mark.parametrize(
    ("began", "lag"),
    [
        ("2026-11-24T11:59:01Z", 0),
        ("2026-11-24T11:58:59Z", 60),
        ("2026-11-24T10:51:00Z", 3600),
        ("2026-11-22T10:59:00Z", 49 * 3600),
        ("2026-11-24T12:00:01Z", 0),
        ("", None),
    ],
)
def test_lag_is_told_in_steps(began: str, lag: int | None) -> None:
    assert lag_s(began, NOW) == lag


def test_what_the_api_server_refused_is_said() -> None:
    found = observed()
    status = compute(found, plan(found, OPTIONS), failure="no such schedule.")
    ready = status.conditions[0]
    assert (ready.status.value, ready.reason) == ("False", "ApplyFailed")
    assert ready.message == "no such schedule."


def test_a_spec_that_cannot_be_read_is_told_and_the_last_run_stays() -> None:
    run = {"name": "history-archive-1", "outcome": "Succeeded"}
    document = {"metadata": {"name": "history", "generation": 9}, "status": {"lastRun": run}}
    status = refused(unreadable(document), "spec.job: what is this.", now=NOW)
    assert {c.type: c.reason for c in status.conditions} == {
        "Ready": "InvalidSpec",
        "Stalled": "InvalidSpec",
    }
    assert status.observed_generation == 9
    assert status.last_run is not None


def test_metrics_come_and_go() -> None:
    registry = CollectorRegistry()
    metrics = ArchiveMetrics(registry)
    run = ArchiveRun(name="a", outcome=RunOutcome.SUCCEEDED, rows=7)
    metrics.show(
        "ns",
        "history",
        archive_status.JournalArchiveStatus(last_run=run, last_success_time="1970-01-01T00:01:00Z"),
    )
    page = generate_latest(registry).decode()
    labels = '{archive="history",namespace="ns"}'
    assert f"vespiary_operator_archive_last_run{labels} 1.0" in page
    assert f"vespiary_operator_archive_last_run_rows{labels} 7.0" in page
    assert f"archive_last_success_timestamp_seconds{labels} 60.0" in page
    assert "last_run_damages{" not in page
    metrics.forget("ns", "history")
    metrics.forget("ns", "another")
    assert "history" not in generate_latest(registry).decode()

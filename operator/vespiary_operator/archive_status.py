"""The status of a JournalArchive: its last run, its lag, and whether anybody has to do something.

Owns: the meaning of its conditions. Pure: time is an argument.
Never: decides what is done (that is `archive`). Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from vespiary_operator import archive_runs, names, pods
from vespiary_operator.archive import ArchivePlan, ObservedArchive
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding, merged
from vespiary_operator.pods import Pod
from vespiary_spec.archive_status import (
    ArchiveConditionType,
    ArchiveRun,
    JournalArchiveStatus,
    RunOutcome,
)
from vespiary_spec.archives import ArchiveBroker, ArchiveSourceKind, JournalArchiveSpec
from vespiary_spec.resources import JournalArchive, Metadata

DAMAGE_FOUND = "DamageFound"
"""Reason of a verification that looked at everything and found damage."""

_STEPS_S = ((3600, 60), (86400, 600))
"""Up to so many seconds, lag is told in such steps: a status is not written for each second."""
_LARGEST_STEP_S = 3600


def compute(
    observed: ObservedArchive, plan: ArchivePlan, *, failure: str = ""
) -> JournalArchiveStatus:
    """Return the status of a JournalArchive.

    Args:
        observed: What was found.
        plan: What follows from it.
        failure: Why the plan could not be carried out; empty if it could.
    """
    archive = observed.archive
    before = archive.status
    run = last_run(observed)
    succeeded = before.last_success_time
    for job in observed.jobs:
        if archive_runs.has_done_its_work(job, observed.pods):
            succeeded = max(succeeded, archive_runs.begun(job))
    bad = _stuck(observed, run) or _failed(observed, run)
    findings = {
        ArchiveConditionType.READY: _ready(observed, plan, run, bad, failure),
        ArchiveConditionType.SOURCE_READY: _source_ready(observed, plan),
        ArchiveConditionType.STALLED: _stalled(plan, bad),
    }
    return JournalArchiveStatus(
        observed_generation=archive.metadata.generation,
        conditions=merged(
            before.conditions, findings, generation=archive.metadata.generation, now=observed.now
        ),
        last_run=run,
        last_success_time=succeeded,
        lag_seconds=lag_s(succeeded, observed.now),
    )


def unreadable(document: Mapping[str, Any]) -> JournalArchive:
    """Return what can be read of a JournalArchive whose spec cannot be."""
    known = msgspec.convert(dict(document["metadata"]), Metadata)
    try:
        status = msgspec.convert(document.get("status") or {}, JournalArchiveStatus, strict=False)
    except msgspec.ValidationError:
        status = JournalArchiveStatus()
    spec = JournalArchiveSpec(broker_ref=ArchiveBroker(name=""))
    return JournalArchive(metadata=known, spec=spec, status=status)


def refused(archive: JournalArchive, why: str, *, now: str) -> JournalArchiveStatus:
    """Return the status of a JournalArchive that another version's definitions let in.

    Args:
        archive: From `unreadable`.
        why: What is wrong with its spec.
        now: The time, RFC 3339.
    """
    findings = {
        ArchiveConditionType.READY: (FALSE, "InvalidSpec", why),
        ArchiveConditionType.STALLED: (TRUE, "InvalidSpec", why),
    }
    generation = archive.metadata.generation
    return msgspec.structs.replace(
        archive.status,
        observed_generation=generation,
        conditions=merged(archive.status.conditions, findings, generation=generation, now=now),
    )


def last_run(observed: ObservedArchive) -> ArchiveRun | None:
    """Return the run that began last: that of a Job that is there, or the one told of before."""
    known = observed.archive.status.last_run
    job = archive_runs.latest(observed.jobs)
    if job is None or (known is not None and archive_runs.begun(job) < known.start_time):
        return known
    return archive_runs.run_of(job, observed.pods, known)


def lag_s(succeeded: str, now: str) -> int | None:
    """Return the seconds since a time, in steps; None if there was none."""
    if not succeeded or not now:
        return None
    age = datetime.fromisoformat(now) - datetime.fromisoformat(succeeded)
    seconds = max(0, int(age.total_seconds()))
    step = next((step for limit, step in _STEPS_S if seconds < limit), _LARGEST_STEP_S)
    return seconds // step * step


def ended(run: ArchiveRun) -> Finding:
    """Return what a run that has ended says of its JournalArchive."""
    said = f"{run.name}: {run.message}"
    if run.outcome is RunOutcome.SUCCEEDED:
        return TRUE, "RunSucceeded", said
    if run.damages:
        return FALSE, DAMAGE_FOUND, said
    return FALSE, "RunFailed", said


def is_under_way(observed: ObservedArchive) -> bool:
    """Return whether a Job goes on."""
    return any(not archive_runs.has_ended(job) for job in observed.jobs)


def _stuck(observed: ObservedArchive, run: ArchiveRun | None) -> Finding | None:
    """Say what the pod of a run waits for that does not come by itself."""
    if run is None or run.outcome is not RunOutcome.RUNNING:
        return None
    for pod in observed.pods:
        if (pod["metadata"].get("labels") or {}).get(names.LABEL_JOB) != run.name:
            continue
        if pods.is_unscheduled(pod):
            return (
                FALSE,
                "RunNotScheduled",
                f"No node takes the pod of {run.name}: " + (pods.unscheduled_because(pod)),
            )
        waiting = _waiting(pod)
        if waiting:
            return FALSE, "RunStuck", f"The pod of {run.name} does not start: {waiting}"
    return None


def _failed(observed: ObservedArchive, run: ArchiveRun | None) -> Finding | None:
    """Say how the last run failed; damage, once found, until another run of this spec has ended."""
    if run is None or not _is_of_this_spec(observed, run):
        return None
    if run.outcome is RunOutcome.FAILED:
        return ended(run)
    if run.outcome is RunOutcome.RUNNING:
        before, metadata = observed.archive.status.conditions, observed.archive.metadata
        for condition in before:
            is_new = condition.observed_generation == metadata.generation
            if condition.reason == DAMAGE_FOUND and is_new:
                return FALSE, DAMAGE_FOUND, condition.message
    return None


def _is_of_this_spec(observed: ObservedArchive, run: ArchiveRun) -> bool:
    """Return whether a run is the one of this generation, or one of several by the schedule."""
    return bool(observed.archive.spec.schedule) or run.name == _wanted(observed)


def _wanted(observed: ObservedArchive) -> str:
    metadata = observed.archive.metadata
    return names.archive_job(metadata.name, metadata.generation or 0)


def _waiting(pod: Pod) -> str:
    if not pods.is_stuck(pod):
        return ""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting:
            said = str(waiting.get("message") or "").rstrip(". ")
            image = status.get("image", "")
            return f"{waiting.get('reason')} (image {image}): {said or 'see its Events'}."
    return ""


def _ready(
    observed: ObservedArchive,
    plan: ArchivePlan,
    run: ArchiveRun | None,
    bad: Finding | None,
    failure: str,
) -> Finding:
    spec = observed.archive.spec
    if plan.block is not None:
        return FALSE, plan.block.reason, plan.block.sentence
    if failure:
        return FALSE, "ApplyFailed", failure
    if bad is not None:
        return bad
    is_good = run is not None and run.outcome is RunOutcome.SUCCEEDED
    if run is not None and is_good and _is_of_this_spec(observed, run) and not spec.suspend:
        return ended(run)
    if spec.suspend:
        return TRUE, "Suspended", "No run is begun, as spec.suspend asks."
    if spec.schedule and run is None:
        return TRUE, "Scheduled", f"The first run is due by the schedule {spec.schedule}."
    is_running = run is not None and run.outcome is RunOutcome.RUNNING
    name = run.name if run is not None and is_running else _wanted(observed)
    return (TRUE if spec.schedule else UNKNOWN), "Running", f"{name} goes on."


def _source_ready(observed: ObservedArchive, plan: ArchivePlan) -> Finding:
    if plan.source is not None:
        return FALSE, plan.source.reason, plan.source.sentence
    spec = observed.archive.spec
    broker = names.pod(spec.broker_ref.name, spec.broker_ref.ordinal)
    what = "the copies of full journal files are read, where there are any"
    if spec.source.kind is ArchiveSourceKind.SNAPSHOT:
        what = f"the snapshot {spec.source.name} is read, if it is there"
    return TRUE, "SourceFound", f"Of broker {broker}, {what}."


def _stalled(plan: ArchivePlan, bad: Finding | None) -> Finding:
    if plan.block is not None:
        return TRUE, plan.block.reason, plan.block.sentence
    if bad is not None:
        return TRUE, bad[1], bad[2]
    return FALSE, "AsExpected", "Nothing stands in the way of runs."

"""What Jobs and their pods say of runs.

Owns: how the status of a Job is read, and the result that a run leaves as its termination message.
Never: reads the cluster. Called by: `archive`, `archive_status`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vespiary_operator import names
from vespiary_operator.observation import Object
from vespiary_operator.pods import Pod
from vespiary_spec import archive_status
from vespiary_spec.archive_status import ArchiveRun, RunOutcome, RunResult
from vespiary_spec.errors import ConfigError

_LAST_WORDS_CHARACTERS = 400


def is_owned_by(job: Object, uid: str) -> bool:
    """Return whether a Job belongs to the object of this UID itself."""
    owners = job["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def begun(job: Object) -> str:
    """Return when a Job began, RFC 3339; when it was made, as long as it has not."""
    started = (job.get("status") or {}).get("startTime")
    return str(started or job["metadata"].get("creationTimestamp") or "")


def _condition(job: Object, kind: str) -> Object | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == "True":
            found: Object = condition
            return found
    return None


def outcome_of(job: Object) -> RunOutcome:
    """Return what became of a Job."""
    if _condition(job, "Complete") is not None:
        return RunOutcome.SUCCEEDED
    return RunOutcome.FAILED if _condition(job, "Failed") is not None else RunOutcome.RUNNING


def has_ended(job: Object) -> bool:
    """Return whether a Job has succeeded or failed."""
    return outcome_of(job) is not RunOutcome.RUNNING


def pod_has_ended(pod: Pod) -> bool:
    """Return whether nothing of a pod runs any more, nor will."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pods_of(job: Object, pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods of a Job, the latest last."""
    name = job["metadata"]["name"]
    own = [
        pod for pod in pods if (pod["metadata"].get("labels") or {}).get(names.LABEL_JOB) == name
    ]
    return sorted(own, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""))


def latest(jobs: Iterable[Object]) -> Object | None:
    """Return the Job that began last; None if there is none."""
    return max(jobs, key=begun, default=None)


def _ended_container(pod: Pod) -> Object:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == names.PIPELINE_CONTAINER:
            found: Object = (status.get("state") or {}).get("terminated") or {}
            return found
    return {}


def result_of(pod: Pod) -> RunResult | None:
    """Return what a run says of itself; None if it said nothing that can be read."""
    try:
        return archive_status.decode(str(_ended_container(pod).get("message") or ""))
    except ConfigError:
        return None


def has_done_its_work(job: Object, pods: Iterable[Pod]) -> bool:
    """Return whether a run succeeded, or is a verification that looked and found damage."""
    if outcome_of(job) is RunOutcome.SUCCEEDED:
        return True
    results = filter(None, map(result_of, pods_of(job, pods)))
    return any(result.damages is not None for result in results)


def run_of(job: Object, pods: Iterable[Pod], known: ArchiveRun | None) -> ArchiveRun:
    """Return the run of a Job.

    Args:
        job: The Job.
        pods: Pods of the archive.
        known: The run as it was last reported: a pod may be gone, and what it said with it.
    """
    name, outcome = job["metadata"]["name"], outcome_of(job)
    own = pods_of(job, pods)
    if known is not None and (known.name, known.outcome) == (name, outcome) and not own:
        return known
    ended = _condition(job, "Failed") or {}
    result = next(filter(None, map(result_of, reversed(own))), None)
    completed = (job.get("status") or {}).get("completionTime") or ended.get("lastTransitionTime")
    message = ""
    if outcome is RunOutcome.SUCCEEDED:
        message = result.message if result else "It succeeded; its pod is gone, and its count."
    elif outcome is RunOutcome.FAILED:
        message = _why_failed(job, ended, own, result)
    counted = result if has_done_its_work(job, own) else None
    return ArchiveRun(
        name=name,
        outcome=outcome,
        start_time=begun(job),
        completion_time=str(completed or ""),
        rows=counted.rows if counted else None,
        bytes=counted.size_bytes if counted else None,
        files=counted.files if counted else None,
        damages=counted.damages if counted else None,
        message=message,
    )


def _why_failed(job: Object, ended: Object, own: list[Pod], result: RunResult | None) -> str:
    """Say why a Job failed: in the run's own words, if it had any."""
    if result is not None and not result.is_good:
        return result.message
    if ended.get("reason") == "DeadlineExceeded":
        limit = (job.get("spec") or {}).get("activeDeadlineSeconds")
        return f"It was ended after {limit} s, as spec.activeDeadlineSeconds asks."
    state = _ended_container(own[-1]) if own else {}
    if state.get("reason") == "OOMKilled":
        return (
            "It needed more memory than it may have: raise spec.resources.limits.memory, or lower "
            "spark.driver.memory in spec.sparkConf."
        )
    words = str(state.get("message") or "").strip()
    if words and not words.startswith("{"):
        return f"It ended without a result: {words.splitlines()[-1][:_LAST_WORDS_CHARACTERS]}"
    pod_reason = str((own[-1].get("status") or {}).get("message") or "") if own else ""
    said = pod_reason or str(ended.get("message") or "it left no words")
    return f"It ended without a result: {said[:_LAST_WORDS_CHARACTERS]}"

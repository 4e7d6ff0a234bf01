"""What is done about a JournalArchive: its CronJob or its Job, and which old Jobs go.

Owns: the plan of a JournalArchive, and what stands in its way. No run is begun while its source or
its target is not there; one that goes on is left to end.
Never: reads the cluster, the clock or randomness. Called by: `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vespiary_operator import archive_runs, kinds, names, pods
from vespiary_operator.actions import Action, Apply, Block, Create, deletion
from vespiary_operator.builders import archive_executors
from vespiary_operator.builders import archive_job as builders
from vespiary_operator.builders.pod_template import RETENTION, roles_of
from vespiary_operator.drift import departure
from vespiary_operator.observation import Object
from vespiary_operator.options import Options
from vespiary_operator.pods import Pod
from vespiary_spec.archive_status import RunOutcome
from vespiary_spec.archives import ArchiveSourceKind
from vespiary_spec.resources import AccessMode, Broker, JournalArchive


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedArchive:
    """Everything that the plan of a JournalArchive is made from.

    Attributes:
        archive: The resource.
        broker: The Broker that it names; None if it is not there, or cannot be read.
        broker_error: Why it cannot be read; empty if it can.
        broker_pod: The pod of the broker that it reads; None if there is none.
        claims: The claims of its source and its target that are there, by name.
        cron_job: The live CronJob, or None.
        account: The live ServiceAccount of runs with executors, or None.
        role_binding: Its live RoleBinding, or None.
        jobs: Its Jobs, those of the CronJob with them.
        pods: Their pods.
        now: The time, RFC 3339.
    """

    archive: JournalArchive
    broker: Broker | None = None
    broker_error: str = ""
    broker_pod: Pod | None = None
    claims: Mapping[str, Object] = field(default_factory=dict)
    cron_job: Object | None = None
    account: Object | None = None
    role_binding: Object | None = None
    jobs: tuple[Object, ...] = ()
    pods: tuple[Pod, ...] = ()
    now: str = ""

    @property
    def place(self) -> str:
        """The Broker's name with its namespace, for sentences."""
        return f"{self.archive.metadata.namespace}/{self.archive.spec.broker_ref.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivePlan:
    """What is done, and what stands in the way of runs.

    Attributes:
        actions: Writes.
        source: Why the source cannot be read; None if it can.
        target: Why the target cannot be written; None if it can, or there is none.
        taken: Which object of somebody else has a name that is needed; None if none has.
    """

    actions: tuple[Action, ...]
    source: Block | None
    target: Block | None
    taken: Block | None = None

    @property
    def block(self) -> Block | None:
        """What stands in the way of runs first."""
        return self.source or self.target or self.taken


def plan(observed: ObservedArchive, options: Options) -> ArchivePlan:
    """Decide what to do about a JournalArchive; no actions if all is as wanted."""
    source, target, taken = source_block(observed), target_block(observed), taken_block(observed)
    broker = observed.broker
    if source or target or taken or broker is None:
        actions = list(_nothing_begun(observed))
    else:
        spec = observed.archive.spec
        pod = builders.pod_spec(
            observed.archive,
            broker,
            image=spec.image or options.pipeline_image,
            pull_policy="IfNotPresent" if spec.image else options.pipeline_pull_policy,
        )
        actions = [
            *_account(observed, options),
            *(_scheduled(observed, pod) if spec.schedule else _once(observed, pod)),
        ]
    return ArchivePlan(
        actions=(*actions, *_old_jobs(observed)),
        source=source,
        target=target,
        taken=taken,
    )


# --- what stands in the way ---------------------------------------------------------------------


def source_block(observed: ObservedArchive) -> Block | None:
    """Return why the source cannot be read; None if it can."""
    spec, broker = observed.archive.spec, observed.broker
    if observed.broker_error:
        return Block(
            reason="BrokerUnreadable",
            sentence=f"The Broker {observed.place} cannot be read: {observed.broker_error}",
        )
    if broker is None:
        return Block(
            reason="BrokerMissing",
            sentence=f"There is no Broker {observed.place}: make it, or correct "
            "spec.brokerRef.name.",
        )
    storage = broker.spec.storage
    if storage.ephemeral or not broker.spec.config.persistence_enabled:
        return Block(
            reason="NothingKept",
            sentence=f"The Broker {observed.place} keeps nothing that outlives its pods "
            "(spec.storage.ephemeral, or spec.config.persistenceEnabled: false), so there is "
            "nothing to archive.",
        )
    if spec.source.kind is ArchiveSourceKind.RETENTION and RETENTION not in roles_of(broker):
        return Block(
            reason="RetentionOff",
            sentence=f"The Broker {observed.place} keeps no copies of its journal files: it was "
            "made without spec.storage.volumes.retention. Archive a Broker that has it, or a "
            "snapshot (spec.source.kind: snapshot).",
        )
    return _claims_block(observed, broker) or _not_mounted_block(observed, broker)


def _claims_block(observed: ObservedArchive, broker: Broker) -> Block | None:
    spec = observed.archive.spec
    for role, claim in builders.source_claims(broker, spec).items():
        if claim not in observed.claims:
            number, count = spec.broker_ref.ordinal, broker.spec.replicas
            why = "It is made when the broker first starts."
            if number >= count:
                why = f"spec.replicas of the Broker is {count}: correct spec.brokerRef.ordinal."
            return Block(
                reason="SourceClaimMissing",
                sentence=f"There is no claim {claim} with the {role} of broker "
                f"{names.pod(broker.metadata.name, number)}. {why}",
            )
        modes = (observed.claims[claim].get("spec") or {}).get("accessModes") or ()
        if AccessMode.READ_WRITE_ONCE_POD.value in modes:
            return Block(
                reason="SourceNotShared",
                sentence=f"The claim {claim} is ReadWriteOncePod: no pod but the broker's may "
                "mount it, so it cannot be archived.",
            )
    return None


def _not_mounted_block(observed: ObservedArchive, broker: Broker) -> Block | None:
    """Return that the broker has yet to mount its volumes, which nobody may do before it.

    Some drivers (that of `local` volumes is one) set a volume's group only when it is mounted
    first, and not for a pod that mounts it read-only; and the first pod binds it to its node.
    """
    number = observed.archive.spec.broker_ref.ordinal
    if not builders.has_pod(broker, number) or observed.archive.status.last_success_time:
        return None
    if observed.broker_pod is not None and pods.has_mounted(observed.broker_pod):
        return None
    return Block(
        reason="BrokerNotStarted",
        sentence=f"The broker {names.pod(broker.metadata.name, number)} has not started yet. The "
        "first run begins once it has mounted its volumes, which makes them its own.",
    )


def target_block(observed: ObservedArchive) -> Block | None:
    """Return why the target cannot be written; None if it can, or none is asked for."""
    target = observed.archive.spec.target
    if target is None:
        return None
    namespace, name = observed.archive.metadata.namespace, target.claim_name
    found = observed.claims.get(name)
    if found is None:
        return Block(
            reason="TargetMissing",
            sentence=f"There is no PersistentVolumeClaim {namespace}/{name}: make it, or correct "
            "spec.target.claimName.",
        )
    labels = found["metadata"].get("labels") or {}
    if labels.get(names.LABEL_COMPONENT) == names.COMPONENT_BROKER:
        return Block(
            reason="TargetIsSource",
            sentence=f"The claim {name} is a broker's own, which an archive never writes to: name "
            "another one in spec.target.claimName.",
        )
    if (found.get("status") or {}).get("phase") == "Lost":
        return Block(
            reason="TargetLost",
            sentence=f"The volume of the claim {name} is gone (phase Lost): make the claim anew, "
            "or name another one in spec.target.claimName.",
        )
    return None


def taken_block(observed: ObservedArchive) -> Block | None:
    """Return which object of somebody else has a name that is needed; None if none has."""
    spec = observed.archive.spec
    needed = [observed.cron_job] if spec.schedule else []
    needed += [observed.account, observed.role_binding] if spec.executors else []
    for live in needed:
        if live is not None and not _is_own(observed, live):
            metadata = live["metadata"]
            return Block(
                reason="NameTaken",
                sentence=f"The {live['kind']} {metadata['namespace']}/{metadata['name']} is not "
                "this JournalArchive's: delete it, or give the JournalArchive another name.",
            )
    return None


def _is_own(observed: ObservedArchive, live: Object) -> bool:
    return archive_runs.is_owned_by(live, observed.archive.metadata.uid)


# --- what is done -------------------------------------------------------------------------------


def _nothing_begun(observed: ObservedArchive) -> Iterator[Action]:
    """Yield what keeps the CronJob from beginning runs that could only fail or wait."""
    live = observed.cron_job
    if live is not None and _is_own(observed, live) and not live["spec"].get("suspend"):
        yield Apply(
            manifest=builders.suspended(dict(live)),
            reason="Suspended",
            sentence=f"The CronJob {live['metadata']['name']} begins no run: its source or its "
            "target is not there.",
        )


def _account(observed: ObservedArchive, options: Options) -> Iterator[Action]:
    """Yield what lets runs make executors; without executors nothing does."""
    archive = observed.archive
    if not archive.spec.executors:
        live = observed.role_binding
        if live is not None and _is_own(observed, live):
            yield deletion(kinds.ROLE_BINDING, live, "there are no executors.")
        return
    wanted = (
        (archive_executors.service_account(archive), observed.account),
        (
            archive_executors.role_binding(
                archive, role=options.executor_role, is_cluster_wide=options.is_cluster_wide
            ),
            observed.role_binding,
        ),
    )
    for manifest, found in wanted:
        where = "all of it" if found is None else departure(manifest, found)
        if where:
            yield Apply(
                manifest=manifest,
                reason="Created" if found is None else "Changed",
                sentence=f"The {manifest['kind']} {manifest['metadata']['name']} lets runs make "
                "their executors.",
            )


def _scheduled(observed: ObservedArchive, pod: dict[str, Any]) -> Iterator[Action]:
    manifest = builders.cron_job(observed.archive, pod)
    live = observed.cron_job
    where = "all of it" if live is None else departure(manifest, live)
    if where:
        yield Apply(
            manifest=manifest,
            reason="Created" if live is None else "Changed",
            sentence=f"The CronJob {manifest['metadata']['name']} is brought up to date ({where}).",
        )


def _once(observed: ObservedArchive, pod: dict[str, Any]) -> Iterator[Action]:
    """Yield the Job of this generation, when those before it have ended and with them their pods.

    Two exports never write to one folder at a time; an export that is ended leaves nothing behind.
    """
    if observed.cron_job is not None and _is_own(observed, observed.cron_job):
        yield deletion(kinds.CRON_JOB, observed.cron_job, "spec.schedule was taken out.")
    wanted = builders.job(observed.archive, pod)
    name = wanted["metadata"]["name"]
    if observed.archive.spec.suspend or _was_made(observed, name):
        return
    running = [job for job in observed.jobs if not archive_runs.has_ended(job)]
    for job in running:
        yield deletion(kinds.JOB, job, "the JournalArchive asks for something else now.")
    if running or any(not archive_runs.pod_has_ended(pod) for pod in observed.pods):
        return
    yield Create(
        manifest=wanted, reason="Created", sentence=f"The Job {name} begins a run of the archive."
    )


def _was_made(observed: ObservedArchive, name: str) -> bool:
    """Return whether a Job is there, or was and has ended."""
    last = observed.archive.status.last_run
    if last is not None and last.name == name and last.outcome is not RunOutcome.RUNNING:
        return True
    return any(job["metadata"]["name"] == name for job in observed.jobs)


def _old_jobs(observed: ObservedArchive) -> Iterator[Action]:
    """Yield the end of Jobs without a CronJob that are more than are kept.

    A CronJob looks after its own. What the status does not tell of yet is kept.
    """
    spec, status = observed.archive.spec, observed.archive.status
    own = [job for job in observed.jobs if _is_own(observed, job)]
    limits = {
        RunOutcome.SUCCEEDED: spec.successful_jobs_history_limit,
        RunOutcome.FAILED: spec.failed_jobs_history_limit,
    }
    for outcome, limit in limits.items():
        ended = [job for job in own if archive_runs.outcome_of(job) is outcome]
        ended.sort(key=archive_runs.begun, reverse=True)
        for job in ended[limit:]:
            last = status.last_run
            is_told = last is not None and (
                archive_runs.begun(job) < last.start_time
                or (last.name == job["metadata"]["name"] and last.outcome is outcome)
            )
            if is_told:
                yield deletion(kinds.JOB, job, f"{limit} that {outcome.value.lower()} are kept.")

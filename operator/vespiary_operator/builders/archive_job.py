"""The Job and the CronJob of a JournalArchive, and the pod that reads a broker's volumes.

Owns: how little that pod may do: the broker's volumes are mounted read-only, twice over (volume and
mount), its root is read-only, and it has no token. It runs as the broker's user, whose the files
are, and on the broker's node, since a claim is mounted by one node.
Never: reads the cluster. Called by: `archive`, `archive_observation`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_operator.builders import archive_executors, pod_extras
from vespiary_operator.builders.pod_template import (
    RETENTION,
    TERMINATION_MESSAGE,
    roles_of,
    shared_volume,
)
from vespiary_spec import configuration
from vespiary_spec.archives import ArchiveJob, ArchiveSourceKind, JournalArchiveSpec
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import Broker, JournalArchive

TARGET_FOLDER = "/archive"
SCRATCH_FOLDER = "/scratch"
SCRATCH_LIMIT = "32Gi"
TRIES_AGAIN = 2
"""A pod that was evicted or lost is made again so often; one that says why it failed is not."""

_REQUESTS = {"cpu": "250m", "memory": "1Gi"}
_LIMITS = {"memory": "3Gi"}

_ROLES = {
    (ArchiveJob.EXPORT, ArchiveSourceKind.RETENTION): (RETENTION, "bindings", "large-messages"),
    (ArchiveJob.EXPORT, ArchiveSourceKind.SNAPSHOT): (
        *("journal", "bindings", "paging", "large-messages"),
    ),
    (ArchiveJob.VERIFY, ArchiveSourceKind.RETENTION): (RETENTION, "large-messages"),
    (ArchiveJob.VERIFY, ArchiveSourceKind.SNAPSHOT): (
        *("journal", "bindings", "paging", "large-messages", "jms"),
    ),
}
"""What each job reads: names of queues are in the bindings, large bodies in their folder."""


def source_roles(broker: Broker, spec: JournalArchiveSpec) -> tuple[str, ...]:
    """Return the kinds of a broker's data that a run reads."""
    there = roles_of(broker)
    return tuple(role for role in _ROLES[spec.job, spec.source.kind] if role in there)


def source_claims(broker: Broker, spec: JournalArchiveSpec) -> dict[str, str]:
    """Return the claim of each kind of data that a run reads."""
    name, ordinal = broker.metadata.name, spec.broker_ref.ordinal
    return {
        role: names.claim(name, shared_volume(broker, role) or role, ordinal)
        for role in source_roles(broker, spec)
    }


def has_pod(broker: Broker, ordinal: int) -> bool:
    """Return whether the broker of this number is asked to run."""
    return not broker.spec.hibernate and ordinal < broker.spec.replicas


def command(archive: JournalArchive) -> list[str]:
    """Return the command of a run."""
    spec = archive.spec
    found = ["python3", "-m", "vespiary_pipeline.archive_run", spec.job.value]
    found += ["--data", configuration.VOLUME_ROOT]
    if spec.source.kind is ArchiveSourceKind.RETENTION:
        found += ["--retention", f"{configuration.VOLUME_ROOT}/{RETENTION}"]
    else:
        found += ["--snapshot", spec.source.name]
    if spec.target is not None:
        found += ["--to", f"{TARGET_FOLDER}/{spec.target.path or archive.metadata.name}"]
    found += ["--result-file", TERMINATION_MESSAGE]
    for name, value in sorted((spec.spark_conf or {}).items()):
        found += ["--conf", f"{name}={value}"]
    return found


def _mounts(archive: JournalArchive, broker: Broker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    shared = {shared_volume(broker, role) for role in roles_of(broker)}
    for role in source_roles(broker, archive.spec):
        volume = shared_volume(broker, role) or role
        mount = {
            "name": volume,
            "mountPath": f"{configuration.VOLUME_ROOT}/{role}",
            "readOnly": True,
        }
        if volume in shared:
            mount["subPath"] = role
        found.append(mount)
    if archive.spec.target is not None:  # a verification has none
        found.append({"name": "target", "mountPath": TARGET_FOLDER})
    found.append({"name": "scratch", "mountPath": SCRATCH_FOLDER})
    found.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108 - the pod's own
    return found


def _volumes(archive: JournalArchive, broker: Broker) -> list[dict[str, Any]]:
    ordinal = archive.spec.broker_ref.ordinal
    volumes = {
        shared_volume(broker, role) or role: None for role in source_roles(broker, archive.spec)
    }
    found: list[dict[str, Any]] = [
        {
            "name": volume,
            "persistentVolumeClaim": {
                "claimName": names.claim(broker.metadata.name, volume, ordinal),
                "readOnly": True,
            },
        }
        for volume in volumes
    ]
    if archive.spec.target is not None:
        claim = archive.spec.target.claim_name
        found.append({"name": "target", "persistentVolumeClaim": {"claimName": claim}})
    found.append({"name": "scratch", "emptyDir": {"sizeLimit": SCRATCH_LIMIT}})
    found.append({"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}})
    return found


def _container(
    archive: JournalArchive, broker: Broker, image: str, pull_policy: str
) -> dict[str, Any]:
    resources = archive.spec.resources
    return {
        "name": names.PIPELINE_CONTAINER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": command(archive),
        "resources": {
            "requests": dict(resources.requests or _REQUESTS),
            "limits": dict(resources.limits or _LIMITS),
        },
        "securityContext": pod_extras.container_security(broker.spec.pod_template.security_context),
        "volumeMounts": _mounts(archive, broker),
        "terminationMessagePath": TERMINATION_MESSAGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _affinity(broker: Broker, ordinal: int) -> dict[str, Any]:
    """Return what brings the pod to the broker's: its claims are mounted by that node."""
    labels = names.selector_labels(broker)
    labels[names.LABEL_POD_NAME] = names.pod(broker.metadata.name, ordinal)
    term = {
        "labelSelector": {"matchLabels": labels},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def pod_spec(
    archive: JournalArchive, broker: Broker, *, image: str, pull_policy: str
) -> dict[str, Any]:
    """Return the pod of a run.

    Args:
        archive: The JournalArchive.
        broker: The Broker that it names.
        image: Image of the pipeline.
        pull_policy: When it is pulled.
    """
    spec = broker.spec
    found: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": spec.service_account.name
        or names.service_account(broker.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "securityContext": pod_extras.pod_security(spec.pod_template.security_context),
        "containers": [_container(archive, broker, image, pull_policy)],
        "volumes": _volumes(archive, broker),
    }
    if has_pod(broker, archive.spec.broker_ref.ordinal):
        found["affinity"] = _affinity(broker, archive.spec.broker_ref.ordinal)
    if spec.image_pull_secrets:
        found["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    if spec.node_selector:
        found["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        found["tolerations"] = to_plain(spec.tolerations, spelling=Spelling.CAMEL)
    return _with_executors(archive, found) if archive.spec.executors else found


def _with_executors(archive: JournalArchive, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a run that makes executors: it has a token, for pods of its namespace."""
    (container,) = pod["containers"]
    settings = archive_executors.settings(
        archive, container["image"], container["imagePullPolicy"], pod["serviceAccountName"]
    )
    own = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    given = container["command"]
    template = archive_executors.template(archive, pod)
    return {
        **pod,
        "serviceAccountName": names.archive_account(archive.metadata.name),
        "automountServiceAccountToken": True,
        "containers": [
            {
                **container,
                "env": archive_executors.environment(),
                "command": [*given, "--executor-pod", template, *own],
            }
        ],
    }


def _job_spec(archive: JournalArchive, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job: what the run itself says is final, an eviction is not."""
    found: dict[str, Any] = {
        "backoffLimit": TRIES_AGAIN,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": names.PIPELINE_CONTAINER,
                        "operator": "In",
                        "values": [1, 2],
                    },
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            ]
        },
        "template": {"metadata": {"labels": names.archive_labels(archive)}, "spec": pod},
    }
    if archive.spec.active_deadline_seconds is not None:
        found["activeDeadlineSeconds"] = archive.spec.active_deadline_seconds
    return found


def _metadata(archive: JournalArchive, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": archive.metadata.namespace,
        "labels": names.archive_labels(archive),
        "ownerReferences": [names.owner_reference(archive)],
    }


def job(archive: JournalArchive, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the Job of this generation.

    Args:
        archive: The JournalArchive.
        pod: From `pod_spec`.
    """
    name = names.archive_job(archive.metadata.name, archive.metadata.generation or 0)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(archive, name),
        "spec": _job_spec(archive, pod),
    }


def cron_job(archive: JournalArchive, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the CronJob.

    Args:
        archive: The JournalArchive, with a schedule.
        pod: From `pod_spec`.
    """
    spec = archive.spec
    found: dict[str, Any] = {
        "schedule": spec.schedule,
        "suspend": spec.suspend,
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": spec.successful_jobs_history_limit,
        "failedJobsHistoryLimit": spec.failed_jobs_history_limit,
        "jobTemplate": {
            "metadata": {"labels": names.archive_labels(archive)},
            "spec": _job_spec(archive, pod),
        },
    }
    if spec.time_zone:
        found["timeZone"] = spec.time_zone
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _metadata(archive, names.archive_cron_job(archive.metadata.name)),
        "spec": found,
    }


def suspended(live: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest that keeps a live CronJob as it is, but begins no run."""
    metadata = live["metadata"]
    kept = ("name", "namespace", "labels", "ownerReferences")
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {**live["spec"], "suspend": True},
    }

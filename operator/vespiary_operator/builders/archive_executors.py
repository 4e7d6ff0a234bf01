"""What a run with executors has beside its Job: an account that may make pods, and their template.

Owns: the settings of Spark's Kubernetes scheduler, in client mode with the run's pod as driver, and
how little an executor may do: no token, a read-only root, the broker's volumes read-only.
Never: reads the cluster. Called by: `archive`, `builders.archive_job`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from vespiary_operator import names
from vespiary_spec.resources import JournalArchive

CONTAINER = "spark-kubernetes-executor"
"""Spark takes this one of the template for its own."""

SCRATCH_VOLUME = "spark-local-dir-1"
"""Spark writes to mounts whose names begin so, and makes no other."""

POD_IP, POD_NAME = "VESPIARY_POD_IP", "VESPIARY_POD_NAME"
MEMORY_OVERHEAD = "0.6"
"""Share of an executor's Java memory that it gets beside: Python workers and Arrow live there."""

REQUESTED_CORES = "250m"
"""What an executor reserves of a processor, as the run's own pod does."""

_API_SERVER = "k8s://https://kubernetes.default.svc"


def _metadata(archive: JournalArchive) -> dict[str, Any]:
    return {
        "name": names.archive_account(archive.metadata.name),
        "namespace": archive.metadata.namespace,
        "labels": names.archive_labels(archive),
        "ownerReferences": [names.owner_reference(archive)],
    }


def service_account(archive: JournalArchive) -> dict[str, Any]:
    """Return the account of the run's pod."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(archive),
        "automountServiceAccountToken": False,
    }


def role_binding(archive: JournalArchive, *, role: str, is_cluster_wide: bool) -> dict[str, Any]:
    """Return what lets that account make pods in its namespace.

    Args:
        archive: The JournalArchive.
        role: Name of the role.
        is_cluster_wide: Whether it is a ClusterRole.
    """
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(archive),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole" if is_cluster_wide else "Role",
            "name": role,
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": names.archive_account(archive.metadata.name),
                "namespace": archive.metadata.namespace,
            }
        ],
    }


def environment() -> list[dict[str, Any]]:
    """Return the variables by which a run's pod knows itself."""
    return [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in ((POD_IP, "status.podIP"), (POD_NAME, "metadata.name"))
    ]


def settings(archive: JournalArchive, image: str, pull_policy: str, account: str) -> dict[str, str]:
    """Return the settings of Spark for executors.

    Args:
        archive: The JournalArchive.
        image: Image of executors.
        pull_policy: When it is pulled.
        account: ServiceAccount of executors, without any rights.
    """
    return {
        "spark.master": _API_SERVER,
        "spark.driver.host": f"$({POD_IP})",
        "spark.driver.bindAddress": f"$({POD_IP})",
        "spark.executor.instances": str(archive.spec.executors),
        "spark.kubernetes.driver.pod.name": f"$({POD_NAME})",
        "spark.kubernetes.namespace": archive.metadata.namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": pull_policy,
        "spark.kubernetes.authenticate.executor.serviceAccountName": account,
        "spark.kubernetes.memoryOverheadFactor": MEMORY_OVERHEAD,
        "spark.kubernetes.executor.request.cores": REQUESTED_CORES,
        # What it would hold, Spark's settings come with the driver's first answer.
        "spark.kubernetes.executor.disableConfigMap": "true",
    }


def template(archive: JournalArchive, pod: Mapping[str, Any]) -> str:
    """Return the template of executor pods, as JSON: like the run's own, but with less in it.

    Args:
        archive: The JournalArchive.
        pod: The run's pod, without executors.
    """
    kept = ("affinity", "nodeSelector", "tolerations", "imagePullSecrets", "securityContext")
    spec: dict[str, Any] = {name: copy.deepcopy(pod[name]) for name in kept if name in pod}
    (own,) = pod["containers"]
    spec |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "containers": [
            {
                "name": CONTAINER,
                "command": ["python3", "-m", "vespiary_pipeline.executor"],
                "workingDir": "/tmp",  # noqa: S108 - the pod's own
                "securityContext": own["securityContext"],
                "volumeMounts": [_renamed(mount) for mount in own["volumeMounts"]],
            }
        ],
        "volumes": [_renamed(volume) for volume in pod["volumes"]],
    }
    metadata = {"labels": names.archive_labels(archive)}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _renamed(part: Mapping[str, Any]) -> dict[str, Any]:
    is_scratch = part["name"] == "scratch"
    return {**part, "name": SCRATCH_VOLUME} if is_scratch else dict(part)

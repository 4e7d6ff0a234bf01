"""JournalArchives as the operator sees them: the resource, its broker, volumes, Jobs and pods."""

from __future__ import annotations

from typing import Any

import msgspec

from vespiary_operator import names
from vespiary_operator.actions import Action
from vespiary_operator.archive import ObservedArchive, plan
from vespiary_operator.archive_status import compute
from vespiary_operator.options import Options
from vespiary_spec import archive_status
from vespiary_spec.archive_status import RunResult
from vespiary_spec.resources import API_VERSION, Broker, JournalArchive

OPTIONS = Options(pipeline_image="vespiary/pipeline:1", pipeline_pull_policy="Always")
NOW = "2026-11-24T12:00:00Z"
ROLES = ("retention", "bindings", "large-messages", "journal", "paging")
RETENTION = {"storage": {"volumes": {"retention": {"size": "1Gi"}}}}


def archive(generation: int = 1, status: Any = None, **spec: Any) -> JournalArchive:
    return JournalArchive.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "JournalArchive",
            "metadata": {
                "name": "history",
                "namespace": "ns",
                "uid": "u",
                "generation": generation,
            },
            "spec": {"brokerRef": {"name": "orders"}, "target": {"claimName": "exports"}, **spec},
            "status": msgspec.to_builtins(status) if status is not None else {},
        }
    )


def broker(**spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "b"},
            "spec": RETENTION | spec,
        }
    )


def claim(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound"},
    }


CLAIMS = {name: claim(name) for name in ("exports", *(f"{role}-orders-0" for role in ROLES))}


def broker_pod(verification: dict[str, Any]) -> dict[str, Any]:
    """Return the broker's pod with its first container in a state."""
    verify = {"name": names.VERIFY_CONTAINER, "state": verification}
    return {"metadata": {"name": "orders-0"}, "status": {"initContainerStatuses": [verify]}}


def observed(resource: JournalArchive | None = None, **found: Any) -> ObservedArchive:
    return ObservedArchive(
        **{
            "archive": resource or archive(),
            "broker": broker(),
            "broker_pod": broker_pod({"running": {}}),
            "claims": CLAIMS,
            "now": NOW,
            **found,
        }
    )


def job(name: str, began: str = "", ended: str = "", *, owner: str = "u", **more: Any) -> Any:
    """Return a Job; `ended` is the type of its last condition."""
    conditions = [{"type": ended, "status": "True", "lastTransitionTime": NOW, **more}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "creationTimestamp": began,
            "ownerReferences": [{"uid": owner}],
        },
        "spec": {"activeDeadlineSeconds": 60},
        "status": {"startTime": began, "conditions": conditions if ended else []},
    }


def pod(of: str, message: str | bytes = "", *, phase: str = "Running", **terminated: Any) -> Any:
    text = message.decode() if isinstance(message, bytes) else message
    state = {"terminated": {"message": text, **terminated}} if phase != "Running" else {}
    return {
        "metadata": {"name": f"{of}-x", "labels": {names.LABEL_JOB: of}},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": names.PIPELINE_CONTAINER, "state": state}],
        },
    }


def answer(
    message: str, *, is_good: bool = True, rows: int | None = None, damages: int | None = None
) -> bytes:
    size = rows and rows * 10
    return archive_status.encode(
        RunResult(
            is_good=is_good, message=message, rows=rows, size_bytes=size, files=1, damages=damages
        )
    )


def verification(**spec: Any) -> JournalArchive:
    return archive(job="verify", target=None, **spec)


def actions(found: ObservedArchive) -> tuple[Action, ...]:
    return plan(found, OPTIONS).actions


def told(found: ObservedArchive) -> dict[str, tuple[str, str]]:
    """Return status and reason of each condition."""
    status = compute(found, plan(found, OPTIONS))
    return {c.type: (c.status.value, c.reason) for c in status.conditions}

"""What a Broker's author adds to its pods: variables, volumes, probes, security, DNS.

Owns: how these fields look in a pod. A field that was left out leaves the pod as it was.
Never: reads the cluster; lets anything come before what the operator sets.
Called by: `builders.pod_template`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.pod_extras import ExtraVolume
from vespiary_spec.pod_template import PodSecurity, Probe
from vespiary_spec.resources import Broker

PREFIX = "extra-"
"""Before the names of volumes that people add, so that none is ever called as one of ours."""

_MODE_SECRET = 0o440
_MODE_OPEN = 0o444


def environment(broker: Broker) -> dict[str, Any]:
    """Return `env` and `envFrom` of the broker's container; nothing where none are asked for."""
    found: dict[str, Any] = {}
    if broker.spec.env:
        variables = []
        for variable in broker.spec.env:
            plain = to_plain(variable, spelling=Spelling.CAMEL)
            if variable.value_from is not None and variable.value_from.field_ref is not None:
                # As the API server completes it, so that nothing seems to differ afterwards.
                plain["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
            variables.append(plain)
        found["env"] = variables
    if broker.spec.env_from:
        found["envFrom"] = to_plain(broker.spec.env_from, spelling=Spelling.CAMEL)
    return found


def mounts(broker: Broker) -> list[dict[str, Any]]:
    """Return the mounts of volumes that people add."""
    found = []
    for mount in broker.spec.extra_volume_mounts:
        plain = to_plain(mount, spelling=Spelling.CAMEL)
        found.append({**plain, "name": f"{PREFIX}{mount.name}"})
    return found


def volumes(broker: Broker) -> list[dict[str, Any]]:
    """Return the volumes that people add."""
    return [
        {"name": f"{PREFIX}{volume.name}", **_source(volume)}
        for volume in broker.spec.extra_volumes
    ]


def _source(volume: ExtraVolume) -> dict[str, Any]:
    if volume.empty_dir is not None:
        return {"emptyDir": to_plain(volume.empty_dir, spelling=Spelling.CAMEL)}
    plain = to_plain(volume, spelling=Spelling.CAMEL)
    del plain["name"]
    if volume.config_map is not None:
        plain["configMap"]["defaultMode"] = _MODE_OPEN
    if volume.secret is not None:
        plain["secret"]["defaultMode"] = _MODE_SECRET
    if volume.projected is not None:
        plain["projected"]["defaultMode"] = _MODE_SECRET
    found: dict[str, Any] = plain
    return found


def pod_security(wanted: PodSecurity) -> dict[str, Any]:
    """Return the pods' security context; whatever is given, it keeps to `restricted`."""
    policy = wanted.fs_group_change_policy
    found: dict[str, Any] = {
        "runAsNonRoot": True,
        **_identity(wanted),
        "fsGroup": wanted.fs_group or names.UID,
        "fsGroupChangePolicy": policy.value if policy is not None else "OnRootMismatch",
        "seccompProfile": _seccomp(wanted),
    }
    if wanted.supplemental_groups:
        found["supplementalGroups"] = list(wanted.supplemental_groups)
    if wanted.se_linux_options is not None:
        found["seLinuxOptions"] = to_plain(wanted.se_linux_options, spelling=Spelling.CAMEL)
    return found


def container_security(wanted: PodSecurity) -> dict[str, Any]:
    """Return the security context that the `restricted` profile asks of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        **_identity(wanted),
        "seccompProfile": _seccomp(wanted),
    }


def _identity(wanted: PodSecurity) -> dict[str, int]:
    return {
        "runAsUser": wanted.run_as_user or names.UID,
        "runAsGroup": wanted.run_as_group or names.UID,
    }


def _seccomp(wanted: PodSecurity) -> dict[str, Any]:
    if wanted.seccomp_profile is None:
        return {"type": "RuntimeDefault"}
    found: dict[str, Any] = to_plain(wanted.seccomp_profile, spelling=Spelling.CAMEL)
    return found


def template(broker: Broker) -> dict[str, Any]:
    """Return the fields of the pod that `spec.podTemplate` hands through."""
    wanted = to_plain(broker.spec.pod_template, spelling=Spelling.CAMEL)
    wanted.pop("securityContext", None)
    found: dict[str, Any] = wanted
    return found


def probe(
    wanted: Probe, path: str, port: str, scheme: str, *, period_s: int, failures: int
) -> dict[str, Any]:
    """Return a probe.

    Args:
        wanted: Numbers that somebody gave.
        path: What is asked.
        port: Name of the port.
        scheme: HTTP or HTTPS.
        period_s: Time between two questions, unless it was given.
        failures: Failures that count, unless they were given.
    """
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": wanted.period or period_s,
        "timeoutSeconds": wanted.timeout or 5,
        "failureThreshold": wanted.failure_threshold or failures,
        "successThreshold": 1,
    }

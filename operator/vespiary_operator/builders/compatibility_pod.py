"""The pod that asks images which formats of files they read and write, before an upgrade.

Each image is a container that runs `vespiary compatibility` and leaves its answer as its
termination message. Nothing of the Broker is mounted, so nothing can be changed.

Owns: that pod's manifest and labels. Never: reads the cluster; decides what the answers mean.
Called by: `upgrade_checks`, `observer`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from vespiary_operator import names
from vespiary_operator.builders import pod_extras
from vespiary_operator.builders.pod_template import TERMINATION_MESSAGE
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import Broker
from vespiary_spec.status import ConditionStatus, ConditionType

TIME_LIMIT_S = 3600
"""A pod that could not be started in this time is made anew."""

_RESOURCES = {
    "requests": {"cpu": "10m", "memory": "48Mi"},
    "limits": {"cpu": "1", "memory": "192Mi"},
}


def labels(broker: Broker) -> dict[str, str]:
    """Return the labels of the pod; a broker's own selector does not match them."""
    return {**names.labels(broker), names.LABEL_COMPONENT: names.COMPONENT_UPGRADE_CHECK}


def may_be_there(broker: Broker) -> bool:
    """Return whether there may be such a pod; False wherever the Broker is as it was asked for."""
    return not any(
        condition.type == ConditionType.UP_TO_DATE.value
        and condition.status is ConditionStatus.TRUE
        and condition.observed_generation == broker.metadata.generation
        for condition in broker.status.conditions
    )


def container_of(image: str) -> str:
    """Return the name of the container that asks an image."""
    return f"image-{hashlib.sha256(image.encode()).hexdigest()[:10]}"


def pod(broker: Broker, images: Iterable[str], *, pull_policy: str) -> dict[str, Any]:
    """Return the pod.

    Args:
        broker: The Broker.
        images: Images to ask.
        pull_policy: When they are pulled.
    """
    asked = sorted(set(images))
    digest = hashlib.sha256("\n".join(asked).encode()).hexdigest()[:8]
    spec = broker.spec
    security = spec.pod_template.security_context
    containers = [
        {
            "name": container_of(image),
            "image": image,
            "imagePullPolicy": pull_policy,
            "command": ["vespiary", "compatibility", "--termination-message", TERMINATION_MESSAGE],
            "resources": _RESOURCES,
            "securityContext": pod_extras.container_security(security),
            "terminationMessagePath": TERMINATION_MESSAGE,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        for image in asked
    ]
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": TIME_LIMIT_S,
        "serviceAccountName": spec.service_account.name
        or names.service_account(broker.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": pod_extras.pod_security(security),
        "containers": containers,
    }
    if spec.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    if spec.node_selector:
        body["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        body["tolerations"] = to_plain(spec.tolerations, spelling=Spelling.CAMEL)
    metadata = names.metadata(broker, f"{broker.metadata.name}-check-{digest}")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": {**metadata["labels"], **labels(broker)}},
        "spec": body,
    }

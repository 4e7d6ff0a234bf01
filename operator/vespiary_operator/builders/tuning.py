"""The DaemonSet and the orders of a BrokerNodeTuning in mode Raise.

Owns: how little the pods may do: uid 0 without capabilities, a read-only root, no token, no host
network or PIDs, and one file of the host. Pod security calls any hostPath `privileged`, so they
have a namespace of their own that allows it; neither the operator's nor any broker's does.
Never: reads the cluster. Called by: `tuning`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vespiary_operator import names
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import BrokerNodeTuning

PORT = 8083
HOST_FILE = "/proc/sys/fs/aio-max-nr"
KNOB = "/host/aio-max-nr"
ORDERS_KEY = "nodes.json"
ORDERS_FOLDER = "/etc/vespiary/node-tuning"


def _metadata(tuning: BrokerNodeTuning, namespace: str) -> dict[str, Any]:
    return {
        "name": names.tuning(tuning.metadata.name),
        "namespace": namespace,
        "labels": names.tuning_labels(tuning),
        "ownerReferences": [names.owner_reference(tuning)],
    }


def orders(
    tuning: BrokerNodeTuning, namespace: str, nodes: Mapping[str, Mapping[str, int | bool]]
) -> dict[str, Any]:
    """Return the ConfigMap with the orders.

    Args:
        tuning: The resource.
        namespace: The node tuning's namespace.
        nodes: `demand` and `reserved` of each node with brokers, `excluded` for another's.
    """
    spec = tuning.spec
    text = json.dumps(
        {
            "floor": spec.floor,
            "margin": spec.margin,
            "max": spec.max,
            "nodes": {name: dict(sorted(own.items())) for name, own in sorted(nodes.items())},
        },
        sort_keys=True,
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(tuning, namespace),
        "data": {ORDERS_KEY: text},
    }


def _container(image: str, pull_policy: str) -> dict[str, Any]:
    return {
        "name": "node-tuning",
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["python3", "-m", "vespiary_operator.node_tuning"],
        "env": [
            {
                "name": "NODE_NAME",
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}},
            },
            {"name": "VESPIARY_ORDERS", "value": f"{ORDERS_FOLDER}/{ORDERS_KEY}"},
            {"name": "VESPIARY_KNOB", "value": KNOB},
            {"name": "VESPIARY_PORT", "value": str(PORT)},
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
            "periodSeconds": 20,
        },
        "resources": {"requests": {"cpu": "5m", "memory": "24Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsUser": 0,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "orders", "mountPath": ORDERS_FOLDER, "readOnly": True},
            {"name": "knob", "mountPath": KNOB},
        ],
    }


def daemon_set(
    tuning: BrokerNodeTuning, namespace: str, *, image: str, pull_policy: str
) -> dict[str, Any]:
    """Return the DaemonSet.

    Args:
        tuning: The resource.
        namespace: The node tuning's namespace.
        image: Image of the operator.
        pull_policy: When it is pulled.
    """
    labels = names.tuning_labels(tuning)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [_container(image, pull_policy)],
        "volumes": [
            {
                "name": "orders",
                "configMap": {"name": names.tuning(tuning.metadata.name), "defaultMode": 0o444},
            },
            {"name": "knob", "hostPath": {"path": HOST_FILE, "type": "File"}},
        ],
    }
    if tuning.spec.node_selector:
        pod["nodeSelector"] = dict(tuning.spec.node_selector)
    if tuning.spec.tolerations:
        pod["tolerations"] = to_plain(tuning.spec.tolerations, spelling=Spelling.CAMEL)
    selector = {key: value for key, value in labels.items() if key != names.LABEL_MANAGED_BY}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(tuning, namespace),
        "spec": {
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }

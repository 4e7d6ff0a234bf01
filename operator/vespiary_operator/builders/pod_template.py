"""The pod of a broker: the verification, the broker, and what they mount.

Owns: the containers, their commands and mounts, and the defaults of scheduling.
Never: reads the cluster; gives the pod a token.
Called by: `builders.statefulset`.
"""

from __future__ import annotations

import json
from typing import Any

from vespiary_operator import names
from vespiary_operator.builders import pod_extras, services
from vespiary_operator.builders.settings_map import FILE, LIVE_FILE, adoptions_file, own_file
from vespiary_spec import configuration
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import AioShortage, Broker

_VOLUMES = ("bindings", "journal", "paging", "large-messages")
RETENTION = "retention"
_OPTIONAL_VOLUMES = ("jms", RETENTION)

CONFIG_FOLDER = "/etc/vespiary"
CONFIG_PATH = f"{CONFIG_FOLDER}/{FILE}"
LIVE_FOLDER = f"{CONFIG_FOLDER}/live"
LIVE_PATH = f"{LIVE_FOLDER}/{LIVE_FILE}"
USERS_FOLDER = configuration.USERS_FILE.rpartition("/")[0]
TERMINATION_MESSAGE = "/dev/termination-log"

START_LIMIT_S = 3600
"""A broker that reads a large journal may take this long before the kubelet restarts it."""


_ORDINAL = {
    "name": "VESPIARY_ORDINAL",
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.labels['{names.LABEL_ORDINAL}']",
        }
    },
}
"""The pod's own number, from the label that the StatefulSet controller gives it."""

_ADOPTIONS = {
    "name": "VESPIARY_ADOPTIONS",
    "value": f"{LIVE_FOLDER}/{adoptions_file('$(VESPIARY_ORDINAL)')}",
}
"""Where a verification finds the volumes that it was told to adopt."""

_OWN_CONFIG = {
    "name": "VESPIARY_OWN_CONFIG",
    "value": f"{LIVE_FOLDER}/{own_file('$(VESPIARY_ORDINAL)')}",
}
"""Where a broker finds the settings that it alone has; the kubelet puts its number in."""


def roles_of(broker: Broker) -> tuple[str, ...]:
    """Return the kinds of data that a pod has a folder for, as the design names them.

    `jms` is there when the JMS journal was given a volume of its own, `retention` when copies of
    full journal files are kept.
    """
    volumes = broker.spec.storage.volumes
    return (*_VOLUMES, *(name for name in _OPTIONAL_VOLUMES if getattr(volumes, name) is not None))


def shared_volume(broker: Broker, role: str) -> str:
    """Return the volume whose claim a kind of data shares; empty if it has its own."""
    spec = getattr(broker.spec.storage.volumes, role.replace("-", "_"))
    if spec is None or spec.share_with is None:
        return ""
    return str(spec.share_with.name.lower().replace("_", "-"))


def volumes_of(broker: Broker) -> tuple[str, ...]:
    """Return the volumes of a pod; each has its own claim."""
    return tuple(role for role in roles_of(broker) if not shared_volume(broker, role))


def aio_demand(broker: Broker) -> int:
    """Return how many requests of `fs.aio-max-nr` one pod reserves."""
    settings = broker.spec.config
    if not settings.persistence_enabled or not settings.journal_type.may_use_aio:
        return 0
    return settings.effective_journal_max_io(settings.journal_type)


def verify_command(broker: Broker) -> list[str]:
    """Return the command of the init container.

    The ordinal comes from the pod's own label, through the variable `VESPIARY_ORDINAL`.
    """
    return [
        "vespiary",
        "check",
        *_volume_options(broker),
        "--owner-name",
        f"{broker.metadata.namespace}/{broker.metadata.name}",
        "--owner-uid",
        broker.metadata.uid,
        "--ordinal",
        "$(VESPIARY_ORDINAL)",
        "--termination-message",
        TERMINATION_MESSAGE,
    ]


def run_command(broker: Broker) -> list[str]:
    """Return the command of the broker, which looks at its volumes by the same policy."""
    return ["vespiary", "run", *_volume_options(broker), "--live-config", LIVE_PATH, "--json"]


def own_path(ordinal: int) -> str:
    """Return where a pod has the settings of its broker alone, if there are any."""
    return f"{LIVE_FOLDER}/{own_file(ordinal)}"


def _volume_options(broker: Broker) -> list[str]:
    policy = to_plain(broker.spec.storage.filesystem_policy, spelling=Spelling.CAMEL)
    options = ["--config", CONFIG_PATH, "--filesystem-policy", json.dumps(policy, sort_keys=True)]
    if broker.spec.storage.ephemeral:
        options.append("--ephemeral")
    if aio_demand(broker) and broker.spec.aio_shortage is AioShortage.WAIT:
        options += ["--aio-shortage", "wait"]
    return options


def _mounts(broker: Broker) -> list[dict[str, Any]]:
    roles = roles_of(broker)
    shared = {shared_volume(broker, role) for role in roles}
    mounts: list[dict[str, Any]] = []
    for role in roles:
        volume = shared_volume(broker, role) or role
        mount = {"name": volume, "mountPath": f"{configuration.VOLUME_ROOT}/{role}"}
        if volume in shared:
            # Each has a folder of its own on it, the one whose claim it is as well.
            mount["subPath"] = role
        mounts.append(mount)
    mounts.append({"name": "config", "mountPath": CONFIG_PATH, "subPath": FILE, "readOnly": True})
    mounts.append({"name": "live-config", "mountPath": LIVE_FOLDER, "readOnly": True})
    mounts.append({"name": "users", "mountPath": USERS_FOLDER, "readOnly": True})
    mounts += [
        {
            "name": f"tls-{place}",
            "mountPath": f"{configuration.TLS_ROOT}/{secret}",
            "readOnly": True,
        }
        for place, secret in enumerate(configuration.tls_secrets(broker))
    ]
    mounts.append({"name": "tmp", "mountPath": "/tmp"})  # noqa: S108 - the pod's own
    return mounts


def _volumes(broker: Broker, config_map: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": config_map, "defaultMode": 0o444}},
        {
            "name": "live-config",
            "configMap": {
                "name": names.live_config(broker.metadata.name),
                "defaultMode": 0o444,
            },
        },
        {
            "name": "users",
            "secret": {
                "secretName": names.users_secret(broker.metadata.name),
                "defaultMode": 0o440,
            },
        },
    ]
    volumes += [
        {"name": f"tls-{place}", "secret": {"secretName": secret, "defaultMode": 0o440}}
        for place, secret in enumerate(configuration.tls_secrets(broker))
    ]
    volumes.append({"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}})
    if broker.spec.storage.ephemeral:
        volumes += [{"name": name, "emptyDir": {}} for name in volumes_of(broker)]
    return [*volumes, *pod_extras.volumes(broker)]


def _containers(
    broker: Broker, image: str, pull_policy: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the verification's container and the broker's."""
    shared: dict[str, Any] = {
        "image": image,
        "imagePullPolicy": pull_policy,
        "securityContext": pod_extras.container_security(broker.spec.pod_template.security_context),
        "volumeMounts": _mounts(broker),
    }
    if broker.spec.resources is not None:
        shared["resources"] = to_plain(broker.spec.resources, spelling=Spelling.CAMEL)
    verify = {
        "name": names.VERIFY_CONTAINER,
        **shared,
        "command": verify_command(broker),
        "env": [_ORDINAL, _ADOPTIONS],
        "terminationMessagePath": TERMINATION_MESSAGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    asked = pod_extras.environment(broker)
    probes = broker.spec.probes
    asking, scheme = services.probe_port(broker)[0], services.probe_scheme(broker)
    ports = [(name, port) for name, port, _ in services.acceptor_ports(broker)]
    ports += services.http_ports(broker).items()
    main = {
        "name": names.BROKER_CONTAINER,
        **shared,
        "volumeMounts": [*_mounts(broker), *pod_extras.mounts(broker)],
        **asked,
        # Not an option of the command: a broker from before there was one would refuse it.
        "env": [_ORDINAL, _OWN_CONFIG, *asked.get("env", ())],
        "command": run_command(broker),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        "startupProbe": pod_extras.probe(
            probes.startup, "/healthz", asking, scheme, period_s=2, failures=START_LIMIT_S // 2
        ),
        "livenessProbe": pod_extras.probe(
            probes.liveness, "/healthz", asking, scheme, period_s=10, failures=6
        ),
        "readinessProbe": pod_extras.probe(
            probes.readiness, "/readyz", asking, scheme, period_s=2, failures=3
        ),
        "terminationMessagePath": TERMINATION_MESSAGE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return verify, main


def _affinity(broker: Broker) -> dict[str, Any]:
    if broker.spec.affinity is not None:
        chosen: dict[str, Any] = to_plain(broker.spec.affinity, spelling=Spelling.CAMEL)
        return chosen
    term = {
        "labelSelector": {"matchLabels": names.selector_labels(broker)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }


def _scheduling(broker: Broker) -> dict[str, Any]:
    spec = broker.spec
    spread: Any = [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": names.selector_labels(broker)},
        }
    ]
    if spec.topology_spread_constraints is not None:
        spread = to_plain(spec.topology_spread_constraints, spelling=Spelling.CAMEL)
    found: dict[str, Any] = {"affinity": _affinity(broker), "topologySpreadConstraints": spread}
    if spec.node_selector:
        found["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        found["tolerations"] = to_plain(spec.tolerations, spelling=Spelling.CAMEL)
    if spec.priority_class_name:
        found["priorityClassName"] = spec.priority_class_name
    return found


def pod_template(
    broker: Broker, *, image: str, pull_policy: str, config_map: str
) -> dict[str, Any]:
    """Return the template of a Broker's pods.

    Args:
        broker: The Broker.
        image: Image of both containers.
        pull_policy: When it is pulled.
        config_map: Name of the ConfigMap with `broker.yaml`.
    """
    spec = broker.spec
    verify, main = _containers(broker, image, pull_policy)
    pod: dict[str, Any] = {
        "serviceAccountName": spec.service_account.name
        or names.service_account(broker.metadata.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_extras.pod_security(spec.pod_template.security_context),
        "terminationGracePeriodSeconds": spec.shutdown_timeout,
        "initContainers": [verify],
        "containers": [main],
        "volumes": _volumes(broker, config_map),
        **_scheduling(broker),
        **pod_extras.template(broker),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": secret.name} for secret in spec.image_pull_secrets]
    inherited = spec.inherited_metadata
    annotations = {
        **(inherited.annotations or {}),
        **(spec.pod_annotations or {}),
        names.ANNOTATION_DEMAND: str(aio_demand(broker)),
        "kubectl.kubernetes.io/default-container": names.BROKER_CONTAINER,
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": str(services.probe_port(broker)[1]),
    }
    if services.probe_scheme(broker) == "HTTPS":
        annotations["prometheus.io/scheme"] = "https"
    if spec.admin.tls is not None:
        annotations[names.ANNOTATION_ADMIN_TLS] = spec.admin.tls.secret_name
    return {
        "metadata": {
            "labels": {
                **(inherited.labels or {}),
                **(spec.pod_labels or {}),
                **names.labels(broker),
            },
            "annotations": annotations,
        },
        "spec": pod,
    }

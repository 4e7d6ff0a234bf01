"""Names and labels of everything that belongs to a resource of ours.

Owns: the scheme; names of Brokers are at most 48 characters, so every ending fits.
Never: reads the cluster. Called by: builders, observation, plan, handlers.
"""

from __future__ import annotations

from typing import Any

from vespiary_spec.resources import API_VERSION, Broker, BrokerNodeTuning, JournalArchive

MANAGER = "vespiary-operator"
"""Field manager of every write, and the value of `app.kubernetes.io/managed-by`."""

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_REVISION = "controller-revision-hash"
LABEL_ORDINAL = "apps.kubernetes.io/pod-index"
LABEL_POD_NAME = "statefulset.kubernetes.io/pod-name"
LABEL_JOB = "batch.kubernetes.io/job-name"

ANNOTATION_DEMAND = "vespiary.dev/aio-demand"
"""On broker pods: requests of `fs.aio-max-nr` that the broker reserves."""

ANNOTATION_MEMBERS = "vespiary.dev/members"
"""On the StatefulSet: brokers whose data count, also while no pod runs."""

ANNOTATION_GROWN = "vespiary.dev/auto-grown"
"""On claims: the last growth that the operator decided on, written with the size asked for."""

ANNOTATION_ORDERS = "vespiary.dev/node-tuning-orders"
"""On tuning pods: digest of their newest orders; the change makes the kubelet read them at once."""

ANNOTATION_CHART_VALUES = "vespiary.dev/chart-values"
"""On the BrokerNodeTuning `default`: the chart's values that were last written into it."""

ANNOTATION_MOUNTED = "vespiary.dev/mounted"
"""On broker pods: digest of what their mounted files should hold; the change makes the kubelet
bring the files up to date at once."""

ANNOTATION_ADMIN_TLS = "vespiary.dev/admin-tls"
"""On broker pods whose HTTP port speaks TLS: the Secret with its certificate."""

COMPONENT_BROKER = "broker"
COMPONENT_TUNING = "node-tuning"
COMPONENT_UPGRADE_CHECK = "upgrade-check"
COMPONENT_ARCHIVE = "journal-archive"

MANAGED_SELECTOR = f"{LABEL_MANAGED_BY}={MANAGER}"
"""Label selector of everything that the operator made."""

CLAIM_SELECTOR = f"{LABEL_COMPONENT}={COMPONENT_BROKER},{LABEL_NAME}=vespiary"
"""Label selector of claims: people may have made them beforehand, and not said who manages them."""

UID = 10001
"""User and group of both images."""

VERIFY_CONTAINER = "verify"
BROKER_CONTAINER = "broker"
PIPELINE_CONTAINER = "pipeline"

ADMIN_USER = "admin"
USERS_KEY = "users"


def stateful_set(broker: str) -> str:
    """Return the StatefulSet's name, which the pods are called after."""
    return broker


def client_service(broker: str) -> str:
    """Return the name of the Service for clients."""
    return broker


def headless_service(broker: str) -> str:
    """Return the name of the Service that gives each pod a name."""
    return f"{broker}-headless"


def broker_service(broker: str, ordinal: int) -> str:
    """Return the name of one broker's own Service."""
    return pod(broker, ordinal)


def live_config(broker: str) -> str:
    """Return the name of the ConfigMap with the settings that need no restart."""
    return f"{broker}-live-config"


def config_map(broker: str, digest: str) -> str:
    """Return the name of the ConfigMap with this content."""
    return f"{broker}-config-{digest[:10]}"


def credentials_secret(broker: str) -> str:
    """Return the name of the Secret with the generated password of `admin`."""
    return f"{broker}-credentials"


def users_secret(broker: str) -> str:
    """Return the name of the Secret with the users file, which has hashes alone."""
    return f"{broker}-users"


def service_account(broker: str) -> str:
    """Return the name of the pods' ServiceAccount."""
    return f"{broker}-broker"


def pod(broker: str, ordinal: int) -> str:
    """Return the name of a pod."""
    return f"{stateful_set(broker)}-{ordinal}"


def claim(broker: str, volume: str, ordinal: int) -> str:
    """Return the name of the claim that the StatefulSet controller makes for a volume."""
    return f"{volume}-{pod(broker, ordinal)}"


def spec_name(volume: str) -> str:
    """Spell a volume's name as `spec.storage.volumes` does."""
    head, _, tail = volume.partition("-")
    return head + tail.capitalize()


def tuning(name: str) -> str:
    """Return the name of a BrokerNodeTuning's DaemonSet and ConfigMap."""
    return f"vespiary-node-tuning-{name}"


def selector_labels(broker: Broker) -> dict[str, str]:
    """Return the labels that select a Broker's pods; they can never change."""
    return {
        LABEL_NAME: "vespiary",
        LABEL_INSTANCE: broker.metadata.name,
        LABEL_COMPONENT: COMPONENT_BROKER,
    }


def labels(broker: Broker) -> dict[str, str]:
    """Return the labels of everything that belongs to a Broker."""
    return {**selector_labels(broker), LABEL_MANAGED_BY: MANAGER}


def selector(of: dict[str, str]) -> str:
    """Write labels as a label selector."""
    return ",".join(f"{key}={value}" for key, value in sorted(of.items()))


def tuning_labels(tuning_: BrokerNodeTuning) -> dict[str, str]:
    """Return the labels of everything that belongs to a BrokerNodeTuning."""
    return {
        LABEL_NAME: "vespiary",
        LABEL_INSTANCE: tuning_.metadata.name,
        LABEL_COMPONENT: COMPONENT_TUNING,
        LABEL_MANAGED_BY: MANAGER,
    }


def archive_cron_job(archive: str) -> str:
    """Return the name of the CronJob of a JournalArchive with a schedule."""
    return f"{archive}-archive"


def archive_job(archive: str, generation: int) -> str:
    """Return the name of the Job of a JournalArchive without one, in this generation."""
    return f"{archive}-archive-{generation}"


def archive_account(archive: str) -> str:
    """Return the name of the ServiceAccount, and its RoleBinding, of a run with executors."""
    return f"{archive}-archive"


def archive_labels(archive: JournalArchive) -> dict[str, str]:
    """Return the labels of everything that belongs to a JournalArchive."""
    return {
        LABEL_NAME: "vespiary",
        LABEL_INSTANCE: archive.metadata.name,
        LABEL_COMPONENT: COMPONENT_ARCHIVE,
        LABEL_MANAGED_BY: MANAGER,
    }


def owner_reference(owner: Broker | BrokerNodeTuning | JournalArchive) -> dict[str, object]:
    """Return the reference by which the garbage collector finds an owner's objects."""
    return {
        "apiVersion": API_VERSION,
        "kind": type(owner).__name__,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
    }


def metadata(broker: Broker, name: str) -> dict[str, Any]:
    """Return the metadata of an object that belongs to a Broker."""
    inherited = broker.spec.inherited_metadata
    found: dict[str, Any] = {
        "name": name,
        "namespace": broker.metadata.namespace,
        "labels": {**(inherited.labels or {}), **labels(broker)},
        "ownerReferences": [owner_reference(broker)],
    }
    if inherited.annotations:
        found["annotations"] = dict(inherited.annotations)
    return found

"""The StatefulSet of a Broker, with a claim template for each volume.

Pods are managed in parallel, since an ordered set cannot get past a pod that never gets ready;
which of them may be restarted for a change is decided by `rollout`, through the partition.

Never: reads the cluster. Called by: `plan`.
"""

from __future__ import annotations

from typing import Any

from vespiary_operator import names
from vespiary_operator.builders.pod_template import pod_template, volumes_of
from vespiary_operator.scaling import Scale
from vespiary_spec import units
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import (
    DEFAULT_VOLUME_BYTES,
    AccessMode,
    Broker,
    VolumeSpec,
)


def volume_spec(broker: Broker, name: str) -> VolumeSpec:
    """Return what the user wants of one volume.

    Args:
        broker: The Broker.
        name: `bindings`, `journal`, `paging`, `large-messages`, `jms` or `retention`.
    """
    found: VolumeSpec | None = getattr(broker.spec.storage.volumes, name.replace("-", "_"))
    return found or VolumeSpec()


def volume_bytes(broker: Broker, name: str) -> int:
    """Return the size of one volume, in bytes."""
    size = volume_spec(broker, name).size
    return DEFAULT_VOLUME_BYTES[name.replace("-", "_")] if size is None else size


def access_mode(broker: Broker, name: str) -> AccessMode:
    """Return the access mode of one volume's claim."""
    return volume_spec(broker, name).access_mode or AccessMode.READ_WRITE_ONCE


def claim_template(broker: Broker, name: str) -> dict[str, Any]:
    """Return the claim template of one volume."""
    wanted = volume_spec(broker, name)
    spec: dict[str, Any] = {
        "accessModes": [access_mode(broker, name).value],
        "resources": {"requests": {"storage": units.format_quantity(volume_bytes(broker, name))}},
        "volumeMode": "Filesystem",
    }
    if wanted.storage_class_name is not None:
        spec["storageClassName"] = wanted.storage_class_name
    if wanted.selector is not None:
        spec["selector"] = to_plain(wanted.selector, spelling=Spelling.CAMEL)
    if wanted.volume_attributes_class_name is not None:
        spec["volumeAttributesClassName"] = wanted.volume_attributes_class_name
    labels, annotations = claim_metadata(broker, name)
    metadata: dict[str, Any] = {"name": name, "labels": {**labels, **names.labels(broker)}}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


def claim_metadata(broker: Broker, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations that people give to the claims of one volume."""
    inherited, own = broker.spec.inherited_metadata, volume_spec(broker, name).metadata
    return (
        {**(inherited.labels or {}), **(own.labels or {})},
        {**(inherited.annotations or {}), **(own.annotations or {})},
    )


def grown_claim(
    broker: Broker, claim: str, size_bytes: int, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return what has to be applied to a claim to make it so large.

    Args:
        broker: The Broker.
        claim: Name of the claim.
        size_bytes: What it should ask for.
        annotations: What is noted about the growth; those of a former one are taken away.
    """
    metadata: dict[str, Any] = {"name": claim, "namespace": broker.metadata.namespace}
    if annotations:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": {"resources": {"requests": {"storage": units.format_quantity(size_bytes)}}},
    }


def stateful_set(
    broker: Broker,
    *,
    image: str,
    pull_policy: str,
    config_map: str,
    partition: int,
    scale: Scale | None = None,
    claim_templates: list[dict[str, Any]] | None = None,
    template: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return the StatefulSet.

    Args:
        broker: The Broker.
        image: Image of the pods.
        pull_policy: When it is pulled.
        config_map: Name of the ConfigMap with `broker.yaml`.
        partition: Pods from this ordinal on may have the newest template.
        scale: How many pods and brokers there are; None: as many as the Broker says.
        claim_templates: Those of the StatefulSet that is there, which can't be changed; None makes
            them new.
        template: Template of the pods; None makes it new.
        annotations: More annotations of the StatefulSet.
    """
    scale = scale or Scale(broker.spec.replicas, broker.spec.replicas)
    metadata = names.metadata(broker, names.stateful_set(broker.metadata.name))
    more = {**(annotations or {}), names.ANNOTATION_MEMBERS: str(scale.members)}
    metadata.setdefault("annotations", {}).update(more)
    spec: dict[str, Any] = {
        "replicas": scale.pods,
        "serviceName": names.headless_service(broker.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "revisionHistoryLimit": 5,
        "selector": {"matchLabels": names.selector_labels(broker)},
        "template": template
        or pod_template(broker, image=image, pull_policy=pull_policy, config_map=config_map),
    }
    if not broker.spec.storage.ephemeral:
        retention = broker.spec.storage.retention
        spec["persistentVolumeClaimRetentionPolicy"] = {
            "whenDeleted": retention.when_deleted.value,
            "whenScaled": "Retain" if scale.keeps_claims else retention.when_scaled.value,
        }
        spec["volumeClaimTemplates"] = (
            [claim_template(broker, name) for name in volumes_of(broker)]
            if claim_templates is None
            else claim_templates
        )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": spec,
    }

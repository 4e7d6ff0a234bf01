"""What the CEL rules say about a Broker's pods, for a file that no API server has seen.

Owns: these checks in Python; each has the words of its rule.
Never: looks at a cluster: whether a Secret exists is for the pods to say.
Called by: `configuration.from_broker`, and so `vespiary apply` and the operator's plan.
"""

from __future__ import annotations

import re

from vespiary_spec.errors import ConfigError
from vespiary_spec.pod_extras import (
    BROKER_CLAIM,
    RESERVED_PATH,
    RESERVED_PATH_TEXT,
    RESERVED_VARIABLE,
    RESERVED_VARIABLE_TEXT,
    VOLUME_SOURCES,
    ProjectedVolume,
)
from vespiary_spec.pod_template import SeccompType
from vespiary_spec.resources import BrokerSpec


def check_pods(spec: BrokerSpec) -> None:
    """Check what spans several fields about a Broker's pods.

    Raises:
        ConfigError: With the path to one of the fields.
    """
    _check_variables(spec)
    _check_volumes(spec)
    _check_template(spec)


def _is_one(*given: object) -> bool:
    return sum(part is not None for part in given) == 1


def _check_variables(spec: BrokerSpec) -> None:
    for index, variable in enumerate(spec.env):
        path = f"spec.env[{index}]"
        _check_variable_name(variable.name, f"{path}.name")
        source = variable.value_from
        if source is None:
            continue
        if variable.value is not None:
            raise ConfigError("a variable has one of value and valueFrom", path=path)
        if not _is_one(source.config_map_key_ref, source.secret_key_ref, source.field_ref):
            raise ConfigError(
                "valueFrom has one of configMapKeyRef, secretKeyRef and fieldRef",
                path=f"{path}.valueFrom",
            )
    for index, objects in enumerate(spec.env_from):
        path = f"spec.envFrom[{index}]"
        _check_variable_name(objects.prefix, f"{path}.prefix")
        if not _is_one(objects.config_map_ref, objects.secret_ref):
            raise ConfigError("variables come from one of configMapRef and secretRef", path=path)


def _check_variable_name(name: str, path: str) -> None:
    if re.match(RESERVED_VARIABLE, name):
        raise ConfigError(
            RESERVED_VARIABLE_TEXT, path=path, value=name, cure="take another name, or leave it out"
        )


def _check_volumes(spec: BrokerSpec) -> None:
    names = {volume.name for volume in spec.extra_volumes}
    mounted = {mount.name for mount in spec.extra_volume_mounts}
    for index, volume in enumerate(spec.extra_volumes):
        path = f"spec.extraVolumes[{index}]"
        sources = (
            volume.config_map,
            volume.secret,
            volume.projected,
            volume.empty_dir,
            volume.persistent_volume_claim,
        )
        if not _is_one(*sources):
            raise ConfigError(f"a volume has one of {', '.join(VOLUME_SOURCES)}", path=path)
        _check_sources(volume.projected, f"{path}.projected")
        claim = volume.persistent_volume_claim
        if claim is not None and re.match(BROKER_CLAIM, claim.claim_name):
            raise ConfigError(
                "this is the name of a claim that holds a broker's data, which only its own broker "
                "may mount",
                path=f"{path}.persistentVolumeClaim.claimName",
                value=claim.claim_name,
                cure="name another claim",
            )
        if volume.name not in mounted:
            raise ConfigError(
                "the volume is mounted nowhere",
                path=f"{path}.name",
                value=volume.name,
                cure="give it an entry in spec.extraVolumeMounts",
            )
    for index, mount in enumerate(spec.extra_volume_mounts):
        path = f"spec.extraVolumeMounts[{index}]"
        if re.match(RESERVED_PATH, mount.mount_path):
            raise ConfigError(RESERVED_PATH_TEXT, path=f"{path}.mountPath", value=mount.mount_path)
        if mount.name not in names:
            raise ConfigError(
                "spec.extraVolumes has no volume of this name",
                path=f"{path}.name",
                value=mount.name,
                allowed=", ".join(sorted(names)) or "none",
            )


def _check_sources(projected: ProjectedVolume | None, path: str) -> None:
    for index, source in enumerate(projected.sources if projected is not None else ()):
        if not _is_one(source.config_map, source.secret):
            raise ConfigError(
                "each source is one of configMap and secret", path=f"{path}.sources[{index}]"
            )


def _check_template(spec: BrokerSpec) -> None:
    profile = spec.pod_template.security_context.seccomp_profile
    if profile is not None and (profile.type is SeccompType.LOCALHOST) != bool(
        profile.localhost_profile
    ):
        raise ConfigError(
            "localhostProfile belongs to the type Localhost, and to it alone",
            path="spec.podTemplate.securityContext.seccompProfile",
        )
    if spec.service_account.name is not None and spec.service_account.annotations:
        raise ConfigError(
            "annotations are for the account that is made; one that is named keeps its own",
            path="spec.serviceAccount",
        )

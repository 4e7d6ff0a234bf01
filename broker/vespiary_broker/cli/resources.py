"""A Broker resource on this machine: what of it counts here, and what does not.

Owns the way from `kind: Broker` to a local instance. The model and the checks are those of the
operator; nothing of the resource is ignored without a word. Called by `applying`, `checking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from vespiary_broker.cli.instance import Instance, listening_on, shifted
from vespiary_spec import configuration as configurations
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Broker, FilesystemPolicy
from vespiary_spec.scaling import topology_problem
from vespiary_spec.settings import Security

LOOPBACK: Final = "127.0.0.1"

_ONLY_IN_KUBERNETES: Final = (
    "version",
    "image",
    "image_pull_policy",
    "image_pull_secrets",
    "resources",
    "node_selector",
    "tolerations",
    "affinity",
    "topology_spread_constraints",
    "priority_class_name",
    "service",
    "service_account",
    "pod_labels",
    "pod_annotations",
    "network_policy",
    "shutdown_timeout",
    "upgrade",
    "paused",
    "topology",
    "hibernate",
    "scale_down",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBroker:
    """A Broker resource as it runs on this machine.

    Attributes:
        instance: Configuration and data folder.
        name: Name for identity stamps, with the namespace if there is one.
        policy: Which filesystems are taken.
        is_ephemeral: Losing the data was asked for.
        remarks: What the resource says that has no effect here, a sentence each.
    """

    instance: Instance
    name: str
    policy: FilesystemPolicy
    is_ephemeral: bool
    remarks: tuple[str, ...]


def is_resource(document: Any) -> bool:
    """Return whether a parsed file is a Kubernetes resource rather than a broker.yaml."""
    return isinstance(document, Mapping) and ("kind" in document or "apiVersion" in document)


def local_broker(
    document: Mapping[str, Any],
    *,
    data: Path | None = None,
    tls_folder: Path | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    port_offset: int = 0,
    is_tls_needed: bool = True,
) -> LocalBroker:
    """Return how a Broker runs on this machine.

    Args:
        document: The resource.
        data: Folder for its volumes; None takes `broker-NAME` in the working folder.
        tls_folder: Folder with a folder of `tls.crt`, `tls.key`, `ca.crt` for each TLS Secret.
        host: Address of every listener.
        port: Port for all protocols; 0 for free ports, None for those of the resource.
        port_offset: Added to every port other than 0.
        is_tls_needed: Whether it will listen; a check of the disks needs no certificates.

    Raises:
        ConfigError: A field is wrong, unknown, or cannot be had on this machine.
    """
    broker = Broker.from_dict(document)
    problem = topology_problem(broker.spec.replicas, broker.spec.topology)
    if problem:
        raise ConfigError(problem, path="spec.topology")
    secrets = configurations.tls_secrets(broker)
    if secrets and tls_folder is None and is_tls_needed:
        raise ConfigError(
            f"TLS comes from the Secret {secrets[0]}, and Secrets are not at hand here",
            path="spec.tls" if broker.spec.tls else "spec.acceptors",
            cure=f"name a folder with --tls-folder that holds {secrets[0]}/tls.crt and "
            f"{secrets[0]}/tls.key",
        )
    folder = (data or Path(f"broker-{broker.metadata.name}")).absolute()
    has_own_users = broker.spec.auth.secret_name is not None
    configuration = msgspec.structs.replace(
        configurations.with_overrides(
            configurations.from_broker(
                broker,
                host=host,
                volume_root=str(folder),
                tls_root=str(tls_folder.absolute()) if tls_folder is not None else "",
            ),
            broker,
            0,
        ),
        security=Security(allow_anonymous_on_loopback=not has_own_users),
    )
    if port is not None:
        configuration = listening_on(configuration, None, port)
    configuration = shifted(configuration, port_offset)
    namespace, name = broker.metadata.namespace, broker.metadata.name
    return LocalBroker(
        instance=Instance(configuration=configuration, data=folder),
        name=f"{namespace}/{name}" if namespace else name,
        policy=broker.spec.storage.filesystem_policy,
        is_ephemeral=broker.spec.storage.ephemeral,
        remarks=tuple(_remarks(broker, folder)),
    )


def _remarks(broker: Broker, folder: Path) -> list[str]:
    spec, remarks = broker.spec, []
    defaults = type(spec)()
    idle = [
        f"spec.{field}"
        for attribute, field in zip(
            spec.__struct_fields__, spec.__struct_encode_fields__, strict=True
        )
        if attribute in _ONLY_IN_KUBERNETES
        and getattr(spec, attribute) != getattr(defaults, attribute)
    ]
    if idle:
        remarks.append(f"has a meaning in Kubernetes only: {', '.join(idle)}")
    if spec.replicas > 1:
        remarks.append(f"spec.replicas is {spec.replicas}; this runs one of them")
    if spec.auth.secret_name is not None:
        remarks.append(
            f"users come from {folder / 'users'}, not from the Secret {spec.auth.secret_name}: "
            f"add them with `vespiary user add NAME --data {folder}`"
        )
    return remarks

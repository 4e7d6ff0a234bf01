"""What the operator is told by its Deployment, through the environment.

Owns: names and defaults of the variables. Never: talks to the API server.
Called by: `__main__`; the result is handed to everyone who needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from vespiary_spec.errors import ConfigError
from vespiary_spec.storage_drivers import StorageDriver, drivers_of


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole life of the process.

    Attributes:
        namespaces: Namespaces to look after; empty means all of them.
        own_namespace: Where the operator itself runs.
        tuning_namespace: Where the node tuning's DaemonSets are; empty means the own one.
        broker_image: Image of Brokers that name none, with its tag or digest.
        broker_pull_policy: When that image is pulled.
        pipeline_image: Image of runs of JournalArchives that name none.
        pipeline_pull_policy: When that image is pulled.
        executor_role: Role with which a run of a JournalArchive makes its executor pods: a
            ClusterRole, or, where single namespaces are looked after, a Role in each.
        operator_image: Image of the operator itself, for the node tuning.
        operator_pull_policy: When that image is pulled.
        http_port: TCP port of `/readyz` and `/metrics`.
        liveness_port: TCP port of kopf's `/healthz`.
        serves_metrics: Whether `/metrics` answers.
        log_level: Level of the log: debug, info, warning or error.
        resync_s: Seconds between two looks at everything, whatever events came.
        workers: Reconcile passes at a time.
        storage_drivers: What the user adds to the table of storage drivers.
        lease: Name of the Lease, in the own namespace, that the one of several operators holds
            which acts; empty where there is one operator.
        default_tuning: Spec of the BrokerNodeTuning `default`, as JSON; empty where there need not
            be one.
        identity: Name of this pod, for the Lease; empty means the machine's.
    """

    namespaces: tuple[str, ...] = ()
    own_namespace: str = "default"
    tuning_namespace: str = ""
    broker_image: str = "vespiary/broker:dev"
    broker_pull_policy: str = "IfNotPresent"
    pipeline_image: str = "vespiary/pipeline:dev"
    pipeline_pull_policy: str = "IfNotPresent"
    executor_role: str = "vespiary-executors"
    operator_image: str = "vespiary/operator:dev"
    operator_pull_policy: str = "IfNotPresent"
    http_port: int = 8080
    liveness_port: int = 8081
    serves_metrics: bool = True
    log_level: str = "info"
    resync_s: float = 60.0
    workers: int = 4
    storage_drivers: tuple[StorageDriver, ...] = ()
    lease: str = ""
    default_tuning: str = ""
    identity: str = ""

    @property
    def is_cluster_wide(self) -> bool:
        """Whether Brokers of all namespaces are looked after, and nodes with them."""
        return not self.namespaces

    @property
    def place_of_tuning(self) -> str:
        """Namespace of the node tuning's DaemonSets: the one place that mounts a host's file."""
        return self.tuning_namespace or self.own_namespace


_PREFIX = "VESPIARY_"

_LEVELS = ("debug", "info", "warning", "error")


def from_environment(environment: Mapping[str, str]) -> Options:
    """Read the options.

    Args:
        environment: Such as `os.environ`: `VESPIARY_` and the attribute in capitals. Namespaces
            are separated by commas.

    Raises:
        ConfigError: A value cannot be understood; names the variable.
    """

    def text(name: str, default: str) -> str:
        return environment.get(_PREFIX + name, "").strip() or default

    def number(name: str, default: int) -> int:
        value = text(name, str(default))
        if not re.fullmatch(r"[0-9]{1,5}", value, re.ASCII) or not 1 <= int(value) <= 65535:
            raise ConfigError(
                "this is no TCP port", path=_PREFIX + name, value=value, allowed="1 to 65535"
            )
        return int(value)

    def drivers() -> tuple[StorageDriver, ...]:
        name = _PREFIX + "STORAGE_DRIVERS"
        given = text("STORAGE_DRIVERS", "[]")
        try:
            items = json.loads(given)
        except ValueError as error:
            raise ConfigError(f"this is no JSON: {error}", path=name, value=given) from error
        return drivers_of(items, source=name)

    defaults = Options()
    level = text("LOG_LEVEL", defaults.log_level).lower()
    if level not in _LEVELS:
        raise ConfigError(
            "this is no log level",
            path=_PREFIX + "LOG_LEVEL",
            value=level,
            allowed=", ".join(_LEVELS),
        )
    return Options(
        namespaces=tuple(
            sorted({name.strip() for name in text("NAMESPACES", "").split(",") if name.strip()})
        ),
        own_namespace=text("OWN_NAMESPACE", defaults.own_namespace),
        tuning_namespace=text("TUNING_NAMESPACE", defaults.tuning_namespace),
        broker_image=text("BROKER_IMAGE", defaults.broker_image),
        broker_pull_policy=text("BROKER_PULL_POLICY", defaults.broker_pull_policy),
        pipeline_image=text("PIPELINE_IMAGE", defaults.pipeline_image),
        pipeline_pull_policy=text("PIPELINE_PULL_POLICY", defaults.pipeline_pull_policy),
        executor_role=text("EXECUTOR_ROLE", defaults.executor_role),
        operator_image=text("OPERATOR_IMAGE", defaults.operator_image),
        operator_pull_policy=text("OPERATOR_PULL_POLICY", defaults.operator_pull_policy),
        http_port=number("HTTP_PORT", defaults.http_port),
        liveness_port=number("LIVENESS_PORT", defaults.liveness_port),
        serves_metrics=text("METRICS", "true").lower() != "false",
        log_level=level,
        storage_drivers=drivers(),
        default_tuning=_spec_of_tuning(text("DEFAULT_TUNING", "")),
        lease=text("LEASE", defaults.lease),
        identity=text("IDENTITY", defaults.identity),
    )


def _spec_of_tuning(given: str) -> str:
    """Return the spec of the BrokerNodeTuning `default` as it was given, if it is one."""
    name = _PREFIX + "DEFAULT_TUNING"
    try:
        spec = json.loads(given or "{}")
    except ValueError as error:
        raise ConfigError(f"this is no JSON: {error}", path=name, value=given) from error
    if not isinstance(spec, dict):
        raise ConfigError(
            "this is no spec of a BrokerNodeTuning", path=name, value=given, allowed="an object"
        )
    return given

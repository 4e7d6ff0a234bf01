"""The values of the Helm chart `charts/vespiary`: names, types, defaults in words.

Owns: what `values.schema.json` and docs/reference/chart-values.md say.
Never: renders anything; `values.yaml` itself belongs to the chart, and a test
compares its names with these.
Called by: the generator.
"""

import enum
from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.resources import PullPolicy, TuningMode
from vespiary_spec.scheduling import (
    Affinity,
    Part,
    ResourceRequirements,
    SecretReference,
    Toleration,
)


class Scope(enum.StrEnum):
    """Which namespaces the operator looks after."""

    CLUSTER = "cluster"
    NAMESPACES = "namespaces"


class LogLevel(enum.StrEnum):
    """How much the operator logs."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ChartImage(Part, frozen=True, kw_only=True, rename="camel"):
    """An image."""

    repository: Annotated[str, setting("Repository, with its registry if any.")] = ""
    tag: Annotated[str, setting("Tag.", default_text="the chart's appVersion")] = ""
    digest: Annotated[str, setting("Digest; wins over the tag.")] = ""
    pull_policy: Annotated[PullPolicy, setting("When it is pulled.")] = PullPolicy.IF_NOT_PRESENT


class NodeTuningValues(Part, frozen=True, kw_only=True, rename="camel"):
    """The BrokerNodeTuning that comes with the chart."""

    create: Annotated[bool, setting("Whether one named `default` is made.")] = True
    mode: Annotated[TuningMode, setting("Its mode.")] = TuningMode.VERIFY


class CrdValues(Part, frozen=True, kw_only=True, rename="camel"):
    """The custom resource definitions."""

    install: Annotated[bool, setting("Whether the chart installs them.")] = True
    keep: Annotated[
        bool, setting("Whether they, and so all Brokers, stay when the chart is uninstalled.")
    ] = True


class ChartServiceAccount(Part, frozen=True, kw_only=True, rename="camel"):
    """The operator's ServiceAccount."""

    create: Annotated[bool, setting("Whether one is made.")] = True
    name: Annotated[str, setting("Its name.", default_text="the release's full name")] = ""
    annotations: Annotated[dict[str, str] | None, setting("Annotations.")] = None


class ChartNetworkPolicy(Part, frozen=True, kw_only=True, rename="camel"):
    """A NetworkPolicy for the operator."""

    enabled: Annotated[bool, setting("Whether there is one.")] = False


class ChartMetrics(Part, frozen=True, kw_only=True, rename="camel"):
    """The operator's metrics."""

    enabled: Annotated[bool, setting("Whether they are served.")] = True
    port: Annotated[int, setting("TCP port.", minimum=1024, maximum=65535)] = 8080


class ChartValues(Part, frozen=True, kw_only=True, rename="camel"):
    """Values of the chart."""

    name_override: Annotated[str, setting("Replaces the chart's name in names.")] = ""
    fullname_override: Annotated[str, setting("Replaces the whole name.")] = ""
    image: Annotated[ChartImage, setting("Image of the operator.")] = ChartImage(
        repository="vespiary/operator"
    )
    broker_image: Annotated[ChartImage, setting("Image of brokers that name none.")] = ChartImage(
        repository="vespiary/broker"
    )
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], setting("Secrets for pulling the operator's image.")
    ] = ()
    replicas: Annotated[
        int, setting("Operator pods; there is one at a time.", minimum=1, maximum=1)
    ] = 1
    scope: Annotated[
        Scope,
        setting("cluster: Brokers of all namespaces. namespaces: those of `namespaces` only."),
    ] = Scope.CLUSTER
    namespaces: Annotated[
        tuple[str, ...],
        setting("Namespaces for scope namespaces.", default_text="the release's namespace"),
    ] = ()
    node_tuning: Annotated[NodeTuningValues, setting("Tuning of `fs.aio-max-nr`.")] = (
        NodeTuningValues()
    )
    crds: Annotated[CrdValues, setting("Custom resource definitions.")] = CrdValues()
    service_account: Annotated[ChartServiceAccount, setting("ServiceAccount of the operator.")] = (
        ChartServiceAccount()
    )
    resources: Annotated[
        ResourceRequirements | None, setting("Requests and limits of the operator.")
    ] = None
    pod_labels: Annotated[dict[str, str] | None, setting("More labels of the pod.")] = None
    pod_annotations: Annotated[dict[str, str] | None, setting("More annotations of the pod.")] = (
        None
    )
    node_selector: Annotated[dict[str, str] | None, setting("Labels of the node.")] = None
    tolerations: Annotated[tuple[Toleration, ...], setting("Taints that are tolerated.")] = ()
    affinity: Annotated[Affinity | None, setting("Affinity of the pod.")] = None
    priority_class_name: Annotated[str, setting("Priority class of the pod.")] = ""
    network_policy: Annotated[ChartNetworkPolicy, setting("NetworkPolicy.")] = ChartNetworkPolicy()
    log_level: Annotated[LogLevel, setting("How much is logged.")] = LogLevel.INFO
    metrics: Annotated[ChartMetrics, setting("Metrics.")] = ChartMetrics()

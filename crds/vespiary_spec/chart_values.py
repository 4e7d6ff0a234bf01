"""The values of the Helm chart `charts/vespiary`: names, types, defaults in words.

Owns: what `values.schema.json` and docs/reference/chart-values.md say.
Never: renders anything; `values.yaml` itself belongs to the chart, and a test
compares its names with these.
Called by: the generator.
"""

import enum
from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.resources import BrokerNodeTuningSpec, PullPolicy
from vespiary_spec.scheduling import (
    Affinity,
    Part,
    ResourceRequirements,
    SecretReference,
    Toleration,
    TopologySpreadConstraint,
)
from vespiary_spec.storage_drivers import DRIVERS_MAX, StorageDriver


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


class NodeTuningValues(BrokerNodeTuningSpec, frozen=True, kw_only=True, rename="camel"):
    """The BrokerNodeTuning `default`, field by field, and where its pods are."""

    create: Annotated[
        bool, setting("Whether the operator makes one named `default`, with what is here.")
    ] = True
    namespace: Annotated[
        str,
        setting(
            "Namespace of the tuning pods, which mount a file of the host: the only one that has "
            "to allow that.",
            default_text="the release's full name and `-node-tuning`",
        ),
    ] = ""
    create_namespace: Annotated[
        bool, setting("Whether that namespace is made, with pod security `privileged`.")
    ] = True


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
    """A NetworkPolicy for the operator: what it needs, and nothing else."""

    enabled: Annotated[bool, setting("Whether there is one.")] = False
    api_server_ports: Annotated[
        tuple[int, ...],
        setting("TCP ports of the API server behind its Service."),
    ] = (443, 6443)


class ChartMonitor(Part, frozen=True, kw_only=True, rename="camel"):
    """A ServiceMonitor of the Prometheus operator."""

    enabled: Annotated[
        bool, setting("Whether there is one; the cluster needs monitoring.coreos.com/v1.")
    ] = False
    interval: Annotated[
        str, setting("Time between two scrapes.", pattern="^[0-9]+(ms|s|m)$", max_length=8)
    ] = "30s"
    labels: Annotated[
        dict[str, str] | None, setting("More labels, by which a Prometheus selects it.")
    ] = None


class ChartMetrics(Part, frozen=True, kw_only=True, rename="camel"):
    """The operator's metrics."""

    enabled: Annotated[bool, setting("Whether they are served.")] = True
    port: Annotated[int, setting("TCP port.", minimum=1024, maximum=65535)] = 8080
    service_monitor: Annotated[ChartMonitor, setting("ServiceMonitor.")] = ChartMonitor()


class ChartDashboards(Part, frozen=True, kw_only=True, rename="camel"):
    """Grafana dashboards as ConfigMaps."""

    enabled: Annotated[bool, setting("Whether there are any.")] = False
    namespace: Annotated[
        str, setting("Their namespace.", default_text="the release's namespace")
    ] = ""
    labels: Annotated[
        dict[str, str] | None, setting("Labels by which Grafana's sidecar finds them.")
    ] = None
    annotations: Annotated[
        dict[str, str] | None, setting("Annotations, such as the sidecar's folder.")
    ] = None


class ChartRules(Part, frozen=True, kw_only=True, rename="camel"):
    """Alerts as a PrometheusRule."""

    enabled: Annotated[
        bool, setting("Whether there is one; the cluster needs monitoring.coreos.com/v1.")
    ] = False
    labels: Annotated[
        dict[str, str] | None, setting("More labels, by which a Prometheus selects it.")
    ] = None


class AdmissionPolicies(Part, frozen=True, kw_only=True, rename="camel"):
    """ValidatingAdmissionPolicies; scope `cluster` only."""

    enabled: Annotated[bool, setting("Whether there are any.")] = True
    allowed_images: Annotated[
        tuple[str, ...],
        setting(
            "Registries or repositories that `spec.image` of a Broker or a JournalArchive may be "
            "of; none means any.",
            max_length=64,
        ),
    ] = ()
    confirm_deletion: Annotated[
        bool,
        setting(
            "Whether what holds messages is deleted only when its annotation "
            "`vespiary.dev/confirm-deletion` has its name: claims of brokers, and Brokers whose "
            "claims go with them."
        ),
    ] = False
    restrict_overrides: Annotated[
        bool,
        setting(
            "Whether people need the verb `override` on brokers.vespiary.dev to put aside what "
            "protects messages and service: `spec.scaleDown.force`, `spec.upgrade."
            "allowFormatChange`, and the annotations `vespiary.dev/ignore-maintenance-windows` and "
            "`vespiary.dev/adopt-volume`."
        ),
    ] = False
    restrict_scale_down: Annotated[
        bool,
        setting(
            "Whether the scale subresource (`kubectl scale`, autoscalers) gives a Broker fewer "
            "replicas only for accounts with the verb `override`; `spec.replicas` may still be "
            "edited."
        ),
    ] = False


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
    pipeline_image: Annotated[
        ChartImage, setting("Image of the runs of JournalArchives that name none.")
    ] = ChartImage(repository="vespiary/pipeline")
    image_pull_secrets: Annotated[
        tuple[SecretReference, ...], setting("Secrets for pulling the operator's image.")
    ] = ()
    replicas: Annotated[
        int,
        setting(
            "Operator pods. With more than one, the one that holds a Lease acts and the others "
            "stand by.",
            minimum=1,
            maximum=5,
        ),
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
    storage_drivers: Annotated[
        tuple[StorageDriver, ...],
        setting(
            "Storage drivers that the operator's own table lacks, or says otherwise.",
            max_length=DRIVERS_MAX,
        ),
    ] = ()
    crds: Annotated[CrdValues, setting("Custom resource definitions.")] = CrdValues()
    service_account: Annotated[ChartServiceAccount, setting("ServiceAccount of the operator.")] = (
        ChartServiceAccount()
    )
    resources: Annotated[
        ResourceRequirements | None, setting("Requests and limits of the operator.")
    ] = None
    common_labels: Annotated[
        dict[str, str] | None, setting("More labels of every object but the definitions.")
    ] = None
    pod_labels: Annotated[dict[str, str] | None, setting("More labels of the pod.")] = None
    pod_annotations: Annotated[dict[str, str] | None, setting("More annotations of the pod.")] = (
        None
    )
    node_selector: Annotated[dict[str, str] | None, setting("Labels of the node.")] = None
    tolerations: Annotated[tuple[Toleration, ...], setting("Taints that are tolerated.")] = ()
    affinity: Annotated[Affinity | None, setting("Affinity of the pod.")] = None
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...], setting("How operator pods spread.")
    ] = ()
    priority_class_name: Annotated[str, setting("Priority class of the pod.")] = ""
    network_policy: Annotated[ChartNetworkPolicy, setting("NetworkPolicy.")] = ChartNetworkPolicy()
    log_level: Annotated[LogLevel, setting("How much is logged.")] = LogLevel.INFO
    metrics: Annotated[ChartMetrics, setting("Metrics.")] = ChartMetrics()
    dashboards: Annotated[ChartDashboards, setting("Dashboards.")] = ChartDashboards()
    prometheus_rule: Annotated[ChartRules, setting("Alerts.")] = ChartRules()
    admission_policies: Annotated[AdmissionPolicies, setting("Admission policies.")] = (
        AdmissionPolicies()
    )

"""The parts of a pod's scheduling that a Broker hands through, typed as Kubernetes types them.

Owns: node selection, affinity, tolerations, spreading and resource requests.
Typed rather than open, so that a misspelt field is refused instead of dropped.
Never: gives anything that would let a Broker's author do more than the author
of a Pod under the `restricted` profile may.
Called by: `resources`, the operator's builders (through `conversion.to_plain`).
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec.model import Unit, setting

LABEL_MAX = 64


class SelectorOperator(enum.StrEnum):
    """Operators of a label selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class NodeSelectorOperator(enum.StrEnum):
    """Operators of a node selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


class TolerationOperator(enum.StrEnum):
    """Operators of a toleration."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class TaintEffect(enum.StrEnum):
    """Effects of a taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class WhenUnsatisfiable(enum.StrEnum):
    """What a spread constraint does when it cannot be kept."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class InclusionPolicy(enum.StrEnum):
    """Whether a spread constraint honours affinity or taints."""

    HONOR = "Honor"
    IGNORE = "Ignore"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the parts of a resource: frozen, camelCase, defaults left out."""


class LabelRequirement(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One requirement of a label selector."""

    key: Annotated[str, setting("Label.")]
    operator: Annotated[SelectorOperator, setting("Relation of label and values.")]
    values: Annotated[tuple[str, ...], setting("Values.", max_length=LABEL_MAX)] = ()


class LabelSelector(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A label selector; all of it has to match."""

    match_labels: Annotated[
        dict[str, str] | None, setting("Labels and their values.", max_length=LABEL_MAX)
    ] = None
    match_expressions: Annotated[
        tuple[LabelRequirement, ...], setting("Requirements.", max_length=LABEL_MAX)
    ] = ()


class NodeRequirement(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One requirement of a node selector."""

    key: Annotated[str, setting("Label or field.")]
    operator: Annotated[NodeSelectorOperator, setting("Relation of key and values.")]
    values: Annotated[tuple[str, ...], setting("Values.", max_length=LABEL_MAX)] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One alternative of a node selector; all of it has to match."""

    match_expressions: Annotated[
        tuple[NodeRequirement, ...], setting("Requirements on labels.", max_length=LABEL_MAX)
    ] = ()
    match_fields: Annotated[
        tuple[NodeRequirement, ...], setting("Requirements on fields.", max_length=LABEL_MAX)
    ] = ()


class NodeSelector(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Nodes; one of the terms has to match."""

    node_selector_terms: Annotated[
        tuple[NodeSelectorTerm, ...], setting("Alternatives.", min_items=1, max_length=LABEL_MAX)
    ]


class PreferredNodes(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Nodes that are preferred."""

    weight: Annotated[int, setting("Weight.", minimum=1, maximum=100)]
    preference: Annotated[NodeSelectorTerm, setting("Nodes.")]


class NodeAffinity(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Nodes that attract the pods."""

    required_during_scheduling_ignored_during_execution: Annotated[
        NodeSelector | None, setting("Nodes that are required.")
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodes, ...], setting("Nodes that are preferred.", max_length=LABEL_MAX)
    ] = ()


class PodAffinityTerm(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Pods, and the topology in which they count as near."""

    topology_key: Annotated[str, setting("Node label that makes up the topology.")]
    label_selector: Annotated[LabelSelector | None, setting("Pods.")] = None
    namespace_selector: Annotated[LabelSelector | None, setting("Their namespaces.")] = None
    namespaces: Annotated[
        tuple[str, ...], setting("Their namespaces by name.", max_length=LABEL_MAX)
    ] = ()
    match_label_keys: Annotated[
        tuple[str, ...], setting("Labels taken from the pod itself.", max_length=LABEL_MAX)
    ] = ()
    mismatch_label_keys: Annotated[
        tuple[str, ...], setting("Labels that have to differ.", max_length=LABEL_MAX)
    ] = ()


class PreferredPods(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Pods that are preferred as neighbours, or as non-neighbours."""

    weight: Annotated[int, setting("Weight.", minimum=1, maximum=100)]
    pod_affinity_term: Annotated[PodAffinityTerm, setting("Pods.")]


class PodAffinity(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Pods that attract or repel."""

    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTerm, ...], setting("Required.", max_length=LABEL_MAX)
    ] = ()
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPods, ...], setting("Preferred.", max_length=LABEL_MAX)
    ] = ()


class Affinity(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Affinity of pods."""

    node_affinity: Annotated[NodeAffinity | None, setting("Nodes that attract.")] = None
    pod_affinity: Annotated[PodAffinity | None, setting("Pods that attract.")] = None
    pod_anti_affinity: Annotated[PodAffinity | None, setting("Pods that repel.")] = None


class Toleration(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A taint that is tolerated."""

    key: Annotated[str | None, setting("Taint; empty with Exists means every one.")] = None
    operator: Annotated[TolerationOperator | None, setting("Relation of key and value.")] = None
    value: Annotated[str | None, setting("Value of the taint.")] = None
    effect: Annotated[TaintEffect | None, setting("Effect; empty means every one.")] = None
    toleration_seconds: Annotated[
        int | None, setting("How long NoExecute is tolerated.", minimum=0)
    ] = None


class TopologySpreadConstraint(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How pods spread over zones or nodes."""

    max_skew: Annotated[int, setting("Largest difference.", minimum=1)]
    topology_key: Annotated[str, setting("Node label that makes up the topology.")]
    when_unsatisfiable: Annotated[WhenUnsatisfiable, setting("What if it cannot be kept.")]
    label_selector: Annotated[LabelSelector | None, setting("Pods that are counted.")] = None
    min_domains: Annotated[int | None, setting("Fewest domains.", minimum=1)] = None
    match_label_keys: Annotated[
        tuple[str, ...], setting("Labels taken from the pod itself.", max_length=LABEL_MAX)
    ] = ()
    node_affinity_policy: Annotated[InclusionPolicy | None, setting("Node affinity.")] = None
    node_taints_policy: Annotated[InclusionPolicy | None, setting("Node taints.")] = None


class ResourceRequirements(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a container asks for and may use at most."""

    requests: Annotated[
        dict[str, Annotated[str, setting("Quantity.", unit=Unit.QUANTITY)]] | None,
        setting("What is reserved.", max_length=LABEL_MAX),
    ] = None
    limits: Annotated[
        dict[str, Annotated[str, setting("Quantity.", unit=Unit.QUANTITY)]] | None,
        setting(
            "What is the most; half of `memory` is the broker's default message memory.",
            max_length=LABEL_MAX,
        ),
    ] = None


class SecretReference(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A Secret in the same namespace."""

    name: Annotated[str, setting("Name of the Secret.", max_length=253)]

"""How a Broker's pods are run: the parts of their template that a Broker hands through.

Owns: these parts of `spec`, probes, the account, the disruption budget, and their CEL rules.
Never: gives anything that would let a Broker's author do more than the author of a Pod under the
`restricted` profile may: there is no user 0, no capability and no profile `Unconfined`.
Called by: `resources`; `pod_checks`, which says the same for a file that no API server has seen.
"""

import enum
from typing import Annotated

from vespiary_spec.model import Unit, setting
from vespiary_spec.pod_extras import ITEMS_MAX, OBJECT_NAME, OBJECT_NAME_MAX
from vespiary_spec.scheduling import Part

PROBE_SECONDS_MAX = 3600
ID_MAX = 2**31 - 1


class DnsPolicy(enum.StrEnum):
    """How names are looked up in a pod."""

    CLUSTER_FIRST = "ClusterFirst"
    DEFAULT = "Default"
    NONE = "None"


class DnsOption(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An option of the resolver."""

    name: Annotated[str, setting("Such as `ndots`.", max_length=63)]
    value: Annotated[str | None, setting("Value.", max_length=63)] = None


class DnsConfig(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the resolver has beside the policy's."""

    nameservers: Annotated[tuple[str, ...], setting("Addresses.", max_length=3)] = ()
    searches: Annotated[tuple[str, ...], setting("Domains.", max_length=32)] = ()
    options: Annotated[tuple[DnsOption, ...], setting("Options.", max_length=16)] = ()


class HostAlias(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Names of an address, for the pods' hosts file."""

    ip: Annotated[str, setting("Address.", pattern=r"^[0-9A-Fa-f:.]+$", max_length=45)]
    hostnames: Annotated[tuple[str, ...], setting("Names.", min_items=1, max_length=ITEMS_MAX)]


class GroupChangePolicy(enum.StrEnum):
    """When a volume's files are given to the group."""

    ON_ROOT_MISMATCH = "OnRootMismatch"
    ALWAYS = "Always"


class SeccompType(enum.StrEnum):
    """Which system calls are allowed."""

    RUNTIME_DEFAULT = "RuntimeDefault"
    LOCALHOST = "Localhost"


class SeccompProfile(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Which system calls are allowed; Unconfined is not among them."""

    type: Annotated[SeccompType, setting("The container runtime's profile, or one of the node's.")]
    localhost_profile: Annotated[
        str | None,
        setting("File below the kubelet's folder of profiles, for Localhost.", max_length=512),
    ] = None


class SeLinuxOptions(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """SELinux level of the pods."""

    level: Annotated[str, setting("Such as `s0:c123,c456`.", max_length=128)]


class PodSecurity(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whom the pods run as. Whatever is given, they keep to the `restricted` profile."""

    run_as_user: Annotated[
        int | None,
        setting(
            "User, not 0. It cannot change later, since the files on the volumes are its own.",
            minimum=1,
            maximum=ID_MAX,
            default_text="10001",
        ),
    ] = None
    run_as_group: Annotated[
        int | None,
        setting(
            "Group, not 0. It cannot change later.",
            minimum=1,
            maximum=ID_MAX,
            default_text="10001",
        ),
    ] = None
    fs_group: Annotated[
        int | None,
        setting(
            "Group that the volumes are given to, not 0. It cannot change later.",
            minimum=1,
            maximum=ID_MAX,
            default_text="10001",
        ),
    ] = None
    fs_group_change_policy: Annotated[
        GroupChangePolicy | None,
        setting("When the volumes are given to it.", default_text="OnRootMismatch"),
    ] = None
    supplemental_groups: Annotated[
        tuple[Annotated[int, setting("Group.", minimum=1, maximum=ID_MAX)], ...],
        setting("More groups of the user.", max_length=ITEMS_MAX),
    ] = ()
    seccomp_profile: Annotated[
        SeccompProfile | None,
        setting(
            "Which system calls are allowed.",
            default_text="RuntimeDefault",
            rules=(
                (
                    "has(self.localhostProfile) == (self.type == 'Localhost')",
                    "localhostProfile belongs to the type Localhost, and to it alone",
                ),
            ),
        ),
    ] = None
    se_linux_options: Annotated[SeLinuxOptions | None, setting("SELinux level.")] = None


class PodTemplate(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Parts of the pods that Kubernetes or a node's runtime acts on."""

    scheduler_name: Annotated[
        str | None, setting("Scheduler.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
    ] = None
    runtime_class_name: Annotated[
        str | None, setting("Runtime class.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
    ] = None
    dns_policy: Annotated[
        DnsPolicy | None,
        setting("How names are looked up.", default_text="ClusterFirst"),
    ] = None
    dns_config: Annotated[
        DnsConfig | None, setting("What the resolver has beside the policy's.")
    ] = None
    host_aliases: Annotated[
        tuple[HostAlias, ...],
        setting("Lines of the pods' hosts file.", key="ip", max_length=64),
    ] = ()
    security_context: Annotated[PodSecurity, setting("Whom the pods run as.")] = PodSecurity()


class Probe(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Numbers of a probe; what is asked, and what an answer means, is the broker's."""

    period: Annotated[
        int | None,
        setting(
            "Time between two questions.",
            unit=Unit.SECONDS,
            minimum=1,
            maximum=PROBE_SECONDS_MAX,
            default_text="2s; 10s for liveness",
        ),
    ] = None
    timeout: Annotated[
        int | None,
        setting(
            "Time for an answer.",
            unit=Unit.SECONDS,
            minimum=1,
            maximum=PROBE_SECONDS_MAX,
            default_text="5s",
        ),
    ] = None
    failure_threshold: Annotated[
        int | None,
        setting(
            "Failures in a row that count.",
            minimum=1,
            maximum=100_000,
            default_text="1800 for startup, 6 for liveness, 3 for readiness",
        ),
    ] = None


class Probes(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How often the kubelet asks a broker how it is."""

    startup: Annotated[
        Probe,
        setting("Until the first good answer: recovery of a large journal has to fit into it."),
    ] = Probe()
    liveness: Annotated[Probe, setting("When it fails, the broker is restarted.")] = Probe()
    readiness: Annotated[Probe, setting("When it fails, no new clients are sent there.")] = Probe()


class DisruptionBudget(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How many brokers a drain of nodes may take at a time."""

    enabled: Annotated[bool, setting("Whether there is a PodDisruptionBudget.")] = True
    max_unavailable: Annotated[
        int,
        setting(
            "Brokers that may be away; with 0 nobody but you moves them.", minimum=0, maximum=100
        ),
    ] = 1


class ServiceAccount(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The ServiceAccount of the pods; no token of it is mounted."""

    name: Annotated[
        str | None,
        setting(
            "An account that is there already, such as one that a cloud or a security policy "
            "knows.",
            pattern=OBJECT_NAME,
            max_length=OBJECT_NAME_MAX,
            default_text="one that is made, without any rights",
        ),
    ] = None
    annotations: Annotated[
        dict[str, str] | None, setting("Annotations of the one that is made.", max_length=64)
    ] = None


# --- rules between fields -----------------------------------------------------------------------

SERVICE_ACCOUNT_RULES = (
    (
        "!(has(self.name) && has(self.annotations))",
        "annotations are for the account that is made; one that is named keeps its own",
    ),
)
"""CEL rules on `spec.serviceAccount`."""

IDENTITY_RULES = tuple(
    (
        f"self.?spec.?podTemplate.?securityContext.?{name}.orValue(10001) == "
        f"oldSelf.?spec.?podTemplate.?securityContext.?{name}.orValue(10001)",
        f"spec.podTemplate.securityContext.{name} cannot change once the Broker exists: the files "
        "on its volumes belong to it",
    )
    for name in ("runAsUser", "runAsGroup", "fsGroup")
)
"""CEL rules on a whole Broker: files on the volumes belong to the user that wrote them."""

TEMPLATE_STRUCT_RULES: dict[type, tuple[tuple[str, str], ...]] = {
    ServiceAccount: SERVICE_ACCOUNT_RULES,
}
"""CEL rules by the Struct that they are about."""

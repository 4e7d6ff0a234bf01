"""Rules between the fields of a resource, in CEL, as the API server enforces them.

Owns: the rules on whole resources; rules on one field stand beside the field.
Never: is enough for a file that no API server has seen: `resources` and
`configuration` check the same things for `vespiary apply`.
Called by: `resources`, `gen`.
"""

from vespiary_spec.pod_extras import MOUNT_RULES
from vespiary_spec.pod_template import IDENTITY_RULES
from vespiary_spec.scaling import TOPOLOGY_RULES
from vespiary_spec.services import PORT_RULES


def _kept(*path: str) -> str:
    """Return a CEL rule: whether something is given there cannot change.

    That its value cannot change is a rule on the field itself (`KEPT`), because the cost of
    comparing values through optional fields is estimated without bound.
    """
    inside = ".?".join(("", *path))
    return f"self{inside}.hasValue() == oldSelf{inside}.hasValue()"


_VOLUMES = ("bindings", "journal", "paging", "largeMessages", "jms", "retention")

_VOLUME_CONSTANTS = ("storageClassName", "accessMode", "selector", "shareWith")

_DEFAULT_SIZES = dict.fromkeys(_VOLUMES, "10Gi") | {"bindings": "1Gi", "jms": "1Gi"}
"""Sizes of volumes that name none, as `volumes.DEFAULT_VOLUME_BYTES` has them."""

_STATUS_NAMES = {"largeMessages": "large-messages"}
"""Names of volumes in the status where they are not those of the spec."""


def _size(root: str, volume: str) -> str:
    """Return a CEL expression: the size of a volume.

    Not through optional fields: the API server knows how long a size may be only where it is
    selected as it is declared.
    """
    path, known = f"{root}.spec", []
    for field in ("storage", "volumes", volume, "size"):
        path = f"{path}.{field}"
        known.append(f"has({path})")
    asked = f"has({root}.spec) && {' && '.join(known)}"
    return f"({asked} ? quantity(string({path})) : quantity('{_DEFAULT_SIZES[volume]}'))"


def _not_smaller(volume: str) -> str:
    """Return a CEL rule: a size stays or grows, or is taken back to what there really is.

    Kubernetes makes no claim smaller. A growth that failed may be taken back, so a smaller size is
    fine as long as no claim has more.
    """
    new = _size("self", volume)
    name = _STATUS_NAMES.get(volume, volume)
    return (
        f"!{new}.isLessThan({_size('oldSelf', volume)}) || (has(self.status) && "
        f"has(self.status.volumes) && self.status.volumes.exists(v, v.name == '{name}' && "
        f"has(v.largestBytes) && {new}.asApproximateFloat() >= double(v.largestBytes)))"
    )


NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

NAME_CHARACTERS_MAX = 48
"""Names of Brokers: pods, Services and labels are named after them with an ending."""

ROOT_RULES: tuple[tuple[str, str], ...] = (
    (
        f"self.metadata.name.size() <= {NAME_CHARACTERS_MAX} && "
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        f"the name has to be at most {NAME_CHARACTERS_MAX} characters: small letters, digits and "
        "-, a letter first",
    ),
    *(
        (
            " && ".join(
                _kept("spec", "storage", "volumes", volume, field) for field in _VOLUME_CONSTANTS
            ),
            f"storageClassName, accessMode, selector and shareWith of the volume {volume} cannot "
            "change once the Broker exists, and the volume cannot be taken out",
        )
        for volume in _VOLUMES
    ),
    *(
        (
            f"!oldSelf.?spec.?storage.?volumes.?{volume}.?volumeAttributesClassName.hasValue() || "
            f"self.?spec.?storage.?volumes.?{volume}.?volumeAttributesClassName.hasValue()",
            f"volumeAttributesClassName of the volume {volume} may change, but not be taken out",
        )
        for volume in _VOLUMES
    ),
    *(
        (
            _kept("spec", "storage", "volumes", volume),
            f"spec.storage.volumes.{volume} can neither be given nor taken out once the Broker "
            "exists",
        )
        for volume in ("jms", "retention")
    ),
    *(
        (
            _not_smaller(volume),
            f"spec.storage.volumes.{volume}.size cannot become smaller than the claims are: see "
            "status.volumes; a volume only grows",
        )
        for volume in _VOLUMES
    ),
    (
        "self.?spec.?storage.?ephemeral.orValue(false) == "
        "oldSelf.?spec.?storage.?ephemeral.orValue(false)",
        "spec.storage.ephemeral cannot change once the Broker exists",
    ),
    *IDENTITY_RULES,
)
"""CEL rules on a whole Broker: (rule, message). Those that name `oldSelf` guard changes."""

SPEC_RULES: tuple[tuple[str, str], ...] = (
    (
        "!has(self.acceptors) || self.acceptors.all(a, a.port != "
        "(has(self.admin) && has(self.admin.port) ? self.admin.port : 8161))",
        "an acceptor has the port of the HTTP listener (admin.port, 8161 unless given)",
    ),
    *TOPOLOGY_RULES,
    *MOUNT_RULES,
    *PORT_RULES,
)
"""CEL rules on the `spec` of a Broker."""

CONFIG_RULES: tuple[tuple[str, str], ...] = (
    (
        "!(has(self.journalBufferSize) && has(self.journalFileSize)) || "
        "quantity(string(self.journalBufferSize)).compareTo("
        "quantity(string(self.journalFileSize))) <= 0",
        "journalBufferSize is larger than journalFileSize; one record has to fit into one file",
    ),
)
"""CEL rules on `spec.config`."""

TUNING_RULES: tuple[tuple[str, str], ...] = (
    (
        "!has(self.spec) || self.spec.?floor.orValue(65536) <= self.spec.?max.orValue(4194304)",
        "spec.floor is above spec.max",
    ),
)
"""CEL rules on a whole BrokerNodeTuning."""

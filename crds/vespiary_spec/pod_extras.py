"""What a Broker's author may bring into its pods: environment variables and volumes.

Owns: these parts of `spec`, and the CEL rules that keep them off what the operator sets.
Never: gives anything that would let a Broker's author do more than the author of a Pod under the
`restricted` profile may: there is no folder of the node and no token.
Called by: `resources`; `pod_checks`, which says the same for a file that no API server has seen.
"""

import enum
from typing import Annotated

from vespiary_spec.model import Unit, setting
from vespiary_spec.scheduling import Part

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
KEY = r"^[-._a-zA-Z0-9]+$"
OBJECT_NAME_MAX = 253

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
RESERVED_VARIABLE = r"^(VESPIARY_|PYTHON|LD_|PATH$|LOGNAME$|HOME$)"
"""Variables that the images or the operator set, or that load code into the broker."""
RESERVED_VARIABLE_TEXT = (
    "PATH, HOME, LOGNAME and names that begin with VESPIARY_, PYTHON or LD_ are set by the image "
    "and the operator"
)

RELATIVE_PATH = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
MOUNT_PATH = r"^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$"
RESERVED_PATH = (
    r"^/((etc|var|var/lib|opt|run|home|root|sys|proc|dev)$|"
    r"(var/lib/vespiary|etc/vespiary|opt/vespiary|tmp|usr|bin|sbin|lib|lib64|proc|sys|dev)(/|$))"
)
"""Paths that are the image's or the operator's, and folders right above them."""
RESERVED_PATH_TEXT = (
    "this path is the image's or the operator's; take one such as /mnt/NAME or /etc/NAME"
)

BROKER_CLAIM = r"^(bindings|journal|paging|large-messages|jms|retention)-.+-[0-9]+$"
"""Names of the claims that hold a broker's data."""

ITEMS_MAX = 32

ObjectName = Annotated[
    str, setting("Name of the object.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
]
Optional = Annotated[bool, setting("Whether a pod starts without it.")]


# --- variables ----------------------------------------------------------------------------------


class KeySelector(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One key of a ConfigMap or Secret in the Broker's namespace."""

    name: ObjectName
    key: Annotated[str, setting("Key in it.", pattern=KEY, max_length=OBJECT_NAME_MAX)]
    optional: Annotated[
        bool, setting("Whether a pod starts without it, and then without the variable.")
    ] = False


class FieldSelector(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A field of the pod."""

    field_path: Annotated[
        str,
        setting(
            "Such as `metadata.name`, `spec.nodeName` or `status.podIP`.",
            pattern=r"^(metadata\.(name|namespace|uid|(labels|annotations)\['[^']+'\])"
            r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs))$",
            max_length=317,
        ),
    ]


class VariableSource(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a variable's value comes from; one of them."""

    config_map_key_ref: Annotated[KeySelector | None, setting("Key of a ConfigMap.")] = None
    secret_key_ref: Annotated[KeySelector | None, setting("Key of a Secret.")] = None
    field_ref: Annotated[FieldSelector | None, setting("Field of the pod.")] = None


class Variable(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An environment variable of the broker."""

    name: Annotated[
        str,
        setting(
            "Name; what the operator and the image set cannot be overridden.",
            pattern=VARIABLE,
            max_length=256,
            rules=((f"!self.matches('{RESERVED_VARIABLE}')", RESERVED_VARIABLE_TEXT),),
        ),
    ]
    value: Annotated[str | None, setting("Value as text.", max_length=32768)] = None
    value_from: Annotated[VariableSource | None, setting("Where the value comes from.")] = None


class ObjectReference(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ConfigMap or Secret in the Broker's namespace."""

    name: ObjectName
    optional: Optional = False


class VariablesSource(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All keys of a ConfigMap or Secret, as variables."""

    prefix: Annotated[
        str,
        setting(
            "What every name begins with, ending in `_`: so no key can become a variable of the "
            "broker's own.",
            pattern=r"^[A-Za-z_][A-Za-z0-9_]*_$",
            max_length=64,
            rules=((f"!self.matches('{RESERVED_VARIABLE}')", RESERVED_VARIABLE_TEXT),),
        ),
    ]
    config_map_ref: Annotated[ObjectReference | None, setting("The ConfigMap.")] = None
    secret_ref: Annotated[ObjectReference | None, setting("The Secret.")] = None


# --- volumes ------------------------------------------------------------------------------------


class KeyToPath(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A key and the file that it becomes."""

    key: Annotated[str, setting("Key.", pattern=KEY, max_length=OBJECT_NAME_MAX)]
    path: Annotated[
        str,
        setting(
            "File, relative to the mount.",
            pattern=RELATIVE_PATH,
            max_length=512,
        ),
    ]


Files = Annotated[
    tuple[KeyToPath, ...], setting("Keys; all of them unless given.", max_length=ITEMS_MAX)
]


class ConfigMapVolume(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Files from a ConfigMap."""

    name: Annotated[
        str, setting("Name of the ConfigMap.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
    ]
    items: Files = ()
    optional: Optional = False


class SecretVolume(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Files from a Secret, readable by the broker's group alone."""

    secret_name: Annotated[
        str, setting("Name of the Secret.", pattern=OBJECT_NAME, max_length=OBJECT_NAME_MAX)
    ]
    items: Files = ()
    optional: Optional = False


class ProjectedObject(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ConfigMap or Secret among the sources of one folder."""

    name: ObjectName
    items: Files = ()
    optional: Optional = False


class ProjectedSource(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One source of a projected folder; one of the two."""

    config_map: Annotated[ProjectedObject | None, setting("A ConfigMap.")] = None
    secret: Annotated[ProjectedObject | None, setting("A Secret.")] = None


class ProjectedVolume(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Files of several ConfigMaps and Secrets in one folder; tokens are not among them."""

    sources: Annotated[
        tuple[ProjectedSource, ...],
        setting(
            "The sources.",
            min_items=1,
            max_length=ITEMS_MAX,
            rules=(
                (
                    "self.all(s, has(s.configMap) != has(s.secret))",
                    "each source is one of configMap and secret",
                ),
            ),
        ),
    ]


class Medium(enum.StrEnum):
    """What an empty folder is on."""

    MEMORY = "Memory"


class EmptyFolder(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A folder that goes with the pod."""

    medium: Annotated[Medium | None, setting("What it is on.", default_text="the node's disk")] = (
        None
    )
    size_limit: Annotated[
        int | None,
        setting("Largest size.", unit=Unit.BYTES, minimum=1, default_text="no limit"),
    ] = None


class ExistingClaim(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A claim that somebody else made."""

    claim_name: Annotated[
        str,
        setting(
            "Name of the claim; none that holds a broker's data.",
            pattern=OBJECT_NAME,
            max_length=OBJECT_NAME_MAX,
            rules=(
                (
                    f"!self.matches('{BROKER_CLAIM}')",
                    "this is the name of a claim that holds a broker's data, which only its "
                    "own broker may mount",
                ),
            ),
        ),
    ]
    read_only: Annotated[bool, setting("Whether it is mounted for reading alone.")] = False


class ExtraVolume(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One more volume of the pods; one of the sources. Folders of the node are none."""

    name: Annotated[
        str,
        setting(
            "Name, for `extraVolumeMounts`. In the pod `extra-` stands before it.",
            pattern=DNS_LABEL,
            max_length=57,
        ),
    ]
    config_map: Annotated[ConfigMapVolume | None, setting("Files from a ConfigMap.")] = None
    secret: Annotated[SecretVolume | None, setting("Files from a Secret.")] = None
    projected: Annotated[
        ProjectedVolume | None, setting("Files from several of them in one folder.")
    ] = None
    empty_dir: Annotated[EmptyFolder | None, setting("A folder that goes with the pod.")] = None
    persistent_volume_claim: Annotated[
        ExistingClaim | None, setting("A claim that is there already.")
    ] = None


class ExtraVolumeMount(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where one of `extraVolumes` is mounted in the broker."""

    mount_path: Annotated[
        str,
        setting(
            "Absolute path, outside of the image's and the operator's own folders.",
            pattern=MOUNT_PATH,
            max_length=512,
            rules=((f"!self.matches('{RESERVED_PATH}')", RESERVED_PATH_TEXT),),
        ),
    ]
    name: Annotated[
        str, setting("Name of one of `extraVolumes`.", pattern=DNS_LABEL, max_length=57)
    ]
    sub_path: Annotated[
        str | None,
        setting(
            "Path inside the volume; files mounted so are not updated in a running pod.",
            pattern=RELATIVE_PATH,
            max_length=512,
        ),
    ] = None
    read_only: Annotated[bool, setting("Whether it is mounted for reading alone.")] = False


# --- rules between fields -----------------------------------------------------------------------

VARIABLE_RULES = (
    (
        "!(has(self.value) && has(self.valueFrom))",
        "a variable has one of value and valueFrom",
    ),
    (
        "!has(self.valueFrom) || [has(self.valueFrom.configMapKeyRef), "
        "has(self.valueFrom.secretKeyRef), has(self.valueFrom.fieldRef)].exists_one(x, x)",
        "valueFrom has one of configMapKeyRef, secretKeyRef and fieldRef",
    ),
)
"""CEL rules on `spec.env[]`."""

VARIABLES_SOURCE_RULES = (
    (
        "has(self.configMapRef) != has(self.secretRef)",
        "variables come from one of configMapRef and secretRef",
    ),
)
"""CEL rules on `spec.envFrom[]`."""

VOLUME_SOURCES = ("configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim")

EXTRA_VOLUME_RULES = (
    (
        "[" + ", ".join(f"has(self.{name})" for name in VOLUME_SOURCES) + "].exists_one(x, x)",
        f"a volume has one of {', '.join(VOLUME_SOURCES)}",
    ),
)
"""CEL rules on `spec.extraVolumes[]`."""

MOUNT_RULES = (
    (
        "!has(self.extraVolumeMounts) || self.extraVolumeMounts.all(m, "
        "has(self.extraVolumes) && self.extraVolumes.exists(v, v.name == m.name))",
        "a mount in extraVolumeMounts names a volume that extraVolumes does not have",
    ),
    (
        "!has(self.extraVolumes) || self.extraVolumes.all(v, "
        "has(self.extraVolumeMounts) && self.extraVolumeMounts.exists(m, v.name == m.name))",
        "a volume in extraVolumes is mounted nowhere; give it an entry in extraVolumeMounts",
    ),
)
"""CEL rules on `spec`, about mounts."""

STRUCT_RULES: dict[type, tuple[tuple[str, str], ...]] = {
    Variable: VARIABLE_RULES,
    VariablesSource: VARIABLES_SOURCE_RULES,
    ExtraVolume: EXTRA_VOLUME_RULES,
}
"""CEL rules by the Struct that they are about."""

"""Labels and annotations that people give to objects which the operator makes.

Owns: what keys and values may look like, and which keys are the operator's or Kubernetes' own.
Never: puts them on anything (that is the operator's).
Called by: `volumes`, `services`, `resources`, `volume_checks`.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from vespiary_spec.errors import ConfigError
from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part

LABELS_MAX = 32

LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Labels = dict[str, Annotated[str, setting("Value.", pattern=LABEL_VALUE, max_length=63)]]
Annotations = dict[str, Annotated[str, setting("Value.", max_length=4096)]]

KEY_PATTERN = (
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
KEY_TEXT = "a key is a name of at most 63 characters, after a domain and / if it has one"

RESERVED_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "app.kubernetes.io/managed-by",
    "controller-revision-hash",
    "apps.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "vespiary.dev/",
)
"""How labels begin by which pods are selected and told apart."""
RESERVED_LABEL_TEXT = "labels by which pods are selected are the operator's"

RESERVED_ANNOTATIONS = (
    "vespiary.dev/",
    "kubectl.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
)
"""How annotations begin by which the operator or Kubernetes keeps notes."""
RESERVED_ANNOTATION_TEXT = "annotations of this domain are the operator's or Kubernetes' own"


def _rules(reserved: tuple[str, ...], text: str) -> tuple[tuple[str, str], ...]:
    """Return the rule on a map's keys; a regular expression on keys costs more than is allowed."""
    terms = " && ".join(f"!key.startsWith('{prefix}')" for prefix in reserved)
    return ((f"self.all(key, {terms})", text),)


LABEL_KEY_RULES = _rules(RESERVED_LABELS, RESERVED_LABEL_TEXT)
ANNOTATION_KEY_RULES = _rules(RESERVED_ANNOTATIONS, RESERVED_ANNOTATION_TEXT)


class InheritedMetadata(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Labels and annotations of every object of a Broker: pods, claims, Services and so on."""

    labels: Annotated[
        Labels | None,
        setting("Labels.", max_length=LABELS_MAX, rules=LABEL_KEY_RULES),
    ] = None
    annotations: Annotated[
        Annotations | None,
        setting("Annotations.", max_length=LABELS_MAX, rules=ANNOTATION_KEY_RULES),
    ] = None


def check_metadata(
    labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None, path: str
) -> None:
    """Check keys as the CEL rules do.

    Args:
        labels: Labels, if there are any.
        annotations: Annotations, if there are any.
        path: Where both stand.

    Raises:
        ConfigError: A key has no form that Kubernetes takes, or is not for people to set.
    """
    for field, given, reserved, text in (
        ("labels", labels, RESERVED_LABELS, RESERVED_LABEL_TEXT),
        ("annotations", annotations, RESERVED_ANNOTATIONS, RESERVED_ANNOTATION_TEXT),
    ):
        for key in given or ():
            if not re.fullmatch(KEY_PATTERN, key):
                raise ConfigError(KEY_TEXT, path=f"{path}.{field}", value=key)
            if key.startswith(reserved):
                raise ConfigError(text, path=f"{path}.{field}", value=key, cure="take another key")

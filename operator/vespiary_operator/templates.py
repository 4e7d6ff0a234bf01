"""The template that a Broker's pods have, kept on the StatefulSet beside the one before.

A newer operator may render another template for the same Broker. What it would write is not what
the pods get: they keep the template that was made when the Broker was last changed, which is
written out in an annotation of the StatefulSet, together with the one to go back to while an
upgrade is under way. So the truth about both is in one object and changes in one write.

Owns: the annotation, and what counts as a change by the user.
Never: reads the cluster. Called by: `workload`, `upgrade`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from vespiary_operator import names
from vespiary_spec.resources import Broker

ANNOTATION = "vespiary.dev/templates"

Template = dict[str, Any]

_WITHOUT_PODS = frozenset(
    {
        "brokerServices",
        "disruptionBudget",
        "hibernate",
        "maintenanceWindows",
        "networkPolicy",
        "paused",
        "replicas",
        "scaleDown",
        "service",
        "tlsRoute",
        "topology",
        "upgrade",
    }
)
"""Fields of the spec that no template depends on."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the annotation holds.

    Attributes:
        revision: What the user asked for when it was made; see `revision_of`.
        template: The template that pods have, or are getting.
        before: The template to go back to; None unless an upgrade is under way.
        moves: Kinds of files that the upgrade gives a format which the version before does not
            read, and the format that they had.
        snapshot: Name of the copy of the files that is taken before; empty if none is.
        failure: Why the version that was asked for was taken back; empty if it was not.
        failed_image: Image of that version.
        retried: The word by which a version was last tried again; it counts once.
        has_run: Whether a broker began to run with the template's image, so that there may be files
            of its formats.
    """

    revision: str
    template: Template
    before: Template | None = None
    moves: tuple[tuple[str, int], ...] = ()
    snapshot: str = ""
    failure: str = ""
    failed_image: str = ""
    retried: str = ""
    has_run: bool = False

    @property
    def image(self) -> str:
        """Image of the template."""
        return image_of(self.template)


def revision_of(broker: Broker, image: str) -> str:
    """Return ten characters that are the same as long as the user wants the same pods.

    Args:
        broker: The Broker.
        image: The image that it wants.
    """
    spec = msgspec.to_builtins(broker.spec)
    wish = {key: value for key, value in spec.items() if key not in _WITHOUT_PODS}
    text = json.dumps([wish, image], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def image_of(template: Mapping[str, Any] | None) -> str:
    """Return the broker's image in a template; empty if it has none."""
    containers = ((template or {}).get("spec") or {}).get("containers") or ()
    found = (c.get("image") for c in containers if c.get("name") == names.BROKER_CONTAINER)
    return str(next(found, "") or "")


def with_image(template: Template, asked: str, image: str) -> Template:
    """Return a template with another image in place of the one that is asked for.

    Args:
        template: The template.
        asked: Image that it has.
        image: Image that it gets.
    """
    found = copy.deepcopy(template)
    for kind in ("initContainers", "containers"):
        for container in found["spec"].get(kind) or ():
            if container.get("image") == asked:
                container["image"] = image
    return found


def config_maps(template: Mapping[str, Any] | None) -> set[str]:
    """Return the ConfigMaps that pods of a template mount."""
    volumes = ((template or {}).get("spec") or {}).get("volumes") or ()
    return {str(v["configMap"]["name"]) for v in volumes if (v.get("configMap") or {}).get("name")}


def kept(stateful_set: Mapping[str, Any]) -> Kept | None:
    """Return what the annotation holds; None if it is not there or was tampered with."""
    annotations = stateful_set["metadata"].get("annotations") or {}
    try:
        found = msgspec.json.decode(annotations.get(ANNOTATION, ""), type=Kept)
    except msgspec.DecodeError:
        return None
    return found if image_of(found.template) else None


def live(stateful_set: Mapping[str, Any]) -> Template:
    """Return the template of a StatefulSet as it is."""
    return copy.deepcopy(dict((stateful_set.get("spec") or {}).get("template") or {}))


def annotation(wanted: Kept) -> dict[str, str]:
    """Return the annotation that keeps templates."""
    return {ANNOTATION: msgspec.json.encode(wanted, order="sorted").decode()}

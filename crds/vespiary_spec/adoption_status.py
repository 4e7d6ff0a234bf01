"""Volumes that a Broker was told to adopt, as the operator reports them: `status.adoptions`.

Owns: the shape. Never: decides anything. Called by: `status`, the operator.
"""

from __future__ import annotations

from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part

ADOPTIONS_MAX = 64


class AdoptionRecord(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A volume that was adopted, which happens once."""

    claim: Annotated[str, setting("The claim that the annotation names.")]
    persistent_volume: Annotated[str, setting("The PersistentVolume that it names.")]
    at: Annotated[str, setting("When it was noticed, RFC 3339.")] = ""
    message: Annotated[str, setting("What became of it, as one sentence.")] = ""

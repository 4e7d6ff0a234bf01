"""Sizes of a Broker's volumes as the operator reports them, while they grow and after.

Owns: the shape of `status.volumes[]`, which the rule on smaller sizes reads as well.
Never: decides anything. Called by: `status`, the operator.
"""

from __future__ import annotations

from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part

VOLUMES_MAX = 8
"""Volumes of one broker, with room for kinds to come."""

CLAIMS_MAX = 100
"""Claims of one volume: one for each broker."""


class GrownClaim(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A claim that has grown by itself, or does."""

    claim: Annotated[str, setting("Name of the claim.", max_length=253)]
    from_bytes: Annotated[int, setting("What it had before.", minimum=0)]
    to_bytes: Annotated[int, setting("What it asks for since.", minimum=0)]
    at: Annotated[str, setting("When that was decided, RFC 3339.")] = ""
    message: Annotated[str, setting("Why, as one sentence.")] = ""


class VolumeSize(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How large one volume is in all brokers, and how far a growth has come."""

    name: Annotated[
        str, setting("bindings, journal, paging, large-messages, jms or retention.", max_length=64)
    ]
    requested_bytes: Annotated[int | None, setting("Size that the Broker asks for.", minimum=0)] = (
        None
    )
    capacity_bytes: Annotated[
        int | None, setting("Capacity of the smallest claim; not given before one is bound.")
    ] = None
    largest_bytes: Annotated[
        int | None,
        setting("Capacity of the largest claim; the size cannot be set below it.", minimum=0),
    ] = None
    claims: Annotated[str, setting("Claims with the size and all of them, such as `2/3`.")] = ""
    pending_since: Annotated[
        str,
        setting("Since when a claim waits for its pod to be started again, RFC 3339."),
    ] = ""
    grown: Annotated[
        tuple[GrownClaim, ...],
        setting(
            "Claims that have grown by themselves, as `autoGrow` allows; the last growth of each.",
            key="claim",
            max_length=CLAIMS_MAX,
        ),
    ] = ()
    message: Annotated[
        str, setting("What the growth waits for, as one sentence; empty when all is as asked.")
    ] = ""

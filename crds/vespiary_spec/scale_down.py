"""How a Broker gets fewer brokers, and the record of those that left.

Owns: what users say about it, and what the status keeps of it.
Never: talks to an API server.
Called by: `resources`, `status`, the operator's `draining`.
"""

from typing import Annotated

from vespiary_spec.model import setting
from vespiary_spec.scheduling import Part

SCALE_DOWNS_MAX = 20
"""Brokers that left, of which the status tells."""


class ScaleDown(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What becomes of brokers when there are to be fewer replicas."""

    force: Annotated[
        bool,
        setting(
            "Let brokers go without draining them. Their messages stay in their claims, which are "
            "kept whatever `storage.retention` says, and come back when there are as many "
            "replicas again."
        ),
    ] = False


class ScaleDownRecord(Part, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A broker that left."""

    broker: Annotated[str, setting("Name of its pod.")]
    at: Annotated[str, setting("When it was let go, RFC 3339.")] = ""
    target: Annotated[str, setting("Broker that took its messages.")] = ""
    messages: Annotated[int | None, setting("Messages that it handed over.")] = None
    forced: Annotated[bool, setting("Whether it went without being drained.")] = False

"""Settings of the memory that messages of the whole broker may take.

Owns: the limits over all addresses.
Never: knows what an address does when they are reached (that is `addresses`).
Called by: `settings`, whose `BrokerSettings` has them.
"""

from __future__ import annotations

from typing import Annotated, Final

from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.resource_limits import LimitSettings

_MIB: Final = 1024 * 1024
MESSAGES_MAX: Final = 2**53


class MemorySettings(LimitSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about memory."""

    global_max_size: Annotated[
        int,
        setting(
            "Memory for messages, over all addresses. When they take as much, every address that "
            "has messages is full, and its `address-full-policy` holds until they take at most "
            "80 % of it. -1 takes half of the memory limit of the container, or of the machine; "
            "less where 96 MiB, and 6 KiB for each of `max-queues`, do not fit beside it.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=8 * _MIB,
            special=-1,
            default_text="half of the memory limit (-1)",
        ),
    ] = -1
    global_max_messages: Annotated[
        int,
        setting(
            "Messages in memory, over all addresses; as `global-max-size`. -1 is no limit.",
            change=Change.RESTART,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
        ),
    ] = -1

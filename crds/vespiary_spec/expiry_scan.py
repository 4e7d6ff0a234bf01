"""The setting of the scan for expired messages.

Owns: the field, which `BrokerSettings` has through `naming.NamingSettings`.
Never: looks for anything (that is the engine).
Called by: `naming`.
"""

from typing import Annotated

from vespiary_spec.delivery_counts import DeliveryCountSettings
from vespiary_spec.model import Change, Unit, setting


class ExpiryScanSettings(
    DeliveryCountSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """How often expired messages that nobody asks for are looked for."""

    message_expiry_scan_period: Annotated[
        int,
        setting(
            "Time between two looks for messages that have expired and that no consumer asks for; "
            "0 or -1: they stay until it is their turn (they are never delivered).",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=3_600_000,
            special=-1,
        ),
    ] = 30_000

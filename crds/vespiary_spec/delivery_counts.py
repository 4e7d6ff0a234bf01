"""The settings of delivery counts in the journal.

Owns: these fields, which `BrokerSettings` has through `expiry_scan.ExpiryScanSettings`.
Never: counts anything (that is the core).
Called by: `expiry_scan`.
"""

from typing import Annotated

from vespiary_spec.management import CounterSettings
from vespiary_spec.model import Change, setting


class DeliveryCountSettings(
    CounterSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Which deliveries of a message survive a crash of the broker."""

    persist_delivery_count_before_delivery: Annotated[
        bool,
        setting(
            "Whether each delivery of a durable message is counted in the journal before it is "
            "given out, not when it comes back: so a message that the broker, or its consumer, "
            "does not survive is a dead letter after `max-delivery-attempts`. Each delivery waits "
            "for a flush then.",
            change=Change.RESTART,
        ),
    ] = False
    max_redelivery_records: Annotated[
        int,
        setting(
            "How many deliveries of a message are counted in the journal. Those after them are "
            "counted in memory alone, so a restart goes back to this many; -1: all are.",
            change=Change.RESTART,
            minimum=0,
            maximum=65_535,
            special=-1,
        ),
    ] = 10

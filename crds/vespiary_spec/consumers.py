"""Settings of addresses about their consumers: which are too slow, and how much they get ahead.

Owns: these fields of `AddressSettings`.
Never: measures anything (that is the engine).
Called by: `lifecycle`, `addresses`.
"""

import enum
from typing import Annotated, Any

from vespiary_spec.management import AddressManagementSettings
from vespiary_spec.model import Change, Unit, setting

SLOW_CONSUMER_CHECK_PERIOD_S_MAX = 86_400
PREFETCH_MAX = 1_000_000
WINDOW_BYTES_PER_MESSAGE = 1024
"""What a window in bytes counts a message as."""


class SlowConsumerPolicy(enum.StrEnum):
    """What becomes of a consumer that is too slow."""

    NOTIFY = "NOTIFY"
    KILL = "KILL"


class SlowConsumerUnit(enum.StrEnum):
    """What `slow-consumer-threshold` counts."""

    MESSAGES_PER_SECOND = "MESSAGES_PER_SECOND"
    MESSAGES_PER_MINUTE = "MESSAGES_PER_MINUTE"
    MESSAGES_PER_HOUR = "MESSAGES_PER_HOUR"
    MESSAGES_PER_DAY = "MESSAGES_PER_DAY"

    @property
    def seconds(self) -> int:
        """Seconds of that time."""
        return _SECONDS[self]


_SECONDS = {
    SlowConsumerUnit.MESSAGES_PER_SECOND: 1,
    SlowConsumerUnit.MESSAGES_PER_MINUTE: 60,
    SlowConsumerUnit.MESSAGES_PER_HOUR: 3600,
    SlowConsumerUnit.MESSAGES_PER_DAY: 86_400,
}


class ConsumerSettings(
    AddressManagementSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `AddressSettings` has about consumers."""

    slow_consumer_threshold: Annotated[
        int | None,
        setting(
            "A consumer that acknowledges fewer messages than this, while there were enough for "
            "all, is slow. Counted as `slow-consumer-threshold-measurement-unit` says. -1 or 0: "
            "none is.",
            change=Change.RELOAD,
            unit=Unit.MESSAGES,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    slow_consumer_threshold_measurement_unit: Annotated[
        SlowConsumerUnit | None,
        setting(
            "What `slow-consumer-threshold` counts.",
            change=Change.RELOAD,
            default_text="MESSAGES_PER_SECOND",
        ),
    ] = None
    slow_consumer_policy: Annotated[
        SlowConsumerPolicy | None,
        setting(
            "What becomes of a slow consumer: NOTIFY writes a warning to the log and counts it, "
            "KILL ends its connection as well.",
            change=Change.RELOAD,
            default_text="NOTIFY",
        ),
    ] = None
    slow_consumer_check_period: Annotated[
        int | None,
        setting(
            "Time over which consumers are measured, one period after the other.",
            change=Change.RELOAD,
            unit=Unit.SECONDS,
            minimum=1,
            maximum=SLOW_CONSUMER_CHECK_PERIOD_S_MAX,
            default_text="5",
        ),
    ] = None
    queue_prefetch: Annotated[
        int | None,
        setting(
            "Messages that a consumer gets before it acknowledges any, unless it asks for another "
            "number, or its acceptor has a `prefetch`.",
            change=Change.RELOAD,
            unit=Unit.MESSAGES,
            minimum=1,
            maximum=PREFETCH_MAX,
            default_text="1000",
        ),
    ] = None
    default_consumer_window_size: Annotated[
        int | None,
        setting(
            "The same in bytes, counted as one message for each KiB; the smaller of the two holds. "
            "-1 is no limit of this kind.",
            change=Change.RELOAD,
            unit=Unit.BYTES,
            minimum=0,
            special=-1,
            default_text="1MiB",
        ),
    ] = None
    max_address_consumers: Annotated[
        int | None,
        setting(
            "Consumers that all queues of the address may have together; one more is refused. -1 "
            "is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    max_address_queues: Annotated[
        int | None,
        setting(
            "Queues that the address may have, those of subscriptions included; one more is "
            "refused, unless it stands in the configuration. -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None


def prefetch_of(settings: ConsumerSettings) -> int:
    """Return how many messages a consumer gets ahead that asks for no number.

    Args:
        settings: Of its address; no field is None.
    """
    prefetch, window_bytes = settings.queue_prefetch, settings.default_consumer_window_size
    assert prefetch is not None
    assert window_bytes is not None
    if window_bytes < 0:
        return prefetch
    return max(1, min(prefetch, window_bytes // WINDOW_BYTES_PER_MESSAGE))


CONSUMER_DEFAULTS: dict[str, Any] = {
    "slow_consumer_threshold": -1,
    "slow_consumer_threshold_measurement_unit": SlowConsumerUnit.MESSAGES_PER_SECOND,
    "slow_consumer_policy": SlowConsumerPolicy.NOTIFY,
    "slow_consumer_check_period": 5,
    "queue_prefetch": 1000,
    "default_consumer_window_size": 1024 * 1024,
    "max_address_consumers": -1,
    "max_address_queues": -1,
}
"""What holds when no match says otherwise."""

"""Settings of what an operator looks at: message counters, metrics by address, browsing.

Owns: these fields of `BrokerSettings` and of `AddressSettings`, as the first links in the chains of
Structs that those are made of.
Never: counts or shows anything (that is the engine, and the HTTP API).
Called by: `delivery_counts`, `lifecycle`.
"""

from typing import Annotated, Any, Final

import msgspec

from vespiary_spec.logs import LogSettings
from vespiary_spec.model import Change, Unit, setting

HISTORY_DAYS_MAX: Final = 366
BROWSE_PAGE_MAX: Final = 1000
ATTRIBUTE_BYTES_MAX: Final = 1024 * 1024


class CounterSettings(LogSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about message counters."""

    message_counter_enabled: Annotated[
        bool,
        setting(
            "Keep message counters of queues and addresses, with a history by hour and day.",
            change=Change.RELOAD,
        ),
    ] = False
    message_counter_sample_period: Annotated[
        int,
        setting(
            "Time between two looks at what was counted.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=1000,
            maximum=3_600_000,
        ),
    ] = 10_000
    message_counter_max_day_history: Annotated[
        int,
        setting(
            "Days, today included, that the history of message counters reaches back.",
            change=Change.RELOAD,
            minimum=0,
            maximum=HISTORY_DAYS_MAX,
        ),
    ] = 10


class AddressManagementSettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `AddressSettings` has about looking at messages and figures."""

    message_counter_history_day_limit: Annotated[
        int | None,
        setting(
            "Days that the history of message counters reaches back for the address and its "
            "queues, at most `message-counter-max-day-history`; 0 is as many as that.",
            change=Change.RELOAD,
            minimum=0,
            maximum=HISTORY_DAYS_MAX,
            default_text="0",
        ),
    ] = None
    enable_metrics: Annotated[
        bool | None,
        setting(
            "Have series of their own for the address and its queues in `/metrics`. The totals "
            "hold them in any case.",
            change=Change.RELOAD,
            default_text="true",
        ),
    ] = None
    enable_ingress_timestamp: Annotated[
        bool | None,
        setting(
            "Give each message a header `ingress-timestamp`, with the time when it came in "
            "milliseconds since 1970. Such messages take the slower way through Python.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    management_browse_page_size: Annotated[
        int | None,
        setting(
            "Messages on a page of browsed ones when the caller asks for no number.",
            unit=Unit.MESSAGES,
            change=Change.RELOAD,
            minimum=1,
            maximum=BROWSE_PAGE_MAX,
            default_text="200",
        ),
    ] = None
    management_message_attribute_size_limit: Annotated[
        int | None,
        setting(
            "Longer headers and bodies are cut when messages are browsed, if the caller does not "
            "ask for more of the bodies. -1 cuts none.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
            minimum=0,
            maximum=ATTRIBUTE_BYTES_MAX,
            special=-1,
            default_text="256",
        ),
    ] = None


MANAGEMENT_DEFAULTS: Final[dict[str, Any]] = {
    "message_counter_history_day_limit": 0,
    "enable_metrics": True,
    "enable_ingress_timestamp": False,
    "management_browse_page_size": 200,
    "management_message_attribute_size_limit": 256,
}
"""What holds for an address when no match says otherwise."""

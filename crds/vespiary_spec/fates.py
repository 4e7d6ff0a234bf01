"""Settings of what becomes of messages that are not consumed: dead letters, redelivery, expiry.

Owns: the fields, which every address has.
Never: decides anything (that is the engine).
Called by: `addresses`, whose Struct has these fields too.
"""

from typing import Annotated, Any

from vespiary_spec import limits
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.paging import PageSettings

_NAME_OR_NONE = r"^([^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?)?$"
DELAY_MS_MAX = 315_576_000_000
"""Ten years: longer delays are mistakes in the unit."""


class FateSettings(PageSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `AddressSettings` has about dead letters, redelivery and expiry.

    A link in the chain of Structs that it is made of: they can't have two bases.
    """

    dead_letter_address: Annotated[
        str | None,
        setting(
            "Address that a message goes to after `max-delivery-attempts` deliveries; its queue is "
            "made when the first one comes. Empty: such a message is dropped (counted, and logged "
            "once for each queue).",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
            default_text="DLQ",
        ),
    ] = None
    auto_create_dead_letter_resources: Annotated[
        bool | None,
        setting(
            "Make a queue of its own in the dead letter address for each address that has dead "
            "letters, when the first one comes.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    dead_letter_queue_prefix: Annotated[
        str | None,
        setting(
            "What the names of these queues begin with, before the name of the original address.",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=200,
            default_text="DLQ.",
        ),
    ] = None
    dead_letter_queue_suffix: Annotated[
        str | None,
        setting(
            "What the names of these queues end with.",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=200,
            default_text="empty",
        ),
    ] = None
    send_to_dla_on_no_route: Annotated[
        bool | None,
        setting(
            "Send a message to the dead letter address when no queue of its address takes it. "
            "Messages to such addresses take the slower way through Python.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    max_delivery_attempts: Annotated[
        int | None,
        setting(
            "Deliveries of a message until it is a dead letter; 0 or -1: any number.",
            change=Change.RELOAD,
            minimum=0,
            maximum=65_535,
            special=-1,
            default_text="10",
        ),
    ] = None
    redelivery_delay: Annotated[
        int | None,
        setting(
            "Time that a message that came back waits until it is given out again. Not kept over "
            "restarts.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            maximum=DELAY_MS_MAX,
            default_text="0",
        ),
    ] = None
    redelivery_delay_multiplier: Annotated[
        float | None,
        setting(
            "The delay is multiplied by this with every delivery after the first.",
            change=Change.RELOAD,
            minimum=1,
            maximum=1000,
            default_text="1.0",
        ),
    ] = None
    redelivery_collision_avoidance_factor: Annotated[
        float | None,
        setting(
            "The delay is changed by a random part of itself, up to this much more or less, so "
            "that messages that failed together do not come together again.",
            change=Change.RELOAD,
            minimum=0,
            maximum=1,
            default_text="0.0",
        ),
    ] = None
    max_redelivery_delay: Annotated[
        int | None,
        setting(
            "The longest delay that the multiplier leads to; -1: ten times `redelivery-delay`.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            maximum=DELAY_MS_MAX,
            special=-1,
            default_text="10 times `redelivery-delay`",
        ),
    ] = None
    expiry_address: Annotated[
        str | None,
        setting(
            "Address that messages go to whose time is over; empty: they are dropped.",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
            default_text="none",
        ),
    ] = None
    auto_create_expiry_resources: Annotated[
        bool | None,
        setting(
            "Make a queue of its own in the expiry address for each address whose messages expire.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    expiry_queue_prefix: Annotated[
        str | None,
        setting(
            "What the names of these queues begin with, before the name of the original address.",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=200,
            default_text="EXP.",
        ),
    ] = None
    expiry_queue_suffix: Annotated[
        str | None,
        setting(
            "What the names of these queues end with.",
            change=Change.RELOAD,
            pattern=_NAME_OR_NONE,
            max_length=200,
            default_text="empty",
        ),
    ] = None
    expiry_delay: Annotated[
        int | None,
        setting(
            "Time to live of messages that are sent without one; -1: they live for ever. With it "
            "`min-expiry-delay` and `max-expiry-delay` mean nothing.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            maximum=DELAY_MS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    min_expiry_delay: Annotated[
        int | None,
        setting(
            "Shortest time to live: messages sent with a shorter one get this, and those sent "
            "without one too if there is no `max-expiry-delay`; -1: none.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            maximum=DELAY_MS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    max_expiry_delay: Annotated[
        int | None,
        setting(
            "Longest time to live: messages sent with a longer one or without one get this; "
            "-1: none.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            maximum=DELAY_MS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    no_expiry: Annotated[
        bool | None,
        setting(
            "Let messages live for ever, whatever time to live they are sent with.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None


FATE_DEFAULTS: dict[str, Any] = {
    "dead_letter_address": "DLQ",
    "auto_create_dead_letter_resources": False,
    "dead_letter_queue_prefix": "DLQ.",
    "dead_letter_queue_suffix": "",
    "send_to_dla_on_no_route": False,
    "max_delivery_attempts": 10,
    "redelivery_delay": 0,
    "redelivery_delay_multiplier": 1.0,
    "redelivery_collision_avoidance_factor": 0.0,
    "max_redelivery_delay": -1,
    "expiry_address": "",
    "auto_create_expiry_resources": False,
    "expiry_queue_prefix": "EXP.",
    "expiry_queue_suffix": "",
    "expiry_delay": -1,
    "min_expiry_delay": -1,
    "max_expiry_delay": -1,
    "no_expiry": False,
}
"""What holds when no match says otherwise."""

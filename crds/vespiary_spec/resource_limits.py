"""Settings of the whole broker that bound what there may be: addresses, queues, and by user.

Owns: these fields of `BrokerSettings`.
Never: counts anything (that is the engine).
Called by: `settings`.
"""

from typing import Annotated

import msgspec

from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.naming import NamingSettings


class ResourceLimit(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one user may have, or each of all others."""

    match: Annotated[
        str,
        setting(
            "Name of the user; `#` is everybody without an entry, each for itself.",
            change=Change.RELOAD,
            pattern=r"^[^\x00-\x20\x7f]+$",
            max_length=200,
        ),
    ]
    max_sessions: Annotated[
        int,
        setting(
            "Connections that the user may have at a time; -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
        ),
    ] = -1
    max_mqtt_sessions: Annotated[
        int,
        setting(
            "Sessions of MQTT clients that outlive their connection that the user may have; -1 is "
            "any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
        ),
    ] = -1
    max_queues: Annotated[
        int,
        setting(
            "Queues that the user may have made by sending and subscribing, temporary ones "
            "included; -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
        ),
    ] = -1
    producer_byte_rate: Annotated[
        int,
        setting(
            "How much all connections of the user together may send, acknowledgements included. "
            "Beyond it they are read more slowly, and nothing is dropped. What it may send in a "
            "second may come at once. -1 is any number.",
            unit=Unit.BYTES_PER_SECOND,
            change=Change.RELOAD,
            minimum=1024,
            special=-1,
            has_no_rule=True,
        ),
    ] = -1
    producer_message_rate: Annotated[
        int,
        setting(
            "Messages a second that all connections of the user together may send; as "
            "`producer-byte-rate`. 0 has all of them wait; -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
        ),
    ] = -1


class LimitSettings(NamingSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about limits, and about names."""

    max_addresses: Annotated[
        int,
        setting(
            "Most addresses; one more is refused, unless a created one without queues can go "
            "for it. -1 allows as many as fit into an eighth of the memory limit (one for each "
            "2 KiB), at least 10000; 0 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="by memory (-1)",
        ),
    ] = -1
    max_queues: Annotated[
        int,
        setting(
            "Most queues, temporary ones included; one more is refused. -1 allows as many as "
            "fit into an eighth of the memory limit (one for each 6 KiB), at least 10000; 0 is "
            "any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="by memory (-1)",
        ),
    ] = -1
    max_subscriptions: Annotated[
        int,
        setting(
            "Most subscriptions of all connections together, whatever their queue; one more is "
            "refused. -1 allows as many as fit into an eighth of the memory limit (one for each "
            "1 KiB), at least 10000; 0 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="by memory (-1)",
        ),
    ] = -1
    resource_limit_settings: Annotated[
        tuple[ResourceLimit, ...],
        setting("Limits by user.", change=Change.RELOAD, key="match", max_length=10_000),
    ] = ()

"""Settings of addresses about coming and going: creation by use, deletion, and how many consumers.

Owns: these fields of `AddressSettings`.
Never: deletes anything (that is the engine).
Called by: `addresses`.
"""

import enum
from typing import Annotated, Any

from vespiary_spec import limits
from vespiary_spec.consumers import ConsumerSettings
from vespiary_spec.model import Change, Unit, setting


class DeletionPolicy(enum.StrEnum):
    """What becomes of something that was configured and is not any more."""

    OFF = "OFF"
    FORCE = "FORCE"


class LifecycleSettings(
    ConsumerSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `AddressSettings` has about coming and going."""

    auto_create_queues: Annotated[
        bool | None,
        setting(
            "Create a queue when a client first uses it.",
            change=Change.RELOAD,
            default_text="true",
        ),
    ] = None
    auto_create_addresses: Annotated[
        bool | None,
        setting(
            "Create an address when a client first uses it.",
            change=Change.RELOAD,
            default_text="true",
        ),
    ] = None
    auto_delete_queues: Annotated[
        bool | None,
        setting(
            "Delete a queue that a client's use created, when it is empty and its last consumer "
            "has gone.",
            change=Change.RELOAD,
            default_text="true",
        ),
    ] = None
    auto_delete_created_queues: Annotated[
        bool | None,
        setting(
            "Delete queues that were created by API or CLI like those that use created. "
            "Configured queues and durable subscriptions stay in any case.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    auto_delete_queues_delay: Annotated[
        int | None,
        setting(
            "How long a queue has to be without consumers before it is deleted.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            default_text="0",
        ),
    ] = None
    auto_delete_queues_message_count: Annotated[
        int | None,
        setting(
            "Messages that a queue may hold when it is deleted; they are lost. -1 is any number.",
            unit=Unit.MESSAGES,
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="0",
        ),
    ] = None
    auto_delete_queues_skip_usage_check: Annotated[
        bool | None,
        setting(
            "Delete also queues that never had a consumer or a message; their delay begins with "
            "their creation, or the broker's start.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    auto_delete_addresses: Annotated[
        bool | None,
        setting(
            "Delete a created address when its last queue has gone.",
            change=Change.RELOAD,
            default_text="true",
        ),
    ] = None
    auto_delete_addresses_delay: Annotated[
        int | None,
        setting(
            "How long an address has to be without queues before it is deleted.",
            unit=Unit.MILLISECONDS,
            change=Change.RELOAD,
            minimum=0,
            default_text="0",
        ),
    ] = None
    auto_delete_addresses_skip_usage_check: Annotated[
        bool | None,
        setting(
            "Delete also created addresses that never had a queue.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    config_delete_queues: Annotated[
        DeletionPolicy | None,
        setting(
            "Queues that were configured and are not any more: OFF leaves them, FORCE deletes them "
            "at the start, with their messages.",
            change=Change.RELOAD,
            default_text="OFF",
        ),
    ] = None
    config_delete_addresses: Annotated[
        DeletionPolicy | None,
        setting(
            "Addresses that were configured and are not any more: OFF leaves them, FORCE deletes "
            "them at the start, with their queues and messages.",
            change=Change.RELOAD,
            default_text="OFF",
        ),
    ] = None
    config_delete_diverts: Annotated[
        DeletionPolicy | None,
        setting(
            "Diverts of the address that were configured and are not any more: OFF leaves them, "
            "FORCE deletes them at the start.",
            change=Change.RELOAD,
            default_text="OFF",
        ),
    ] = None
    default_max_consumers: Annotated[
        int | None,
        setting(
            "Most consumers that a queue has at a time, unless it says otherwise itself. -1 is any "
            "number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    default_purge_on_no_consumers: Annotated[
        bool | None,
        setting(
            "Empty a queue when its last consumer goes, and let it take nothing until the next one "
            "comes, unless it says otherwise itself.",
            change=Change.RELOAD,
            default_text="false",
        ),
    ] = None
    retroactive_message_count: Annotated[
        int | None,
        setting(
            "So many of the latest messages to a MULTICAST address are kept, and each queue that "
            "is made in it begins with them.",
            unit=Unit.MESSAGES,
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.RETROACTIVE_MESSAGES_MAX,
            default_text="0",
        ),
    ] = None


LIFECYCLE_DEFAULTS: dict[str, Any] = {
    "auto_create_queues": True,
    "auto_create_addresses": True,
    "auto_delete_queues": True,
    "auto_delete_created_queues": False,
    "auto_delete_queues_delay": 0,
    "auto_delete_queues_message_count": 0,
    "auto_delete_queues_skip_usage_check": False,
    "auto_delete_addresses": True,
    "auto_delete_addresses_delay": 0,
    "auto_delete_addresses_skip_usage_check": False,
    "config_delete_queues": DeletionPolicy.OFF,
    "config_delete_addresses": DeletionPolicy.OFF,
    "config_delete_diverts": DeletionPolicy.OFF,
    "default_max_consumers": -1,
    "default_purge_on_no_consumers": False,
    "retroactive_message_count": 0,
}
"""What holds when no match says otherwise."""

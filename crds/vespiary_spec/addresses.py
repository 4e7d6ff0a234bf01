"""Addresses, their queues, and the settings that a match of addresses shares.

Owns: routing types and the defaults of addresses.
Never: matches an address with a pattern (that is the engine).
Called by: `settings`, which users import from, and `resources`.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.consumers import CONSUMER_DEFAULTS
from vespiary_spec.fates import FATE_DEFAULTS, FateSettings
from vespiary_spec.lifecycle import LIFECYCLE_DEFAULTS
from vespiary_spec.management import MANAGEMENT_DEFAULTS
from vespiary_spec.memory import MESSAGES_MAX
from vespiary_spec.model import Change, Unit, setting
from vespiary_spec.paging import PAGE_DEFAULTS
from vespiary_spec.queue_kinds import KIND_DEFAULTS, QueueKindProperties

ADDRESS_PATTERN = r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?$"
"""Names of addresses and queues: no control characters, and no space at the beginning or end."""


class RoutingType(enum.StrEnum):
    """How an address hands out messages: to one consumer, or to every subscription."""

    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


class DiskFullPolicy(enum.StrEnum):
    """What becomes of a message that has to be stored while the disk is full."""

    BLOCK = "BLOCK"
    FAIL = "FAIL"
    DROP = "DROP"


class AddressFullPolicy(enum.StrEnum):
    """What becomes of a message to an address that is full."""

    PAGE = "PAGE"
    BLOCK = "BLOCK"
    FAIL = "FAIL"
    DROP = "DROP"


class AddressSettings(FateSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Settings of the addresses that a match covers; None takes the next wider match's value.

    The widest match is `#`; below it lie the defaults of `ADDRESS_DEFAULTS`.
    """

    default_address_routing_type: Annotated[
        RoutingType | None,
        setting(
            "Routing type of a created address when neither client nor prefix names one. With "
            "ANYCAST it is a queue; topics are named by a prefix, a capability, or MQTT.",
            change=Change.RELOAD,
            default_text="ANYCAST",
        ),
    ] = None
    default_queue_routing_type: Annotated[
        RoutingType | None,
        setting(
            "Routing type of what is created for address::queue when neither client nor prefix "
            "names one; default-address-routing-type is for names without a queue.",
            change=Change.RELOAD,
            default_text="MULTICAST",
        ),
    ] = None
    id_cache_size: Annotated[
        int | None,
        setting(
            "Duplicate ids that the address remembers. 0 switches detection off, -1 takes the "
            "`id-cache-size` of the whole broker.",
            change=Change.RELOAD,
            minimum=0,
            maximum=limits.DUPLICATE_IDS_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    max_size_bytes: Annotated[
        int | None,
        setting(
            "Memory that the messages of the address may take (their content, 24 bytes each, and "
            "40 for each queue that has one). When they take as much the address is full, until "
            "they take at most 80 % of it. 0 is always full; -1 leaves it to `global-max-size`.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    max_size_messages: Annotated[
        int | None,
        setting(
            "Messages that the address may have in memory; as `max-size-bytes`. A message in "
            "several of its queues is one.",
            change=Change.RELOAD,
            minimum=0,
            maximum=MESSAGES_MAX,
            special=-1,
            default_text="-1",
        ),
    ] = None
    producer_message_rate: Annotated[
        int | None,
        setting(
            "Messages a second that all clients together may send to the address. Beyond it those "
            "who send there are read more slowly, and nothing is dropped. What may come in a "
            "second may come at once. 0 has all of them wait; -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="-1",
        ),
    ] = None
    producer_byte_rate: Annotated[
        int | None,
        setting(
            "The same in bytes of properties and bodies.",
            unit=Unit.BYTES_PER_SECOND,
            change=Change.RELOAD,
            minimum=1024,
            special=-1,
            default_text="-1",
        ),
    ] = None
    address_full_policy: Annotated[
        AddressFullPolicy | None,
        setting(
            "What becomes of a message to a full address: PAGE takes it, and moves messages out of "
            "memory; BLOCK lets its sender wait; FAIL refuses it with an error; DROP takes it and "
            "forgets it (counted, and logged once each time that the address becomes full).",
            change=Change.RELOAD,
            default_text="PAGE",
        ),
    ] = None
    max_size_bytes_reject_threshold: Annotated[
        int | None,
        setting(
            "With BLOCK: from this size of the address on its messages are refused, as by FAIL, "
            "instead of letting their senders wait. -1 is never.",
            unit=Unit.BYTES,
            change=Change.RELOAD,
            minimum=1,
            special=-1,
            default_text="-1",
        ),
    ] = None
    disk_full_policy: Annotated[
        DiskFullPolicy | None,
        setting(
            "What becomes of a durable message while the disk is full and the journal has no room "
            "left: BLOCK lets its sender wait, FAIL refuses it with an error, DROP takes it and "
            "forgets it (counted, and logged once for each address).",
            change=Change.RELOAD,
            default_text="BLOCK",
        ),
    ] = None


ADDRESS_DEFAULTS = AddressSettings(
    **CONSUMER_DEFAULTS,
    **MANAGEMENT_DEFAULTS,
    **LIFECYCLE_DEFAULTS,
    **KIND_DEFAULTS,
    **PAGE_DEFAULTS,
    **FATE_DEFAULTS,
    default_address_routing_type=RoutingType.ANYCAST,
    default_queue_routing_type=RoutingType.MULTICAST,
    id_cache_size=-1,
    max_size_bytes=-1,
    max_size_messages=-1,
    producer_message_rate=-1,
    producer_byte_rate=-1,
    address_full_policy=AddressFullPolicy.PAGE,
    max_size_bytes_reject_threshold=-1,
    disk_full_policy=DiskFullPolicy.BLOCK,
)
"""What holds for an address when no match says otherwise; None only in `paging.OPEN_DEFAULTS`."""


class Queue(QueueKindProperties, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A queue that exists from the start."""

    name: Annotated[
        str,
        setting(
            "Name of the queue, unique in the broker.",
            change=Change.RELOAD,
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]
    routing_type: Annotated[
        RoutingType,
        setting(
            "ANYCAST: every message goes to one consumer. MULTICAST: this queue is one "
            "subscription of the address.",
            change=Change.RELOAD,
        ),
    ] = RoutingType.ANYCAST
    durable: Annotated[
        bool,
        setting("Whether queue and messages survive a restart.", change=Change.RELOAD),
    ] = True
    max_consumers: Annotated[
        int | None,
        setting(
            "Most consumers at a time; -1 is any number.",
            change=Change.RELOAD,
            minimum=0,
            special=-1,
            default_text="`default-max-consumers`",
        ),
    ] = None
    purge_on_no_consumers: Annotated[
        bool | None,
        setting(
            "Empty the queue when its last consumer goes, and let it take nothing until the next "
            "one comes.",
            change=Change.RELOAD,
            default_text="`default-purge-on-no-consumers`",
        ),
    ] = None
    filter_string: Annotated[
        str,
        setting(
            "Selector that messages have to pass to come into the queue, such as `price < 10 AND "
            "colour = 'red'`; empty for every message. Changed at a restart, it holds for the "
            "messages from then on.",
            change=Change.RELOAD,
            max_length=limits.SELECTOR_CHARACTERS_MAX,
            default_text="none",
        ),
    ] = ""


class Address(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An address that exists from the start; never deleted automatically."""

    name: Annotated[
        str,
        setting(
            "Name of the address, unique.",
            change=Change.RELOAD,
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]
    routing_types: Annotated[
        tuple[RoutingType, ...],
        setting(
            "Routing types that the address serves.",
            change=Change.RELOAD,
            max_length=2,
            default_text="those of its queues, else `default-address-routing-type`",
        ),
    ] = ()
    queues: Annotated[
        tuple[Queue, ...],
        setting("Queues of the address.", change=Change.RELOAD, key="name", max_length=1000),
    ] = ()

"""Diverts: messages of one address that go to another one, instead or as well.

Owns: the settings of a divert, and what `BrokerSettings` has about them.
Never: decides where a message goes (that is the engine).
Called by: `settings`, whose `BrokerSettings` they are part of.
"""

import enum
from typing import Annotated

import msgspec

from vespiary_spec import limits
from vespiary_spec.addresses import ADDRESS_PATTERN
from vespiary_spec.model import Change, setting
from vespiary_spec.paging import PagingSettings


class DivertRoutingType(enum.StrEnum):
    """Which queues of its new address a diverted message is for."""

    STRIP = "STRIP"
    PASS = "PASS"  # noqa: S105 - no password
    ANYCAST = "ANYCAST"
    MULTICAST = "MULTICAST"


class Divert(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A divert that exists from the start."""

    name: Annotated[
        str,
        setting(
            "Name of the divert, unique in the broker.",
            change=Change.RELOAD,
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]
    address: Annotated[
        str,
        setting(
            "Address whose messages are diverted; with wildcards, every address that it covers.",
            change=Change.RELOAD,
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]
    forwarding_address: Annotated[
        str,
        setting(
            "Address that they go to.",
            change=Change.RELOAD,
            pattern=ADDRESS_PATTERN,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
        ),
    ]
    routing_name: Annotated[
        str,
        setting(
            "Another name, shown by the API; the reference system tells diverts apart by it.",
            change=Change.RELOAD,
            max_length=limits.ADDRESS_NAME_CHARACTERS_MAX,
            default_text="the name",
        ),
    ] = ""
    filter_string: Annotated[
        str,
        setting(
            "Selector of the messages that are diverted; empty for all.",
            change=Change.RELOAD,
            max_length=limits.SELECTOR_CHARACTERS_MAX,
            default_text="none",
        ),
    ] = ""
    exclusive: Annotated[
        bool,
        setting(
            "Whether a diverted message goes to the other address alone. Otherwise it goes there "
            "as well.",
            change=Change.RELOAD,
        ),
    ] = False
    routing_type: Annotated[
        DivertRoutingType,
        setting(
            "Queues of the other address that it is for: STRIP those of both kinds, PASS those of "
            "the kind that its sender asked for, ANYCAST or MULTICAST those of that kind.",
            change=Change.RELOAD,
        ),
    ] = DivertRoutingType.STRIP


class DivertSettings(PagingSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What `BrokerSettings` has about diverts, memory, limits and names."""

    diverts: Annotated[
        tuple[Divert, ...],
        setting(
            "Diverts that exist from the start.",
            change=Change.RELOAD,
            key="name",
            max_length=limits.DIVERTS_MAX,
        ),
    ] = ()

"""Settings of the whole broker about names: wildcards, and how long what has a name lasts.

Owns: what separates words, which words are wildcards, and the period of automatic deletion.
Never: matches a name (that is the engine).
Called by: `settings`, whose `BrokerSettings` they are part of.
"""

from typing import Annotated

import msgspec

from vespiary_spec.expiry_scan import ExpiryScanSettings
from vespiary_spec.model import Change, Unit, setting

_SIGN_PATTERN = r"^[^\x00-\x20\x7f:]$"
"""One printable character; a colon would read as the separator of fully qualified names."""


class WildcardAddresses(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Wildcards in addresses, in matches of settings, and in those of limits."""

    routing_enabled: Annotated[
        bool,
        setting(
            "Whether a subscription to an address with wildcards gets the messages of every "
            "address that it covers. If not, wildcards in addresses are characters like others.",
            change=Change.RESTART,
        ),
    ] = True
    delimiter: Annotated[
        str,
        setting(
            "Character between the words of a name.", change=Change.RESTART, pattern=_SIGN_PATTERN
        ),
    ] = "."
    any_words: Annotated[
        str,
        setting(
            "The word that stands for any number of words, also none.",
            change=Change.RESTART,
            pattern=_SIGN_PATTERN,
        ),
    ] = "#"
    single_word: Annotated[
        str,
        setting("The word that stands for one word.", change=Change.RESTART, pattern=_SIGN_PATTERN),
    ] = "*"


class NamingSettings(
    ExpiryScanSettings, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What `BrokerSettings` has about names."""

    wildcard_addresses: Annotated[
        WildcardAddresses,
        setting("Wildcards in addresses and in matches of settings.", change=Change.RESTART),
    ] = WildcardAddresses()
    address_queue_scan_period: Annotated[
        int,
        setting(
            "Time between two looks for queues and addresses that are to be deleted "
            "automatically; 0 never looks.",
            unit=Unit.MILLISECONDS,
            change=Change.RESTART,
            minimum=0,
            maximum=86_400_000,
        ),
    ] = 30_000

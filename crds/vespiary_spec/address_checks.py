"""Settings of one match that contradict each other.

Owns: the rules and their sentences.
Never: merges matches; what a wider match adds is the engine's to bear.
Called by: `configuration.check`.
"""

from __future__ import annotations

from collections.abc import Mapping

from vespiary_spec.addresses import AddressFullPolicy, AddressSettings
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, spell


def check_address_settings(matches: Mapping[str, AddressSettings], spelling: Spelling) -> None:
    """Check what spans several settings of a match.

    Args:
        matches: Settings by match.
        spelling: How the error's path spells names.

    Raises:
        ConfigError: With the path to one of the settings that contradict each other.
    """
    whole = spell("address_settings", spelling)
    for match, settings in matches.items():
        path = f"{whole}.{match}" if spelling is Spelling.KEBAB else f"{whole}[{match}]"
        _check_memory(settings, path, spelling)


def _check_memory(settings: AddressSettings, path: str, spelling: Spelling) -> None:
    policy, size = settings.address_full_policy, settings.max_size_bytes
    for name in ("max_size_bytes", "max_size_messages"):
        if policy is AddressFullPolicy.BLOCK and getattr(settings, name) == 0:
            raise ConfigError(
                "with BLOCK, whoever sends to an address that may hold nothing waits for ever",
                path=f"{path}.{spell(name, spelling)}",
                value=0,
                allowed="at least 1, or -1 for no limit",
                cure="take FAIL to refuse all messages",
            )
    threshold = settings.max_size_bytes_reject_threshold
    if threshold is None or threshold < 0:
        return
    own = f"{path}.{spell('max_size_bytes_reject_threshold', spelling)}"
    if policy not in (None, AddressFullPolicy.BLOCK):
        raise ConfigError(
            f"it belongs to {spell('address_full_policy', spelling)} BLOCK",
            path=own,
            value=threshold,
            cure="leave it out",
        )
    if size is not None and size >= threshold:
        raise ConfigError(
            "messages would be refused before any sender waits",
            path=own,
            value=threshold,
            allowed=f"more than {spell('max_size_bytes', spelling)} = {size}",
        )

"""Matches of `security-settings` that cannot be what was meant.

Owns: the rules and their sentences. A match that covers nothing would leave addresses to a wider
one, which lets in others than it says.
Never: decides who may do what.
Called by: `configuration.check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vespiary_spec.acceptors import Acceptor
from vespiary_spec.addresses import ADDRESS_PATTERN
from vespiary_spec.errors import ConfigError
from vespiary_spec.limits import ADDRESS_NAME_CHARACTERS_MAX
from vespiary_spec.model import Spelling, spell
from vespiary_spec.naming import WildcardAddresses
from vespiary_spec.security import ADMIN_ROLE, SecuritySettings


def check_anonymous_role(role: str, spelling: Spelling) -> None:
    """Check that clients without a login are no administrators.

    Args:
        role: Their role.
        spelling: How the error's path spells names.

    Raises:
        ConfigError: They would be.
    """
    if role == ADMIN_ROLE:
        path = ".".join(spell(name, spelling) for name in ("security", "anonymous_role"))
        raise ConfigError(
            "clients without a login cannot be administrators",
            path=path,
            value=role,
            cure="name another role, and give it permissions by security-settings",
        )


def check_security_settings(
    matches: Mapping[str, SecuritySettings],
    wildcards: WildcardAddresses,
    acceptors: Iterable[Acceptor],
    spelling: Spelling,
) -> None:
    """Check that each match can cover an address.

    Args:
        matches: Permissions by match.
        wildcards: What wildcards look like.
        acceptors: The acceptors; what they take off destinations is in no address.
        spelling: How the error's path spells names.

    Raises:
        ConfigError: With the path of the match.
    """
    whole = spell("security_settings", spelling)
    prefixes = {
        prefix
        for acceptor in acceptors
        for prefix in (acceptor.anycast_prefix, acceptor.multicast_prefix)
        if prefix
    }
    for match in matches:
        path = f"{whole}.{match}" if spelling is Spelling.KEBAB else f"{whole}[{match}]"
        if not re.fullmatch(ADDRESS_PATTERN, match):
            raise ConfigError(
                "this match covers no address: names have no control characters, and no space at "
                "the beginning or end",
                path=path,
                value=match,
                cure="take them out",
            )
        if len(match.encode()) > ADDRESS_NAME_CHARACTERS_MAX:
            raise ConfigError(
                "this match is longer than any address",
                path=path,
                value=len(match.encode()),
                allowed=f"{ADDRESS_NAME_CHARACTERS_MAX} bytes",
            )
        if "::" in match:
            raise ConfigError(
                "permissions are by address, and this names a queue of one",
                path=path,
                value=match,
                cure="leave :: and what follows out",
            )
        for prefix in sorted(prefixes):
            if match.startswith(prefix):
                raise ConfigError(
                    "this match covers no address: the prefix of an acceptor is no part of it",
                    path=path,
                    value=match,
                    cure=f"leave {prefix} out",
                )
        _check_wildcards(match, wildcards, path)


def _check_wildcards(match: str, wildcards: WildcardAddresses, path: str) -> None:
    """Refuse wildcards that are only a part of a word: they would stand for themselves."""
    for sign in (wildcards.any_words, wildcards.single_word):
        for word in match.split(wildcards.delimiter):
            if sign in word and word != sign:
                raise ConfigError(
                    f"`{sign}` is no wildcard inside of a word, so this match covers the address "
                    "of that very name alone",
                    path=path,
                    value=match,
                    cure=f"make it a word of its own, between `{wildcards.delimiter}`",
                )

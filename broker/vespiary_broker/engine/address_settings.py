"""Which settings hold for an address: matches with wildcards, merged from narrow to wide.

Owns the meaning of a match: words between dots, `*` is one word, `#` any number of words, also
none. A setting that the narrowest match leaves open comes from the next wider one, and at last
from `ADDRESS_DEFAULTS`. Called by `registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings, DiskFullPolicy

_CACHE_ENTRIES_MAX: Final = 10_000
_RANK: Final = {"*": 1, "#": 2}


def is_match(pattern: str, address: str) -> bool:
    """Return whether an address is covered by a match.

    Args:
        pattern: Words, `*` and `#` between dots.
        address: Name of an address.
    """
    if pattern == address or pattern == "#":
        return True
    words = address.split(".")
    # The set of numbers of words that the pattern so far can have taken: no backtracking, so no
    # pattern takes longer than words x parts.
    reached = {0}
    for part in pattern.split("."):
        if not reached:
            return False
        if part == "#":
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {
                n + 1 for n in reached if n < len(words) and (part == "*" or words[n] == part)
            }
    return len(words) in reached


def _width(pattern: str) -> tuple[tuple[int, ...], int]:
    """Return a key that sorts narrow patterns before wide ones."""
    parts = pattern.split(".")
    return tuple(_RANK.get(part, 0) for part in parts), -len(parts)


class AddressSettingsTable:
    """The settings of all addresses.

    Args:
        matches: Settings by match, as in `address-settings` of the configuration.
    """

    def __init__(self, matches: Mapping[str, AddressSettings] | None = None) -> None:
        self._cache: dict[str, AddressSettings] = {}
        self._matches: list[tuple[str, AddressSettings]] = []
        self.replace(matches or {})

    def replace(self, matches: Mapping[str, AddressSettings]) -> None:
        """Take other settings from now on."""
        self._matches = sorted(matches.items(), key=lambda item: _width(item[0]))
        self._cache.clear()

    @property
    def has_disk_full_policies(self) -> bool:
        """Whether any match has another `disk-full-policy` than BLOCK."""
        policies = {settings.disk_full_policy for _, settings in self._matches}
        return not policies <= {None, DiskFullPolicy.BLOCK}

    def settings_for(self, address: str) -> AddressSettings:
        """Return the settings of an address; no field is None.

        Args:
            address: Name of the address; it need not exist.
        """
        found = self._cache.get(address)
        if found is None:
            found = self._merge(address)
            if len(self._cache) >= _CACHE_ENTRIES_MAX:
                self._cache.clear()
            self._cache[address] = found
        return found

    def _merge(self, address: str) -> AddressSettings:
        values: dict[str, object] = {}
        for pattern, settings in self._matches:
            if is_match(pattern, address):
                for name in settings.__struct_fields__:
                    value = getattr(settings, name)
                    if value is not None:
                        values.setdefault(name, value)
        return msgspec.structs.replace(ADDRESS_DEFAULTS, **values)

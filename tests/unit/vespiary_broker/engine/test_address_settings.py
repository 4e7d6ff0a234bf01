from vespiary_broker.engine.address_settings import AddressSettingsTable
from vespiary_broker.engine.wildcards import WildcardSyntax
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings, RoutingType


def test_narrow_matches_win_and_leave_the_rest_to_wider_ones() -> None:
    table = AddressSettingsTable(
        {
            "#": AddressSettings(auto_create_queues=False, auto_delete_queues=False),
            "a.#": AddressSettings(auto_delete_queues=True),
            "a.*": AddressSettings(default_address_routing_type=RoutingType.MULTICAST),
            "a.b": AddressSettings(auto_create_queues=True),
        }
    )
    b = table.settings_for("a.b")
    assert b.auto_create_queues is True
    assert b.auto_delete_queues is True
    assert b.default_address_routing_type is RoutingType.MULTICAST
    assert b.auto_create_addresses is True
    assert table.settings_for("a.c").auto_create_queues is False
    assert table.settings_for("x").auto_delete_queues is False
    assert table.settings_for("x").default_address_routing_type is RoutingType.ANYCAST


def test_replaced_settings_hold_at_once() -> None:
    table = AddressSettingsTable()
    assert table.settings_for("a") == ADDRESS_DEFAULTS
    table.replace({"a": AddressSettings(auto_create_queues=False)})
    assert table.settings_for("a").auto_create_queues is False


def test_matches_have_the_brokers_wildcards() -> None:
    matches = {
        "a/>": AddressSettings(auto_create_queues=False),
        "a/+": AddressSettings(auto_create_queues=True),
        "a.#": AddressSettings(auto_create_queues=False),
    }
    syntax = WildcardSyntax("/", any_words=">", single_word="+", is_routing_enabled=False)
    table = AddressSettingsTable(matches, syntax)
    assert table.settings_for("a/b").auto_create_queues is True
    assert table.settings_for("a/b/c").auto_create_queues is False
    assert table.settings_for("a.b").auto_create_queues is True

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


def test_each_setting_says_which_match_it_is_from() -> None:
    table = AddressSettingsTable(
        {
            "#": AddressSettings(auto_create_queues=False, max_size_bytes=1000),
            "a.*": AddressSettings(max_size_bytes=500),
            "b.*": AddressSettings(max_size_messages=7),
        }
    )
    found = {setting.name: setting for setting in table.effective("a.b")}
    assert sorted(found) == list(found)
    assert set(found) == {name.replace("_", "-") for name in AddressSettings.__struct_fields__}
    assert found["max-size-bytes"][1:] == (500, "a.*")
    assert found["auto-create-queues"][1:] == (False, "#")
    assert found["max-size-messages"][1:] == (-1, None)
    assert found["page-full-policy"][1:] == (None, None)
    settings = table.settings_for("a.b")
    assert all(getattr(settings, n.replace("-", "_")) == s.value for n, s in found.items())

import pytest

from vespiary_broker.app.naming import naming_rules
from vespiary_broker.engine.naming import UserLimit
from vespiary_spec.configuration import from_plain

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("memory_bytes", "addresses", "queues"),
    [(256 * MIB, 16_384, 10_000), (64 * MIB, 10_000, 10_000), (16_384 * MIB, 1_048_576, 349_525)],
)
def test_bounds_come_from_the_memory(memory_bytes: int, addresses: int, queues: int) -> None:
    rules = naming_rules(from_plain({}), memory_bytes)
    assert (rules.addresses_max, rules.queues_max) == (addresses, queues)
    assert rules.subscriptions_max == max(memory_bytes // 8192, 10_000)


def test_rules_are_what_the_configuration_says() -> None:
    configuration = from_plain(
        {
            "max-addresses": 5,
            "max-queues": 0,
            "max-subscriptions": 7,
            "address-queue-scan-period": "2s",
            "wildcard-addresses": {"delimiter": "/", "routing-enabled": False},
            "resource-limit-settings": [
                {"match": "alice", "max-sessions": 1, "max-mqtt-sessions": 2},
                {"match": "#"},
            ],
        }
    )
    rules = naming_rules(configuration)
    assert (rules.addresses_max, rules.queues_max, rules.scan_period_s) == (5, 0, 2.0)
    assert rules.subscriptions_max == 7
    assert rules.syntax.delimiter == "/"
    assert not rules.syntax.is_routing_enabled
    assert rules.users == {
        "alice": UserLimit(sessions_max=1, durable_sessions_max=2),
        "#": UserLimit(),
    }

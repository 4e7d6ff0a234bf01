"""How long messages wait that come faster than their address or their user may send."""

from __future__ import annotations

import math

import pytest

from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.naming import EVERYBODY, UserLimit
from vespiary_broker.engine.send_rates import SendRates
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings

HERE = Destination("orders", user="alice")


def settings(**values: int) -> AddressSettings:
    return AddressSettings(**{**_plain(), **values})


def _plain() -> dict[str, object]:
    return {name: getattr(ADDRESS_DEFAULTS, name) for name in AddressSettings.__struct_fields__}


def at_once(rates: SendRates, where: Destination, rules: AddressSettings, now_s: float) -> int:
    """Return how many messages come before one has to wait."""
    for count in range(10_000):
        if rates.wait_s(where, rules, now_s) > 0:
            return count
        rates.take(where, rules, 100, now_s)
    return -1


def test_without_rates_nothing_waits() -> None:
    rates = SendRates({"alice": UserLimit(bytes_per_s=5000)})
    assert not rates.is_limited(HERE, ADDRESS_DEFAULTS)
    assert at_once(rates, HERE, ADDRESS_DEFAULTS, 0.0) == -1


@pytest.mark.parametrize("rate", [1, 2, 50])
def test_what_may_come_in_a_second_may_come_at_once(rate: int) -> None:
    rates, rules = SendRates(), settings(producer_message_rate=rate)
    assert rates.is_limited(HERE, rules)
    assert at_once(rates, HERE, rules, 0.0) == rate
    assert rates.wait_s(HERE, rules, 0.0) == pytest.approx(1 / rate)
    assert at_once(rates, HERE, rules, 1.0001) == rate
    assert at_once(rates, HERE, rules, 1000.0) == rate, "no more, however long it was quiet"


def test_the_rate_holds_over_a_long_time() -> None:
    rates, rules, count, now_s = SendRates(), settings(producer_message_rate=10), 0, 0.0
    while now_s < 100:
        if rates.wait_s(HERE, rules, now_s) == 0:
            rates.take(HERE, rules, 100, now_s)
            count += 1
        now_s += 0.01
    assert count == pytest.approx(1000, rel=0.02)


def test_bytes_count_too_and_a_large_message_is_paid_for_afterwards() -> None:
    rates, rules = SendRates(), settings(producer_byte_rate=1000)
    rates.take(HERE, rules, 5000, 0.0)
    assert rates.wait_s(HERE, rules, 0.0) == pytest.approx(4.0, rel=0.01)
    assert rates.wait_s(HERE, rules, 4.1) == 0


def test_an_address_is_shared_by_its_senders_and_others_have_their_own() -> None:
    rates, rules = SendRates(), settings(producer_message_rate=10)
    assert at_once(rates, HERE, rules, 0.0) == 10
    assert rates.wait_s(Destination("orders", user="bob"), rules, 0.0) > 0
    assert rates.wait_s(Destination("prices", user="alice"), rules, 0.0) == 0


def test_a_user_has_one_rate_for_all_addresses() -> None:
    rates = SendRates({"alice": UserLimit(messages_per_s=5), EVERYBODY: UserLimit()})
    assert rates.is_limited(HERE, ADDRESS_DEFAULTS)
    assert at_once(rates, HERE, ADDRESS_DEFAULTS, 0.0) == 5
    assert rates.wait_s(Destination("prices", user="alice"), ADDRESS_DEFAULTS, 0.0) > 0
    assert rates.wait_s(Destination("orders", user="bob"), ADDRESS_DEFAULTS, 0.0) == 0


def test_everybody_else_has_a_rate_each() -> None:
    rates = SendRates({EVERYBODY: UserLimit(messages_per_s=5)})
    for user in ("bob", "carol"):
        assert at_once(rates, Destination("orders", user=user), ADDRESS_DEFAULTS, 0.0) == 5
    assert not rates.is_limited(Destination("orders", user=""), ADDRESS_DEFAULTS)


def test_zero_lets_nothing_come() -> None:
    rates, rules = SendRates(), settings(producer_message_rate=0)
    assert rates.wait_s(HERE, rules, 0.0) == math.inf
    assert rates.wait_s(HERE, rules, 1e6) == math.inf
    assert rates.wait_s(HERE, settings(producer_message_rate=10), 1e6 + 1) == 0, "until it goes"


def test_the_broker_itself_is_not_limited() -> None:
    rates, rules = SendRates(), settings(producer_message_rate=1)
    own = Destination("orders", user="alice", is_trusted=True)
    assert not rates.is_limited(own, rules)
    assert at_once(rates, own, rules, 0.0) == -1


def test_buckets_stay_bounded() -> None:
    rates, rules = SendRates(), settings(producer_message_rate=10)
    for number in range(25_000):
        rates.take(Destination(f"a{number}"), rules, 1, number * 0.001)
    assert len(rates._buckets) <= 10_001

"""How long users wait that send too fast."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.naming import EVERYBODY, UserLimit
from vespiary_broker.engine.rates import Rates


def made(**limits: int) -> Rates:
    return Rates({name: UserLimit(bytes_per_s=rate) for name, rate in limits.items()})


def test_without_limits_nobody_waits() -> None:
    assert not Rates().is_on
    rates = Rates({"alice": UserLimit(sessions_max=1)})
    assert not rates.is_on
    assert rates.take("alice", 10**12, 0.0) == 0


def test_a_second_may_come_at_once_and_then_the_rate_holds() -> None:
    rates = made(alice=1000)
    assert rates.take("alice", 1000, 0.0) == 0
    assert rates.take("alice", 500, 0.0) == pytest.approx(0.5)
    assert rates.take("alice", 0, 0.4) == pytest.approx(0.1)
    assert rates.take("alice", 0, 0.501) == 0
    assert rates.take("alice", 0, 100.0) == 0
    assert rates.take("alice", 1001, 100.0) == pytest.approx(0.001), "no more than a second's worth"


def test_the_rate_is_that_of_all_connections_together_over_a_long_time() -> None:
    rates, now_s, sent, reading_at_s = made(alice=10_000), 0.0, 0, [0.0, 0.0, 0.0]
    while now_s < 100:
        for number, at_s in enumerate(reading_at_s):
            if at_s <= now_s and rates.take("alice", 0, now_s) == 0:
                sent += 4096
                reading_at_s[number] = now_s + rates.take("alice", 4096, now_s)
        now_s += 0.01
    assert sent == pytest.approx(100 * 10_000, rel=0.05)


def test_users_do_not_wait_for_each_other() -> None:
    rates = Rates({EVERYBODY: UserLimit(bytes_per_s=1000), "root": UserLimit()})
    assert rates.take("alice", 5000, 0.0) == pytest.approx(4.0)
    assert rates.take("bob", 900, 0.0) == 0
    assert rates.take("root", 10**9, 0.0) == 0, "its own entry has no limit"
    assert rates.take("", 10**9, 0.0) == 0, "before the login"


def test_other_limits_count_at_once() -> None:
    rates = made(alice=1000)
    assert rates.take("alice", 100_000, 0.0) > 90
    rates.change({"alice": UserLimit(bytes_per_s=1_000_000)})
    assert rates.take("alice", 0, 0.0) == 0
    rates.change({})
    assert not rates.is_on


def test_many_users_are_forgotten_when_they_are_silent() -> None:
    rates = Rates({EVERYBODY: UserLimit(bytes_per_s=1000)})
    for number in range(25_000):
        rates.take(f"user{number}", 10, number * 0.001)
    assert len(rates._buckets) <= 10_001

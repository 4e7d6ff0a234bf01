"""Places by network address: what counts as one, who has one, and what is said of the others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.server.address_limits import (
    KIND,
    LOG_PERIOD_S,
    WORDS_AT_ONCE,
    AddressLimits,
    network_of,
)
from vespiary_broker.server.connection import Connection
from vespiary_spec.settings import Acceptor
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import FakeTransport, ServerRig

NET = "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("::192.0.2.1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", ""),
        ("", ""),
        ("localhost", ""),
    ],
)
def test_what_counts_as_one_address(peer: str, network: str) -> None:
    assert network_of(peer) == network


def test_an_address_has_as_many_places_as_allowed() -> None:
    limits = AddressLimits("all", 2)
    assert [limits.enter(name, NET) for name in "abc"] == [True, True, False]
    assert limits.enter("d", "192.0.2.2"), "another address is not hurt"
    limits.leave("c")
    assert not limits.enter("e", NET), "one that was refused had no place to give back"
    limits.leave("a")
    assert limits.enter("f", NET)
    assert limits.enter("f", NET), "it has one"
    limits.leave("f")
    limits.leave("f")
    assert [limits.enter(name, NET) for name in "gh"] == [True, False]


def test_addresses_of_one_network_share_its_places() -> None:
    limits = AddressLimits("all", 2)
    assert limits.enter(1, "2001:db8::1")
    assert limits.enter(2, "2001:db8::2")
    assert not limits.enter(3, "2001:db8::ffff:3")
    assert limits.enter(4, "2001:db8:0:1::1")
    assert limits.enter(5, "::ffff:192.0.2.1")
    assert limits.enter(6, "192.0.2.1")
    assert not limits.enter(7, "::ffff:192.0.2.1")


def test_those_that_count_for_no_address_have_no_bound() -> None:
    limits = AddressLimits("all", 1)
    for number in range(5):
        limits.exempt(number)
        assert limits.enter(number, NET), "a balancer speaks for itself"
        assert limits.enter(f"gone {number}", "?")
    assert limits.enter("client", NET)
    assert not limits.enter("another", NET)


def test_without_a_bound_nothing_is_kept() -> None:
    limits = AddressLimits("all", 0)
    for number in range(100):
        limits.exempt(number) if number % 2 else None
        assert limits.enter(number, NET)
    assert (limits.networks_count, limits.refused_count, limits._places) == (0, 0, {})
    limits.leave(1)


@given(st.lists(st.tuples(st.sampled_from("eelx"), st.integers(0, 9), st.integers(0, 2))))
def test_counts_are_those_of_who_is_there(acts: list[tuple[str, int, int]]) -> None:
    """Against a model that counts anew each time."""
    limits = AddressLimits("all", 2)
    held: dict[int, str] = {}
    refused: dict[int, str] = {}
    for act, client, number in acts:
        peer = f"192.0.2.{number}"
        if act == "l":
            limits.leave(client)
            held.pop(client, None)
            refused.pop(client, None)
        elif client not in held and client not in refused:
            if act == "x":
                limits.exempt(client)
                held[client] = ""
            else:
                has_place = list(held.values()).count(peer) < 2
                assert limits.enter(client, peer) is has_place
                (held if has_place else refused)[client] = peer
        assert limits.refused_count == len(refused)
        networks = {*held.values(), *refused.values()} - {""}
        assert limits.networks_count == len(networks)
    for client in (*held, *refused):
        limits.leave(client)
    assert limits.networks_count == limits.refused_count == 0
    assert not limits._places


def test_what_a_client_is_told() -> None:
    limits = AddressLimits("all", 1)
    limits.enter("a", NET)
    limits.enter("b", NET)
    assert limits.refusal("a", 1000.0) is None
    assert limits.refusal("other", 1000.0) is None
    assert str(limits.refusal("b", 1000.0)).startswith(
        "too many connections from 192.0.2.1 (got 2, allowed: at most 1). Close some of them, or "
        "raise connections-per-address-allowed of the acceptor."
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Take what the log says."""
    found = [r.getMessage() for r in caplog.records if r.levelno >= logging.INFO]
    caplog.clear()
    return found


def refuse(limits: AddressLimits, peer: str, now_s: float) -> None:
    client = object()
    assert not limits.enter(client, peer)
    assert limits.refusal(client, now_s) is not None
    limits.leave(client)


def test_a_flood_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    limits = AddressLimits("all", 1)
    for number in range(100):
        limits.enter(number, f"192.0.2.{number}")
    now_s = 1000.0
    for _ in range(1000):
        refuse(limits, "192.0.2.1", now_s)
    assert lines(caplog) == [
        "connections refused, their address has as many as it may acceptor=all address=192.0.2.1 "
        "allowed=1 refused_since_last_line=0"
    ]
    for number in range(100):
        refuse(limits, f"192.0.2.{number}", now_s + LOG_PERIOD_S - 1)
    said = lines(caplog)
    assert len(said) == 9, "ten lines in a period, whatever comes"
    assert said[0].endswith("address=192.0.2.0 allowed=1 refused_since_last_line=999")
    refuse(limits, "192.0.2.1", now_s + LOG_PERIOD_S)
    assert lines(caplog)[0].endswith("address=192.0.2.1 allowed=1 refused_since_last_line=90")


# --- connections ------------------------------------------------------------------------------


class Client:
    """One connection of the rig, from an address of its own."""

    def __init__(self, rig: ServerRig, peer: str) -> None:
        self.transport = FakeTransport()
        self.connection = Connection(rig.cycle, rig.listener, peer)
        self.connection.connection_made(self.transport)

    @property
    def told(self) -> str:
        return self.transport.data.decode()

    def lose(self) -> None:
        self.transport.is_closed = True
        self.connection.connection_lost(None)


def on_rig(test: Any, **settings: Any) -> None:
    async def scenario() -> None:
        rig = ServerRig(acceptor=Acceptor(name="all", port=0, **settings))
        await test(rig)
        await rig.close()
        assert rig.listener.addresses.networks_count == 0

    product_loop.run(scenario())


def test_those_that_are_refused_take_no_place_of_others(caplog: pytest.LogCaptureFixture) -> None:
    """A host that goes on and on leaves the acceptor's connections to others."""

    async def test(rig: ServerRig) -> None:
        hostile = [Client(rig, NET) for _ in range(20)]
        assert [bool(each.told) for each in hostile[:3]] == [False, False, True]
        others = [Client(rig, f"192.0.2.{number}") for number in range(2, 5)]
        assert [each.told for each in others[:2]] == ["", ""]
        assert "too many connections (got 5, allowed: at most 4)" in others[2].told
        assert rig.cycle.errors == {KIND: 18, "LimitExceeded": 1}

    on_rig(test, connections_allowed=4, connections_per_address_allowed=2)
    assert sum(NET in line for line in lines(caplog)) == 1


def test_few_at_a_time_are_told_why() -> None:
    """Last words keep a connection for some seconds; a flood of them would cost descriptors."""

    async def test(rig: ServerRig) -> None:
        _, *refused = [Client(rig, NET) for _ in range(WORDS_AT_ONCE + 3)]
        for each in refused[:WORDS_AT_ONCE]:
            assert "message:too many connections from 192.0.2.1 (got 2" in each.told
            assert not each.transport.is_closed
        for each in refused[WORDS_AT_ONCE:]:
            assert each.told == ""
            assert each.transport.is_closed
        another, last = Client(rig, "192.0.2.2"), Client(rig, "192.0.2.2")
        assert another.told == ""
        assert "from 192.0.2.2" in last.told, "the words of others are left"
        for each in refused:
            each.lose()
        assert "from 192.0.2.1" in Client(rig, NET).told

    on_rig(test, connections_per_address_allowed=1)


def test_a_broker_that_lets_nobody_in_says_so_and_counts_no_refusal() -> None:
    async def test(rig: ServerRig) -> None:
        Client(rig, NET)
        rig.cycle.cordon = "this broker is drained"
        assert "this broker is drained" in Client(rig, NET).told
        assert rig.cycle.errors == {}

    on_rig(test, connections_per_address_allowed=1)


def test_by_default_an_address_may_have_all() -> None:
    async def test(rig: ServerRig) -> None:
        assert not any(Client(rig, NET).told for _ in range(200))

    on_rig(test)

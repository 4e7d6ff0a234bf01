"""Connections whose user sends too fast are read more slowly, and lose nothing."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.engine.naming import NamingRules, UserLimit
from vespiary_broker.server import throttle
from vespiary_testkit.journal_workload import run_in_virtual_time
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.server_rig import Peer, ServerRig

MESSAGE = b"SEND\ndestination:/queue/q\npersistent:true\n\n" + b"x" * 4000 + b"\0"
USER = "anonymous"
BYTES_PER_S = 32 * 1024
STEP_S = 1 / 64
"""Rates and steps are powers of two, so that waits are exact: the virtual clock stands still for a
wait too short to change it, such as one for the remainder of a division."""


def limit(rig: ServerRig, rate: int) -> None:
    rules = NamingRules(users={USER: UserLimit(bytes_per_s=rate)} if rate else {})
    rig.engine.registry.limits.change(rules)


def rigged() -> ServerRig:
    return ServerRig(journal=MemoryJournal(is_automatic=True))


async def until_read(peer: Peer) -> None:
    for _ in range(1000):
        if peer.transport.is_reading_now:
            return
        await asyncio.sleep(STEP_S)
    raise AssertionError("it is never read again")


@run_in_virtual_time
async def test_who_sends_too_fast_is_not_read_for_a_while_and_nothing_is_lost() -> None:
    rig = rigged()
    limit(rig, BYTES_PER_S)
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    began_s = rig.cycle.loop.time()
    for _ in range(25):
        await until_read(peer)
        peer.send(MESSAGE)
    await rig.flush()
    took_s = rig.cycle.loop.time() - began_s
    wanted_s = 24 * len(MESSAGE) / BYTES_PER_S - 1  # what a second brings came at once
    assert wanted_s <= took_s < wanted_s + STEP_S
    queue = rig.engine.registry.queues["q"]
    assert rig.core.queue_statistics(queue.id).added == 25
    assert rig.engine.registry.limits.rates.throttled >= 1
    assert not peer.frames(), "it was told nothing"
    await rig.close()


@run_in_virtual_time
async def test_other_users_and_logins_are_read() -> None:
    rig = rigged()
    limit(rig, 2000)
    peer = rig.peer()
    await peer.login()
    peer.send(MESSAGE)
    assert not peer.transport.is_reading_now
    assert not peer.connection.is_listening, "heart-beats are not missed meanwhile"
    stranger = rig.peer()
    stranger.send(b"CONNECT\naccept-version:1.2\nhost:x\n")
    assert stranger.transport.is_reading_now
    await rig.close()


@run_in_virtual_time
async def test_a_limit_that_goes_lets_it_be_read_again() -> None:
    rig = rigged()
    limit(rig, 1024)
    peer = rig.peer()
    await peer.login()
    for _ in range(10):
        peer.send(MESSAGE)  # what TLS had already
    assert not peer.transport.is_reading_now
    limit(rig, 0)
    await until_read(peer)
    await rig.flush()
    assert rig.core.queue_statistics(rig.engine.registry.queues["q"].id).added == 10
    await rig.close()


@run_in_virtual_time
async def test_a_connection_that_ends_meanwhile_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rigged()
    limit(rig, 1024)
    peer, leaving = rig.peer(), rig.peer()
    await peer.login()
    await leaving.login()
    peer.send(MESSAGE)
    peer.lose()
    leaving.send(MESSAGE + b"DISCONNECT\nreceipt:1\n\n\0")
    await rig.flush()
    assert [frame.command for frame in leaving.frames()] == ["RECEIPT"]
    await rig.close()
    looks: list[object] = []
    rates = rig.engine.registry.limits.rates
    monkeypatch.setattr(rates, "take", lambda *looked: looks.append(looked) or 0.0)
    await asyncio.sleep(throttle.LOOK_S + STEP_S)
    assert not looks, "a timer was left"

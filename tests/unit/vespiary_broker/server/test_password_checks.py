"""Hashing of passwords: how much of it, in which order, and for whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from vespiary_broker.engine.logins import Check, Logins, Principal
from vespiary_broker.engine.users import User, make_user
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_spec.errors import LoginBusy, LoginRefused
from vespiary_testkit.journal_workload import run
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig

NAMES = ("alice", "bob", "carol")
USERS = {name: make_user(name, f"{name}-right", iterations=4096) for name in NAMES}


class Desk:
    """Logins whose hashes a test counts, and holds back."""

    def __init__(self, waiting_max: int = 1024, *, is_held: bool = True) -> None:
        self.users = dict(USERS)
        self.logins = Logins(lambda: self.users)
        self.hashed: list[str] = []
        self.may_go = threading.Event()
        if not is_held:
            self.may_go.set()
        self.checks = PasswordChecks(self.logins, waiting_max, self._derive)

    def _derive(self, check: Check) -> bool:
        self.may_go.wait(60)
        self.hashed.append(f"{check.name}@{check.peer}")
        return check.is_known and check.password == f"{check.name}-right"

    async def log_in(
        self,
        name: str,
        peer: str = "10.0.0.1",
        password: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Principal:
        now_s = asyncio.get_running_loop().time()
        found = self.logins.begin(name, password or f"{name}-right", peer, now_s)
        if isinstance(found, Principal):
            return found
        is_good = await self.checks.is_good(found, is_wanted)
        return self.logins.finish(found, is_good=is_good, now_s=now_s)

    def later(self, name: str, *arguments: str, **more: object) -> asyncio.Task[Principal]:
        return asyncio.get_running_loop().create_task(
            self.log_in(name, *arguments, **more)  # type: ignore[arg-type]
        )


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@run
async def test_ten_thousand_clients_that_come_back_cost_a_hash_for_each_user() -> None:
    desk = Desk()
    clients = [desk.later(NAMES[n % 3], f"10.{n % 7}.{n // 250}.{n % 250}") for n in range(10_000)]
    await turns()
    desk.may_go.set()
    assert {each.name for each in await asyncio.gather(*clients)} == set(NAMES)
    for n in range(10_000):
        await desk.log_in(NAMES[n % 3])
    assert len(desk.hashed) == 3
    assert desk.checks.begun == 3
    desk.checks.close()


@run
async def test_the_same_wrong_password_is_hashed_once() -> None:
    desk = Desk(is_held=False)
    for name in ("alice", "nobody"):
        for n in range(20):
            with pytest.raises(LoginRefused, match="user name or password are wrong"):
                await desk.log_in(name, f"10.0.1.{n}", "old password")
    assert len(desk.hashed) == 2, "an unknown user costs as much as a known one"
    desk.checks.close()


@run
async def test_a_flood_of_guesses_delays_no_other_network() -> None:
    desk = Desk()
    guesses = [desk.later("alice", "10.9.9.9", f"guess {n}") for n in range(500)]
    await turns()
    good = desk.later("bob", "10.0.0.1")
    await turns()
    desk.may_go.set()
    assert (await good).name == "bob"
    assert desk.hashed.index("bob@10.0.0.1") <= 2, "one was begun before, and one took its turn"
    await desk.log_in("bob", "10.7.7.7")  # remembered: it does not wait at all
    await asyncio.gather(*guesses, return_exceptions=True)
    desk.checks.close()


@run
async def test_who_was_in_before_comes_first_and_networks_that_failed_last() -> None:
    desk = Desk(is_held=False)
    await desk.log_in("carol", "10.0.0.3")
    for n in (8, 9):
        with pytest.raises(LoginRefused):
            await desk.log_in("alice", f"10.0.0.{n}", "wrong")
    desk.users["carol"] = make_user("carol", "carol-right", iterations=4096)  # not remembered
    desk.hashed.clear()
    desk.may_go.clear()
    first = desk.later("alice", "10.0.0.1", "begun before all others")
    await turns()
    others = [desk.later("bob", "10.0.0.8", f"wrong {n}") for n in range(3)]
    others += [desk.later("bob", "10.0.0.2"), desk.later("carol", "10.0.0.3")]
    await turns()
    desk.may_go.set()
    await asyncio.gather(first, *others, return_exceptions=True)
    assert desk.hashed == [
        *("alice@10.0.0.1", "carol@10.0.0.3", "bob@10.0.0.2"),
        *["bob@10.0.0.8"] * 3,
    ]
    desk.checks.close()


@run
async def test_a_user_who_guesses_from_its_own_network_delays_nobody() -> None:
    desk = Desk(is_held=False)
    await desk.log_in("alice", "10.9.9.9")
    desk.may_go.clear()
    guesses = [desk.later("alice", "10.9.9.9", f"guess {n}") for n in range(50)]
    await turns()
    good = desk.later("bob", "10.0.0.1")
    await turns()
    desk.hashed.clear()
    desk.may_go.set()
    assert (await good).name == "bob"
    assert desk.hashed.index("bob@10.0.0.1") <= 2
    await asyncio.gather(*guesses, return_exceptions=True)
    assert not desk.checks._pairs
    desk.checks.close()


@run
async def test_who_waits_behind_others_for_the_same_hash_comes_first_with_it() -> None:
    desk = Desk(is_held=False)
    await desk.log_in("bob", "10.0.0.2")
    with pytest.raises(LoginRefused):
        await desk.log_in("alice", "10.0.0.9", "wrong")
    desk.users["bob"] = make_user("bob", "bob-right", iterations=4096)
    desk.may_go.clear()
    blocker = desk.later("alice", "10.0.0.1")
    await turns()
    waiting = [desk.later("carol", "10.0.0.1"), desk.later("bob", "10.0.0.9")]
    await turns()
    waiting.append(desk.later("bob", "10.0.0.2"))
    await turns()
    desk.hashed.clear()
    desk.may_go.set()
    await asyncio.gather(blocker, *waiting)
    assert desk.hashed == ["alice@10.0.0.1", "bob@10.0.0.9", "carol@10.0.0.1"]
    assert desk.checks.waiting == 0
    desk.checks.close()


@run
async def test_a_full_queue_turns_away_who_has_the_most_in_it() -> None:
    desk = Desk(waiting_max=20)
    guesses = [desk.later("alice", "10.9.9.9", f"guess {n}") for n in range(100)]
    await turns()
    assert sum(guess.done() for guess in guesses) == 79  # one is being hashed, 20 wait
    with pytest.raises(LoginBusy, match="too many logins wait"):
        await guesses[-1]
    good = desk.later("bob", "10.0.0.1")
    await turns()
    assert not good.done()
    assert sum(guess.done() for guess in guesses) == 80
    desk.may_go.set()
    assert (await good).name == "bob"
    await asyncio.gather(*guesses, return_exceptions=True)
    desk.checks.close()


@run
async def test_nothing_is_hashed_for_clients_that_have_left() -> None:
    desk = Desk()
    first = desk.later("alice")
    await turns()
    gone = desk.later("bob", is_wanted=lambda: False)
    await turns()
    desk.may_go.set()
    await first
    with pytest.raises(LoginBusy, match="left before"):
        await gone
    assert desk.hashed == ["alice@10.0.0.1"]
    assert (await desk.log_in("bob")).name == "bob"
    desk.checks.close()


@run
async def test_a_request_that_is_given_up_while_it_waits() -> None:
    desk = Desk()
    first, second = desk.later("alice"), desk.later("bob")
    await turns()
    second.cancel()
    await turns()
    desk.may_go.set()
    await first
    assert (await desk.log_in("carol")).name == "carol"
    assert desk.hashed == ["alice@10.0.0.1", "carol@10.0.0.1"]
    desk.checks.close()


@run
async def test_those_who_wait_when_the_broker_stops_are_told() -> None:
    desk = Desk()
    begun, waiting = desk.later("alice"), desk.later("bob")
    await turns()
    desk.checks.close()
    with pytest.raises(LoginBusy, match="the broker is stopping"):
        await waiting
    desk.may_go.set()
    await begun


@run
async def test_clients_that_leave_and_come_back_take_no_memory() -> None:
    desk = Desk()
    first = desk.later("alice")
    await turns()  # the thread has it, so the others wait
    stays = desk.later("bob")
    left = [desk.later("bob", is_wanted=lambda: False) for _ in range(3000)]
    await turns()
    assert max(len(job.waiters) for job in desk.checks._jobs.values()) <= 512
    assert sum(each.done() for each in left) > 2000
    assert not stays.done()
    desk.may_go.set()
    assert (await stays).name == "bob"
    assert {type(each) for each in await asyncio.gather(*left, return_exceptions=True)} <= {
        LoginBusy,
        Principal,
    }
    await first
    desk.checks.close()


@run
async def test_a_changed_password_is_not_found_in_memory() -> None:
    desk = Desk(is_held=False)
    await desk.log_in("alice")
    desk.users["alice"] = make_user("alice", "other", iterations=4096)
    with pytest.raises(LoginRefused):
        await desk.log_in("alice", password="wrong")
    await desk.log_in("alice")  # the rig's hash takes it
    assert len(desk.hashed) == 3
    desk.checks.close()


@run
async def test_memory_is_bounded_and_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vespiary_broker.engine.logins._WRONG_ENTRIES_MAX", 5)
    desk = Desk(is_held=False)
    for n in range(50):
        with pytest.raises(LoginRefused):
            await desk.log_in(f"user{n}", f"10.0.0.{n}", "s3cret-guess")
    await desk.log_in("alice")
    del desk.users["alice"], desk.users["carol"]
    await desk.log_in("bob")
    logins = desk.logins
    assert len(logins._wrong) == 5
    assert set(logins._remembered) == {"bob"}
    kept = repr((logins._wrong, logins._remembered, desk.checks._jobs))
    assert "s3cret" not in kept
    assert "right" not in kept
    assert not desk.checks._jobs
    desk.checks.close()


def storm() -> dict[str, User]:
    return {"alice": make_user("alice", "right", iterations=4096)}


@on_rig(users=storm)
async def test_the_protocols_share_one_hash(rig: MqttRig) -> None:
    peers = [rig.peer() for _ in range(300)]
    for peer in peers:
        peer.send(b"CONNECT\naccept-version:1.2\nhost:x\nlogin:alice\npasscode:right\n\n\0")
    while not all(peer.transport.data for peer in peers):
        await asyncio.sleep(0.002)
        await rig.settle()
    assert all(peer.frames()[0].command == "CONNECTED" for peer in peers)
    assert rig.cycle.passwords.begun == 1

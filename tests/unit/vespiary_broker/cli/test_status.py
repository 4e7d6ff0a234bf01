"""`vespiary status` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_broker.engine.stall_watch import StalledPlace
from vespiary_broker.engine.stalls import Stall, StallReason
from vespiary_testkit.admin_rig import LARGE, AdminRig, MemoryBroker, admin_rig, journal_statistics

FULL = "no journal file can be made: a new journal file would pass max-disk-usage (got 91 %)"


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    broker = MemoryBroker()
    broker.large = replace(LARGE, waiting=0)
    with admin_rig(broker) as rig:
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program(["status", *arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def ready(rig: AdminRig) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.port}/readyz") as answer:
        return bytes(answer.read())


def test_a_broker_that_is_well(rig: AdminRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(rig) == 0
    shown = capsys.readouterr().out
    assert "listener    all on 127.0.0.1:61616 (stomp), 1 connection\n" in shown
    assert "unrouted    12 messages were accepted by no queue: tasks 10, news 2. Next: " in shown
    assert "`vespiary address show tasks` names its queues" in shown
    assert "dropped     6 messages to full addresses whose policy is DROP. Next: " in shown
    assert "while the disk was full" not in shown
    assert "ready       producers and consumers go on" in shown
    assert ready(rig) == b"ready\n"


def test_a_full_disk_is_told(rig: AdminRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.broker.journal = journal_statistics(blocked_reason=FULL)
    rig.broker.blocked_reason, rig.broker.journal_waiters = FULL, 3
    assert ask(rig) == 1
    shown = capsys.readouterr().out
    assert f"disk full   3 producers wait, consumers go on: {FULL}" in shown
    assert "ready " not in shown
    assert ask(rig, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["journalBlockedReason"], found["journalBlockedProducers"]) == (FULL, 3)
    # Consumers have to come to make room, so the broker stays in its Service.
    assert ready(rig) == f"ready\nproducers wait: {FULL}\n".encode()


def test_large_messages_that_wait_are_told(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.large = LARGE
    assert ask(rig) == 1
    assert "disk full   1 large message waits for room" in capsys.readouterr().out


def test_a_broker_that_is_not_ready(rig: AdminRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.broker.not_ready_reason = "it is stopping"
    assert ask(rig) == 1
    assert "not ready   it is stopping" in capsys.readouterr().out


def stalled(kind: str, reason: StallReason, name: str = "orders") -> StalledPlace:
    stall = Stall(reason, "it is so", "do this", 2)
    return StalledPlace(kind, name, name, stall, 300.0)


@pytest.mark.parametrize("reason", [StallReason.FULL, StallReason.MEMORY])
def test_a_full_address_is_told_with_what_to_do(
    rig: AdminRig, capsys: pytest.CaptureFixture[str], reason: StallReason
) -> None:
    rig.broker.stalled = [stalled("address", reason), stalled("queue", StallReason.PAUSED)]
    assert ask(rig) == 1
    shown = capsys.readouterr().out
    assert f"full        address orders ({reason}, 5m): it is so. Next: do this\n" in shown
    assert "stalled     queue orders (paused, 5m): it is so. Next: do this\n" in shown
    assert "ready " not in shown
    assert ask(rig, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["stalledAddresses"] == {str(reason): 1}
    assert found["stalls"][0]["stall"]["blockedProducers"] == 2


def test_queues_that_do_not_move_are_no_failure(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.stalled = [stalled("queue", StallReason.NO_CONSUMERS, f"q{n}") for n in range(25)]
    assert ask(rig) == 0
    shown = capsys.readouterr().out
    assert shown.count("stalled     queue") == 20
    assert "stalled     5 more (`vespiary queue list`, `vespiary address list`)\n" in shown
    assert "ready       producers go on\n" in shown


def test_a_full_disk_is_not_told_for_each_address(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.stalled = [stalled("address", StallReason.DISK, f"a{n}") for n in range(3)]
    rig.broker.journal = journal_statistics(blocked_reason=FULL)
    rig.broker.blocked_reason, rig.broker.journal_waiters = FULL, 3
    assert ask(rig) == 1
    shown = capsys.readouterr().out
    assert "disk full   3 producers wait" in shown
    assert "a1" not in shown


def test_what_has_moved_since_the_last_look_is_not_counted(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.stalled = [stalled("queue", StallReason.PAUSED)]
    rig.broker.moving = [stalled("queue", StallReason.PAUSED, f"q{n}") for n in range(25)]
    assert ask(rig) == 0
    shown = capsys.readouterr().out
    assert shown.count("stalled ") == 1
    assert " more " not in shown


def test_producers_that_wait_for_a_rate_are_told(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.broker.stalled = [stalled("address", StallReason.RATE_LIMIT)]
    assert ask(rig) == 0
    assert "ready       producers go on, but those that wait" in capsys.readouterr().out

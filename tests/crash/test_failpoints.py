"""kill -9 at every named point of a real broker's work: nothing confirmed is lost, nothing rises.

A broker that kills itself (`killable_broker`) and a client with a ledger (`kill_ledger`) in this
process. Each point is killed at, one after the other on the same store, so that every start judges
the kill before it. `VESPIARY_FAILPOINT_ROUNDS` does it again at later visits of the points.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.failpoints import POINTS
from vespiary_testkit.forked_program import Process, start
from vespiary_testkit.kill_ledger import KillLedger, Session

ROUNDS = int(os.environ.get("VESPIARY_FAILPOINT_ROUNDS", "1"))
SHARDS = 4
LIVES_MAX = 10
START_S = 60.0
CONFIGURATION = """
journal-file-size: 64KiB
journal-buffer-size: 32KiB
journal-pool-files: {pool}
journal-min-files: 2
acceptors:
  - {{name: all, port: 0, stomp: {{max-body-size: 16KiB}}}}
"""
RARE = ("queue states", "messages given back", "a removal", "others", "removing a file")
"""What is written in this work by chance only."""
AT_FIRST = ("making a file", "of a new file", "flush of the folder")
"""What the bindings do in a new folder, and else rarely."""

pytestmark = [pytest.mark.crash, pytest.mark.slow]


class Store:
    """A data folder that outlives its brokers, with the ledger of what they promised."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.ledger = KillLedger()
        self.log = folder / "points"
        self.errors = folder / "errors"
        self.kills = 0
        self.confirmed = 0
        self.folders = 0
        folder.mkdir()
        self.log.touch()

    def begin_anew(self) -> None:
        """Judge what is there, and go on in a new data folder."""
        if self.ledger.number:
            assert not self.live("", 0)
        self.confirmed += self.ledger.confirmed
        self.ledger = KillLedger()
        self.folders += 1

    @contextmanager
    def broker(self, point: str, visit: int) -> Iterator[tuple[Process, int]]:
        """Start a broker; give the process and its port, 0 if it died before it was ready."""
        pool = -1 if "next id" in point else self.chance.choice((0, 0, -1))
        config = self.folder / "broker.yaml"
        config.write_text(CONFIGURATION.format(pool=pool))
        command = ["--data", str(self.folder / f"data{self.folders}"), "--config", str(config)]
        command += ["--log", str(self.log), "--point", point, "--visit", str(visit)]
        with self.errors.open("w") as errors:
            process = start("vespiary_testkit.killable_broker", command, environment(), errors)
        try:
            yield process, _port_of(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(START_S)
            assert process.stdout is not None
            process.stdout.close()

    def live(self, point: str, visit: int) -> bool:
        """Run one broker until it has died at the point, or has worked enough; whether it died."""
        with self.broker(point, visit) as (process, port):
            if port:
                session = Session(self.ledger, port, self.chance)
                try:
                    has_died = session.work(2 if "bindings" in point else 6)
                finally:
                    session.close()
                if not has_died and process.poll() is None:
                    return False
            process.wait(START_S)
            assert process.returncode == -9, self.errors.read_text()[-3000:]
            self.kills += 1
            return True

    def kill_at(self, point: str, visit: int) -> bool:
        """Run brokers until one has died at the point."""
        return any(self.live(point, visit if life < 2 else 1) for life in range(LIVES_MAX))


def _port_of(process: Process) -> int:
    port = 0
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "listening" and event["name"] == "all":
            port = int(event["port"])
        if event["event"] == "ready":
            return port
    return 0


def _order(point: str) -> int:
    """Return when a point's turn is: new folders first, what needs many starts last."""
    if point.startswith("bindings") and point.endswith(AT_FIRST):
        return 0
    if point.startswith("bindings") and point.endswith("of a freed file"):
        return 2
    return 3 if point.startswith("bindings") and point.endswith("next id") else 1


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_kill_at_every_point_breaks_no_promise(tmp_path: Path, shard: int) -> None:
    seed = int(os.environ.get("VESPIARY_CRASH_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"VESPIARY_CRASH_SEED={seed} repeats the choices")
    chance = random.Random(f"{seed} {shard}")
    store = Store(tmp_path / "store", chance)
    missed = []
    for number in range(ROUNDS):
        for point in sorted(POINTS[shard::SHARDS], key=_order):
            if _order(point) == 0:
                store.begin_anew()
            visit = 1 if number == 0 else chance.randrange(1, 2 + number)
            if not store.kill_at(point, visit):
                missed.append(point)
    assert not store.live("", 0), "the last start judges the last kill"
    confirmed = store.confirmed + store.ledger.confirmed
    print(f"{store.kills} kills, {confirmed} confirms")
    assert not missed, f"never reached: {missed}"
    visited = {name for name in store.log.read_text().splitlines() if name}
    unknown = {name for name in visited - set(POINTS) if not name.endswith(RARE)}
    assert not unknown, f"points without a name in failpoints.POINTS: {unknown}"
    assert confirmed > 20


def test_the_ledger_tells_a_broken_promise() -> None:
    ledger = KillLedger()
    ledger.live, ledger.doubtful, ledger.groups = {1, 2}, {3, 4}, [{3, 4}]
    for found, sentence in (
        ([1], "lost"),
        ([1, 1, 2], "twice"),
        ([1, 2, 9], "back"),
        ([1, 2, 3], "half"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            ledger.judge(found)
    with pytest.raises(AssertionError, match="back"):
        ledger.take(9)
    ledger.judge([1, 2, 3, 4])
    with pytest.raises(AssertionError, match="lost"):
        ledger.judge([1, 2, 3])

"""kill -9 at every named point of the JMS journal: what was answered is there after the next start.

The journal runs in a process of its own (`killable_jms`). Each point is killed at, one after the
other; `VESPIARY_FAILPOINT_ROUNDS` does it again at later visits.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.failpoints import JMS_POINTS
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.waiting import WAIT_S

ROUNDS = int(os.environ.get("VESPIARY_FAILPOINT_ROUNDS", "1"))
LIVES_MAX = 12
CHANGES = 150
COVER_S = 0.06
"""A pause, in which the journal covers its last confirm (20 ms) and is written to again then."""
RARE = ("a removal", "others", "removing a file")
"""What is written in this work by chance only."""
AT_FIRST = ("making a file", "of a new file", "flush of the folder")
"""What is done in a new folder, and else rarely."""


class Store:
    """A folder that outlives its processes, and what they promised."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.log = folder / "points"
        self.folders = self.kills = self.answered = 0
        self.sure: dict[str, str] = {}
        self.asked: tuple[str, str | None] | None = None

    def begin_anew(self) -> None:
        """Go on in a new folder."""
        self.folders += 1
        self.sure, self.asked = {}, None

    def judge(self, found: dict[str, str]) -> None:
        """Compare what was read back: a change that was not answered is there or not."""
        allowed = [self.sure]
        if self.asked is not None:
            key, value = self.asked
            others = {name: text for name, text in self.sure.items() if name != key}
            allowed.append(others if value is None else others | {key: value})
        assert found in allowed, f"{sorted(found)} of {sorted(self.sure)}, {self.asked}"
        self.sure, self.asked = found, None

    def change(self) -> list[str]:
        """Choose a change and note it as asked for."""
        key = f"queue {self.chance.randrange(8)}"
        if key in self.sure and self.chance.random() < 0.2:
            self.asked = (key, None)
            return [key]
        text = "x" * self.chance.choice((10, 3000, 20_000, 40_000)) + str(self.answered)
        self.asked = (key, text)
        return [key, text]

    def keep(self) -> None:
        """Note that the change was answered."""
        assert self.asked is not None
        key, value = self.asked
        if value is None:
            del self.sure[key]
        else:
            self.sure = self.sure | {key: value}
        self.asked = None
        self.answered += 1

    def live(self, point: str, visit: int) -> bool:
        """Run one process until it has died at the point, or has worked enough; whether it died."""
        command = [sys.executable, "-m", "vespiary_testkit.killable_jms"]
        command += ["--data", str(self.folder / f"data{self.folders}"), "--log", str(self.log)]
        command += ["--point", point, "--visit", str(visit)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if first := process.stdout.readline():
                self.judge(json.loads(first))
                self.work(process)
            _, _ = process.communicate(timeout=WAIT_S)
        if process.returncode == 0:
            return False
        assert process.returncode == -9, process.returncode
        self.kills += 1
        return True

    def work(self, process: subprocess.Popen[str]) -> None:
        """Change one thing after another until the process dies."""
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(CHANGES):
            if number % 50 == 10:
                time.sleep(COVER_S)
            try:
                process.stdin.write(json.dumps(self.change()) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                return
            if process.stdout.readline() != "durable\n":
                return
            self.keep()


def test_a_kill_at_every_point_of_the_jms_journal_breaks_no_promise(tmp_path: Path) -> None:
    store = Store(tmp_path, random.Random(seed_for("jms kills at points")))
    missed = []
    for number in range(ROUNDS):
        for point in JMS_POINTS:
            if point.endswith(AT_FIRST):
                store.begin_anew()
            visit = 1 if number == 0 else store.chance.randrange(1, 2 + number)
            if not any(store.live(point, visit if life < 2 else 1) for life in range(LIVES_MAX)):
                missed.append(point)
    assert not store.live("", 0), "the last start judges the last kill"
    print(f"{store.kills} kills, {store.answered} answers")
    assert not missed, f"never reached: {missed}"
    visited = {name for name in store.log.read_text().splitlines() if name}
    unknown = {name for name in visited - set(JMS_POINTS) if not name.endswith(RARE)}
    assert not unknown, f"points without a name in failpoints.JMS_POINTS: {unknown}"
    assert store.answered > 100


def test_what_is_judged_can_be_wrong(tmp_path: Path) -> None:
    store = Store(tmp_path, random.Random(1))  # the judge alone, which chooses nothing
    store.sure, store.asked = {"a": "1", "b": "2"}, ("b", None)
    for found in ({}, {"b": "2"}, {"a": "2"}, {"a": "1", "b": "3"}):
        with pytest.raises(AssertionError):
            store.judge(found)
    store.judge({"a": "1"})
    store.asked = ("c", "3")
    store.judge({"a": "1", "c": "3"})

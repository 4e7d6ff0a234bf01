"""The journal against a dictionary: any order of acts, kills and power cuts that hypothesis finds.

Each step is one act of `journal_lives`, or the end of a life: a stop, a killed process, a power cut
with one image of what the disk may hold. After every step what the journal holds is what the model
says. Runs on both cores. `VESPIARY_MACHINE_EXAMPLES` and `VESPIARY_MACHINE_STEPS` set the length.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_native.twin.blocks import verify_blocks as twin_verify_blocks
from vespiary_spec.errors import JournalError
from vespiary_testkit.faulty_disk import DiskState, MemoryDisk
from vespiary_testkit.journal_lives import ACTS, Life, open_life, plan
from vespiary_testkit.journal_model import Model
from vespiary_testkit.journal_workload import QUEUES, recover_live
from vespiary_testkit.power_cut_checks import Recovered, judge, recover_both
from vespiary_testkit.power_cuts import images, resume
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import VirtualTimeLoop

EXAMPLES = int(os.environ.get("VESPIARY_MACHINE_EXAMPLES", "30"))
STEPS = int(os.environ.get("VESPIARY_MACHINE_STEPS", "50"))
SERIES_MAX = 4
"""A series of examples without a power cut, as a short one may be, is followed by another."""

pytestmark = pytest.mark.ci

_SEEDS = st.integers(0, 2**16)
_ACTS = st.sampled_from([name for name, act in ACTS.items() for _ in range(act.weight)])


class JournalMachine(RuleBasedStateMachine):
    """One journal over many lives, on one disk after the other."""

    parts: ClassVar[dict[str, Any]] = {}
    steps: ClassVar[int] = 0
    power_cuts: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.kept = tempfile.TemporaryDirectory()
        self.folder = Path(self.kept.name)
        self.disk = MemoryDisk()
        self.model = Model()
        self.state = DiskState()
        self.taken = 0
        self.life: Life | None = None

    @initialize(seed=_SEEDS)
    def begin(self, seed: int) -> None:
        self.options = plan(seed).options
        self.open(random.Random(seed))

    def open(self, chance: random.Random) -> None:
        known = recover_live(self.disk, self.folder)
        opening = open_life(self.folder, self.disk, chance, self.options, **self.parts)
        self.life = self.loop.run_until_complete(opening)
        self.life.brought_back(known)

    def follow(self) -> None:
        """Take what was added to the disk's log into model and state."""
        for op in self.disk.log[self.taken :]:
            if op.kind == "mark":
                self.model.apply(op.name)
            else:
                self.state.apply(op)
        self.taken = len(self.disk.log)

    def end(self, life: Life) -> None:
        self.loop.run_until_complete(life.close())
        self.life = None

    @rule(act=_ACTS, seed=_SEEDS)
    def do(self, act: str, seed: int) -> None:
        assert self.life is not None
        self.life.chance = random.Random(seed)
        self.loop.run_until_complete(ACTS[act].run(self.life))

    @rule(acts=st.lists(_ACTS, min_size=2, max_size=4), seed=_SEEDS)
    def do_some(self, acts: list[str], seed: int) -> None:
        """Else three of four steps would be the end of a life."""
        for act in acts:
            self.do(act, seed)

    @rule(end=st.sampled_from(["stop", "kill", "cut"]), seed=_SEEDS, is_writing=st.booleans())
    def end_and_start(self, end: str, seed: int, is_writing: bool) -> None:
        if end == "stop":
            self.stop_and_start(seed)
        elif end == "kill":
            self.kill_and_start(seed, is_writing)
        else:
            self.cut_the_power(seed, is_writing)

    def stop_and_start(self, seed: int) -> None:
        assert self.life is not None
        self.end(self.life)
        self.follow()
        self.judge(self.disk)
        self.open(random.Random(seed))

    def kill_and_start(self, seed: int, is_writing: bool) -> None:
        life = self.kill(random.Random(seed), is_writing)
        self.end(life)
        self.follow()
        self.judge(self.disk)
        self.open(random.Random(seed))

    def cut_the_power(self, seed: int, is_writing: bool) -> None:
        chance = random.Random(seed)
        life = self.kill(chance, is_writing)
        self.end(life)
        self.follow()
        type(self).power_cuts += 1
        *_, image = images(self.state, chance, 1 + seed % 7)
        found = self.judge(image.disk, image.label)
        self.disk, _ = resume(image.disk, found.live, found.branches)
        self.state, self.model, self.taken = DiskState(), Model(), 0
        self.open(chance)

    def judge(self, disk: MemoryDisk, label: str = "") -> Recovered:
        """Compare what is on a disk with the model."""
        found = recover_both(disk, self.folder)
        assert judge(self.model, found) == [], label
        return found

    def kill(self, chance: random.Random, is_writing: bool) -> Life:
        """End the process, at times with a write under way."""
        life = self.life
        assert life is not None
        life.chance = chance
        if is_writing:
            life.try_publish()
            life.journal.kick()
        life.journal.fail(JournalError("the process is killed here"))
        return life

    def check_invariants(self, *args: Any, **names: Any) -> None:
        """After every step: the journal, the client and the model agree."""
        super().check_invariants(*args, **names)
        life = self.life
        if life is None:
            return
        type(self).steps += 1
        self.follow()
        held = set(life.held) | life.waiting | life.locked
        assert self.model.must <= held <= self.model.may
        counts = [life.core.queue_statistics(queue_id) for queue_id in QUEUES]
        there = sum(count.ready + count.paged + count.delivering for count in counts)
        # What a branch acknowledges in a closed extent is in both of these.
        assert len(self.model.must) <= there + len(life.locked)
        assert there <= len(self.model.may)

    def teardown(self) -> None:
        if self.life is not None:
            self.end(self.life)
        asyncio.set_event_loop(None)
        self.loop.close()
        self.kept.cleanup()


def _machine(core: str) -> type[JournalMachine]:
    parts = {"open_core": TwinCore, "verify": twin_verify_blocks} if core == "twin" else {}
    return type(f"{core.title()}Machine", (JournalMachine,), {"parts": parts, "steps": 0})


@pytest.mark.parametrize("core", ["native", "twin"])
def test_any_order_of_acts_and_ends(core: str) -> None:
    if core == "native" and not is_wanted():
        pytest.skip("the native part is switched off")
    machine = _machine(core)
    chosen = settings(
        max_examples=EXAMPLES if core == "native" else max(EXAMPLES // 4, 1),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        # In CI what failed is told at once; making it small takes minutes.
        phases=[Phase.generate, *([] if os.environ.get("CI") else [Phase.shrink])],
    )
    logging.disable(logging.CRITICAL)
    try:
        for number in range(SERIES_MAX):
            seeded = hypothesis.seed(seed_for(f"journal machine {number}"))(machine)
            run_state_machine_as_test(seeded, settings=chosen)
            if machine.power_cuts:
                break
    finally:
        logging.disable(logging.NOTSET)
    print(f"{core}: {machine.steps} steps, {machine.power_cuts} power cuts")
    assert machine.steps >= EXAMPLES * STEPS // 20
    assert machine.power_cuts > 0

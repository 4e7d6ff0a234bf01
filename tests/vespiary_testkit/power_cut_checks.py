"""The power cuts of one seed, from its workload to the last image, and how often each was checked.

`check_seed` records the lives of a seed, cuts them at every step, and compares what recovery finds
with the model: in every image by the rules (`LiveSet`) and by the core of this run. In some images
the whole opening of a broker runs as well, is cut at each of its own steps, and in some the journal
lives on after the cut and is cut again. A failure names the seed and the line that repeats it.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from vespiary_broker.store.kept import NothingKept
from vespiary_broker.store.opening import open_folder
from vespiary_testkit.faulty_disk import MemoryDisk, Op
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_lives import (
    MakeRing,
    Plan,
    branch_name,
    branches_of,
    lost_bodies,
    open_pages,
    plan,
    record_lives,
    record_more,
    remove_unnamed,
)
from vespiary_testkit.journal_model import Group, Key, Model
from vespiary_testkit.journal_workload import (
    QUEUES,
    LiveSet,
    RulesAnd,
    memory_parts,
    new_core,
    recover,
    small_options,
)
from vespiary_testkit.power_cuts import Cut, Image, cuts, durable_log, images, resume

REPLAY = "PYTHONPATH=tests .venv/bin/python -m vespiary_testkit.power_cut_checks {seed}"
_DECODED_MAX = 20_000


@dataclasses.dataclass
class Tally:
    """What was done.

    Attributes:
        images: Images that were recovered and judged.
        openings: Of these, opened as a broker does.
        inner_images: Images of cuts within such an opening (counted in `images` too).
        further_lives: Journals that lived on after a cut.
        seeds: Workloads.
        seconds: Time.
        failures: Sentences, each with its seed and the line that repeats it.
    """

    images: int = 0
    openings: int = 0
    inner_images: int = 0
    further_lives: int = 0
    seeds: int = 0
    seconds: float = 0.0
    failures: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        rate = self.images / max(self.seconds, 1e-9)
        return (
            f"{self.images} images of {self.seeds} workloads in {self.seconds:.1f} s"
            f" ({rate:.0f}/s): {self.openings} opened as a broker does, {self.inner_images} cut"
            f" within that, {self.further_lives} lived on and were cut again;"
            f" {len(self.failures)} failures"
        )


class _Rules(LiveSet):
    """A `LiveSet` that decodes a block once, however many images it is in."""

    decoded: ClassVar[collections.OrderedDict[tuple[bytes, int], Any]] = collections.OrderedDict()

    def decode(self, offset: int, block: memoryview) -> list[tuple[bytes, Any]]:
        key = (bytes(block[:64]), offset)
        found: list[tuple[bytes, Any]] | None = self.decoded.get(key)
        if found is None:
            found = self.decoded[key] = super().decode(offset, block)
            if len(self.decoded) > _DECODED_MAX:
                self.decoded.popitem(last=False)
        return found


class Recovered(NamedTuple):
    """What was found in an image.

    Attributes:
        live: Live messages by the rules.
        branches: Prepared branches by the core; `wrong` says where the rules have others.
        wrong: Where the core of this run differs from the rules, and bodies that are lost.
    """

    live: set[Key]
    branches: dict[int, Group]
    wrong: list[str]


def recover_both(disk: MemoryDisk, folder: Path) -> Recovered:
    """Recover by the rules and by a core, and compare the two."""
    core, rules = new_core(slabs_max=8), _Rules()
    recover(disk, folder, RulesAnd(core, rules))
    core.restore_done()
    live, in_doubt, wrong = rules.live, rules.in_doubt, lost_bodies(disk, folder, core)
    open_pages(disk, folder, core)
    counts = {q: core.queue_statistics(q).ready for q in QUEUES}
    wanted = {q: sum(key[0] == q for key in live - rules.locked) for q in QUEUES}
    if counts != wanted:
        wrong.append(f"the core has {counts}, the rules say {wanted}")
    branches = branches_of(core)
    acks = {key for branch in branches.values() for key in branch.acks}
    if {branch_name(number) for number in branches} != in_doubt or acks != rules.locked:
        wrong.append(f"the core has branches {sorted(branches)}, the rules say {sorted(in_doubt)}")
    return Recovered(live, branches, wrong)


def judge(model: Model, found: Recovered) -> list[str]:
    """Return what is wrong with what was found, by the model and in itself."""
    return [
        *model.judge(found.live),
        *model.judge_doubt(found.live, found.branches),
        *model.judge_members(found.branches),
        *found.wrong,
    ]


def open_and_let_go(disk: MemoryDisk, folder: Path, options: dict[str, Any]) -> None:
    """Open the journal as a broker does at its start, and end before anything is written."""
    parts = memory_parts(disk, MemoryRing, seed=len(disk.files))
    opened = open_folder(small_options(folder, **options), QUEUES, parts, NothingKept())
    remove_unnamed(disk, folder, opened.core)
    opened.ring.close()
    opened.pool.close()
    opened.lock.close()


class SeedCheck:
    """The checks of one seed.

    Args:
        folder: An existing folder; only the lock file of a journal is made in it.
        seed: The seed.
        tally: Counts of this and other seeds.
        per_cut: Most images of one cut.
        opening_every: One image in so many is opened as a broker does, and cut within that.
        life_every: One image in so many is lived on from.
        make_ring: Ring of the workload.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        tally: Tally,
        *,
        per_cut: int = 4,
        opening_every: int = 40,
        life_every: int = 200,
        make_ring: MakeRing = MemoryRing,
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.tally = tally
        self.per_cut = per_cut
        self.opening_every = opening_every
        self.life_every = life_every
        self.make_ring = make_ring
        self.plan = plan(seed)
        self.chance = random.Random(f"images {seed}")
        self.number = 0
        self.is_locked = False  # by a life that failed: nothing more can be opened in the folder

    def run(self, images_max: int) -> None:
        """Check until the tally counts `images_max` images, or all cuts are done."""
        self.tally.seeds += 1
        try:
            log = record_lives(self.folder, self.seed, self.make_ring)
        except Exception as error:
            self._fail("the lives themselves", repr(error))
            return
        for cut in cuts(log):
            if self.tally.images >= images_max:
                return
            for image in images(cut.state, self.chance, self.per_cut):
                self._check(cut, image)
                if self.is_locked:
                    return

    def _fail(self, place: str, wrong: object) -> None:
        replay = REPLAY.format(seed=self.seed)
        self.tally.failures.append(f"{wrong} (seed {self.seed}, {place}); again: {replay}")

    def _check(self, cut: Cut, image: Image) -> None:
        self.number += 1
        place = f"cut {cut.number}, {image.label}"
        found = self._judge(image.disk, cut.model, place)
        if found is None:
            return
        if self.number % self.opening_every == 0:
            self._check_opening(image.disk, found, place)
        if self.number % self.life_every == 0:
            self._check_life(image.disk, found, place)

    def _judge(self, disk: MemoryDisk, model: Model, place: str) -> Recovered | None:
        """Recover and compare; None after a failure."""
        self.tally.images += 1
        try:
            found = recover_both(disk, self.folder)
        except Exception as error:
            self._fail(place, f"no recovery: {error!r}")
            return None
        if wrong := judge(model, found):
            self._fail(place, wrong)
            return None
        return found

    def _check_opening(self, disk: MemoryDisk, found: Recovered, place: str) -> None:
        """Open, which changes the disk; nothing may be lost, not even when that is cut."""
        self.tally.openings += 1
        model = Model.of_found(found.live, found.branches)
        opened = disk.copy()
        opened.log = durable_log(opened)
        start = len(opened.log)
        open_and_let_go(opened, self.folder, self.plan.options)
        log: list[Op] = opened.log
        if self._judge(opened, model, f"{place}, opened") is None:
            return
        for cut in cuts(log, start=start):
            for image in images(cut.state, self.chance, 2):
                self.tally.inner_images += 1
                if self._judge(image.disk, model, f"{place}, opened, cut {cut.number}") is None:
                    return

    def _check_life(self, disk: MemoryDisk, found: Recovered, place: str) -> None:
        """Live on from an image, and cut that life too."""
        self.tally.further_lives += 1
        other, start = resume(disk, found.live, found.branches)
        further = Plan(self.seed + self.number, 1, 10, self.plan.options)
        try:
            log = record_more(self.folder, other, further, self.make_ring)
        except Exception as error:
            self._fail(f"{place}, lived on", repr(error))
            self.is_locked = True
            return
        for cut in cuts(log, start=start):
            for image in images(cut.state, self.chance, 1):
                there = f"{place}, lived on, cut {cut.number}, {image.label}"
                if self._judge(image.disk, cut.model, there) is None:
                    return


def check_images(
    folder: Path, first_seed: int, count: int, *, step: int = 1, seconds: float = 1e9
) -> Tally:
    """Check at least `count` images, seed after seed, or stop when the time is over.

    Args:
        folder: For lock files.
        first_seed: First seed; `step` is added for each next one.
        count: Images.
        step: Distance of the seeds: the number of processes that share them.
        seconds: Time after which no further seed is begun.
    """
    tally = Tally()
    begun_s = time.monotonic()
    seed = first_seed
    logging.disable(logging.CRITICAL)
    while tally.images < count and time.monotonic() - begun_s < seconds and not tally.failures:
        SeedCheck(folder, seed, tally).run(count)
        seed += step
    logging.disable(logging.NOTSET)
    tally.seconds = time.monotonic() - begun_s
    return tally


def main() -> int:
    """Repeat all cuts of the one seed that the command line gives; return the exit code."""
    seed, tally = int(sys.argv[1]), Tally()
    with tempfile.TemporaryDirectory() as folder:
        SeedCheck(Path(folder), seed, tally).run(1 << 60)
    print("\n  ".join([str(tally), *tally.failures]))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

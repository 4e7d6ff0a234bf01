"""A branch that has ended stays so at every power cut, also if its PREPARE stands alone.

The lives that seeds make up (`test_power_cuts`) do not come here: as soon as one member of a branch
is in the file of its PREPARE, that member has the file with the end wait for this one, too. So this
life is written out: a branch of messages that need not survive is ended in a later file, a restart
reads both, and only the earlier file has anything left that lives.
"""

from __future__ import annotations

import random
from pathlib import Path

from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_lives import Life, branch_name, end_branch, open_life
from vespiary_testkit.journal_model import Group, Key
from vespiary_testkit.journal_workload import FILE_BYTES, recover_live
from vespiary_testkit.power_cut_checks import judge, recover_both
from vespiary_testkit.power_cuts import cuts, images
from vespiary_testkit.virtual_time import run_virtual

NUMBER = 77
OPTIONS = {
    "file_size_bytes": FILE_BYTES,
    "min_files": 2,
    "pool_files": 0,
    "disk_scan_period_s": 0.001,
    "compact_min_files": 0,
}


async def fill_file(life: Life) -> list[Key]:
    """Send until the journal goes on in another file; return what was sent."""
    first, keys = life.core.current_file(), []
    while life.core.current_file() == first:
        sent = life.try_publish()
        await life.journal.wait_durable()
        life.confirm(sent)
        keys += sent
    return keys


async def prepare_alone(life: Life) -> None:
    """Prepare a branch of which nothing is in the journal but its PREPARE."""
    life.core.begin(NUMBER, 0, 0, branch=True)
    life.branches[NUMBER] = Group()
    life.marks.preparing(NUMBER, life.branches[NUMBER])
    life.core.prepare(NUMBER, branch_name(NUMBER))
    await life.journal.wait_durable()
    life.marks.prepared(NUMBER)


async def end_later(folder: Path, disk: MemoryDisk) -> None:
    """Prepare in one file and end in the next; then acknowledge all that is not in the first."""
    chance = random.Random(1)
    life = await open_life(folder, disk, chance, OPTIONS)
    kept = life.try_publish()
    await life.journal.wait_durable()
    life.confirm(kept)
    await prepare_alone(life)
    early = await fill_file(life)
    end = life.core.current_file()
    await end_branch(life)
    late = await fill_file(life)
    assert life.core.cancels(end), "the end depends on the PREPARE"
    await life.close()

    known = recover_live(disk, folder)
    life = await open_life(folder, disk, chance, OPTIONS)
    life.brought_back(known)
    await life.receive()
    for key in set(early + late) - set(kept):
        life.stage_acknowledgement(key)
    await life.journal.wait_durable()
    life.acknowledged([key for key in early + late if key not in kept])
    before = life.core.current_file()
    for _ in range(3):  # the keeper looks, and what it frees is flushed with later blocks
        await fill_file(life)
    assert life.core.current_file() > before
    await life.close()


def test_an_ended_branch_is_never_in_doubt_again(tmp_path: Path) -> None:
    disk = MemoryDisk()
    run_virtual(end_later(tmp_path, disk))
    chance, seen = random.Random(2), 0
    for cut in cuts(disk.log):
        for image in images(cut.state, chance, 1):
            wrong = judge(cut.model, recover_both(image.disk, tmp_path))
            assert wrong == [], f"cut {cut.number}, {image.label}"
            seen += 1
    assert seen > 100

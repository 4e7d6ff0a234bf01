"""Power cuts at every step of generated lives of a journal: nothing is lost, nothing rises again.

4000 images (`VESPIARY_IMAGES`); `make verify` examines a million. What an image
is and what is compared: docs/internals/proofs.md.
"""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.paging.moving import FilledPage
from vespiary_native.abc import Core
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_lives import ACTS, open_life, plan, record_lives
from vespiary_testkit.journal_model import Group, Model
from vespiary_testkit.power_cut_checks import SeedCheck, Tally, check_images
from vespiary_testkit.power_cuts import cuts, images
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

IMAGES = int(os.environ.get("VESPIARY_IMAGES", "4000"))
SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_keeps_what_was_confirmed(
    tmp_path: Path, shard: int, record_property
) -> None:
    count = -(-IMAGES // SHARDS)
    tally = check_images(tmp_path, seed_for("power cuts") + shard, count, step=SHARDS)
    record_property("images", tally.images)
    print(tally)
    assert not tally.failures, "\n".join(tally.failures[:5])
    assert tally.images >= count
    assert tally.openings > 0
    assert tally.inner_images > 0
    assert tally.further_lives > 0


# The tests below examine the harness itself, with fixed seeds: each needs lives in which what it is
# about happens.


@pytest.mark.verify
def test_a_seed_makes_the_same_log_again(tmp_path: Path) -> None:
    logs = [
        [(op.kind, op.inode, op.offset, len(op.data), op.name) for op in record_lives(tmp_path, 7)]
        for _ in range(2)
    ]
    assert logs[0] == logs[1]


@pytest.mark.verify
def test_the_lives_go_through_what_matters(tmp_path: Path) -> None:
    kinds, marks, bodies, freed, compacted = set(), set(), set(), 0, 0
    for seed in range(1, 13):
        for op in record_lives(tmp_path, seed):
            kinds.add(op.kind)
            if op.name.endswith(".msg"):
                bodies.add(op.kind)
            if op.kind == "mark":
                marks.add(op.name.split()[0])
                compacted += int(op.name.split()[1]) if op.name.startswith("compacted") else 0
            elif op.kind == "write" and op.data[:8] == b"VSPYJRNL" and op.data[10] == 1:
                freed += bool(int.from_bytes(op.data[32:40], "little"))
    assert {"make", "write", "done", "flush", "rename", "remove", "folder"} <= kinds
    assert marks >= {"sent", "confirmed", "acking", "acked", "adds", "acks", "settled", "found"}
    assert marks >= {"prepared", "doubt", "committing", "ending", "ended"}
    assert bodies >= {"make", "remove"}
    assert freed >= 20, "files are reclaimed"
    assert compacted >= 3, "files are compacted"


def test_the_pager_fills_no_page_while_an_act_fills_one(tmp_path: Path) -> None:
    """Of one address the broker fills one page at a time: a second one is no finding."""
    wanted: list[int] = []

    async def scenario() -> None:
        life = await open_life(tmp_path, MemoryDisk(), random.Random(1), plan(1).options)
        address, mover = life.pages.address, life.pages.pager._mover
        fill = mover.fill

        async def watched(*arguments: Any) -> FilledPage | None:
            wanted.append(address.excess_bytes())
            return await fill(*arguments)

        mover.fill = watched
        while address.surplus_bytes() <= 0:
            life.try_publish()
            await life.journal.wait_durable()
        assert await life.pages.move()
        await life.close()

    run_virtual(scenario())
    assert wanted == [0]


@pytest.mark.verify
def test_without_the_flush_the_cuts_do_find_a_loss(tmp_path: Path) -> None:
    """The mutation: were the flush of a write to go missing, this harness would see it."""
    tally = Tally()
    ring = functools.partial(MemoryRing, is_forgetful=True)
    SeedCheck(tmp_path, 3, tally, make_ring=ring, opening_every=10**9, life_every=10**9).run(2000)
    assert any("confirmed and lost" in failure for failure in tally.failures)
    assert all("again: " in failure for failure in tally.failures)


# --- the judge itself -----------------------------------------------------------------------------


def _model(*marks: str) -> Model:
    return Model.of_marks(marks)


@pytest.mark.verify
def test_the_judge_knows_what_must_be_there() -> None:
    model = _model("sent 1 1", "confirmed 1 1", "sent 1 2")
    assert model.judge({(1, 1)}) == []
    assert model.judge({(1, 1), (1, 2)}) == []
    assert "lost" in model.judge({(1, 2)})[0]
    assert "back" in model.judge({(1, 1), (1, 3)})[0]


@pytest.mark.verify
def test_the_judge_knows_what_must_be_gone() -> None:
    model = _model("sent 1 1", "confirmed 1 1", "acking 1 1")
    assert model.judge({(1, 1)}) == model.judge(set()) == []
    model.apply("acked 1 1")
    assert "back" in model.judge({(1, 1)})[0]


@pytest.mark.verify
def test_the_judge_knows_half_a_transaction() -> None:
    begun = ("sent 1 1", "confirmed 1 1", "sent 2 1", "adds 9 2 1", "acking 1 1", "acks 9 1 1")
    model = _model(*begun)
    assert model.judge({(1, 1)}) == []
    assert model.judge({(2, 1)}) == []
    assert "half" in model.judge({(1, 1), (2, 1)})[0]
    assert "half" in model.judge(set())[0]


@pytest.mark.verify
def test_the_judge_knows_a_branch_in_doubt() -> None:
    begun = ("sent 1 1", "confirmed 1 1", "preparing 9", "prepared 9")
    model = _model(*begun)
    assert model.judge_doubt({(1, 1)}, {9}) == []
    assert "lost" in model.judge_doubt({(1, 1)}, set())[0]
    assert "back" in model.judge_doubt({(1, 1)}, {9, 8})[0]
    assert "back" in model.judge({(1, 1), (2, 1)})[0], "what it adds does not count"
    assert "lost" in model.judge(set())[0], "nor what it acknowledges"


@pytest.mark.verify
def test_the_judge_knows_a_branch_that_ends() -> None:
    begun = ("sent 1 1", "confirmed 1 1", "preparing 9", "prepared 9")
    members = ("sent 2 1", "adds 9 2 1", "acking 1 1", "acks 9 1 1")
    model = _model(*begun, *members, "committing 9")
    assert model.judge_doubt({(1, 1)}, {9}) == []
    assert model.judge_doubt({(2, 1)}, set()) == []
    assert "in doubt" in model.judge_doubt({(2, 1)}, {9})[0]
    assert "in doubt" in model.judge_doubt({(1, 1)}, set())[0]
    model = _model(*begun, "ending 9")
    assert model.judge_doubt({(1, 1)}, {9}) == model.judge_doubt({(1, 1)}, set()) == []
    model.apply("ended 9")
    assert "back" in model.judge_doubt({(1, 1)}, {9})[0]


@pytest.mark.verify
def test_the_judge_knows_the_members_of_a_branch() -> None:
    sent = ("sent 1 1", "confirmed 1 1")
    model = _model(*sent, "adds 9 2 1", "acks 9 1 1", "preparing 9", "prepared 9")
    assert model.judge({(1, 1)}) == []
    assert "back" in model.judge({(1, 1), (2, 1)})[0], "what it adds does not count yet"
    assert model.judge_members({9: Group({(2, 1)}, {(1, 1)})}) == []
    for wrong in (Group({(2, 1)}), Group({(2, 1), (2, 2)}, {(1, 1)}), Group()):
        assert "branch 9 holds" in model.judge_members({9: wrong})[0]
    assert model.judge_members({8: Group()}) == [], "of others nothing is known"


@pytest.mark.verify
def test_a_body_that_goes_too_early_is_found(tmp_path: Path, monkeypatch) -> None:
    """The mutation: a body is removed before the end of its message is durable."""

    seen: set[int] = set()

    def hasty(core: Core) -> list[int]:
        live = {body.large_id for body in core.live_large()}
        gone = sorted(seen - live)
        seen.clear()
        seen.update(live)
        return gone

    monkeypatch.setattr("vespiary_testkit.journal_lives.done_bodies", hasty)
    for name in set(ACTS) - {"send", "send large", "acknowledge", "purge", "rest"}:
        monkeypatch.delitem(ACTS, name)
    tally = Tally()
    for seed in range(1, 21):  # few cuts fall between a body's removal and its message's end
        seen.clear()
        SeedCheck(tmp_path, seed, tally, opening_every=10**9, life_every=10**9).run(6000)
        if any("of a live message is gone" in failure for failure in tally.failures):
            return
    pytest.fail(f"{tally.images} images of 20 lives, and none misses the body")


@pytest.mark.verify
def test_the_judge_holds_on_to_what_a_recovery_found() -> None:
    model = _model("sent 1 1", "sent 1 2", "restart", "found 1 2")
    assert "lost" in model.judge(set())[0]
    assert "back" in model.judge({(1, 1), (1, 2)})[0]


@pytest.mark.verify
def test_images_tear_and_drop_and_reorder(tmp_path: Path) -> None:
    disk = MemoryDisk()
    file = disk.create(tmp_path / "a", is_direct=True)
    file.write(memoryview(b"o" * 8192), 4096)
    file.flush()
    disk.flush_folder(tmp_path)
    file.write(memoryview(b"n" * 8192), 4096)
    (cut,) = list(cuts(disk.log, start=len(disk.log) - 1))
    seen = {
        bytes(i.disk.files[tmp_path / "a"].data) for i in images(cut.state, random.Random(1), 200)
    }
    pages = [data[4096:8192] for data in seen]
    assert b"n" * 4096 in pages
    assert b"o" * 4096 in pages
    assert any(set(page) == set(b"no") for page in pages), "sectors of old and new"
    assert any(0 in page and b"n" in page for page in pages), "zeros beside what is new"
    assert any(len(set(page)) > 100 for page in pages), "garbage"
    assert all(data[:4096] == bytes(4096) for data in seen)

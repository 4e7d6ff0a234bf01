"""Power cuts over a recorded log: what the disk may hold, and what must come back from it.

`cuts` replays the log of a `MemoryDisk` and stops behind every step that reaches the disk. At each
stop `images` builds what the disk might hold: of what was not flushed any page or sector may be
there, missing, zero, garbage, or there while an earlier one is not. `journal_model` says what
recovery must find in such an image. Everything is a function of the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vespiary_testkit.faulty_disk import (
    PAGE,
    SECTOR,
    DiskState,
    MemoryDisk,
    Op,
    PendingWrite,
)
from vespiary_testkit.journal_model import Group, Key, Marks, Model

BOUNDARIES = frozenset({"make", "write", "done", "flush", "rename", "remove", "folder"})
_HEADER_END = 4096
"""File headers are one sector: written whole or not at all (recovery.md, table 1, line 6)."""


# --- where the power may go -----------------------------------------------------------------------


class Cut(NamedTuple):
    """One moment of a log: the number of steps that had begun, the disk, and the model."""

    number: int
    state: DiskState
    model: Model


def cuts(log: list[Op], *, start: int = 0) -> Iterator[Cut]:
    """Stop behind every step of a log that reaches the disk, from step `start` on.

    The state and the model of a `Cut` are good until the next one is asked for.
    """
    state, model = DiskState(), Model()
    for number, op in enumerate(log, 1):
        if op.kind == "mark":
            model.apply(op.name)
            continue
        state.apply(op)
        if number > start and op.kind in BOUNDARIES:
            yield Cut(number, state, model)


# --- what the disk may hold then ------------------------------------------------------------------


class Image(NamedTuple):
    """The files after a power cut, and in words how the unflushed part was chosen."""

    disk: MemoryDisk
    label: str


def images(state: DiskState, chance: random.Random, count: int) -> Iterator[Image]:
    """Build up to `count` images of one moment; fewer if there are not so many.

    With few pages under way all subsets of them come first. Then, drawn at random: prefixes,
    suffixes, one missing, any subset, any subset of sectors, writes in another order, and one page
    torn at a sector with zeros, garbage or the old content in its other part.
    """
    pages = state.pages()
    names = len(state.names_pending)
    if not pages and not names:
        yield build(state, [], [], "nothing under way")
        return
    made = 0
    if len(pages) <= 2:
        for mask in range(2 ** len(pages)):
            if made == count:
                return
            chosen = [page for index, page in enumerate(pages) if mask >> index & 1]
            yield build(state, chosen, _some_names(state, chance), f"pages {mask:b}")
            made += 1
    while made < count:
        label, chosen = _STRATEGIES[chance.randrange(len(_STRATEGIES))](state, pages, chance)
        yield build(state, chosen, _some_names(state, chance), label)
        made += 1


def build(state: DiskState, chosen: list[PendingWrite], names: list[Op], label: str) -> Image:
    """Return the image with the flushed part of a state, these writes and these names."""
    done = f"{len(names)} of {len(state.names_pending)} names"
    whole = f"{label}, {done}" if state.names_pending else label
    return Image(state.image(chosen, names), whole)


def _some_names(state: DiskState, chance: random.Random) -> list[Op]:
    pending = state.names_pending
    how = chance.randrange(4)
    if how == 0:
        return []
    if how == 1:
        return list(pending)
    if how == 2:
        return pending[: chance.randrange(len(pending) + 1)]
    return [op for op in pending if chance.random() < 0.5]


_Chosen = tuple[str, list[PendingWrite]]


def _prefix(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    end = chance.randrange(len(pages) + 1)
    return f"the first {end} pages", pages[:end]


def _suffix(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    start = chance.randrange(len(pages) + 1)
    return f"all but the first {start} pages", pages[start:]


def _one_missing(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    if not pages:
        return "no page", []
    index = chance.randrange(len(pages))
    return f"page {index} missing", [*pages[:index], *pages[index + 1 :]]


def _subset(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    share = chance.choice((0.1, 0.5, 0.9))
    return f"a share of {share} of the pages", [p for p in pages if chance.random() < share]


def _sectors(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    share = chance.choice((0.1, 0.5, 0.9))
    chosen = [
        page._replace(offset=page.offset + at, data=page.data[at : at + SECTOR])
        for page in pages
        for at in range(0, len(page.data), SECTOR)
        if chance.random() < share
    ]
    return f"a share of {share} of the sectors", chosen


def _reordered(_state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    chosen = [page for page in pages if chance.random() < 0.8]
    chance.shuffle(chosen)
    return "in another order", chosen


def _torn(state: DiskState, pages: list[PendingWrite], chance: random.Random) -> _Chosen:
    if not pages:
        return "no page", []
    index = chance.randrange(len(pages))
    page = pages[index]
    edge = chance.randrange(SECTOR, PAGE, SECTOR)
    head, tail = page.data[:edge], page.data[edge:]
    filler = chance.choice(("zeros", "old content", "garbage", "an earlier life"))
    is_head_kept = chance.random() < 0.5
    lost = tail if is_head_kept else head
    at = page.offset + (edge if is_head_kept else 0)
    other = _filler(state, page.inode, at, len(lost), filler, chance)
    parts = (head, other) if is_head_kept else (other, tail)
    others = pages[:index] if chance.random() < 0.5 else [*pages[:index], *pages[index + 1 :]]
    label = f"page {index} torn at {edge}, {'tail' if is_head_kept else 'head'} is {filler}"
    return label, [*others, page._replace(data=b"".join(parts))]


def _filler(
    state: DiskState, inode: int, offset: int, length: int, filler: str, chance: random.Random
) -> bytes:
    old = bytes(state.content.get(inode, b"")[offset : offset + length]).ljust(length, b"\0")
    if offset < _HEADER_END and filler != "zeros":
        return old
    if filler == "zeros":
        return bytes(length)
    if filler == "garbage":
        return chance.randbytes(length)
    if filler == "an earlier life":
        # As on a file that is used again: what stood at this place in another file of the journal.
        lives = [data for number, data in sorted(state.content.items()) if number != inode]
        if lives:
            there = bytes(lives[chance.randrange(len(lives))][offset : offset + length])
            return there.ljust(length, b"\0")
    return old


_STRATEGIES = (_prefix, _suffix, _one_missing, _subset, _sectors, _reordered, _torn, _torn, _torn)


# --- going on after a cut -------------------------------------------------------------------------


def durable_log(disk: MemoryDisk) -> list[Op]:
    """Return a log that makes the files of a disk as they are, all of them flushed."""
    log = []
    for path, inode in disk.files.items():
        log += [
            Op("make", inode.number, name=str(path)),
            Op("write", inode.number, 0, bytes(inode.data)),
            Op("flush", inode.number),
        ]
    return [*log, Op("folder")]


def resume(
    disk: MemoryDisk, live: set[Key], branches: Mapping[int, Group]
) -> tuple[MemoryDisk, int]:
    """Return a copy of an image to live on, and the number of steps that stand for what it holds.

    Args:
        disk: The image.
        live: Messages that a recovery found in it: from now on the model holds on to them.
        branches: Prepared branches, likewise.
    """
    other = disk.copy()
    other.log = durable_log(other)
    Marks(other).restart(live, branches)
    return other, len(other.log)

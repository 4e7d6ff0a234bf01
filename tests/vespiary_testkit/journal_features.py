"""Acts of a journal's life that need more than plain messages: prepared branches, large messages.

Called by `journal_lives`, whose table of acts they are in; marks as in `power_cuts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vespiary_broker.engine.large_bodies import reference_of
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import BranchName, Xid, encode_branch
from vespiary_native.abc import Core, NoRoom
from vespiary_spec.errors import VespiaryError
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk

if TYPE_CHECKING:
    from vespiary_testkit.journal_lives import Life

Key = tuple[int, int]


class Doubt(NamedTuple):
    """What a prepared branch holds."""

    adds: list[Key]
    acks: list[Key]


# --- branches -------------------------------------------------------------------------------------


async def prepare_branch(life: Life) -> None:
    """Prepare a branch that sends and acknowledges; it may be ended much later, or after a cut."""
    await life.receive()
    life.transaction += 1
    number, core = life.transaction, life.core
    sends = life.chance.randrange(4)
    acks = life.chance.sample(life.held, min(len(life.held), life.chance.randrange(4)))
    try:
        core.begin(number, sends * 10_000, 2 * sends + len(acks), branch=True)
    except NoRoom:
        return
    adds: list[Key] = []
    for _ in range(sends):
        route = life.chance.randrange(len(life.routes))
        adds += life.next_keys(route)
        core.publish(life.routes[route], b"a:b\n", life.body(), persistent=True, transaction=number)
    for queue_id, sequence in acks:
        assert core.acknowledge(life.consumers[queue_id], sequence, transaction=number) == 1
    life.disk.mark(f"preparing {number}")
    core.prepare(number, encode_branch(BranchName(Xid(1, number.to_bytes(8), b""), 1, "amy")))
    life.held = [key for key in life.held if key not in set(acks)]
    life.branches[number] = Doubt(adds, acks)
    await life.journal.wait_durable()
    life.disk.mark(f"prepared {number}")


async def end_branch(life: Life) -> None:
    """Commit or roll back a prepared branch, of this life or of an earlier one."""
    if not life.branches:
        return
    number = life.chance.choice(sorted(life.branches))
    is_commit = life.chance.random() < 0.5
    try:
        life.core.resolve(number, commit=is_commit)
    except NoRoom:
        return
    adds, acks = life.branches.pop(number)
    if is_commit:
        for queue_id, sequence in adds:
            life.disk.mark(f"sent {queue_id} {sequence}")
            life.disk.mark(f"adds {number} {queue_id} {sequence}")
        for queue_id, sequence in acks:
            life.disk.mark(f"acking {queue_id} {sequence}")
            life.disk.mark(f"acks {number} {queue_id} {sequence}")
        life.disk.mark(f"committing {number}")
    else:
        life.disk.mark(f"ending {number}")
    await life.journal.wait_durable()
    life.disk.mark(f"ended {number}")
    if is_commit:
        life.disk.mark(f"settled {number}")
        life.confirm(adds)
        life.acknowledged(acks)
    else:
        life.waiting.update(acks)


def branches_of(core: Core) -> dict[int, Doubt]:
    """Return what the prepared branches of a core hold; none of it may be missing."""
    found = {}
    for facts in core.branches():
        assert facts.is_whole, facts
        assert not facts.missing, facts
        members = core.branch_members(facts.transaction)
        keys = [((m.queue_id, m.sequence), m.is_acknowledgement) for m in members]
        found[facts.transaction] = Doubt(
            [key for key, is_ack in keys if not is_ack], [key for key, is_ack in keys if is_ack]
        )
    return found


# --- large messages -------------------------------------------------------------------------------


def large_folder(folder: Path) -> Path:
    """Return where the bodies of a journal's large messages are."""
    return folder / "large"


async def open_large(folder: Path, disk: MemoryDisk, core: Core, now_ms: int) -> LargeMessages:
    """Open the bodies as a broker does; ids follow from `now_ms`."""
    made = await LargeMessages.open(
        LargeMessageOptions(directory=large_folder(folder)),
        core.live_large(),
        disk=disk,
        executor=InlineExecutor(),
    )
    made._clock_ms = lambda: now_ms
    assert not made.damaged, made.damaged
    return made


async def send_large(life: Life) -> None:
    """Send a message whose body is in a file, to one queue or to all, and wait for its confirm."""
    writer = life.large.begin()
    for _ in range(life.chance.randrange(3)):
        writer.put(life.chance.randbytes(life.chance.choice((1, 600, 5000))))
    try:
        body = await writer.finish(is_persistent=True)
    except VespiaryError:
        return  # the disk is full
    route = life.chance.randrange(len(life.routes))
    keys = life.next_keys(route)
    for queue_id, sequence in keys:
        life.disk.mark(f"sent {queue_id} {sequence}")
    try:
        life.core.publish(
            life.routes[route], b"a:b\n", reference_of(body), persistent=True, large=True
        )
    except NoRoom:
        life.large.remove([body.large_id])
        return
    life.large.adopt(body)
    await life.journal.wait_durable()
    life.confirm(keys)


def done_bodies(core: Core) -> list[int]:
    """Return the bodies that nobody needs any more."""
    return core.take_done_large()


def lost_bodies(disk: MemoryDisk, folder: Path, core: Core) -> list[str]:
    """Return what is wrong with the bodies that live messages refer to."""
    wrong = []
    for body in core.live_large():
        inode = disk.files.get(large_folder(folder) / f"{body.large_id:016x}.msg")
        if inode is None:
            wrong.append(f"the body {body.large_id:016x} of a live message is gone")
        elif (len(inode.data), crc32c(bytes(inode.data))) != (body.size_bytes, body.crc):
            wrong.append(f"the body {body.large_id:016x} of a live message is another")
    return wrong

"""Random calls to both cores, the files that they write, the clients that use them, crashes.

Owns `Driver`: one run, chosen by its seed. Compares results, writes, frames, and what is restored.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from vespiary_codec.journal.duplicate import DuplicateId, DuplicateRecord, duplicate_body
from vespiary_codec.journal.page import PAGE_BIT, TRAILER, TRAILER_BYTES, decode_footer
from vespiary_codec.journal.page import PLACE as INDEX_PLACE
from vespiary_codec.journal.page import QUEUE as INDEX_QUEUE
from vespiary_codec.journal.page import RECORD as INDEX_RECORD
from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.mqtt import NEED_DATA, MqttDecoder, Publish, Version
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom, ScanStatus
from vespiary_native.abc_accounts import AccountLimits
from vespiary_native.abc_mqtt import PACKET_ID_FIRST, MqttEncoding, MqttLimits
from vespiary_native.core import verify_blocks as native_verify_blocks
from vespiary_native.twin import verify_blocks as twin_verify_blocks
from vespiary_native.values_pages import PageState
from vespiary_testkit.core_pair import Both
from vespiary_testkit.mqtt_lines import OTHERS_LINES
from vespiary_testkit.mqtt_stream import PacketSource
from vespiary_testkit.stomp_stream import FrameSource

BUFFER_BYTES = 1 << 17
LIMITS = (12, 300, 1200, 30_000)
SALT = 0x9E3779B97F4A7C15


# --- accounts -------------------------------------------------------------------------------------


class AccountCalls:
    """Makes, fills, limits and closes accounts."""

    core: Both
    random: random.Random
    queues: dict[int, bool]
    accounts: list[int]

    def account(self) -> None:
        """Make, fill, limit and close accounts."""
        pick = self.random
        act = pick.randint(0, 9)
        if act == 0 or len(self.accounts) < 3:
            self.accounts.append(self.core.open_account())
        elif act == 1:
            account = pick.choice(self.accounts)
            self.core.close_account(account)
            self.accounts.remove(account)
        elif act < 5:
            self.core.join_account(pick.choice(sorted(self.queues)), pick.choice(self.accounts))
        else:
            size = pick.choice([None, 0, 1000, 60_000, 400_000])
            count = pick.choice([None, None, 1, 20])
            limits = AccountLimits(
                size, size and size * 4 // 5, count, count and count // 2, pick.random() < 0.6
            )
            self.core.limit_account(pick.choice(self.accounts), limits)


# --- counted deliveries ---------------------------------------------------------------------------


class CountingCalls:
    """Says when deliveries are journalled, and how many there may be."""

    core: Both
    random: random.Random
    connections: dict[int, tuple[int, bytearray]]
    queues: dict[int, bool]
    choosers: dict[int, int]

    def begin_counting(self) -> None:
        """Choose for one life; half of them leave it as it is."""
        self.is_ahead = self.random.random() < 0.4
        if self.is_ahead or self.random.random() < 0.2:
            records_max = self.random.choice([None, 0, 1, 3, 10])
            self.core.count_deliveries(ahead=self.is_ahead, records_max=records_max)

    def count(self) -> None:
        """Limit the deliveries of a queue, and ask what waits."""
        pick = self.random
        self.core.limit_deliveries(pick.choice(sorted(self.queues)), pick.choice([0, 1, 1, 2, 5]))
        for connection in self.connections:
            self.core.output_waiting(connection)

    def take_worn(self, consumer: int) -> bool:
        """Take away the message that a consumer is not given; return whether it may go on."""
        queue_id = self.choosers.get(consumer)
        if queue_id is None:
            return False
        sequence = self.core.next_deliverable(queue_id)
        assert self.core.set_aside(queue_id, sequence)
        if self.random.random() < 0.5:
            self.core.put_back(queue_id, sequence)
        return True


# --- inspection -----------------------------------------------------------------------------------


class InspectionCalls:
    """What Python does to queues whose order or fate it decides."""

    random: random.Random
    core: Any
    queues: dict[int, bool]
    consumers: dict[int, int]
    connections: dict[int, tuple[int, bytearray]]
    given: list[tuple[int, int]]
    choosers: dict[int, int]
    load_slab: Callable[[int, int], bool]
    note_given: Callable[[int, bytes], None]

    def inspect(self) -> None:
        """Look at a queue, and do something to what was seen or guessed."""
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        sequences = self.look(queue)
        acts = [
            self.give, self.give, self.finish, self.finish_held, self.set_aside, self.set_aside,
            self.put_back, self.ask, self.copy_range, self.copy_range, self.finish_below,
        ]  # fmt: skip
        pick.choice(acts)(queue, sequences)

    def look(self, queue: int) -> list[int]:
        """Return some sequences of a queue, seen or not, in any order."""
        pick = self.random
        state = self.core.queue_statistics(queue)
        sequence = pick.choice([0, 0, state.head, state.next, pick.randint(1, state.tail + 3)])
        how = {pick.choice(["everything", "everything", "returned_only", ""]): True}
        how |= {"special_only": pick.random() < 0.2}
        how.pop("", None)
        seen: list[int] = []
        for _ in range(4):
            number = pick.choice([1, 3, 40, 10**6])
            look = self.core.look(queue, sequence, number, **how)
            found = [view.sequence for view in look.messages]
            assert found == sorted(found)
            available = self.core.queue_statistics(queue).available
            assert look.next_sequence <= available
            seen += found
            sequence = look.next_sequence
            if look.absent is not None and not self.load_slab(*look.absent):
                break
        seen += [pick.randint(1, state.tail + 1) for _ in range(2)]
        return pick.sample(seen, min(len(seen), pick.choice([1, 2, 9])))

    def chooser(self, queue: int) -> int:
        """Return a consumer of a queue."""
        pick = self.random
        known = [one for one, of in self.choosers.items() if of == queue and one in self.consumers]
        if known and pick.random() < 0.8:
            return pick.choice(known)
        connection = pick.choice(sorted(self.connections))
        mode = AckMode(pick.choice([0, 1, 1, 2]))
        handle: int = self.core.open_consumer(
            connection, queue, mode, pick.choice([2, 30]), b"s", pick.choice([0, 10, 11, 12])
        )
        self.consumers[handle] = connection
        self.choosers[handle] = queue
        return handle

    def give(self, queue: int, sequences: list[int]) -> None:
        consumer = self.chooser(queue)
        if self.random.random() < 0.5:
            sequences = sorted(sequences)
        room = self.random.choice([1, 3000, 10**6])
        status, _, passed, frames = self.core.give(consumer, sequences, room)
        self.note_given(consumer, frames)
        if status == DeliverStatus.ABSENT:
            place = self.core.absent_for(queue, sequences[passed])
            assert place != (0, 0)
            self.load_slab(*place)
        elif status == DeliverStatus.LARGE:
            given = self.core.give_large(consumer, sequences[passed])
            if given is not None:
                self.note_given(consumer, given.head)

    def decide(self, consumer: int) -> bool:
        """Do something to the special message that a consumer would be given."""
        queue = self.choosers.get(consumer, 0)
        if queue not in self.queues or self.random.random() < 0.1:
            return False
        sequence = self.core.next_deliverable(queue)
        self.random.choice([self.give, self.set_aside, self.finish])(queue, [sequence])
        if self.random.random() < 0.5:
            self.core.specials_seen(queue)
        return consumer in self.consumers

    def finish(self, queue: int, sequences: list[int], transaction: int = 0) -> None:
        self.core.finish(queue, sequences, transaction=transaction)

    def finish_held(self, queue: int, sequences: list[int], transaction: int = 0) -> None:
        if self.consumers:
            sequence = self.random.choice([*sequences, *(s for q, s in self.given if q == queue)])
            holders = {self.core.holder(c, queue, sequence) for c in self.connections} - {-1}
            consumer = self.random.choice(sorted(holders or self.consumers))
            self.core.finish_held(consumer, sequence, transaction=transaction)

    def end_as_member(self, transaction: int) -> None:
        """End something in a transaction."""
        queue = self.random.choice(sorted(self.queues))
        tail = self.core.queue_statistics(queue).tail
        sequences = [self.random.randint(1, tail) for _ in range(self.random.choice([1, 3, 9]))]
        self.random.choice([self.finish, self.finish_held])(queue, sequences, transaction)

    def copy_range(self, queue: int, sequences: list[int]) -> None:
        """Copy a range of a queue to its end, as a reader does."""
        pick = self.random
        at, end = min(sequences), max(sequences) + pick.choice([0, 1, 50])
        room = pick.choice([0, 400, 5000, 10**6])
        for _ in range(6):
            copied = self.core.copy_range(
                queue, at, end, room,
                is_first_whole=pick.random() < 0.8, runs_max=pick.choice([1, 2, 1024]),
            )  # fmt: skip
            at = copied.next_sequence
            if copied.absent is not None and not self.load_slab(*copied.absent):
                break

    def finish_below(self, queue: int, sequences: list[int]) -> None:
        if self.random.random() < 0.3:
            self.core.finish_below(queue, self.random.choice(sequences), self.random.choice([1, 9]))

    def set_aside(self, queue: int, sequences: list[int]) -> None:
        for sequence in sequences:
            self.core.set_aside(queue, sequence)

    def put_back(self, queue: int, sequences: list[int]) -> None:
        look = self.core.look(queue, 0, 100, everything=True)
        aside = [view.sequence for view in look.messages if view.is_aside]
        for sequence in self.random.sample(aside, len(aside) // 2) + sequences:
            self.core.put_back(queue, sequence)

    def ask(self, queue: int, sequences: list[int]) -> None:
        self.core.next_deliverable(queue)
        for consumer in sorted(self.consumers):
            assert self.core.held_count(consumer) == len(self.core.held(consumer))
        for sequence in sequences:
            self.core.body(queue, sequence)
            self.core.absent_for(queue, sequence)


# --- switches: SENDs whose routes Python chooses --------------------------------------------------


class SwitchingCalls:
    """Makes, teaches and closes switches, and sends what comes to them on."""

    core: Both
    random: random.Random
    routes: list[int]
    switches: list[int]

    def open_switches(self) -> None:
        """Begin with some."""
        self.switches = [self.core.open_switch() for _ in range(2)]

    def teach_switch(self, connection: int) -> None:
        """Let a connection send some of its messages through a switch."""
        pick = self.random
        if pick.random() < 0.6:
            name = b"/queue/%d" % pick.randint(0, 6)
            self.core.teach(connection, name, pick.choice(self.switches))

    def replace_switch(self) -> None:
        """Close one; who was taught it asks again."""
        self.core.close_route(self.switches.pop(0))
        self.switches.append(self.core.open_switch())

    def misuse_switch(self) -> None:
        """Do what no switch can: both cores refuse it."""
        pick = self.random
        switch = pick.choice(self.switches)
        act = pick.randint(0, 2)
        if act == 0:
            self.core.publish(switch, b"", b"", persistent=True)
        elif act == 1:
            self.core.set_route(switch, [])
        else:
            self.core.send_switched([pick.choice(self.routes)])

    def choose(self) -> tuple[int, int, int]:
        """Send what a scan kept to random routes; return what that answers."""
        pick, core = self.random, self.core
        kept = core.switched()
        assert kept
        if pick.random() < 0.1:
            with contextlib.suppress(ValueError):
                core.send_switched(
                    [*[pick.choice(self.routes) for _ in kept[1:]], self.switches[0]]
                )
            with contextlib.suppress(ValueError):
                core.send_switched([pick.choice(self.routes) for _ in kept[1:]])
        routes = [pick.choice(self.routes) for _ in kept]
        status, at, detail = core.send_switched(routes)
        assert not core.switched()
        assert status in (ScanStatus.NEED_DATA, ScanStatus.FRAME, ScanStatus.BLOCKED)
        return status, at, detail


# --- pages ----------------------------------------------------------------------------------------

PAGE_SALT = 0xC2B2AE3D27D4EB4F


def page_salt(page_id: int) -> int:
    return PAGE_SALT * page_id % 2**64


class PagingCalls:
    """What the store's paging does."""

    random: random.Random
    core: Any
    queues: dict[int, bool]
    load_slab: Callable[[int, int], bool]
    publish: Callable[[], None]
    flush: Callable[[], None]
    operate: Callable[[], None]

    def __init__(self) -> None:
        self.page_files: dict[int, bytes] = {}
        self.last_page = 0

    def page(self) -> None:
        """Do something about pages."""
        acts = [
            self.move, self.move, self.fill_page, self.fill_page, self.close_page,
            self.commit_page, self.commit_page, self.enter_page, self.leave_page, self.end_page,
            self.end_page, self.restage_page, self.look_at_page, self.pick_from_page,
            self.pick_from_page, self.keep_places, self.copy_from_page,
        ]  # fmt: skip
        self.random.choice(acts)()

    def move(self) -> None:
        """Publish some messages and move what waits, all the way or nearly."""
        pick = self.random
        for _ in range(pick.choice([0, 5, 30])):
            self.publish()
        self.flush()
        self.last_page += 1
        page_id, size = self.last_page, pick.choice([8, 60, 400]) * 4096
        queues = sorted(self.queues)
        self.core.page_open(page_id, page_salt(page_id), size, queues)
        for queue in pick.sample(queues, len(queues)):
            for _ in range(3):
                filled = self.core.page_fill(page_id, queue, 0, 2**63, 2**40, 2**40)
                if filled.absent is None or not self.load_slab(*filled.absent):
                    break
        self.close(page_id)
        for _ in range(pick.choice([0, 0, 0, 2])):
            self.operate()
        if pick.random() < 0.9:
            self.core.page_commit(page_id)

    def some_page(self, *states: PageState) -> int:
        """Return a page, mostly in one of these states; 1 if there is none."""
        pick = self.random
        known = self.core.pages()
        if pick.random() < 0.95:
            known = [facts for facts in known if facts.state in states]
        return int(pick.choice(known).page_id) if known else 1

    def fill_page(self) -> None:
        pick = self.random
        filling = [f.page_id for f in self.core.pages() if f.state is PageState.FILLING]
        if not filling or (len(filling) < 3 and pick.random() < 0.1):
            self.last_page += 1
            queues = pick.sample(sorted(self.queues), pick.randint(1, len(self.queues)))
            size = pick.choice([4, 8, 20, 60, 400]) * 4096
            self.core.page_open(self.last_page, page_salt(self.last_page), size, queues)
            filling.append(self.last_page)
        page_id, queue = pick.choice(filling), pick.choice(sorted(self.queues))
        sequence = 0
        for _ in range(4):
            filled = self.core.page_fill(
                page_id,
                queue,
                sequence,
                pick.choice([2**63, 2**63, pick.randint(0, 200)]),
                pick.choice([1, 5000, 2**40]),
                pick.choice([1, 20, 2**40]),
            )
            sequence = filled.next_sequence
            if filled.is_full:
                self.close_page()
                return
            if filled.absent is not None and not self.load_slab(*filled.absent):
                return

    def close_page(self) -> None:
        self.close(self.some_page(PageState.FILLING))

    def close(self, page_id: int) -> None:
        twin, native = self.core.page_close(page_id)
        if not twin:
            if self.random.random() < 0.1:
                self.core.page_abandon(page_id)
            return
        assert [piece.length for piece in twin] == [piece.length for piece in native]
        data = bytes(4096) + b"".join(ctypes.string_at(p.address, p.length) for p in twin)
        index = decode_footer(data[twin[-1].offset :], page_id=page_id, salt=page_salt(page_id))
        assert index.trailer.size_bytes == len(data)
        self.page_files[page_id] = data

    def commit_page(self) -> None:
        page_id = self.some_page(PageState.CLOSED)
        if self.random.random() < 0.1:
            self.core.page_abandon(page_id)
        else:
            self.core.page_commit(page_id)

    def enter_page(self) -> None:
        pick = self.random
        wanted = self.core.page_wanted()
        queue = pick.choice(sorted(self.queues))
        wanted += [(queue, extent.page_id) for extent in self.core.extents(queue)]
        if wanted:
            self.enter(*pick.choice(wanted))

    def enter(self, queue: int, page_id: int) -> None:
        self.core.page_enter(page_id, queue, self.footer(page_id))

    def footer(self, page_id: int) -> bytes:
        """Return the footer of a page; now and then a bit of it is wrong.

        An offset is never wrong by a multiple of 8. The core cannot tell such an offset from a good
        one without reading the record; its callers verify the footer's checksum.
        """
        data = self.page_files[page_id]
        footer_offset = int.from_bytes(data[-48:-40], "little")
        footer = bytearray(data[footer_offset:])
        if self.random.random() < 0.02:
            at = self.random.randrange(len(footer))
            bit = self.random.randrange(8)
            trailer = TRAILER.unpack_from(footer, len(footer) - TRAILER_BYTES)
            queues, places, records = trailer[6:9]
            records_at = queues * INDEX_QUEUE.size + places * INDEX_PLACE.size
            row, field = divmod(at - records_at, INDEX_RECORD.size)
            if 0 <= row < records and field < 4:
                at, bit = records_at + row * INDEX_RECORD.size, bit % 3
            footer[at] ^= 1 << bit
        return bytes(footer)

    def some_extent(self) -> tuple[int, Any] | None:
        """Return a queue and what it has in a page."""
        queue = self.random.choice(sorted(self.queues))
        extents = self.core.extents(queue)
        return (queue, self.random.choice(extents)) if extents else None

    def look_at_page(self) -> None:
        """Look through an extent where it stands, and at a body."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        footer = self.footer(extent.page_id)
        sequence = pick.choice([0, extent.first, pick.randint(extent.first, extent.last + 1)])
        for _ in range(4):
            found = self.core.page_look(
                extent.page_id,
                queue,
                footer,
                sequence,
                pick.choice([1, 3, 20000]),
                min_priority=pick.choice([0, 0, 5]),
            )
            if found is None:
                return
            sequence = found.next_sequence
            if found.messages:
                every = [view.sequence for view in found.messages]
                some = sorted(pick.sample(every, pick.randint(1, min(len(every), 9))))
                if pick.random() < 0.2:
                    some.insert(pick.randrange(len(some)), pick.randrange(extent.last + 2))
                most = pick.choice([0, 500, 2**40])
                self.core.page_bodies(extent.page_id, queue, footer, some, most)
            if found.absent is not None and not self.load_slab(*found.absent):
                return

    def copy_from_page(self) -> None:
        """Copy records of an extent where they stand, as a reader of ranges does."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        footer = self.footer(extent.page_id)
        at = pick.choice([0, extent.first, pick.randint(extent.first, extent.last + 1)])
        end = pick.choice([extent.last + 1, extent.last + 9, pick.randint(at, extent.last + 1)])
        for _ in range(6):
            copied = self.core.page_copy(
                extent.page_id, queue, footer, at, end, pick.choice([0, 400, 5000, 10**6]),
                is_first_whole=pick.random() < 0.8, runs_max=pick.choice([1, 2, 1024]),
            )  # fmt: skip
            if copied is None:
                return
            at = copied.next_sequence
            if copied.absent is not None and not self.load_slab(*copied.absent):
                return

    def pick_from_page(self) -> None:
        """Have some places of an extent in the ring."""
        pick = self.random
        if (some := self.some_extent()) is None:
            return
        queue, extent = some
        every = range(extent.first, extent.last + 2)
        chosen = pick.sample(every, min(len(every), pick.choice([1, 3, 30])))
        self.core.page_pick(extent.page_id, queue, self.footer(extent.page_id), sorted(chosen))

    def keep_places(self) -> None:
        """Have some places stay in the ring, or let them go."""
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        tail = self.core.queue_statistics(queue).tail
        some = [pick.randrange(tail + 1) for _ in range(pick.choice([1, 9, 100]))]
        self.core.page_keep(queue, some, is_kept=pick.random() < 0.4)

    def enter_wanted(self) -> bool:
        """Enter what consumers wait for; whether there was anything."""
        wanted = self.core.page_wanted()
        for queue, page_id in wanted:
            self.enter(queue, page_id)
        return bool(wanted)

    def leave_page(self) -> None:
        pick = self.random
        queue = pick.choice(sorted(self.queues))
        extents = self.core.extents(queue)
        if extents:
            self.core.page_leave(pick.choice(extents).page_id, queue)

    def end_page(self) -> None:
        """End a page that is done, or remove one whose end is durable."""
        for facts in self.core.pages():
            if facts.state is PageState.ENDED:
                self.core.page_forget(facts.page_id)
                del self.page_files[facts.page_id]
        for page_id in self.core.page_done():
            self.core.page_end(page_id)

    def restage_page(self) -> None:
        self.core.page_restage(self.some_page(PageState.LIVE))

    def compare_pages(self) -> None:
        self.core.page_done()
        for facts in self.core.pages():
            self.core.live_places(facts.page_id | 1 << 62)
            self.core.extent(facts.page_id, min(self.queues, default=0))
        for queue in self.queues:
            self.core.extents(queue)
            self.core.extents(queue, 1, 2)
            tail = self.core.queue_statistics(queue).tail
            self.core.extent_index(queue, self.random.randrange(tail + 2))

    def restore_pages(self) -> None:
        """Look for the files that the journal names; remove all others."""
        known = {facts.page_id for facts in self.core.pages()}
        needed = {facts.page_id for facts in self.core.pages() if facts.places}
        assert needed <= self.page_files.keys(), "a page that is needed is gone"
        for page_id in self.page_files.keys() - known:
            del self.page_files[page_id]


# --- transactions and branches --------------------------------------------------------------------


class TransactionCalls:
    """What is staged together, and how it ends."""

    random: random.Random
    core: Any
    queues: dict[int, bool]
    consumers: dict[int, int]
    given: list[tuple[int, int]]
    last_transaction: int
    publish: Callable[[int], None]
    end_as_member: Callable[[int], None]
    add_file: Callable[[], None]
    flush: Callable[[], None]

    def transaction(self) -> None:
        pick = self.random
        self.last_transaction += 1
        name = self.last_transaction
        members = pick.randint(0, 12)
        is_branch = pick.random() < 0.5
        size = pick.choice([1000, 30_000, 31_000 * members])
        before = self.standing()
        self.core.begin(name, size, members * 3, branch=is_branch)
        for _ in range(members):
            try:
                if pick.random() < 0.2:
                    self.core.append_record(11, self.duplicate(name), flags=1)
                elif pick.random() < 0.4 and self.given and self.consumers:
                    sequence = pick.choice(self.given)[1]
                    consumer = pick.choice(sorted(self.consumers))
                    self.core.acknowledge(consumer, sequence, transaction=name)
                elif pick.random() < 0.2:
                    self.end_as_member(name)
                else:
                    self.publish(name)
            except (NoRoom, ValueError):
                pass  # both said the same
        if pick.random() < 0.3:
            self.core.abort(name)
            assert self.standing() == before
            return
        data = pick.randbytes(pick.choice([0, 20, 300]))
        end = partial(self.core.prepare, name, data) if is_branch else None
        end = end or partial(self.core.commit, name)
        try:
            end()
        except NoRoom:
            self.add_file()
            self.flush()
            end()

    def standing(self) -> object:
        """Return what an abort must leave as it was; `next` may have gone past what came back."""
        queues = [
            self.core.queue_statistics(queue)._replace(next=0, head=0) for queue in self.queues
        ]
        held = [sorted(self.core.held(consumer)) for consumer in self.consumers]
        return queues, held, self.core.live_large(), self.core.branches()

    def resolve(self) -> None:
        """End a prepared branch, or try to."""
        known = [facts.transaction for facts in self.core.branches()]
        transaction = self.random.choice(known or [self.last_transaction])
        self.core.resolve(transaction, commit=self.random.random() < 0.6)

    def copy_branch(self) -> None:
        """Copy a prepared branch to the journal's end, or try to, loading what is absent."""
        known = [facts.transaction for facts in self.core.branches()]
        transaction = self.random.choice(known or [self.last_transaction])
        self.last_transaction += 1
        for _ in range(4):
            absent = self.core.branch_copy(transaction, self.last_transaction)
            if absent is None or not self.load_slab(*absent):
                return

    def duplicate(self, transaction: int) -> bytes:
        """Return the body of a DUPLICATE record; now and then of another transaction."""
        pick = self.random
        name = transaction if pick.random() < 0.95 else transaction + 1
        ids = tuple(
            DuplicateId(pick.randint(1, 99), pick.randbytes(pick.choice([0, 1, 36])))
            for _ in range(pick.choice([0, 1, 1, 3]))
        )
        return duplicate_body(DuplicateRecord("orders", ids, name))


# --- clients of MQTT ------------------------------------------------------------------------------

MQTT_BUFFER_BYTES = 1 << 16
TOPICS = (b"t/0", b"t/1", b"t/2", b"t/\xc3\xa9")
LINES = (
    b"destination:t.0\n",
    b"destination:t.1\n",
    b"destination:a\\cb\n",
    b"destination:t.%25\n",
    b"destination:t.\xc3\xa9\n",
    b"destination:v1/2.a\n",
    b"destination:$SYS.a\n",
    b"destination:a::b\n",
    b"destination:\n",
)


class MqttClient:
    """One connection, and what it has sent that was not taken."""

    def __init__(self, pick: random.Random, handle: int, buffer: int, memory: bytearray) -> None:
        self.handle, self.buffer, self.memory = handle, buffer, memory
        self.version = pick.choice([3, 4, 5, 5])
        self.sent: list[int] = []
        self.source = PacketSource(pick, self.version, self.sent)
        self.waiting = b""
        self.consumers: dict[int, int] = {}
        self.encoded: set[int] = set()
        self.reserved: set[int] = set()


class MqttCalls:
    """Opens, teaches, feeds and closes connections of MQTT."""

    core: Both
    random: random.Random
    queues: dict[int, bool]
    routes: list[int]
    switches: list[int]
    clients: list[MqttClient]

    def flush(self) -> None:
        """See `Driver.flush`."""
        raise NotImplementedError

    def keep_files(self) -> None:
        """See `Driver.keep_files`."""
        raise NotImplementedError

    def load_slab(self, file_id: int, slab: int) -> bool:
        """See `Driver.load_slab`."""
        raise NotImplementedError

    def enter_wanted(self) -> bool:
        """See `PagingCalls.enter_wanted`."""
        raise NotImplementedError

    def choose(self) -> tuple[int, int, int]:
        """See `SwitchingCalls.choose`."""
        raise NotImplementedError

    def open_client(self) -> None:
        """Make a connection, which is taught something in most cases."""
        pick = self.random
        memory = bytearray(MQTT_BUFFER_BYTES)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        assert attached[0] == attached[1]
        client = MqttClient(pick, self.core.open_connection(), attached[0], memory)
        self.clients.append(client)
        limits = MqttLimits(20_000, 8000, pick.choice([1, 3, 20, 65_535]))
        self.core.set_ready_mqtt(client.handle, client.version, limits)
        self.core.set_window(client.handle, pick.choice([0, 1, 5, 100, 65_535, 65_535]))
        for _ in range(pick.choice([0, 4, 8, 12])):
            self.teach_topic(client)

    def teach_topic(self, client: MqttClient) -> None:
        """Let a client publish by itself."""
        pick = self.random
        route = pick.choice(self.switches if pick.random() < 0.2 else self.routes)
        self.core.teach_mqtt(client.handle, pick.choice(TOPICS), pick.choice(LINES), route)

    def close_client(self, client: MqttClient) -> None:
        """End a connection."""
        self.core.sent(client.handle)
        for consumer in list(client.consumers):
            self.close_reader(client, consumer)
        self.core.close_connection(client.handle)
        for core in self.core.cores:
            core.detach_buffer(client.buffer)
        self.clients.remove(client)

    def serve_client(self) -> None:
        """Do something with one of them."""
        pick = self.random
        if not self.clients or (len(self.clients) < 3 and pick.random() < 0.2):
            self.open_client()
        if pick.random() < 0.2:
            self.flush()
            self.keep_files()
        client = pick.choice(self.clients)
        act = pick.random()
        if act < 0.1:
            self.teach_topic(client)
        elif act < 0.11:
            self.close_client(client)
        elif act < 0.55:
            self.feed_client(client)
        else:
            self.send_to_client(client)

    def feed_client(self, client: MqttClient) -> None:
        """Have a client send packets, in pieces."""
        pick = self.random
        rest = client.waiting
        answers = b""
        if pick.random() < 0.6:
            ids = pick.sample(client.sent, pick.randint(0, len(client.sent)))
            answers = b"".join(client.source.puback(packet_id) for packet_id in ids)
        stream = (
            rest
            + answers
            + b"".join(client.source.next() for _ in range(pick.choice([1, 2, 5, 12, 40])))
        )
        stream = stream[: MQTT_BUFFER_BYTES - 8]
        start = pick.randint(0, 7)
        client.memory[start : start + len(stream)] = stream
        at, end = start, start + len(rest)
        status = ScanStatus.NEED_DATA
        while end < start + len(stream) and status == ScanStatus.NEED_DATA:
            end = min(start + len(stream), end + pick.choice([1, 3, 17, 100, 4096, 10**6]))
            at, status = self.scan_client(client, at, end)
        if status == ScanStatus.ODD:
            self.close_client(client)
            return
        client.waiting = bytes(client.memory[at : start + len(stream)])[: MQTT_BUFFER_BYTES // 2]

    def scan_client(self, client: MqttClient, at: int, end: int) -> tuple[int, int]:
        """Have both cores take what they can; return how far they came, and why no further."""
        pick, core = self.random, self.core
        while True:
            status, at, detail = core.scan_mqtt(client.handle, client.buffer, at, end)
            if status == ScanStatus.SWITCHED:
                if pick.random() < 0.1:
                    return at, ScanStatus.NEED_DATA  # nothing is taken until it is sent on
                if pick.random() < 0.1:
                    self.teach_topic(client)  # what was kept is forgotten
                    core.switched()
                    return at, ScanStatus.NEED_DATA
                status, at, detail = self.choose()
                if status == ScanStatus.NEED_DATA:
                    continue
            core.output_waiting(client.handle)
            core.unanswered(client.handle)
            is_passed = status == ScanStatus.BLOCKED and pick.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail

    # --- messages out -----------------------------------------------------------------------------
    def publish_otherwise(self) -> None:
        """Publish what a client of another protocol has sent."""
        pick = self.random
        lines = pick.choices(OTHERS_LINES, k=pick.choice([0, 1, 2, 3, 8]))
        properties = pick.choice(OTHERS_LINES[:3]) + b"".join(lines)
        protocol = pick.choice([1, 3])
        if protocol == 3:
            properties += b"\0\1\x75\xa0\0native\nc:d\n\\"
        with suppress(NoRoom):
            self.core.publish(
                pick.choice(self.routes),
                properties,
                bytes(pick.choice([0, 1, 60, 200, 3000])),
                persistent=pick.random() < 0.8,
                protocol=protocol,
                priority=pick.choice([4, 4, 4, 4, 5]),
                escaped=b"\\" in properties if pick.random() < 0.9 else pick.random() < 0.5,
            )

    def send_to_client(self, client: MqttClient) -> None:
        """Do something about what a client is sent."""
        pick, core = self.random, self.core
        act = pick.random()
        if not client.consumers or act < 0.1:
            self.open_reader(client)
        elif act < 0.14:
            self.encode_otherwise(client, pick.choice(sorted(client.consumers)))
        elif act < 0.22:
            self.close_reader(client, pick.choice(sorted(client.consumers)))
        elif act < 0.3:
            core.set_window(client.handle, pick.choice([0, 1, 5, 100, 65_535, 65_535]))
        elif act < 0.36:
            self.reserve(client)
        elif act < 0.39:
            self.publish_otherwise()
        elif act < 0.47:
            known = pick.choice(client.sent) if client.sent else PACKET_ID_FIRST
            core.take_puback(client.handle, pick.choice([known, known, 0, 1, 32_767, 65_535]))
        else:
            self.deliver_to(client, pick.choice(sorted(client.consumers)))
        core.sent(client.handle)
        core.sent_count(client.handle)

    def open_reader(self, client: MqttClient) -> None:
        """Make a consumer whose messages are encoded, in most cases."""
        pick = self.random
        known = sorted(self.queues)
        full = [queue for queue in known if self.core.queue_statistics(queue).ready]
        queue = pick.choice(full or known)
        mode = AckMode.INDIVIDUAL if pick.random() < 0.95 else AckMode.AUTO
        credit = pick.choice([3, *[2**31 - 1] * 6])
        handle = self.core.open_consumer(client.handle, queue, mode, credit, b"", STORED_VERSION)
        client.consumers[handle] = queue
        if pick.random() < 0.95:
            self.encode_otherwise(client, handle)

    def encode_otherwise(self, client: MqttClient, consumer: int) -> None:
        """Have the messages of a consumer encoded in another way, or elsewhere."""
        pick = self.random
        if pick.random() < 0.1:
            self.core.encode_mqtt(consumer, None)
            client.encoded.discard(consumer)
            return
        low = self.core.queue_statistics(client.consumers[consumer]).next
        encoding = MqttEncoding(
            pick.choice([0, 1, 1, 2, 2]),
            pick.choice([60, 84, 3000, 300_000, 300_000]),
            pick.choice([b"", b"fixed/topic"]),
            pick.choice([0, 0, 0, low + 3]),
            pick.choice([(), (b"/queue/", b"/topic/"), (b"", b"/topic/", b"/queue/")]),
        )
        self.core.encode_mqtt(consumer, encoding)
        client.encoded.add(consumer)

    def close_reader(self, client: MqttClient, consumer: int) -> None:
        """Close a consumer."""
        self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
        del client.consumers[consumer]
        client.encoded.discard(consumer)

    def reserve(self, client: MqttClient) -> None:
        """Keep an id from the core, or let it have it again."""
        pick = self.random
        low = pick.choice([PACKET_ID_FIRST, PACKET_ID_FIRST, 100])
        packet_id = pick.randint(low, low + 100)
        if pick.random() < 0.3:
            packet_id = self.core.take_packet_id(client.handle)
            client.reserved.add(packet_id)
            return
        if client.reserved and pick.random() < 0.5:
            packet_id = client.reserved.pop()
            self.core.reserve_packet_id(client.handle, packet_id, reserved=False)
            return
        self.core.reserve_packet_id(client.handle, packet_id, reserved=True)
        client.reserved.add(packet_id)

    def deliver_to(self, client: MqttClient, consumer: int) -> None:
        """Send a client messages, whoever encodes them; what comes is read by the codec."""
        pick, core = self.random, self.core
        for _ in range(5):
            most, room = pick.choice([1, 5, 100]), pick.choice([1, 4000, 10**6])
            before = core.sent_count(client.handle)
            status, count, data = core.deliver(consumer, most, room)
            if consumer in client.encoded:
                sent = self.read_packets(client, data)
                assert core.sent_count(client.handle) - before == len(sent)
            if status == DeliverStatus.STORED:
                status, count, data = core.deliver_stored(consumer, most, room)
                assert len([*read_stored(data)]) == count
                continue
            if not self.go_on(client, consumer, status):
                return

    def go_on(self, client: MqttClient, consumer: int, status: DeliverStatus) -> bool:
        """Do what a delivery needs that has stopped; return whether there may be more."""
        pick, core = self.random, self.core
        queue = client.consumers[consumer]
        if status == DeliverStatus.LARGE:
            return core.take_large(consumer) is not None
        if status in (DeliverStatus.SPECIAL, DeliverStatus.WORN):
            sequence = core.next_deliverable(queue)
            if pick.random() < 0.5 and status == DeliverStatus.SPECIAL:
                core.give(consumer, [sequence], 10**6)
            else:
                core.finish(queue, [sequence])
            core.specials_seen(queue)
            return True
        if status == DeliverStatus.ABSENT:
            self.load_slab(*core.absent_slab(consumer))
            return consumer in client.consumers
        if status == DeliverStatus.PAGED:
            return bool(self.enter_wanted()) and consumer in client.consumers
        return status == DeliverStatus.LIMIT

    def read_packets(self, client: MqttClient, data: bytes) -> list[int]:
        """Return the packet ids of the PUBLISHes that a client was sent; nothing else was."""
        decoder = MqttDecoder(role="client", version=Version(client.version))
        decoder.feed(data)
        sent = []
        while not isinstance(packet := decoder.next_packet(), type(NEED_DATA)):
            assert isinstance(packet, Publish)
            if packet.qos:
                assert packet.packet_id >= PACKET_ID_FIRST
                assert packet.packet_id not in client.reserved
                sent.append(packet.packet_id)
        assert not decoder.is_mid_packet
        client.sent += sent
        del client.sent[:-60]
        return sent


# --- the run --------------------------------------------------------------------------------------


class Driver(
    AccountCalls,
    CountingCalls,
    InspectionCalls,
    SwitchingCalls,
    PagingCalls,
    TransactionCalls,
    MqttCalls,
):
    """One run: two cores, the files they write, the clients that use them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.is_paging = self.random.random() < 0.6
        self.is_mqtt = seed % 4 == 1  # much of it
        self.given: list[tuple[int, int]] = []
        self.frames = FrameSource(self.random, self.given)
        self.slab_bytes = self.random.choice([32, 64, 128]) * 1024
        self.sizes = {
            "slab_bytes": self.slab_bytes,
            "block_bytes": self.random.choice([4096, 8192, 16384, 65536]),
            "slabs_max": self.random.choice([3, 6, 8, 16, 64]),
            "record_bytes_max": self.random.choice([2000, 12_000, self.slab_bytes - 8192]),
        }
        self.is_starved = self.random.random() < 0.3
        self.files: dict[int, bytearray] = {}
        self.last_file = 0
        self.last_transaction = 0
        self.last_queue = 0
        self.last_large = 0
        self.done_large: set[int] = set()
        self.queues: dict[int, bool] = {}
        self.now = 1_700_000_000_000
        self.begin_life()

    def begin_life(self) -> None:
        self.core = Both(**self.sizes)
        self.routes: list[int] = []
        self.connections: dict[int, tuple[int, bytearray]] = {}
        self.waiting: dict[int, bytes] = {}
        self.accounts = [0]
        self.clients: list[MqttClient] = []
        self.consumers: dict[int, int] = {}
        self.choosers: dict[int, int] = {}
        self.given.clear()
        self.in_flight: Any = None
        self.is_started = False
        self.begin_counting()

    # --- the world around ------------------------------------------------------------------------
    def start(self, sequence: int = 1, crc: int = 0, durable: int = 0) -> None:
        self.core.start(sequence, crc, durable)
        self.is_started = True
        self.add_file()
        self.keep_files()
        while len(self.queues) < 4:
            self.open_queue()
        self.open_switches()
        for _ in range(3):
            self.open_route()
            self.open_connection()

    def add_file(self) -> None:
        self.last_file += self.random.randint(1, 3)
        sizes = [16, 24, 40] if self.is_starved else [24, 64, 68, 128, 196, 256]
        size = self.random.choice(sizes) * 4096
        self.core.add_file(self.last_file, SALT * self.last_file % 2**64, size)
        self.files[self.last_file] = bytearray(size)

    def open_queue(self) -> None:
        self.last_queue += 1
        is_durable = self.random.random() < 0.8
        self.core.open_queue(self.last_queue, self.random.choice([1, 1, 5000]), durable=is_durable)
        self.queues[self.last_queue] = is_durable

    def some_queues(self) -> list[int]:
        known = sorted(self.queues)
        return self.random.sample(known, min(len(known), self.random.choice([0, 1, 1, 1, 1, 2, 3])))

    def open_route(self) -> None:
        self.routes.append(self.core.open_route(self.some_queues()))

    def open_connection(self) -> None:
        handle = self.core.open_connection()
        version = self.random.choice([10, 11, 12, 12])
        memory = bytearray(BUFFER_BYTES)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        assert attached[0] == attached[1]
        self.connections[handle] = (attached[0], memory)
        self.waiting[handle] = b""
        if self.random.random() < 0.9:
            self.core.set_ready(handle, version, LIMITS)
        for number, route in enumerate(self.routes[-6:]):
            self.core.teach(handle, b"/queue/%d" % number, route)
            if self.random.random() < 0.3:
                self.core.teach(handle, b"/queue/%d\0ANYCAST" % number, route)
        self.teach_switch(handle)

    def close_connection(self, handle: int) -> None:
        for consumer in [c for c, owner in self.consumers.items() if owner == handle]:
            self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
            del self.consumers[consumer]
            self.choosers.pop(consumer, None)
        self.core.close_connection(handle)
        attached, _ = self.connections.pop(handle)
        for core in self.core.cores:
            core.detach_buffer(attached)
        del self.waiting[handle]

    # --- the disk --------------------------------------------------------------------------------
    def write(self) -> None:
        if self.in_flight is None:
            twin, _ = self.core.seal_write()
            if twin is not None:
                self.in_flight = (twin, ctypes.string_at(twin.address, twin.length))
        self.settle()

    def settle(self) -> None:
        self.core.has_unwritten()
        self.core.is_urgent()

    def written(self) -> None:
        if self.in_flight is None:
            return
        request, data = self.in_flight
        self.in_flight = None
        again = ctypes.string_at(request.address, request.length)
        assert again == data, "a block changed while it was being written"
        self.files[request.file_id][request.offset : request.offset + request.length] = data
        self.core.write_done(request.sequence)
        self.core.take_receipts()
        self.core.take_ready_queues()

    def flush(self) -> None:
        while True:
            self.written()
            self.write()
            if self.in_flight is None:
                return

    def load(self, consumer: int) -> None:
        self.load_slab(*self.core.absent_slab(consumer))

    def load_slab(self, file_id: int, slab: int) -> bool:
        twin, native = self.core.load_begin(file_id, slab)
        if twin is None:
            return False
        is_good = self.random.random() < 0.9
        for address, length, offset in (twin, native):
            file = self.page_files.get(file_id ^ PAGE_BIT) or self.files[file_id]
            data = bytes(file[offset : offset + length])
            ctypes.memmove(address, data, length)
        if self.random.random() < 0.2:
            self.operate()
        self.core.load_done(file_id, slab, good=is_good)
        return is_good

    def reclaim(self) -> None:
        current = self.core.current_file()
        for file_id in sorted(self.files):
            if file_id >= current:
                return
            free = self.core.live_places(file_id) == 0 and not self.core.cancels(file_id)
            if free and self.is_durable(file_id):
                self.core.forget_file(file_id)
                del self.files[file_id]

    def compact(self) -> None:
        """Move what is live in an old file, slab by slab, loading what is absent."""
        current = self.core.current_file()
        old = [file_id for file_id in sorted(self.files) if file_id < current]
        file_id = self.random.choice(old or sorted(self.files))
        for slab in range(-(-len(self.files[file_id]) // self.slab_bytes)):
            offset = record = 0
            for _ in range(self.random.choice([1, 3, 30])):
                max_bytes = self.random.choice([1, 9000, 10**6])
                max_places = self.random.choice([1, 5, 10**6])
                moved = self.core.relocate(file_id, slab, offset, record, max_bytes, max_places)
                offset, record = moved.next_offset, moved.next_record
                if not offset:
                    break
                if moved.is_absent and not self.load_slab(file_id, slab):
                    break

    def is_durable(self, file_id: int) -> bool:
        """Whether the file's last block is on disk: it ends in a seal,
        or an older life wrote it."""
        data = memoryview(self.files[file_id])
        found = twin_verify_blocks(data[4096:], 4096, SALT * file_id % 2**64, file_id, 10**6)
        return bool(found) and (found[-1].is_seal or file_id < self.first_own_file)

    first_own_file = 0

    # --- clients ---------------------------------------------------------------------------------
    def feed(self, handle: int) -> None:
        pick = self.random
        rest = self.waiting[handle]
        stream = rest + b"".join(self.frames.frame() for _ in range(pick.choice([1, 1, 2, 5, 12])))
        attached, memory = self.connections[handle]
        stream = stream[: BUFFER_BYTES - 8]
        start = pick.randint(0, 7)
        memory[start : start + len(stream)] = stream
        at = start
        end = start + len(rest)  # what was seen before is not taken away again
        status = ScanStatus.NEED_DATA
        while end < start + len(stream) and status == ScanStatus.NEED_DATA:
            end = min(start + len(stream), end + pick.choice([1, 3, 17, 100, 4096, 10**6]))
            at, status = self.scan(handle, attached, at, end)
        if status == ScanStatus.ODD:
            self.close_connection(handle)
            self.open_connection()
            return
        # What is left is half a frame, or, when the core is full, frames to try again.
        self.waiting[handle] = bytes(memory[at : start + len(stream)])[: BUFFER_BYTES // 2]

    def scan(self, handle: int, attached: int, at: int, end: int) -> tuple[int, int]:
        while True:
            status, at, detail = self.core.scan_stomp(handle, attached, at, end)
            if status == ScanStatus.SWITCHED:
                if self.random.random() < 0.1:
                    return at, ScanStatus.NEED_DATA  # nothing is taken until it is sent on
                status, at, detail = self.choose()
                if status == ScanStatus.NEED_DATA:
                    continue
            is_passed = status == ScanStatus.BLOCKED and self.random.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail

    # --- what engines do -------------------------------------------------------------------
    def publish(self, transaction: int = 0) -> None:
        pick = self.random
        body, large = self.frames.body(), pick.random() < 0.15
        if large:
            self.last_large += 1
            body = struct.pack(
                "<QQII", self.last_large, pick.getrandbits(40), pick.getrandbits(32), 0
            )
        properties = pick.choice(
            [
                b"",
                b"destination:/queue/1\n",
                b"na\\c\\r\\n\\\\me:\\c\\n\\r\\\\x\nb:1\n",
                b"k:v\n" * 40,
                b"a:b\n\0\x01\x75\xa0\0native\nc:d\n\\",
                b"\0",
            ]
        )
        self.core.publish(
            pick.choice(self.routes),
            properties,
            body,
            persistent=pick.random() < 0.8,
            protocol=3 if b"\0" in properties else pick.choice([1, 3]),
            priority=pick.randint(0, 9),
            escaped=pick.random() < 0.5,
            large=large,
            special=pick.random() < 0.1,
            transaction=transaction,
        )

    def open_consumer(self) -> None:
        pick = self.random
        connection = pick.choice(sorted(self.connections))
        queue = pick.choice(sorted(self.queues))
        handle = self.core.open_consumer(
            connection,
            queue,
            AckMode(pick.choice([0, 1, 2, 2])),
            pick.choice([1, 3, 50, 2**31 - 1]),
            pick.choice([b"s1", b"", b"sub\\cx"]),
            pick.choice([STORED_VERSION, 10, 11, 12]),
        )
        self.consumers[handle], self.choosers[handle] = connection, queue

    def deliver(self) -> None:
        pick = self.random
        if not self.consumers:
            self.open_consumer()
        consumer = pick.choice(sorted(self.consumers))
        for _ in range(4):
            status, _, frames = self.core.deliver(
                consumer, pick.choice([1, 5, 100]), pick.choice([1, 4000, 10**6])
            )
            self.note_given(consumer, frames)
            if status == DeliverStatus.LARGE:
                self.take_large(consumer)
            elif status == DeliverStatus.WORN:
                if self.take_worn(consumer):
                    continue
            elif status == DeliverStatus.SPECIAL and self.decide(consumer):
                continue
            is_entered = status == DeliverStatus.PAGED and self.enter_wanted()
            if is_entered:
                continue
            if status != DeliverStatus.ABSENT:
                return
            self.load(consumer)
            if consumer not in self.consumers:
                return

    def take_large(self, consumer: int) -> None:
        assert self.core.next_large(consumer) is not None
        given = self.core.take_large(consumer)
        if given is None:
            assert self.is_ahead, "only a count may find no room"
            return
        self.note_given(consumer, given.head)
        if self.random.random() < 0.5:
            self.core.acknowledge(consumer, given.sequence)

    def end_large(self) -> None:
        done = self.core.take_done_large()
        live = {body.large_id for body in self.core.live_large()}
        assert len(done) == len(set(done))
        assert not self.done_large & {*done, *live}, "a body that was given up is needed, or again"
        assert not live & {*done}
        self.done_large.update(done)

    def note_given(self, consumer: int, frames: bytes) -> None:
        if not frames.startswith(b"MESSAGE"):
            queue_id = self.choosers.get(consumer, 0)
            self.given += [(queue_id, each.sequence) for each in read_stored(frames)]
        at = frames.find(b"message-id:")
        while at >= 0:
            queue, _, sequence = frames[at + 11 : frames.find(b"\n", at)].partition(b"-")
            if queue.isdigit() and sequence.isdigit():
                self.given.append((int(queue), int(sequence)))
            at = frames.find(b"message-id:", at + 1)
        del self.given[:-200]

    def settle_message(self) -> None:
        """Acknowledge or give back something through the slow path."""
        pick = self.random
        if not self.consumers:
            return
        queue, sequence = pick.choice(self.given) if self.given else (1, 1)
        for connection in self.connections:
            self.core.holder(connection, queue, sequence)
        consumer = pick.choice(sorted(self.consumers))
        act = pick.choice(
            [self.core.acknowledge, self.core.acknowledge, self.core.give_back, self._release]
        )
        act(consumer, sequence)

    def operate(self) -> None:
        pick = self.random
        weights: list[tuple[int, Callable[[], object]]] = [
            (14, lambda: self.feed(pick.choice(sorted(self.connections)))),
            (150 if self.is_mqtt else 10, self.serve_client),
            (6, self.publish),
            (3, self.end_large),
            (3, self.transaction),
            (3, self.resolve),
            (3, self.copy_branch),
            (12, self.write),
            (12, self.written),
            (3, self.open_consumer),
            (14, self.deliver),
            (12, self.inspect),
            (16 if self.is_paging else 0, self.page),
            (6, self.settle_message),
            (1, self.close_a_consumer),
            (3, self.disorder),
            (1, lambda: self.core.receipt(pick.choice(sorted(self.connections)), b"RECEIPT x")),
            (2, self.core.take_receipts),
            (2, self.core.take_ready_queues),
            (1, self.core.stage_empty_block),
            (1, self.append),
            (1, self.churn),
            (1, self.replace_switch),
            (1, self.misuse_switch),
            (2, self.account),
            (2, self.count),
            (2, self.core.take_changed_accounts),
            (5, self.keep_files),
            (2, self.reclaim),
            (4, self.compact),
            (1, lambda: self.core.grow(pick.randint(0, 3))),
            (2, self.tick),
        ]
        operation = pick.choices([op for _, op in weights], [weight for weight, _ in weights])[0]
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            operation()
        self.compare()

    def _release(self, consumer: int, sequence: int) -> int:
        """Have a message given back that counts as not delivered."""
        return self.core.give_back(consumer, sequence, counted=False)

    def disorder(self) -> None:
        """Have a cumulative consumer be given messages that come back behind higher ones."""
        pick = self.random
        queue, connection = pick.choice(sorted(self.queues)), pick.choice(sorted(self.connections))
        first, other = (
            self.core.open_consumer(connection, queue, mode, 50, b"s", 12)
            for mode in (AckMode.CLIENT, AckMode.INDIVIDUAL)
        )
        self.consumers[first] = self.consumers[other] = connection
        for consumer in (other, first, other, first):
            self.note_given(consumer, self.core.deliver(consumer, pick.randint(1, 4), 10**6)[2])
        self.core.close_consumer(other)
        del self.consumers[other]
        self.choosers.pop(other, None)
        _, _, frames = self.core.deliver(first, pick.randint(1, 6), 10**6)
        self.note_given(first, frames)
        for act in pick.choices([self.core.acknowledge, self.core.give_back], k=2):
            act(first, pick.choice(self.given)[1] if self.given else 1)

    def tick(self) -> None:
        self.now += self.random.randint(0, 5)
        self.core.set_time(self.now)

    def append(self) -> None:
        pick = self.random
        if pick.random() < 0.3:
            states = self.core.queue_states()
            body = (len(states) // 24).to_bytes(8, "little") + states
            self.core.append_record(6, body)
            return
        if pick.random() < 0.2:
            self.core.append_record(11, self.duplicate(pick.choice([0, 7])), flags=0)
            return
        self.core.append_record(
            pick.choice([5, 32, 33, 40]),
            pick.randbytes(pick.choice([0, 8, 17, 300])),
            urgent=pick.random() < 0.5,
        )

    def keep_files(self) -> None:
        wanted = 2
        if self.is_starved:
            wanted = 1 if self.random.random() < 0.3 else 0
        if self.core.files_ahead() < wanted:
            self.add_file()

    def close_a_consumer(self) -> None:
        if self.consumers:
            consumer = self.random.choice(sorted(self.consumers))
            held = self.core.held(consumer)
            assert held == sorted(held)
            for sequence, _ in held[:3]:
                self.core.held(consumer, sequence, deliveries=self.random.randint(0, 2))
            self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
            del self.consumers[consumer]
            self.choosers.pop(consumer, None)

    def churn(self) -> None:
        """Make, change and drop queues, routes and connections."""
        pick = self.random
        act = pick.randint(0, 7)
        if act == 0:
            self.open_queue()
        elif act == 1 and len(self.queues) > 3:
            queue = pick.choice(sorted(self.queues))
            self.core.drop_queue(queue)
            del self.queues[queue]
        elif act == 2:
            change = pick.choice(self.routes)
            if pick.randint(0, 1):
                self.core.extend_route(change, pick.choice(sorted(self.queues)))
            else:
                self.core.set_route(change, self.some_queues())
        elif act == 3 and len(self.routes) > 3:
            self.core.close_route(self.routes.pop(0))
        elif act == 4:
            self.open_route()
        elif act == 5:
            self.close_connection(pick.choice(sorted(self.connections)))
            self.open_connection()
        elif act == 6:
            self.core.purge_queue(pick.choice(sorted(self.queues)))
        elif self.consumers:
            self.core.set_credit(pick.choice(sorted(self.consumers)), pick.choice([0, 1, 2, 40]))

    def compare(self) -> None:
        for account in self.accounts:
            self.core.account_statistics(account)
        self.core.account_share(self.random.choice([0, 1000, 60_000, 400_000]))
        for route in self.routes:
            self.core.is_held(route)
        for queue in self.queues:
            self.core.queue_statistics(queue)
        self.core.queue_totals()
        self.core.queue_states()
        self.core.image_statistics()
        self.core.live_large()
        self.core.current_file()
        for file_id in self.files:
            self.core.live_places(file_id)
            self.core.live_bytes(file_id)
            self.core.cancels(file_id)
            self.core.branches_in(file_id)
            self.core.pages_in(file_id)
        self.compare_pages()
        for facts in self.core.branches():
            self.core.branch_members(facts.transaction)
            self.core.branch_data(facts.transaction)

    # --- restarts --------------------------------------------------------------------------------
    def restart(self, *, is_clean: bool) -> None:
        live = None
        if is_clean:
            for connection in list(self.connections):
                self.close_connection(connection)
            for client in list(self.clients):
                self.close_client(client)
            try:
                self.flush()
                for queue, is_durable in self.queues.items():
                    if not is_durable:
                        self.core.purge_queue(queue)
                self.flush()
                for queue in [q for q, is_durable in self.queues.items() if not is_durable]:
                    self.core.drop_queue(queue)  # and what branches hold there
                    del self.queues[queue]
                live = sum(self.core.live_places(file_id) for file_id in self.files)
            except NoRoom:
                pass
        states = {q: self.core.queue_statistics(q).tail for q in self.queues}
        self.begin_life()
        self.queues = {queue: True for queue, durable in self.queues.items() if durable}
        for queue in self.queues:
            self.core.open_queue(queue)
        last = self.restore()
        self.restore_pages()
        self.compare()
        if live is not None:
            restored = sum(self.core.live_places(file_id) for file_id in self.files)
            assert restored == live, f"{live} live places before the restart, {restored} after"
            for queue in self.queues:
                # The highest sequences may have been of messages that need not survive.
                assert self.core.queue_statistics(queue).tail <= states[queue]
        self.first_own_file = self.last_file + 1
        self.start(*last)

    def restore(self) -> tuple[int, int, int]:
        """Restore both cores as the store does; return where the journal goes on."""
        expected = crc = watermark = 0
        for file_id in sorted(self.files):
            data = self.files[file_id]
            salt = SALT * file_id % 2**64
            view = memoryview(data)[4096:]
            blocks = twin_verify_blocks(view, 4096, salt, file_id, 10**6)
            assert native_verify_blocks(view, 4096, salt, file_id, 10**6) == blocks
            if not blocks:
                del self.files[file_id]
                continue
            self.core.restore_file(file_id, salt, len(data))
            for block in blocks:
                assert block.sequence > expected
                if block.sequence == expected + 1 and expected:
                    assert block.previous_crc == crc
                self.core.restore_block(
                    file_id,
                    block.offset,
                    memoryview(data)[block.offset : block.offset + block.length],
                )
                expected, crc = block.sequence, block.crc
                watermark = max(watermark, block.watermark)
        assert watermark <= expected
        self.core.restore_done()
        assert not self.core.take_done_large()
        self.end_large()  # what was given up before the crash stays so
        self.core.take_ready_queues()
        return expected + 1, crc, expected

"""What messages cost in memory, by account, on both cores: sharing, limits, marks, the scanner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_native import loader
from vespiary_native.abc import AckMode, ScanStatus
from vespiary_native.abc_accounts import AccountLimits
from vespiary_native.values import QueueStatistics
from vespiary_testkit.core_rig import (
    DESTINATION,
    EVERYTHING,
    IMPLEMENTATIONS,
    KIB,
    SALT,
    CoreRig,
    send,
)

PLACE_BYTES = 40
MESSAGE_BYTES = 24


def cost(body_bytes: int, places: int = 1) -> int:
    return places * PLACE_BYTES + MESSAGE_BYTES + len(DESTINATION) + body_bytes


def held(rig: CoreRig, account: int) -> tuple[int, int]:
    found = rig.core.account_statistics(account)
    return found.bytes, found.messages


def drain(rig: CoreRig, queue_id: int) -> None:
    rig.flush()
    rig.core.purge_queue(queue_id)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_message_costs_until_its_last_place_ends(rig: CoreRig, persistent: bool) -> None:
    core = rig.core
    account = core.open_account()
    for queue_id in (2, 3):
        core.open_queue(queue_id)
        core.join_account(queue_id, account)
    route = core.open_route([2, 3])
    core.publish(route, DESTINATION, b"x" * 100, persistent=persistent)
    assert held(rig, account) == held(rig, 0) == (cost(100, places=2), 1)
    drain(rig, 2)
    assert held(rig, account) == (cost(100), 1), "the other queue still has all of it"
    drain(rig, 3)
    assert held(rig, account) == held(rig, 0) == (0, 0)


def test_many_shared_messages_end_in_any_order(rig: CoreRig) -> None:
    core = rig.core
    core.open_queue(2)
    both = core.open_route([1, 2])
    count = 180
    for _ in range(count):
        core.publish(both, DESTINATION, b"body", persistent=True)
    rig.flush()
    consumer = rig.consume(credit=count)
    assert len(rig.deliver(consumer)) == count
    drain(rig, 2)
    for number in range(count):
        assert core.acknowledge(consumer, number * 77 % count + 1) == 1
        left = count - number - 1
        assert held(rig, 0) == (left * cost(4), left)


def test_a_message_in_two_addresses_costs_in_each(rig: CoreRig) -> None:
    core = rig.core
    first, second = core.open_account(), core.open_account()
    core.open_queue(2)
    core.join_account(1, first)
    core.join_account(2, second)
    core.publish(core.open_route([1, 2]), DESTINATION, b"body", persistent=True)
    assert held(rig, first) == held(rig, second) == (cost(4), 1)
    drain(rig, 1)
    assert held(rig, first) == (0, 0)
    assert held(rig, second) == (cost(4), 1)
    core.drop_queue(2)
    assert held(rig, second) == held(rig, 0) == (0, 0)


def test_a_queue_takes_what_it_holds_to_another_account(rig: CoreRig) -> None:
    core = rig.core
    core.open_queue(2)
    both = core.open_route([1, 2])
    for _ in range(3):
        core.publish(both, DESTINATION, b"shared", persistent=True)
    rig.publish(b"alone")
    account = core.open_account()
    core.join_account(1, account)
    assert held(rig, account) == (3 * cost(6) + cost(5), 4)
    core.join_account(2, account)
    assert held(rig, account) == held(rig, 0) == (3 * cost(6, places=2) + cost(5), 4)
    with pytest.raises(ValueError, match="1"):
        core.close_account(account)
    core.join_account(1, 0)
    core.join_account(2, 0)
    assert held(rig, account) == (0, 0)
    core.close_account(account)
    with pytest.raises(ValueError, match="account"):
        core.account_statistics(account)


def test_it_is_full_at_the_limit_and_free_at_the_low_mark(rig: CoreRig) -> None:
    core = rig.core
    account = core.open_account()
    core.join_account(1, account)
    core.limit_account(account, AccountLimits(max_bytes=10 * cost(100), low_bytes=8 * cost(100)))
    consumer = rig.consume()
    for number in range(10):
        assert not core.account_statistics(account).is_full
        assert core.take_changed_accounts() == []
        rig.publish(b"x" * 100)
        assert core.is_held(rig.route) is False, "it does not hold senders"
        assert core.account_statistics(account).is_full is (number == 9)
    assert core.take_changed_accounts() == [account]
    rig.flush()
    assert len(rig.deliver(consumer)) == 10
    core.acknowledge(consumer, 1)
    assert core.account_statistics(account).is_full, "9 of 10 are above the low mark"
    assert core.take_changed_accounts() == []
    core.acknowledge(consumer, 2)
    assert not core.account_statistics(account).is_full
    assert core.take_changed_accounts() == [account]


def test_messages_have_a_limit_of_their_own(rig: CoreRig) -> None:
    core = rig.core
    account = core.open_account()
    core.join_account(1, account)
    core.limit_account(account, AccountLimits(max_messages=2, low_messages=1, is_holding=True))
    rig.publish()
    assert not core.is_held(rig.route)
    rig.publish()
    assert core.is_held(rig.route)
    core.limit_account(account, AccountLimits(max_messages=3, low_messages=1, is_holding=True))
    assert core.is_held(rig.route), "above the low mark it stays full"
    core.limit_account(account, AccountLimits(max_messages=3, low_messages=2, is_holding=True))
    assert not core.is_held(rig.route)


@pytest.mark.parametrize("limits", [AccountLimits(0, 0), AccountLimits(None, None, 0, 0)])
def test_what_may_hold_nothing_is_always_full(rig: CoreRig, limits: AccountLimits) -> None:
    core = rig.core
    account = core.open_account()
    core.join_account(1, account)
    core.limit_account(account, limits)
    assert core.take_changed_accounts() == [account]
    rig.publish()
    drain(rig, 1)
    assert held(rig, account) == (0, 0)
    assert core.account_statistics(account).is_full
    assert core.take_changed_accounts() == []


def test_the_scanner_leaves_sends_to_a_full_address_to_python(rig: CoreRig) -> None:
    core = rig.core
    account = core.open_account()
    core.join_account(1, account)
    core.limit_account(account, AccountLimits(max_messages=2, low_messages=1, is_holding=True))
    frame = send()
    status, position, length = rig.scan(frame * 4)
    assert (status, position, length) == (ScanStatus.FRAME, 2 * len(frame), len(frame))
    assert held(rig, account)[1] == 2, "no message above the limit was taken"
    drain(rig, 1)
    assert rig.scan(frame)[0] == ScanStatus.NEED_DATA
    assert held(rig, account)[1] == 1


def test_all_together_hold_those_that_have_messages(rig: CoreRig) -> None:
    core = rig.core
    core.open_queue(2)
    routes = [rig.route, core.open_route([2])]
    accounts = [core.open_account(), core.open_account()]
    for queue_id, account in zip((1, 2), accounts, strict=True):
        core.join_account(queue_id, account)
        core.limit_account(account, AccountLimits(is_holding=True))
    core.limit_account(0, AccountLimits(max_bytes=1000, low_bytes=800))
    rig.publish(bytes(1000))
    assert core.take_changed_accounts() == [0]
    assert [core.is_held(route) for route in routes] == [True, False]
    core.publish(routes[1], b"", b"", persistent=True)
    assert [core.is_held(route) for route in routes] == [True, True]
    drain(rig, 1)
    assert core.take_changed_accounts() == [0]
    assert [core.is_held(route) for route in routes] == [False, False]


@pytest.mark.parametrize(
    "limits",
    [
        AccountLimits(max_bytes=10, low_bytes=11),
        AccountLimits(max_bytes=10),
        AccountLimits(max_messages=1, low_messages=2),
    ],
)
def test_limits_that_contradict_themselves_are_refused(rig: CoreRig, limits: AccountLimits) -> None:
    with pytest.raises(ValueError, match="account"):
        rig.core.limit_account(rig.core.open_account(), limits)


def test_account_0_holds_nobody_and_stays(rig: CoreRig) -> None:
    with pytest.raises(ValueError, match="account"):
        rig.core.limit_account(0, AccountLimits(is_holding=True))
    with pytest.raises(ValueError, match="account"):
        rig.core.close_account(0)


def test_a_recovery_and_a_compaction_count_the_same(make: Callable[..., CoreRig]) -> None:
    rig = make(file_bytes=256 * KIB, files=8).begin()
    core = rig.core
    core.grow(14)
    core.open_queue(2)
    both = core.open_route([1, 2])
    for _ in range(20):
        rig.publish(bytes(9 * KIB))
        core.publish(both, DESTINATION, bytes(9 * KIB), persistent=True)
    rig.flush()
    account = core.open_account()
    core.join_account(1, account)
    core.join_account(2, account)
    before = held(rig, account)
    assert before == (20 * cost(9 * KIB) + 20 * cost(9 * KIB, places=2), 40)
    for slab in range(4):
        offset = record = 0
        while True:
            step = core.relocate(1, slab, offset, record, EVERYTHING, EVERYTHING)
            offset, record = step.next_offset, step.next_record
            if not offset:
                break
    assert core.live_places(1) == 0
    assert held(rig, account) == before, "moving costs nothing"
    rig.flush()

    again = make(files=0)
    again.core.open_queue(1)
    again.core.open_queue(2)
    for file_id, data in rig.files.items():
        again.core.restore_file(file_id, SALT + file_id, len(data))
        for block in rig.verify(memoryview(data)[4096:], 4096, SALT + file_id, file_id, 10**6):
            view = memoryview(data)[block.offset : block.offset + block.length]
            again.core.restore_block(file_id, block.offset, view)
    again.core.restore_done()
    assert held(again, 0) == before


class Oracle:
    """What each account holds, from a list of the live messages."""

    def __init__(self) -> None:
        self.accounts = dict.fromkeys(QUEUES, 0)
        self.messages: list[tuple[int, set[int]]] = []

    def held(self, account: int) -> tuple[int, int]:
        size = count = 0
        for content_bytes, queues in self.messages:
            places = sum(account in (0, self.accounts[queue]) for queue in queues)
            owners = {self.accounts[queue] for queue in queues}
            times = len(owners) if account == 0 else int(account in owners)
            size += places * PLACE_BYTES + times * (MESSAGE_BYTES + content_bytes)
            count += times
        return size, count


QUEUES = (1, 2, 3, 4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"),
            st.sets(st.sampled_from(QUEUES), min_size=1),
            st.tuples(st.integers(0, 300), st.booleans()),
        ),
        st.tuples(st.just("take"), st.sampled_from(QUEUES), st.integers(1, 5)),
        st.tuples(st.just("purge"), st.sampled_from(QUEUES), st.none()),
        st.tuples(st.just("join"), st.sampled_from(QUEUES), st.integers(0, 2)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@given(operations=OPERATIONS)
def test_accounts_agree_with_a_list_of_messages(name: str, operations: list[Any]) -> None:
    rig = CoreRig(*IMPLEMENTATIONS[name], files=8, file_bytes=256 * KIB).begin()
    core, oracle = rig.core, Oracle()
    for queue in QUEUES[1:]:
        core.open_queue(queue)
    accounts = [0, core.open_account(), core.open_account()]
    consumers = {
        queue: core.open_consumer(rig.connection, queue, AckMode.AUTO, 1000, b"s", 12)
        for queue in QUEUES
    }
    for act, what, how in operations:
        if act == "publish":
            body_bytes, is_persistent = how
            route = core.open_route(sorted(what))
            core.publish(route, DESTINATION, bytes(body_bytes), persistent=is_persistent)
            core.close_route(route)
            oracle.messages.append((len(DESTINATION) + body_bytes, set(what)))
        elif act == "join":
            core.join_account(what, accounts[how])
            oracle.accounts[what] = accounts[how]
        else:
            rig.flush()
            given = core.purge_queue(what) if act == "purge" else 0
            if act == "take":
                _, given, _ = core.deliver(consumers[what], how, 10**6)
            for _, queues in [m for m in oracle.messages if what in m[1]][:given]:
                queues.remove(what)
            oracle.messages = [message for message in oracle.messages if message[1]]
        for account in accounts:
            assert held(rig, account) == oracle.held(account)


def total_at(sizes: list[int], share: int) -> int:
    return sum(min(size, share) for size in sizes)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_totals_are_those_of_all_queues_that_are_open(name: str) -> None:
    rig = CoreRig(*IMPLEMENTATIONS[name]).begin()
    core = rig.core
    for queue_id in (2, 3, 1000):
        core.open_queue(queue_id)
    route = core.open_route([1, 2, 1000])
    for _ in range(3):
        core.publish(route, DESTINATION, b"x", persistent=True)
    rig.flush()
    core.purge_queue(2)
    queues = [core.queue_statistics(queue_id) for queue_id in (1, 2, 3, 1000)]
    assert [(one.added, one.acknowledged) for one in queues] == [(3, 0), (3, 3), (0, 0), (3, 0)]
    assert core.queue_totals() == (9, 3)
    core.drop_queue(2)
    assert core.queue_totals() == (6, 0)


@pytest.mark.skipif("native" not in IMPLEMENTATIONS, reason="the C core is switched off")
def test_counters_have_the_names_of_the_struct_in_its_order() -> None:
    ffi = loader.ffi
    struct = ffi.typeof("vespiary_queue_statistics")
    assert tuple(name for name, _ in struct.fields) == QueueStatistics._fields
    assert {field.type for _, field in struct.fields} == {ffi.typeof("uint64_t")}
    assert ffi.sizeof(struct) == 8 * len(QueueStatistics._fields)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8), budget=st.integers(0, 30_000))
def test_the_share_of_each_account_keeps_all_of_them_within_a_budget(
    name: str, sizes: list[int], budget: int
) -> None:
    rig = CoreRig(*IMPLEMENTATIONS[name], files=8, file_bytes=256 * KIB).begin()
    core, held_bytes = rig.core, []
    for queue_id, size in enumerate(sizes, 2):
        account = core.open_account()
        core.open_queue(queue_id)
        core.join_account(queue_id, account)
        if size:
            core.publish(core.open_route([queue_id]), DESTINATION, b"x" * size, persistent=False)
        held_bytes.append(held(rig, account)[0])
    share = core.account_share(budget)
    assert total_at(held_bytes, share) <= budget or share == 0
    if sum(held_bytes) < budget:
        assert share == budget, "all of it, while they hold less"
    else:
        assert total_at(held_bytes, 2 * share + 2) >= budget, "at least half of what would do"

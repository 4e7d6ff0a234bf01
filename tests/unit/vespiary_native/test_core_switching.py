"""SENDs to a switch: kept together, shown, and staged where Python says; on both cores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.record import AddRecord
from vespiary_native.abc import ScanStatus
from vespiary_native.abc_accounts import AccountLimits
from vespiary_native.abc_switching import SWITCHED_BYTES_MAX, SWITCHED_MAX
from vespiary_testkit.core_rig import DESTINATION, CoreRig, send

TO_SWITCH = b"destination:/queue/s\n"


def switched(number: int = 0, headers: bytes = b"", body: bytes = b"x") -> bytes:
    return b"SEND\n%bpersistent:true\n%breceipt:%d\n\n%b\0" % (TO_SWITCH, headers, number, body)


@pytest.fixture
def switch(rig: CoreRig) -> int:
    """A switch that the rig's connection knows, and queues 2 and 3 behind routes of their own."""
    handle = rig.core.open_switch()
    rig.core.teach(rig.connection, b"/queue/s", handle)
    for queue in (2, 3):
        rig.core.open_queue(queue)
    return handle


def routes(rig: CoreRig) -> tuple[int, int]:
    return rig.core.open_route([2]), rig.core.open_route([2, 3])


def receipts(rig: CoreRig) -> bytes:
    return dict(rig.core.take_receipts()).get(rig.connection, b"")


def added(rig: CoreRig) -> list[AddRecord]:
    return [record for record in rig.records() if isinstance(record, AddRecord)]


def test_they_go_where_python_says(rig: CoreRig, switch: int) -> None:
    one, both = routes(rig)
    data = switched(1, b"a:1\n") + b"\n" + switched(2, b"priority:7\n", b"body")
    assert rig.scan(b"\n" + data) == (ScanStatus.SWITCHED, 1, switch)
    assert not rig.core.has_unwritten()
    first, second = rig.core.switched()
    assert first.properties == TO_SWITCH + b"persistent:true\na:1\n"
    assert (first.priority, first.is_special, first.is_journalled) == (4, False, True)
    assert (second.priority, second.is_special, second.body_length) == (7, True, 4)
    assert (second.sequence, second.deliveries, second.time_ms) == (0, 0, 1000)
    assert rig.core.send_switched([both, one]) == (ScanStatus.NEED_DATA, 1 + len(data), 0)
    assert receipts(rig) == b"", "it is not durable"
    rig.flush()
    assert receipts(rig) == b"".join(b"RECEIPT\nreceipt-id:%d\n\n\0" % n for n in (1, 2))
    records = added(rig)
    assert [record.places for record in records] == [((2, 1), (3, 1)), ((2, 2),)]
    assert [record.priority for record in records] == [4, 7]
    assert [record.body for record in records] == [b"x", b"body"]


@pytest.mark.parametrize(
    "other",
    [send(), b"ACK\nid:1-1\n\n\0", b"SUBSCRIBE\nid:1\n\n\0", switched(7, b"transaction:t\n")],
)
def test_what_comes_between_is_taken_in_its_turn(rig: CoreRig, switch: int, other: bytes) -> None:
    rig.publish()
    rig.flush()
    rig.deliver(rig.consume())
    before = rig.core.queue_statistics(1)
    data = switched(1) + other + switched(2)
    assert rig.scan(data)[0] == ScanStatus.SWITCHED
    assert len(rig.core.switched()) == 1
    assert rig.core.queue_statistics(1) == before
    one, _ = routes(rig)
    assert rig.core.send_switched([one]) == (ScanStatus.NEED_DATA, len(switched(1)), 0)


def test_another_switch_has_its_turn_later(rig: CoreRig, switch: int) -> None:
    other = rig.core.open_switch()
    rig.core.teach(rig.connection, b"/queue/t", other)
    data = switched(1) + switched(2).replace(b"/queue/s", b"/queue/t")
    assert rig.scan(data) == (ScanStatus.SWITCHED, 0, switch)
    assert len(rig.core.switched()) == 1


@pytest.mark.parametrize("rest", [b"", switched(2)[:20], switched(2)[:-1], b"\0", b"nonsense\n"])
def test_what_is_not_whole_is_looked_at_again(rig: CoreRig, switch: int, rest: bytes) -> None:
    data = switched(1) + rest
    one, _ = routes(rig)
    for _ in range(2):  # the answer does not change as long as nothing was sent on
        assert rig.scan(data) == (ScanStatus.SWITCHED, 0, switch)
        assert len(rig.core.switched()) == 1
    assert rig.core.send_switched([one])[:2] == (ScanStatus.NEED_DATA, len(switched(1)))
    assert rig.core.queue_statistics(2).added == 1
    if rest and rest in switched(2):
        rig.memory[len(data) :] = bytes(len(rig.memory) - len(data))
        data = switched(1) + switched(2)
        rig.memory[: len(data)] = data
        again = rig.core.scan_stomp(rig.connection, rig.buffer, len(switched(1)), len(data))
        assert again == (ScanStatus.SWITCHED, len(switched(1)), switch)


def test_no_more_than_so_many_at_once(rig: CoreRig, switch: int) -> None:
    one = switched(1)
    count = min(SWITCHED_MAX + 5, len(rig.memory) // len(one))
    assert count > SWITCHED_MAX
    assert rig.scan(one * count)[0] == ScanStatus.SWITCHED
    assert len(rig.core.switched()) == SWITCHED_MAX


def test_no_more_than_so_many_bytes_at_once(make: Callable[..., CoreRig]) -> None:
    rig = make(slab_bytes=1 << 20, record_bytes_max=200_000).begin()
    memory = bytearray(3 * SWITCHED_BYTES_MAX)
    buffer = rig.core.attach_buffer(memory)
    rig.core.teach(rig.connection, b"/queue/s", rig.core.open_switch())
    one = b"SEND\n%b\n%b\0" % (TO_SWITCH, b"x" * 4000)
    number = len(memory) // len(one)
    memory[: number * len(one)] = one * number
    assert rig.core.scan_stomp(rig.connection, buffer, 0, number * len(one))[0] == (
        ScanStatus.SWITCHED
    )
    assert len(rig.core.switched()) == -(-SWITCHED_BYTES_MAX // len(one))


def test_a_route_without_queues_takes_them_nowhere(rig: CoreRig, switch: int) -> None:
    rig.scan(switched(1))
    assert rig.core.send_switched([rig.core.open_route([])])[0] == ScanStatus.NEED_DATA
    assert not rig.core.has_unwritten()
    assert receipts(rig) == b"RECEIPT\nreceipt-id:1\nqueues:0\n\n\0"


def test_a_full_route_stops_it_where_it_stands(rig: CoreRig, switch: int) -> None:
    account = rig.core.open_account()
    rig.core.join_account(3, account)
    rig.core.limit_account(account, AccountLimits(max_messages=1, low_messages=0, is_holding=True))
    one, both = routes(rig)
    frame = switched(1)
    rig.scan(frame * 4)
    assert rig.core.send_switched([both, one, both, one]) == (
        ScanStatus.FRAME, 2 * len(frame), len(frame),
    )  # fmt: skip
    assert (rig.core.queue_statistics(2).added, rig.core.queue_statistics(3).added) == (2, 1)
    assert rig.core.switched() == []


def test_behind_one_that_was_held_they_are_chosen_for_in_small_batches(
    rig: CoreRig, switch: int
) -> None:
    """A held route costs each message one choice, not one for each message behind it."""
    account = rig.core.open_account()
    rig.core.join_account(3, account)
    rig.core.limit_account(account, AccountLimits(max_messages=0, low_messages=0, is_holding=True))
    one, both = routes(rig)
    data = switched(1) * 300
    at, kept, chosen = 0, [], 0
    rig.memory[: len(data)] = data
    while at < len(data):
        status, at, length = rig.core.scan_stomp(rig.connection, rig.buffer, at, len(data))
        assert status == ScanStatus.SWITCHED
        kept.append(len(rig.core.switched()))
        # The first 100 find their route held, and are taken the slow way.
        numbers = range(at // len(switched(1)), 300)[: kept[-1]]
        status, at, length = rig.core.send_switched([one if n >= 100 else both for n in numbers])
        chosen += kept[-1]
        if status == ScanStatus.FRAME:
            at += length
    assert kept[:3] == [300, 1, 1]
    assert kept[-8:] == [1, 2, 4, 8, 16, 32, 64, 73]
    assert chosen == 300 + 99 + 200


def test_no_room_stops_it_where_it_stands(make: Callable[..., CoreRig]) -> None:
    rig = make(files=1, file_bytes=96 * 1024, slabs_max=3).begin()
    rig.core.teach(rig.connection, b"/queue/s", rig.core.open_switch())
    frame = switched(1, body=b"y" * 4500)
    rig.scan(frame * 2)
    status, position, length = rig.core.send_switched([rig.route, rig.route])
    while status == ScanStatus.NEED_DATA:
        rig.scan(frame * 2)
        status, position, length = rig.core.send_switched([rig.route, rig.route])
    assert (status, length) == (ScanStatus.BLOCKED, len(frame))
    assert position in (0, len(frame))
    rig.flush()
    confirmed = receipts(rig).count(b"RECEIPT")
    assert confirmed == len(added(rig)) == rig.core.queue_statistics(1).available - 1


def test_what_is_wrong_is_refused_and_changes_nothing(rig: CoreRig, switch: int) -> None:
    one, _ = routes(rig)
    for call in (
        lambda: rig.core.send_switched([]),
        lambda: rig.core.send_switched([one]),
        lambda: rig.core.set_route(switch, [1]),
        lambda: rig.core.publish(switch, b"", b"", persistent=True),
    ):
        with pytest.raises(ValueError, match=r".+"):
            call()
    rig.scan(switched(1) + switched(2))
    for wrong in ([], [one, 99], [one, switch], [one] * 3):
        with pytest.raises(ValueError, match=r".+"):
            rig.core.send_switched(wrong)
    assert not rig.core.has_unwritten()
    assert rig.core.send_switched([one, one])[0] == ScanStatus.NEED_DATA


def test_a_closed_switch_makes_senders_ask_again(rig: CoreRig, switch: int) -> None:
    rig.core.close_route(switch)
    frame = switched(1)
    assert rig.scan(frame) == (ScanStatus.FRAME, 0, len(frame))


def test_nothing_is_kept_of_a_connection_or_buffer_that_goes(rig: CoreRig, switch: int) -> None:
    one, _ = routes(rig)
    rig.scan(switched(1))
    rig.core.close_connection(rig.connection)
    with pytest.raises(ValueError, match=r".+"):
        rig.core.send_switched([one])


def test_the_usual_destination_is_none(rig: CoreRig, switch: int) -> None:
    """Beside a switch the plain path is what it was."""
    data = send() + send()
    assert rig.scan(data) == (ScanStatus.NEED_DATA, len(data), 0)
    assert rig.core.switched() == []
    assert DESTINATION in added_after_flush(rig)[0].properties


def added_after_flush(rig: CoreRig) -> list[AddRecord]:
    rig.flush()
    return added(rig)


def test_the_first_of_what_was_kept_can_go_alone(rig: CoreRig, switch: int) -> None:
    one, both = routes(rig)
    data = b"".join(switched(number) for number in range(10))
    rig.scan(data)
    assert len(rig.core.switched()) == 10
    end = len(switched(0)) + len(switched(1)) + len(switched(2))
    assert rig.core.send_switched([both, one, one]) == (ScanStatus.NEED_DATA, end, 0)
    assert rig.core.switched() == []
    rest = data[end:]
    assert rig.scan(rest)[:2] == (ScanStatus.SWITCHED, 0)
    assert len(rig.core.switched()) == 3, "as many as there was time for"
    assert rig.core.send_switched([one] * 3)[0] == ScanStatus.NEED_DATA
    rest = rest[sum(len(switched(number)) for number in (3, 4, 5)) :]
    assert rig.scan(rest)[:2] == (ScanStatus.SWITCHED, 0)
    assert rig.core.send_switched([one] * 4) == (ScanStatus.NEED_DATA, len(rest), 0)
    rig.flush()
    assert len(added(rig)) == 10
    assert [rig.core.queue_statistics(queue).available - 1 for queue in (2, 3)] == [10, 1]

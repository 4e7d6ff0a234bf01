import itertools

import pytest

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.dispatch import SERVE_S
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_testkit.engine_rig import Rig
from vespiary_testkit.memory_journal import MemoryJournal


def _send(rig: Rig, count: int, text: str = "/queue/q", size: int = 10) -> None:
    for number in range(count):
        rig.send(text, b"%0*d" % (size, number))


def _fill(rig: Rig, size: int) -> None:
    while True:
        rig.core.append_record(5, bytes(size))
        rig.journal.flush()


def test_few_messages_are_spread() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(4)]
    for output in outputs:
        rig.subscribe(output, "/queue/q")
    _send(rig, 8)
    rig.turn()
    assert [len(output.bodies()) for output in outputs] == [2, 2, 2, 2]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.INDIVIDUAL])
def test_messages_that_come_one_by_one_are_spread(count: int, mode: AckMode) -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(count)]
    for output in outputs:
        rig.subscribe(output, "/queue/q", mode)
    for _ in range(6 * count):
        _send(rig, 1)
        rig.turns()
    assert [len(output.bodies()) for output in outputs] == [6] * count


def test_many_messages_go_in_slices_to_all() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(3)]
    for output in outputs:
        rig.subscribe(output, "/queue/q")
    _send(rig, 960)
    rig.turn()
    bodies = [output.bodies() for output in outputs]
    assert [len(share) for share in bodies] == [320, 320, 320]
    shares = [share[:32] for share in bodies]
    assert sorted(shares) == [[b"%010d" % n for n in range(s, s + 32)] for s in (0, 32, 64)]
    assert sorted(body for share in bodies for body in share) == [b"%010d" % n for n in range(960)]


def test_credit_bounds_what_is_out() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=5)
    _send(rig, 12)
    rig.turn()
    frames = output.frames()
    assert len(frames) == 5
    queue_id = consumer.queue.id
    rig.core.acknowledge(consumer.handle, 1)
    rig.core.acknowledge(consumer.handle, 2)
    rig.turn()
    assert [frame.get("message-id") for frame in output.frames()] == [
        f"{queue_id}-6",
        f"{queue_id}-7",
    ]


def test_full_connection_is_passed_over_and_served_later() -> None:
    rig = Rig()
    full, free = rig.output(room=0), rig.output()
    rig.subscribe(full, "/queue/q", credit=10)
    rig.subscribe(free, "/queue/q", credit=10)
    _send(rig, 15)
    rig.turn()
    assert full.data == b""
    assert len(free.bodies()) == 10
    rig.turn()
    assert full.data == b""
    full.room = 1 << 20
    rig.dispatcher.output_ready(full)
    assert rig.dispatcher.has_more
    rig.turn()
    assert len(full.bodies()) == 5


def test_room_bounds_bytes_and_a_large_message_still_goes() -> None:
    rig = Rig()
    output = rig.output(room=5000)
    rig.subscribe(output, "/queue/q")
    _send(rig, 10, size=1000)
    rig.turn()
    assert 3 <= len(output.bodies()) <= 5
    output.room = 10
    rig.dispatcher.output_ready(output)
    rig.turn()
    assert len(output.bodies()) == 1


def test_closed_consumer_gives_back_to_the_others() -> None:
    rig = Rig()
    first, second = rig.output(), rig.output()
    consumer = rig.subscribe(first, "/queue/q")
    _send(rig, 3)
    rig.turn()
    assert len(first.bodies()) == 3
    rig.subscribe(second, "/queue/q")
    close_subscription(rig.core, rig.registry, consumer)
    rig.turn()
    frames = second.frames()
    assert [frame.body for frame in frames] == [b"%010d" % n for n in range(3)]
    assert {frame.get("redelivered") for frame in frames} == {"true"}


def test_forgotten_connection_is_not_served() -> None:
    rig = Rig()
    output = rig.output(room=0)
    consumer = rig.subscribe(output, "/queue/q")
    _send(rig, 3)
    rig.turn()
    close_subscription(rig.core, rig.registry, consumer)
    rig.dispatcher.forget(output)
    rig.dispatcher.output_ready(output)
    assert not rig.dispatcher.has_more


def test_deliveries_without_room_for_their_acknowledgements_wait_for_it() -> None:
    rig = Rig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    _send(rig, 4)
    rig.turn()
    queue = rig.registry.queues["q"]
    for size in (4000, 8):  # fill the only file to its last block
        with pytest.raises(NoRoom):
            _fill(rig, size)
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    rig.dispatcher.poke(queue.id)
    rig.turn()
    assert output.bodies() == []
    assert not rig.dispatcher.has_more
    rig.journal.add_file()
    rig.dispatcher.room_made()
    rig.turn()
    assert len(output.bodies()) == 4


def test_counter() -> None:
    rig = Rig()
    rig.subscribe(rig.output(), "/queue/q", AckMode.AUTO)
    _send(rig, 7)
    rig.turn()
    assert rig.dispatcher.messages_out == 7


def test_absent_slab_is_asked_for_once_and_its_queues_served_when_it_is_there() -> None:
    journal = MemoryJournal(files=12)
    rig = Rig(journal=journal)
    bodies = [bytes([n % 256]) * 400_000 for n in range(110)]
    for body in bodies:
        rig.send("/queue/q", body)
        journal.flush()
    outputs = [rig.output(), rig.output()]
    for output in outputs:
        rig.subscribe(output, "/queue/q", credit=1000)
    received: list[bytes] = []
    for _ in range(200):
        for output in outputs:
            output.room = 1 << 20
            rig.dispatcher.output_ready(output)
        rig.dispatcher.dispatch(rig.core.take_ready_queues())
        received += [body for output in outputs for body in output.bodies()]
        if rig.loads:
            break
    assert len(rig.loads) == 1
    rig.turn()
    assert len(rig.loads) == 1  # it is on its way
    rig.dispatcher.slab_loaded(*rig.loads[0])
    assert rig.dispatcher.has_more
    rig.turn()
    assert len(rig.loads) == 2  # it was not read after all, so it is asked for again
    assert sorted(received) == bodies[: len(received)]  # they share; none is skipped or doubled


@pytest.mark.parametrize("mode", [AckMode.AUTO, AckMode.INDIVIDUAL])
def test_a_special_message_is_given_in_its_turn(mode: AckMode) -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", mode)
    _send(rig, 2)
    route = rig.core.open_route([consumer.queue.id])
    rig.core.publish(route, b"destination:q\n", b"special", persistent=True, special=True)
    _send(rig, 1)
    rig.turn()
    assert output.bodies() == [b"0000000000", b"0000000001", b"special", b"0000000000"]
    assert rig.dispatcher.messages_out == 4


def _slow_clock(rig: Rig, step_s: float) -> None:
    """Have so much time pass between two looks at the clock."""
    rig.dispatcher.clock_s = itertools.count(1.0, step_s).__next__


def test_a_message_for_many_takes_many_turns() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(50)]
    for output in outputs:
        rig.subscribe(output, "/topic/t", AckMode.AUTO)
    rig.send("/topic/t", b"all")
    _slow_clock(rig, SERVE_S / 10)
    served = []
    while True:
        rig.turn()
        served.append(sum(len(output.bodies()) for output in outputs))
        if not rig.dispatcher.has_more:
            break
    assert sum(served) == 50
    assert max(served) <= 10
    assert len(served) < 20, "each turn gets somewhere"


def test_what_was_left_comes_before_what_is_new() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(4)]
    for number, output in enumerate(outputs):
        rig.subscribe(output, f"/queue/q{number}", AckMode.AUTO)
    _slow_clock(rig, SERVE_S)  # one queue a turn
    for number in (0, 1, 2):
        rig.send(f"/queue/q{number}", b"x")
    order: list[int] = []
    for turn in range(4):
        rig.turn()
        order += [n for n, output in enumerate(outputs) if output.bodies()]
        if turn == 0:
            rig.send("/queue/q3", b"new")
    assert sorted(order[:3]) == [0, 1, 2]
    assert order[3:] == [3]


def test_consumers_of_one_queue_have_their_turns_over_many_turns_of_the_loop() -> None:
    rig = Rig()
    outputs = [rig.output() for _ in range(3)]
    for output in outputs:
        rig.subscribe(output, "/queue/q", AckMode.AUTO)
    _send(rig, 9)
    _slow_clock(rig, SERVE_S)  # one consumer a turn
    shares: list[list[int]] = []
    while not shares or rig.dispatcher.has_more:
        rig.turn()
        shares.append([len(output.bodies()) for output in outputs])
    assert all(sum(map(bool, share)) <= 1 for share in shares)
    totals = [sum(share) for share in zip(*shares, strict=True)]
    assert sum(totals) == 9
    assert min(totals) >= 2

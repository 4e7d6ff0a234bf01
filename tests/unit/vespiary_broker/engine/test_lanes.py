from vespiary_broker.engine.lanes import SEQUENCE_MASK, Lane, key_of


def test_higher_priorities_come_first_and_lower_sequences_within_one() -> None:
    lane = Lane(None)
    for priority, sequence in ((4, 7), (9, 9), (4, 3), (0, 1), (9, 8)):
        lane.push(key_of(priority, sequence))
    lane.merge([key_of(4, 5), key_of(9, 2)])
    assert [lane.pop() & SEQUENCE_MASK for _ in range(7)] == [2, 8, 9, 3, 5, 7, 1]


def test_it_stops_when_full_and_looks_on_when_half_has_left() -> None:
    lane = Lane(None)
    for sequence in range(10):
        lane.push(key_of(4, sequence))
    lane.note_size(11, 10)
    assert lane.is_filling
    assert not lane.is_primed
    lane.note_size(10, 10)
    assert not lane.is_filling
    assert lane.is_primed
    for left in (9, 8, 7, 6):
        lane.pop()
        lane.note_size(10, 10)
        assert len(lane.keys) == left
        assert not lane.is_filling
    lane.pop()
    lane.note_size(10, 10)
    assert lane.is_filling


def test_reset_begins_at_the_head() -> None:
    lane = Lane(None)
    lane.push(key_of(4, 1))
    lane.cursor = 17
    lane.is_primed = lane.is_stuck = True
    lane.is_filling = False
    lane.reset()
    assert (lane.cursor, lane.keys) == (0, [])
    assert lane.is_filling
    assert not lane.is_primed
    assert not lane.is_stuck


def test_it_stops_when_too_many_wait_for_owners() -> None:
    lane = Lane(None)
    lane.owned = 9
    lane.note_size(10, 10)
    assert lane.is_filling
    lane.owned = 10
    lane.note_size(10, 10)
    assert not lane.is_filling
    lane.owned = 9
    lane.note_size(10, 10)
    assert lane.is_filling

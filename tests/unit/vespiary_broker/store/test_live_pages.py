"""What tools take out of PAGE, PAGE_DONE and ACK records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.live_pages import LivePages
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.page_record import PagedQueue, PagedRecord


def page(page_id: int, **queues: range | list[int]) -> PagedRecord:
    paged = tuple(PagedQueue(int(name[1:]), tuple(found)) for name, found in queues.items())
    return PagedRecord(page_id, 1, 1 << 20, paged)


def test_places_live_until_they_are_acknowledged() -> None:
    pages = LivePages()
    pages.put(page(1, q1=range(1, 11), q2=[3, 7]))
    pages.put(page(2, q1=range(11, 21)))
    assert pages.messages == {1: 20, 2: 2}
    pages.acknowledge(1, 5, 10)
    assert pages.messages == {1: 10, 2: 2}
    assert (pages.head(1), pages.head(2), pages.head(3)) == (1, 3, None)
    pages.acknowledge(2, 1, 3)
    assert pages.has(2, 7)
    assert not pages.has(2, 3)
    pages.acknowledge(1, 15, 100)
    assert pages.page_ids == [1]
    assert list(pages.sequences()) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 7)]


def test_the_last_record_of_a_page_counts() -> None:
    pages = LivePages()
    pages.put(page(1, q1=range(1, 5), q2=range(1, 5)))
    pages.put(page(1, q1=[4]))
    assert pages.messages == {1: 1}
    pages.remove(1)
    assert pages.messages == {}
    assert pages.page_ids == []


def test_bodies_in_files_are_needed_while_their_message_lives() -> None:
    pages = LivePages()
    reference = LargeReference(9, 1000, 5)
    large = ((2, encode_large_reference(reference)),)
    pages.put(PagedRecord(1, 1, 4096, (PagedQueue(1, (1, 2, 3), large),)))
    assert list(pages.bodies()) == [(reference, 1, 2)]
    pages.acknowledge(1, 2, 1)
    assert list(pages.bodies()) == []


_SEQUENCES = st.sets(st.integers(1, 60), min_size=1).map(sorted)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("page"), st.integers(1, 4), st.integers(1, 2), _SEQUENCES),
            st.tuples(st.just("done"), st.integers(1, 4)),
            st.tuples(st.just("ack"), st.integers(1, 2), st.integers(1, 60), st.integers(1, 60)),
        )
    )
)
def test_they_agree_with_plain_sets(acts: list[tuple[object, ...]]) -> None:
    pages = LivePages()
    model: dict[int, dict[int, set[int]]] = {}
    for act in acts:
        if act[0] == "page":
            _, page_id, queue_id, sequences = act
            pages.put(page(page_id, **{f"q{queue_id}": sequences}))  # type: ignore[arg-type]
            model[page_id] = {queue_id: set(sequences)}  # type: ignore[index, dict-item, call-overload]
        elif act[0] == "done":
            pages.remove(act[1])  # type: ignore[arg-type]
            model.pop(act[1], None)  # type: ignore[call-overload]
        else:
            _, queue_id, first, number = act
            pages.acknowledge(queue_id, first, number)  # type: ignore[arg-type]
            for queues in model.values():
                gone = set(range(first, first + number))  # type: ignore[operator, call-overload]
                queues.get(queue_id, set()).difference_update(gone)  # type: ignore[call-overload]
    for queue_id in (1, 2):
        found = [q.get(queue_id, set()) for q in model.values()]
        assert pages.messages.get(queue_id, 0) == sum(map(len, found))
        assert pages.head(queue_id) == min((s for q in found for s in q), default=None)
        for sequence in range(1, 61):
            assert pages.has(queue_id, sequence) == any(sequence in q for q in found)
    assert pages.page_ids == sorted(p for p, q in model.items() if any(q.values()))

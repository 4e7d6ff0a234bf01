import pytest

from vespiary_broker.engine.queues import QUEUE_ID_COUNTER, QueueIds
from vespiary_testkit.engine_rig import do
from vespiary_testkit.memory_journal import MemoryBindings


def test_numbers_are_reserved_before_they_are_used() -> None:
    bindings = MemoryBindings()
    ids = QueueIds(bindings)
    assert [do(ids.take()) for _ in range(3)] == [1, 2, 3]
    assert bindings.puts == [QUEUE_ID_COUNTER]  # one write for many numbers
    reserved_end = bindings.values[QUEUE_ID_COUNTER]["next"]
    assert reserved_end > 3
    restarted = QueueIds(bindings, reserved_end)
    assert do(restarted.take()) == reserved_end  # also what was not used is not used again


def test_numbers_end() -> None:
    ids = QueueIds(MemoryBindings(), 2**31 - 1)
    assert do(ids.take()) == 2**31 - 1
    with pytest.raises(OverflowError):
        do(ids.take())

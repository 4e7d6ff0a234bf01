import pytest

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.transactions import (
    OPEN_TRANSACTIONS_MAX,
    Acknowledgement,
    Outgoing,
    Transactions,
    prepare,
    stage,
    transaction_bytes,
)
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryJournal


def _outgoing(text: str = "/queue/q", body: bytes = b"x", *, persistent: bool = True) -> Outgoing:
    return Outgoing(
        destination=destination(text),
        properties=b"destination:q\n",
        body=body,
        is_persistent=persistent,
    )


def _commit(rig: Rig, transactions: Transactions, name: str = "t") -> None:
    transaction = transactions.take(name)
    do(prepare(rig.registry, transaction))
    stage(rig.core, rig.registry, rig.duplicates, transaction)


def test_nothing_is_visible_before_the_commit_is_durable() -> None:
    rig = Rig()
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    transactions = Transactions(10_000)
    transactions.begin("t")
    for number in range(3):
        transactions.add("t", _outgoing(body=b"%d" % number))
    transactions.add("t", _outgoing(body=b"volatile", persistent=False))
    rig.turn()
    assert output.data == b""
    _commit(rig, transactions)
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert output.data == b""
    rig.turn()
    assert output.bodies() == [b"0", b"1", b"2", b"volatile"]


def test_acknowledgements_count_with_the_commit() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    for _ in range(3):
        rig.send("/queue/q", b"x")
    rig.turn()
    transactions = Transactions(10_000)
    transactions.begin("t")
    transactions.add("t", Acknowledgement(consumer, 1))
    transactions.add("t", Acknowledgement(consumer, 2, is_negative=True))
    _commit(rig, transactions)
    rig.turn()
    statistics = rig.core.queue_statistics(consumer.queue.id)
    assert (statistics.acknowledged, statistics.redelivered) == (1, 1)


def test_cumulative_acknowledgement() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/queue/q", AckMode.CLIENT)
    for _ in range(50):
        rig.send("/queue/q", b"x")
    rig.turn()
    transactions = Transactions(10_000)
    transactions.begin("t")
    transactions.add("t", Acknowledgement(consumer, 40))
    _commit(rig, transactions)
    rig.turn()
    assert rig.core.queue_statistics(consumer.queue.id).acknowledged == 40


def test_acknowledgements_of_one_consumer_are_not_counted_again_and_again() -> None:
    rig = Rig(journal=MemoryJournal(files=2, file_bytes=64 * 1024))
    consumer = rig.subscribe(rig.output(), "/queue/q", AckMode.CLIENT)
    for _ in range(100):
        rig.send("/queue/q", b"x")
    rig.turn()
    transactions = Transactions(100_000)
    transactions.begin("t")
    for sequence in range(1, 101):
        transactions.add("t", Acknowledgement(consumer, sequence))
    _commit(rig, transactions)
    rig.turn()
    assert rig.core.queue_statistics(consumer.queue.id).acknowledged == 100


def test_a_transaction_that_never_fits_is_refused_with_the_numbers() -> None:
    rig = Rig(journal=MemoryJournal(files=2, file_bytes=64 * 1024))
    output = rig.output(1 << 24)
    consumer = rig.subscribe(output, "/queue/q", AckMode.CLIENT, credit=5000)
    for _ in range(1000):
        rig.send("/queue/q", b"x", persistent=False)
    rig.turn()
    transactions = Transactions(100_000)
    transactions.begin("t")
    transactions.add("t", Acknowledgement(consumer, 1000))
    with pytest.raises(LimitExceeded, match=r"1000 messages .* nothing was committed") as caught:
        _commit(rig, transactions)
    assert caught.value.measured == f"{1002 * 128 + 2 * 8192} bytes"
    assert caught.value.allowed == f"at most {rig.registry.transaction_room_bytes} bytes"
    assert rig.core.queue_statistics(consumer.queue.id).delivering == 1000, "nothing was changed"
    rig.core.acknowledge(consumer.handle, 1000)


@pytest.mark.parametrize("size_bytes", [0, 50_000])
@pytest.mark.parametrize("file_bytes", [64 * 1024, 1024 * 1024, 10 * 1024 * 1024])
def test_what_is_not_refused_fits_once_the_files_ahead_are_there(
    file_bytes: int, size_bytes: int
) -> None:
    """`transaction_bytes` counts as the core does, and the limit leaves the core's reserve."""
    journal = MemoryJournal(files=2, file_bytes=file_bytes)
    reserve_bytes = min(file_bytes // 8, 1024 * 1024)
    room_bytes = 2 * (file_bytes - 2 * 4096) - reserve_bytes
    assert room_bytes - 256 * 1024 <= journal.transaction_room_bytes < room_bytes
    records = (room_bytes - transaction_bytes(size_bytes, 0)) // 128
    with pytest.raises(NoRoom):
        journal.core.begin(1, size_bytes, records + 1)
    journal.core.begin(1, size_bytes, records)
    journal.core.commit(1)


def test_abort_forgets() -> None:
    rig = Rig()
    transactions = Transactions(1000)
    transactions.begin("t")
    transactions.add("t", _outgoing())
    transactions.take("t")
    transactions.begin("t")  # the name is free again, and so are the bytes
    transactions.add("t", _outgoing(body=bytes(500)))
    assert not rig.core.has_unwritten()


def test_bounds() -> None:
    transactions = Transactions(1000)
    transactions.begin("t")
    with pytest.raises(RemoteProtocolError, match="'t' has begun already"):
        transactions.begin("t")
    with pytest.raises(RemoteProtocolError, match="no transaction 'u'"):
        transactions.add("u", _outgoing())
    with pytest.raises(LimitExceeded, match="at most 1000 bytes"):
        transactions.add("t", _outgoing(body=bytes(1000)))
    for number in range(OPEN_TRANSACTIONS_MAX - 1):
        transactions.begin(str(number))
    with pytest.raises(LimitExceeded, match="too many open transactions"):
        transactions.begin("one more")


def test_message_that_is_not_held_any_more_commits_nothing() -> None:
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", b"x")
    rig.turn()
    transactions = Transactions(10_000)
    transactions.begin("t")
    transactions.add("t", _outgoing("/queue/other"))
    transactions.add("t", Acknowledgement(consumer, 1))
    close_subscription(rig.core, rig.registry, consumer)
    rig.turn()
    with pytest.raises(RemoteProtocolError, match="nothing was committed"):
        _commit(rig, transactions)
    rig.turn()
    assert rig.core.queue_statistics(rig.registry.queues["other"].id).added == 0


def test_no_room_changes_nothing_and_works_later() -> None:
    rig = Rig(journal=MemoryJournal(files=1, file_bytes=64 * 1024))
    do(prepare(rig.registry, _transaction(rig, 0)))
    transaction = _transaction(rig, 12)
    do(prepare(rig.registry, transaction))
    with pytest.raises(NoRoom):
        stage(rig.core, rig.registry, rig.duplicates, transaction)
    assert not rig.core.has_unwritten()
    for _ in range(3):
        rig.journal.add_file()
    stage(rig.core, rig.registry, rig.duplicates, transaction)
    rig.turn()
    assert rig.core.queue_statistics(rig.registry.queues["q"].id).ready == 12


def _transaction(rig: Rig, count: int):  # type: ignore[no-untyped-def]
    transactions = Transactions(1_000_000)
    transactions.begin("t")
    for _ in range(count):
        transactions.add("t", _outgoing(body=bytes(5000)))
    return transactions.take("t")

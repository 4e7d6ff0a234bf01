"""Streams: who may claim which queue, epochs, leases, and what nobody else may do meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.streams import EPOCH_COUNTER, Stream
from vespiary_broker.engine.subscriptions import delete_durable_subscription
from vespiary_spec.errors import (
    JournalFull,
    RemoteProtocolError,
    StreamFenced,
    StreamHeld,
    VespiaryError,
)
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do


def queue(rig: Rig, name: str = "q", **options: Any) -> Queue:
    made: Queue = do(rig.registry.create_queue(name, name, RoutingType.ANYCAST, **options))
    return made


def claim(
    rig: Rig, owner: str = "query", *, name: str = "s", of: str = "q", lease_s: float = 60
) -> Stream:
    stream: Stream = do(rig.engine.streams.claim(name, of, owner, lease_s))
    return stream


def again(rig: Rig) -> Rig:
    """Return an engine that was started over the same bindings."""
    other = Rig(bindings=rig.bindings)
    for key in rig.bindings.values:
        if key.startswith("queue/"):
            other.core.open_queue(int(key.removeprefix("queue/")))
    other.registry.restore()
    other.engine.streams.restore()
    return other


def test_each_claim_has_a_higher_epoch_and_ends_the_run_before_it():
    rig = Rig()
    queue(rig)
    first = claim(rig).epoch
    second = claim(rig).epoch
    assert second > first
    streams = rig.engine.streams
    assert streams.use("s", second).epoch == second
    with pytest.raises(StreamFenced, match="another run, of query"):
        streams.use("s", first)
    do(streams.remove(streams.by_name["s"]))
    with pytest.raises(StreamFenced, match="no stream s any more"):
        streams.use("s", second)
    assert claim(rig).epoch > second, "a stream of the same name is another one"
    other = again(rig)
    assert claim(other).epoch > second + 1, "nor after a restart"


def test_others_wait_until_the_lease_has_run_out():
    rig = Rig()
    queue(rig)
    epoch = claim(rig).epoch
    rig.now_s += 59
    with pytest.raises(StreamHeld, match=r"held by query.*another 1\.0 s"):
        claim(rig, "another")
    rig.engine.streams.use("s", epoch)  # each call begins it anew
    rig.now_s += 59
    with pytest.raises(StreamHeld):
        claim(rig, "another")
    rig.now_s += 1
    stream = claim(rig, "another", lease_s=5)
    assert (stream.owner, rig.engine.streams.lease_left_s(stream)) == ("another", 5)
    with pytest.raises(StreamFenced):
        rig.engine.streams.use("s", epoch)


def test_who_was_not_replaced_goes_on_after_its_lease():
    rig = Rig()
    queue(rig)
    stream = claim(rig)
    rig.now_s += 1000
    rig.engine.streams.use("s", stream.epoch)
    assert rig.engine.streams.lease_left_s(stream) == 60


def test_a_restart_keeps_streams_and_begins_their_leases_anew():
    rig = Rig()
    queue(rig)
    stream = claim(rig)
    do(rig.engine.streams.acknowledge(stream, 7))
    do(rig.engine.streams.acknowledge(stream, 5))
    rig.now_s += 30
    other = again(rig)
    kept = other.engine.streams.by_name["s"]
    assert (kept.owner, kept.epoch, kept.acknowledged) == ("query", stream.epoch, 7)
    assert other.engine.streams.lease_left_s(kept) == 60
    assert other.registry.queues["q"].stream is kept
    with pytest.raises(StreamHeld):
        claim(other, "another")


def test_a_stream_whose_queue_is_gone_is_left_out():
    rig = Rig()
    made = queue(rig)
    claim(rig)
    del rig.bindings.values[made.key]
    assert not again(rig).engine.streams.by_name


def test_a_binding_that_is_none_is_named():
    rig = Rig()
    queue(rig)
    claim(rig)
    del rig.bindings.values["stream/s"]["owner"]
    with pytest.raises(ValueError, match="stream/s"):
        again(rig)


@pytest.mark.parametrize("failing", ["counter", "stream"])
def test_a_claim_that_cannot_be_written_is_none(failing: str):
    rig = Rig()
    made = queue(rig)

    async def put(key: str, value: dict[str, Any]) -> None:
        if key.startswith(failing):
            raise JournalFull("the disk is full")
        rig.bindings.values[key] = value

    rig.bindings.put = put  # type: ignore[method-assign]
    with pytest.raises(JournalFull):
        claim(rig)
    assert made.stream is None
    assert not rig.engine.streams.by_name


def test_a_second_claim_that_cannot_be_written_leaves_the_owner():
    rig = Rig()
    queue(rig)
    stream = claim(rig)
    rig.now_s += 60
    rig.bindings.put_failure = JournalFull("the disk is full")
    with pytest.raises(JournalFull):
        claim(rig, "another")
    assert stream.owner == "query"
    with pytest.raises(JournalFull):
        do(rig.engine.streams.acknowledge(stream, 9))
    assert stream.acknowledged == 0


def test_the_epoch_is_written_before_it_is_used():
    rig = Rig()
    queue(rig)
    stream = claim(rig)
    assert rig.bindings.values[EPOCH_COUNTER] == {"next": stream.epoch + 1}
    assert rig.bindings.puts[-2:] == [EPOCH_COUNTER, "stream/s"]


# --- queues -------------------------------------------------------------------------------------


def refused(rig: Rig, **more: Any) -> str:
    with pytest.raises(RemoteProtocolError) as error:
        claim(rig, **more)
    return error.value.what


def test_which_queues_a_stream_can_read():
    rig = Rig()
    queue(rig)
    claim(rig)
    assert "reads the queue q" in refused(rig, of="other")
    assert "is read by the stream s" in refused(rig, name="t")
    assert "there is no queue x" in refused(rig, name="t", of="x")
    queue(rig, "volatile", is_durable=False)
    assert "does not survive a restart" in refused(rig, name="t", of="volatile")
    queue(rig, "latest", traits=QueueTraits(kind=(("non-destructive", True),)))
    assert "no stream can read" in refused(rig, name="t", of="latest")
    assert "stream" in refused(rig, name="", of="latest")


def test_a_queue_has_consumers_or_a_stream():
    rig = Rig()
    queue(rig)
    consumer = rig.subscribe(rig.output(), "q")
    assert "has consumers" in refused(rig)
    rig.core.close_consumer(consumer.handle)
    consumer.queue.consumers.remove(consumer)
    stream = claim(rig)
    with pytest.raises(StreamHeld, match="the queue q is read by the stream s of query"):
        rig.subscribe(rig.output(), "q")
    do(rig.engine.streams.remove(stream))
    rig.subscribe(rig.output(), "q")


def test_a_stream_keeps_its_queue():
    settings = {"#": AddressSettings(auto_delete_queues_skip_usage_check=True)}
    rig = Rig(settings)
    made = queue(rig, is_auto_created=True)
    stream = claim(rig)
    rig.now_s += 1e6
    assert not rig.registry.usage.settle(made, rig.now_s)
    with pytest.raises(StreamHeld, match="vespiary stream delete s"):
        rig.registry.check_deletable(made)
    do(rig.engine.streams.remove(stream))
    rig.registry.check_deletable(made)
    rig.now_s += 1
    assert rig.registry.usage.settle(made, rig.now_s)


def test_a_durable_subscription_that_is_read_stays():
    rig = Rig()
    consumer = rig.subscribe(rig.output(), "/topic/t", client_id="c", durable_name="d")
    rig.core.close_consumer(consumer.handle)
    consumer.queue.consumers.remove(consumer)
    claim(rig, of="c.d")
    with pytest.raises(StreamHeld):
        delete_durable_subscription(rig.registry, "c", "d")
    with pytest.raises(VespiaryError, match="is read by the stream"):
        rig.subscribe(rig.output(), "/topic/t", client_id="c", durable_name="d")


def test_a_queue_that_takes_nothing_without_consumers_takes_for_a_stream():
    rig = Rig({"#": AddressSettings(default_purge_on_no_consumers=True)})
    made = queue(rig)
    assert not made.is_open
    stream = claim(rig)
    assert made.is_open
    rig.send("q", b"1")
    rig.turn()
    rig.registry.usage.purge_closed(made)
    assert rig.core.queue_statistics(made.id).ready == 1
    do(rig.engine.streams.remove(stream))
    assert not made.is_open


def test_a_new_stream_begins_behind_what_was_done_before():
    rig = Rig()
    made = queue(rig)
    for number in range(5):
        rig.send("q", b"%d" % number)
    rig.turn()
    rig.core.finish(made.id, [1, 2, 4])
    rig.turn()
    stream = claim(rig)
    assert (stream.acknowledged, stream.begin) == (2, 5)
    assert [tuple(gap) for gap in stream.explain(1, 7)] == [
        (1, 2, "acknowledged"), (3, 5, "before-stream"), (6, 7, "unknown"),
    ]  # fmt: skip

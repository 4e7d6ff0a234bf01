"""Messages to clients: credit, windows, drain, and what becomes of what they say of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.selection.selector import prepare_parser
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Decoder,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Header,
    Modified,
    Rejected,
    Released,
    Section,
    Source,
    Transfer,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import Described, Symbol, UByte, UInt
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.amqp_peer import RECEIVER, SENDER, AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import ServerRig

prepare_parser()  # in the test's thread: a session would have one of its own do it
DEAD = AddressSettings(dead_letter_address="dead")


async def client(rig: ServerRig, frame_bytes: int = 64 * 1024, **begin: Any) -> AmqpPeer:
    peer = AmqpPeer(rig, frame_bytes)
    await peer.open()
    await peer.begin(**begin)
    return peer


async def fill(rig: ServerRig, count: int, address: str = "/queue/a", size: int = 4) -> None:
    """Send messages whose bodies count up."""
    peer = AmqpPeer(rig)
    await peer.open(container=f"filler-{address}")
    await peer.begin()
    await peer.sender(address)
    for number in range(count):
        peer.send(message(str(number).encode().ljust(size)))
    await rig.flush()
    assert len(peer.all(Disposition)) >= 1


def bodies(peer: AmqpPeer) -> list[int]:
    return [
        int(read_section(data, sections(data)[-1]).decode().strip()) for _, data in peer.messages()
    ]


def header_of(data: bytes) -> Header:
    (found,) = [one for one in sections(data) if one.section is Section.HEADER]
    return read_section(data, found)


def statistics(rig: ServerRig, name: str = "a") -> Any:
    return rig.core.queue_statistics(rig.engine.registry.queues[name].id)


@with_rig()
async def test_no_more_than_the_credit(rig: ServerRig) -> None:
    await fill(rig, 10)
    peer = await client(rig)
    await peer.receiver("/queue/a")
    assert bodies(peer) == []
    await peer.credit(3)
    assert bodies(peer) == [0, 1, 2]
    peer.settle(0, 2)
    await rig.flush()
    assert bodies(peer) == []  # what is settled is no credit
    await peer.credit(2, count=3)
    assert bodies(peer) == [3, 4]
    assert statistics(rig).delivering == 2


@with_rig()
async def test_credit_counts_from_what_the_client_has_seen(rig: ServerRig) -> None:
    await fill(rig, 10)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=4)
    assert bodies(peer) == [0, 1, 2, 3]
    await peer.credit(5, count=1)  # it has seen one of them: two more
    assert bodies(peer) == [4, 5]


@with_rig()
async def test_links_share_a_queue_and_none_takes_what_it_has_no_credit_for(rig: ServerRig) -> None:
    await fill(rig, 6)
    peer = await client(rig)
    await peer.receiver("/queue/a", handle=1, credit=1)
    await peer.receiver("/queue/a", handle=2, credit=1)
    got = peer.messages()
    assert [transfer.handle for transfer, _ in got] == [1, 2]
    assert statistics(rig).delivering == 2


@with_rig()
async def test_the_window_of_the_session(rig: ServerRig) -> None:
    await fill(rig, 10)
    peer = await client(rig, window=2)
    await peer.receiver("/queue/a")
    await peer.credit(10, window=2)
    assert bodies(peer) == [0, 1]
    await peer.credit(8, count=2, next_incoming_id=2, window=3)
    assert bodies(peer) == [2, 3, 4]
    assert statistics(rig).delivering <= 5


@with_rig()
async def test_credit_for_a_link_is_no_work_for_all_others(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may have a thousand links."""
    told: list[int] = []
    tell = rig.core.set_amqp_link_credit

    def count(consumer: int, credit: int) -> None:
        told.append(consumer)
        tell(consumer, credit)

    peer = await client(rig)
    for handle in range(20):
        await peer.receiver("/queue/a", handle=handle)
    monkeypatch.setattr(rig.core, "set_amqp_link_credit", count, raising=False)
    await peer.credit(5, handle=7)
    assert len(told) == 1
    await fill(rig, 3)
    assert bodies(peer) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["plain", "selector", "browser"])
def test_every_link_goes_on_with_the_window_of_the_session(kind: str) -> None:
    @with_rig()
    async def run(rig: ServerRig) -> None:
        await fill(rig, 8)
        peer = await client(rig, window=3)
        one = Described(Symbol("apache.org:selector-filter:string"), "color is null")
        source = Source(
            address="/queue/a",
            filter={Symbol("f"): one} if kind == "selector" else None,
            distribution_mode=Symbol("copy") if kind == "browser" else None,
        )
        await peer.receiver("/queue/a", source=source)
        await peer.credit(10, window=3)
        await rig.settle(100)
        assert bodies(peer) == [0, 1, 2]
        flow = Flow(
            next_incoming_id=UInt(3), incoming_window=UInt(10),
            next_outgoing_id=UInt(0), outgoing_window=UInt(10),
        )  # fmt: skip
        peer.frame(flow)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert bodies(peer) == [3, 4, 5, 6, 7]

    run()


@with_rig()
async def test_a_window_smaller_than_a_message(rig: ServerRig) -> None:
    await fill(rig, 2, size=3000)
    peer = await client(rig, frame_bytes=512, window=1)
    await peer.receiver("/queue/a")
    await peer.credit(1, window=1)
    peer.take()
    seen = 0
    for step in range(1, 20):
        frames = [f for f in peer.got if isinstance(getattr(f, "body", None), Transfer)]
        assert len(frames) == step
        seen = step
        if not frames[-1].body.more:
            break
        await peer.credit(1, next_incoming_id=step, window=1)
        peer.take()
    assert seen > 5
    assert bodies(peer) == [0]


@with_rig()
async def test_frames_are_as_small_as_the_client_wants(rig: ServerRig) -> None:
    await fill(rig, 1, size=5000)
    peer = await client(rig, frame_bytes=512)
    await peer.receiver("/queue/a", credit=1)
    ((transfer, data),) = peer.messages()  # its decoder refuses larger ones
    assert len(data) > 5000
    assert transfer.delivery_tag is not None


@with_rig()
async def test_drain_uses_the_credit_up(rig: ServerRig) -> None:
    await fill(rig, 2)
    peer = await client(rig)
    await peer.receiver("/queue/a")
    await peer.credit(10, drain=True)
    await rig.settle()
    assert bodies(peer) == [0, 1]
    told = peer.all(Flow)[-1]
    assert told.drain
    assert (told.delivery_count, told.link_credit) == (10, 0)
    await fill(rig, 1)
    assert bodies(peer) == []


@with_rig()
async def test_drain_of_an_empty_queue_and_with_a_selector(rig: ServerRig) -> None:
    await fill(rig, 3)
    peer = await client(rig)
    selector = Described(Symbol("apache.org:selector-filter:string"), "n = 1")
    source = Source(address="/queue/a", filter={Symbol("s"): selector})
    await peer.receiver("/queue/a", source=source)
    await peer.credit(5, drain=True)
    for _ in range(5):
        await rig.settle()
    told = peer.all(Flow)[-1]
    assert (told.drain, told.link_credit) == (True, 0)


@with_rig()
async def test_echo_is_answered(rig: ServerRig) -> None:
    peer = await client(rig)
    await peer.receiver("/queue/a")
    await peer.credit(7, echo=True)
    (told,) = peer.all(Flow)
    assert (told.handle, told.link_credit) == (1, 7)
    peer.frame(
        Flow(
            next_incoming_id=UInt(0), incoming_window=UInt(9), next_outgoing_id=UInt(0),
            outgoing_window=UInt(9), echo=True,
        )
    )  # fmt: skip
    await rig.settle()
    (told,) = peer.all(Flow)
    assert told.handle is None


@with_rig()
async def test_accepted_is_acknowledged(rig: ServerRig) -> None:
    await fill(rig, 3)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=3)
    peer.settle(0, 1)
    await rig.flush()
    assert (statistics(rig).acknowledged, statistics(rig).delivering) == (2, 1)


@with_rig()
async def test_what_the_sender_is_to_settle_is_settled_behind_the_flush(rig: ServerRig) -> None:
    await fill(rig, 3)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=3, rcv_settle_mode=UByte(1))
    peer.settle(0, 2, settled=False)
    await rig.settle()
    assert peer.all(Disposition) == []
    rig.journal.flush()
    await rig.settle()
    told = peer.one(Disposition)
    assert (told.role, told.first, told.last, told.settled) == (SENDER, 0, 2, True)


@with_rig()
async def test_pre_settled_deliveries_are_acknowledged_as_they_leave(rig: ServerRig) -> None:
    await fill(rig, 5)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=3, snd_settle_mode=UByte(1))
    got = peer.messages()
    assert [transfer.settled for transfer, _ in got] == [True] * 3
    await rig.flush()
    assert statistics(rig).acknowledged == 3
    await peer.credit(1, count=3)
    assert bodies(peer) == [3]


@with_rig()
async def test_released_comes_again_uncounted(rig: ServerRig) -> None:
    await fill(rig, 1)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    ((_, first),) = peer.messages()
    peer.settle(0, state=Released())
    await rig.settle()
    ((_, again),) = peer.messages()
    assert header_of(first).delivery_count == header_of(again).delivery_count == 0


@with_rig()
async def test_modified_with_delivery_failed_is_counted(rig: ServerRig) -> None:
    await fill(rig, 1)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    peer.messages()
    peer.settle(0, state=Modified(delivery_failed=True))
    await rig.settle()
    ((_, again),) = peer.messages()
    assert header_of(again).delivery_count == 1
    assert header_of(again).first_acquirer is False


@pytest.mark.parametrize("is_priority_usual", [True, False])
@pytest.mark.parametrize(
    ("said", "expected"), [(None, False), (False, False), (True, True), ("STOMP", False)]
)
@with_rig()
async def test_first_acquirer_is_true_if_the_sender_and_the_broker_say_so(
    rig: ServerRig, said: object, expected: bool, is_priority_usual: bool
) -> None:
    """The core sends messages with the usual priority, Python the others."""
    priority = 4 if is_priority_usual else 5
    if said == "STOMP":
        peer = rig.peer()
        await peer.login()
        peer.send(b"SEND\ndestination:/queue/a\npriority:%d\n\nx\0" % priority)
    else:
        header: dict[str, Any] = {"priority": UByte(priority)}
        header |= {} if said is None else {"first_acquirer": said}
        sender = await client(rig)
        await sender.sender("/queue/a")
        sender.send(message(header=header))
    await rig.flush()
    reader = await client(rig)
    await reader.receiver("/queue/a", credit=5)
    ((_, first),) = reader.messages()
    assert header_of(first).first_acquirer is expected
    reader.settle(0, state=Modified(delivery_failed=True))
    await rig.settle()
    ((_, again),) = reader.messages()
    assert header_of(again).first_acquirer is False


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("is_amqp", [False, True])
@with_rig(settings={"#": DEAD})
async def test_a_message_that_was_moved_has_no_first_acquirer(
    rig: ServerRig, is_amqp: bool, is_retried: bool
) -> None:
    if is_amqp:
        sender = await client(rig)
        await sender.sender("/queue/a")
        sender.send(message(header={"first_acquirer": True}))
    else:
        peer = rig.peer()
        await peer.login()
        peer.send(b"SEND\ndestination:/queue/a\n\nx\0")
    await rig.flush()
    reader = await client(rig)
    await reader.receiver("/queue/a", credit=1)
    ((_, first),) = reader.messages()
    assert header_of(first).first_acquirer is is_amqp
    reader.settle(0, state=Rejected())
    await rig.flush()
    await rig.flush()
    if is_retried:
        dead = rig.engine.registry.queues["dead"]
        (view,) = rig.core.look(dead.id, 0, 1).messages
        assert leave(rig.core, rig.engine.fates.mover, dead, view, Reason.RETRIED)
        rig.cycle.touch()
        await rig.flush()
        await rig.flush()
    another = await client(rig)
    await another.receiver("/queue/a" if is_retried else "/queue/dead", credit=1)
    ((_, again),) = another.messages()
    assert header_of(again).first_acquirer is False


@with_rig()
async def test_modified_changes_annotations(rig: ServerRig) -> None:
    await fill(rig, 1)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    peer.messages()
    peer.settle(0, state=Modified(message_annotations={Symbol("x-why"): "later"}))
    await rig.settle()
    ((_, again),) = peer.messages()
    found = {one.section: read_section(again, one) for one in sections(again)}
    assert found[Section.MESSAGE_ANNOTATIONS] == {Symbol("x-why"): "later"}
    peer.settle(1)
    await rig.flush()
    assert not rig.cycle.annotations.has_any_in(rig.engine.registry.queues["a"].id)


@with_rig()
async def test_undeliverable_here_goes_to_another_link(rig: ServerRig) -> None:
    await fill(rig, 2)
    peer = await client(rig)
    await peer.receiver("/queue/a", handle=1, credit=1)
    assert bodies(peer) == [0]
    peer.settle(0, state=Modified(undeliverable_here=True))
    await peer.credit(5, handle=1, count=1)
    await rig.settle()
    assert bodies(peer) == [1]  # the other one is not given to this link again
    await peer.receiver("/queue/a", handle=2, credit=5)
    await rig.settle()
    assert bodies(peer) == [0]


@with_rig({"#": DEAD})
async def test_rejected_is_a_dead_letter_with_the_reason(rig: ServerRig) -> None:
    await rig.engine.registry.create_queue("dead", "dead", RoutingType.ANYCAST)
    await fill(rig, 1)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    error = Error(condition=Symbol("app:bad"), description="no such order")
    peer.settle(0, state=Rejected(error=error))
    await rig.flush()
    await rig.flush()
    queue = rig.engine.registry.queues["dead"]
    (view,) = rig.core.look(queue.id, 0, 10, everything=True).messages
    assert value_of(view.properties, b"_AMQ_REJECT_CONDITION") == "app:bad"
    assert value_of(view.properties, b"_AMQ_REJECT_DESCRIPTION") == "no such order"
    assert value_of(view.properties, b"_AMQ_ORIG_QUEUE") == "a"
    await peer.receiver("/queue/dead", handle=3, credit=1)
    *_, (_, data) = peer.messages()
    found = {one.section: read_section(data, one) for one in sections(data)}
    assert found[Section.MESSAGE_ANNOTATIONS]["x-opt-reject-condition"] == "app:bad"
    assert found[Section.MESSAGE_ANNOTATIONS]["x-opt-ORIG-QUEUE"] == "a"


@pytest.mark.parametrize("how", ["detach", "end", "lose"])
@with_rig()
async def test_what_a_link_holds_goes_back_with_it(rig: ServerRig, how: str) -> None:
    await fill(rig, 2)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=5)
    assert statistics(rig).delivering == 2
    if how == "detach":
        await peer.detach(1)
        assert peer.one(Detach).closed
    elif how == "end":
        peer.frame(End())
        await rig.flush()
        assert len(peer.all(End)) == 1
    else:
        peer.peer.lose()
        await rig.settle()
    assert statistics(rig).delivering == 0
    other = await client(rig)
    await other.receiver("/queue/a", credit=5)
    got = other.messages()
    assert len(got) == 2
    counts = {header_of(data).delivery_count for _, data in got}
    assert counts == {1 if how == "lose" else 0}  # an orderly end counts as no delivery


@with_rig()
async def test_a_client_that_does_not_read_gets_no_more(rig: ServerRig) -> None:
    await fill(rig, 900, size=2000)
    peer = await client(rig)
    await peer.receiver("/queue/a")
    peer.transport.is_stuck = True
    await peer.credit(900)
    held = statistics(rig).delivering
    assert 50 < held < 400  # about 256 KiB
    peer.transport.drain()
    await rig.settle()
    assert statistics(rig).delivering > held


@with_rig(max_unsettled=10)
async def test_unsettled_messages_are_bounded(rig: ServerRig) -> None:
    await fill(rig, 50)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=1000)
    assert statistics(rig).delivering == 10
    peer.settle(0, 4)
    await rig.flush()
    assert statistics(rig).delivering == 10


@with_rig()
async def test_an_invalid_selector_is_refused_at_attach(rig: ServerRig) -> None:
    peer = await client(rig)
    selector = Described(Symbol("apache.org:selector-filter:string"), "n = = 1")
    source = Source(address="/queue/a", filter={Symbol("s"): selector})
    answer = await peer.receiver("/queue/a", source=source)
    assert answer.source is None
    told = peer.one(Detach)
    assert told.closed
    assert told.error.condition == "amqp:invalid-field"
    assert "a" not in rig.engine.registry.queues  # before anything is made


@with_rig()
async def test_browsing_takes_nothing(rig: ServerRig) -> None:
    await fill(rig, 5)
    peer = await client(rig)
    source = Source(address="/queue/a", distribution_mode=Symbol("copy"))
    await peer.receiver("/queue/a", source=source)
    await peer.credit(3)
    await rig.settle()
    assert bodies(peer) == [0, 1, 2]
    await peer.credit(10, count=3, drain=True)
    for _ in range(3):
        await rig.settle()
    assert bodies(peer) == [3, 4]
    assert peer.all(Flow)[-1].link_credit == 0
    peer.settle(0, 4)
    await peer.detach(1)
    assert (statistics(rig).ready, statistics(rig).acknowledged) == (5, 0)
    by_name = Source(address="a::a", distribution_mode=Symbol("copy"))
    await peer.receiver("a::a", handle=2, source=by_name, credit=9)
    await rig.settle()
    assert bodies(peer) == [0, 1, 2, 3, 4]
    assert statistics(rig).delivering == 0


@with_rig()
async def test_a_durable_subscription(rig: ServerRig) -> None:
    peer = await client(rig)
    source = Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))
    await peer.receiver("/topic/t", source=source, name="sub")
    await peer.detach(1, closed=False)
    assert peer.one(Detach).closed is False
    await fill(rig, 2, "/topic/t")
    await peer.receiver("/topic/t", handle=2, source=source, name="sub", credit=5)
    assert bodies(peer) == [0, 1]
    assert "me.sub" in rig.engine.registry.queues
    await peer.detach(2, closed=True)
    assert "me.sub" not in rig.engine.registry.queues


@with_rig()
async def test_a_durable_subscription_is_deleted_by_its_name_alone(rig: ServerRig) -> None:
    peer = await client(rig)
    source = Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))
    await peer.receiver("/topic/t", source=source, name="sub")
    await peer.detach(1, closed=False)
    peer.all(Detach)
    await peer.attach(True, 4, name="sub", source=None)
    answer = peer.one(Attach)
    assert answer.source.address == "t"
    await peer.detach(4, closed=True)
    assert peer.one(Detach).error is None
    assert "me.sub" not in rig.engine.registry.queues
    await peer.attach(True, 5, name="sub", source=None)
    assert peer.one(Attach).source is None
    assert peer.one(Detach).error.condition == "amqp:not-found"


@pytest.mark.parametrize("is_global", [False, True])
@with_rig()
async def test_shared_subscriptions(rig: ServerRig, is_global: bool) -> None:
    names = (Symbol("shared"), Symbol("global")) if is_global else (Symbol("shared"),)
    source = Source(
        address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"), capabilities=names
    )
    first = AmqpPeer(rig)
    await first.open(container="one")
    await first.begin()
    second = AmqpPeer(rig)
    await second.open(container="two" if is_global else "one")
    await second.begin()
    await first.receiver("/topic/t", source=source, name="sub|1", credit=10)
    await second.receiver("/topic/t", source=source, name="sub|2", credit=10)
    await fill(rig, 4, "/topic/t")
    assert sorted(bodies(first) + bodies(second)) == [0, 1, 2, 3]
    assert ("sub:global" if is_global else "one.sub") in rig.engine.registry.queues


@with_rig()
async def test_no_local(rig: ServerRig) -> None:
    peer = await client(rig)
    no_local = Described(Symbol("apache.org:no-local-filter:list"), [])
    source = Source(address="/topic/t", filter={Symbol("no-local"): no_local})
    await peer.receiver("/topic/t", source=source, credit=5)
    await peer.sender("/topic/t", handle=0)
    peer.send(message(b"7"))
    await rig.flush()
    assert bodies(peer) == []
    await fill(rig, 1, "/topic/t")
    assert bodies(peer) == [0]


@with_rig()
async def test_what_was_accepted_before_the_link_was_cut_off_does_not_come_again(
    rig: ServerRig,
) -> None:
    peer = await client(rig)
    source = Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))
    await peer.receiver("/topic/t", source=source, name="sub")
    await fill(rig, 4, "/topic/t")
    await peer.credit(4)
    tags = [transfer.delivery_tag for transfer, _ in peer.messages()]
    peer.peer.lose()
    await rig.settle()
    again = await client(rig)
    unsettled = {tags[0]: described(Accepted()), tags[1]: None, tags[2]: described(Accepted())}
    unsettled |= {b"odd": described(Accepted()), b"\xff" * 8: described(Accepted()), 7: None}
    await again.receiver("/topic/t", source=source, name="sub", unsettled=unsettled)
    await again.credit(9)
    assert bodies(again) == [1, 3]
    await rig.flush()
    assert statistics(rig, "me.sub").acknowledged == 2


def described(outcome: Any) -> Any:
    """Return an outcome as the decoder has it in a map."""
    return Decoder(write(outcome)).value()


@pytest.mark.parametrize("failed", [False, True])
@with_rig()
async def test_settled_without_an_outcome(rig: ServerRig, failed: bool) -> None:
    await fill(rig, 1)
    peer = await client(rig)
    default = Modified(delivery_failed=True) if failed else None
    source = Source(address="/queue/a", default_outcome=default)
    answer = await peer.receiver("/queue/a", source=source, credit=5)
    assert answer.source.default_outcome == default
    peer.messages()
    peer.frame(Disposition(role=RECEIVER, first=UInt(0), settled=True))
    await rig.settle()
    ((_, again),) = peer.messages()
    assert header_of(again).delivery_count == failed


@with_rig()
async def test_annotations_that_clients_change_are_bounded(rig: ServerRig) -> None:
    await fill(rig, 1)
    peer = await client(rig)
    await peer.receiver("/queue/a", credit=99)
    for number in range(5):
        peer.messages()
        text = "x" * (9000 if number == 3 else 100)
        annotations = {Symbol(f"x-{number}"): text}
        peer.settle(number, state=Modified(message_annotations=annotations))
        await rig.settle()
    changed = rig.cycle.annotations.of((rig.engine.registry.queues["a"].id, 1))
    assert list(changed or ()) == ["x-4"]  # the one too large has cost those before it


@with_rig(max_unsettled=3)
async def test_a_browser_that_never_settles_is_shown_no_more(rig: ServerRig) -> None:
    await fill(rig, 9)
    peer = await client(rig)
    source = Source(address="/queue/a", distribution_mode=Symbol("copy"))
    await peer.receiver("/queue/a", source=source, credit=9)
    await rig.settle()
    assert bodies(peer) == [0, 1, 2]
    peer.settle(0, 2)
    await rig.settle()
    await asyncio.sleep(0.05)
    assert bodies(peer) == [3, 4, 5]

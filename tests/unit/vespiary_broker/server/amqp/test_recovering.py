"""Durable links by which clients send: what was accepted is told when they attach again."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from vespiary_codec.journal.block import HEADER_BYTES, decode_block_header
from vespiary_codec.journal.record import AddRecord, CommitRecord, decode_record, walk_records
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Decoder,
    Detach,
    Disposition,
    Received,
    Section,
    Target,
    TransactionalState,
    Transfer,
    encode_section,
)
from vespiary_codec.wire.amqp.composites import write
from vespiary_codec.wire.amqp.values import UByte, UInt, ULong
from vespiary_testkit.amqp_peer import SENDER, message, with_rig
from vespiary_testkit.durable_sender import (
    ACCEPTED,
    ADDRESS,
    SECOND,
    DurableSender,
    notes,
    stored,
    tags,
)
from vespiary_testkit.server_rig import ServerRig


@with_rig()
async def test_what_was_accepted_is_told(rig: ServerRig) -> None:
    before = DurableSender(rig)
    answer = await before.open()
    assert (answer.unsettled, answer.target.durable, answer.rcv_settle_mode) == (None, 2, 1)
    await before.sent(b"1", b"2", b"3")
    await before.settle(0)
    before.lose()
    await rig.settle()
    again = DurableSender(rig)
    answer = await again.open({b"2": None, b"3": ACCEPTED, b"4": None})
    assert set(tags(answer)) == {b"2", b"3"}
    assert not answer.incomplete_unsettled
    assert (stored(rig), notes(rig)) == (3, [2])


@pytest.mark.parametrize("is_named", [True, False])
@with_rig()
async def test_the_answer_waits_for_what_it_says_to_be_durable(
    rig: ServerRig, is_named: bool
) -> None:
    """That a message was accepted, or that it is forgotten."""
    before = DurableSender(rig)
    await before.open()
    before.send(b"1")
    await (rig.settle() if is_named else rig.flush())
    before.lose()
    again = DurableSender(rig)
    await again.peer.open()
    await again.peer.begin()
    target = Target(address=ADDRESS, durable=UInt(2))
    unsettled = {b"1": None} if is_named else {}
    await again.peer.attach(
        SENDER, 0, name="link", target=target, rcv_settle_mode=SECOND, unsettled=unsettled
    )
    assert again.peer.all(Attach) == []
    await rig.flush()
    assert set(tags(again.peer.one(Attach))) == set(unsettled)


@pytest.mark.parametrize("unsettled", [None, {}, {b"other": None}])
@with_rig()
async def test_what_the_client_does_not_name_is_forgotten(rig: ServerRig, unsettled: Any) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1", b"2")
    before.lose()
    again = DurableSender(rig)
    answer = await again.open(unsettled)
    assert answer.unsettled == (None if unsettled is None else {})
    assert notes(rig) == [0]
    again.lose()
    assert (await DurableSender(rig).open({b"1": None})).unsettled == {}


@with_rig()
async def test_what_is_not_durable_yet_is_forgotten_as_well(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    before.send(b"1")
    await rig.settle()
    before.lose()
    assert (await DurableSender(rig).open()).unsettled is None
    assert (stored(rig), notes(rig)) == (1, [0])


@with_rig()
async def test_an_incomplete_map_of_the_client_has_nothing_forgotten(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1", b"2")
    before.lose()
    again = DurableSender(rig)
    answer = await again.open({b"1": None}, incomplete_unsettled=True)
    assert set(tags(answer)) == {b"1", b"2"}
    assert notes(rig) == [2]


@with_rig()
async def test_a_map_that_does_not_fit_is_incomplete(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    names = [b"%032d" % number for number in range(40)]
    await before.sent(*names)
    before.lose()
    again = DurableSender(rig, frame_bytes=512)
    answer = await again.open(dict.fromkeys(names))
    told = tags(answer)
    assert 3 < len(told) < 40
    assert answer.incomplete_unsettled
    for tag in told:
        again.send(tag, payload=b"", resume=True, settled=True, state=Accepted())
    again.send(b"new")
    await rig.flush()
    error = again.peer.one(Detach).error
    assert error.condition == "amqp:not-allowed"
    assert stored(rig) == 40
    assert notes(rig) == [40 - len(told)]


@pytest.mark.parametrize("how", ["settled", "aborted", "unsettled", "pieces"])
@with_rig()
async def test_a_resumed_delivery_is_not_stored_again(rig: ServerRig, how: str) -> None:
    before = DurableSender(rig)
    await before.open()
    await before.sent(b"1")
    before.lose()
    again = DurableSender(rig)
    await again.open({b"1": None})
    if how == "settled":
        again.send(b"1", payload=b"", resume=True, settled=True, state=Accepted())
    elif how == "aborted":
        again.send(b"1", payload=b"", resume=True, aborted=True)
    elif how == "unsettled":
        again.send(b"1", resume=True)
    else:
        again.send(b"1", payload=message(b"1")[:5], resume=True, more=True)
        again.peer.frame(Transfer(handle=UInt(0)), message(b"1")[5:])
    await rig.flush()
    assert stored(rig) == 1
    if how in ("unsettled", "pieces"):
        assert again.told() == [(0, False)]
        assert notes(rig) == [1]
        await again.settle(0)
    assert again.told() == []
    assert notes(rig) == [0]
    await again.sent(b"2")
    assert stored(rig) == 2


@with_rig()
async def test_a_resumed_delivery_that_is_not_known_is_ignored(
    rig: ServerRig, caplog: pytest.LogCaptureFixture
) -> None:
    client = DurableSender(rig)
    await client.open({b"1": None})
    with caplog.at_level(logging.WARNING):
        client.send(b"1", resume=True, more=True)
        client.peer.frame(Transfer(handle=UInt(0)), b"rest")
        client.send(b"2", resume=True, aborted=True)
        await rig.flush()
    assert len([one for one in caplog.records if "resumes a delivery" in one.message]) == 1
    assert (client.told(), stored(rig), notes(rig)) == ([], 0, [0])
    await client.sent(b"1")
    assert stored(rig) == 1


@with_rig()
async def test_half_a_delivery_is_sent_anew(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    data = message(b"halved")
    before.send(b"1", payload=data[:9], more=True)
    await rig.flush()
    before.lose()
    again = DurableSender(rig)
    state = Decoder(write(Received(section_number=UInt(0), section_offset=ULong(0)))).value()
    answer = await again.open({b"1": state})
    assert answer.unsettled == {}
    again.send(b"1", payload=data[:20], more=True)
    again.peer.frame(Transfer(handle=UInt(0)), data[20:])
    await rig.flush()
    assert again.told() == [(0, False)]
    assert (stored(rig), notes(rig)) == (1, [1])


@pytest.mark.parametrize(
    "fields",
    [{"durable": 1}, {"durable": 0}, {"rcv_settle_mode": UByte(0)}, {"snd_settle_mode": UByte(1)}],
)
@with_rig()
async def test_other_links_note_nothing(rig: ServerRig, fields: dict[str, Any]) -> None:
    client = DurableSender(rig)
    await client.open(**fields)
    client.send(b"1")
    await rig.flush()
    assert stored(rig) == 1
    assert notes(rig) == []
    client.lose()
    assert not (await DurableSender(rig).open({b"1": None}, **fields)).unsettled


@with_rig()
async def test_a_message_that_need_not_survive_has_no_note(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    before.send(b"1", payload=message(b"1", durable=False))
    before.send(b"2")
    await rig.flush()
    assert notes(rig) == [1]
    before.lose()
    assert set(tags(await DurableSender(rig).open({b"1": None, b"2": None}))) == {b"1", b"2"}


@with_rig()
async def test_message_and_note_are_one_transaction_of_the_journal(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    rig.journal.written = []
    await client.sent(b"1")
    records: list[Any] = []
    for data in rig.journal.written:
        header = decode_block_header(memoryview(data), offset=0)
        payload = memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
        records += [decode_record(raw) for raw in walk_records(payload, header.records)]
    added = [one for one in records if isinstance(one, AddRecord)]
    assert [bytes(one.body) for one in added] == [b"1", b""]
    assert b"tag:31\n" in bytes(added[1].properties)
    (commit,) = [one for one in records if isinstance(one, CommitRecord)]
    assert {one.transaction for one in added} == {commit.transaction} != {0}


@with_rig()
async def test_a_tag_that_is_used_again_is_another_delivery(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.sent(b"t")
    await client.sent(b"t")
    assert (stored(rig), notes(rig)) == (2, [1])
    await client.settle(0)  # of the first: the second is not settled
    assert notes(rig) == [1]
    client.send(b"t", payload=message(b"x", durable=False))
    await rig.flush()
    assert notes(rig) == [0]
    client.lose()
    assert set(tags(await DurableSender(rig).open({b"t": None}))) == {b"t"}


@with_rig()
async def test_a_tag_that_is_used_again_at_once_is_settled_with_the_latest(rig: ServerRig) -> None:
    """Nobody has looked at the queue of notes in between."""
    client = DurableSender(rig)
    await client.open()
    client.send(b"t")
    client.send(b"t")
    await client.settle(1)
    assert (stored(rig), notes(rig)) == (2, [0])


@with_rig()
async def test_what_comes_settled_is_not_noted(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    client.send(b"1", settled=True)
    client.send(b"2", rcv_settle_mode=UByte(0))
    await rig.flush()
    assert client.told() == [(1, True)]
    assert (stored(rig), notes(rig)) == (2, [0])


@with_rig()
async def test_what_a_transaction_has_is_not_noted(rig: ServerRig) -> None:
    client = DurableSender(rig)
    await client.open()
    await client.peer.attach(SENDER, 7, name="control", target=Coordinator())
    client.peer.all(Attach)
    client.peer.frame(
        Transfer(handle=UInt(7), delivery_id=UInt(0), delivery_tag=b"d"),
        encode_section(Section.AMQP_VALUE, Decoder(write(Declare())).value()),
    )
    await rig.flush()
    client.number = 1
    (declared,) = client.peer.all(Disposition)
    state = TransactionalState(txn_id=declared.state.txn_id)
    client.send(b"1", state=state)
    await rig.flush()
    (told,) = client.peer.all(Disposition)
    assert (told.settled, type(told.state)) == (True, TransactionalState)
    assert notes(rig) == [0]


@with_rig()
async def test_with_a_duplicate_id(rig: ServerRig) -> None:
    before = DurableSender(rig)
    await before.open()
    data = message(b"1", application={"_AMQ_DUPL_ID": "one"})
    before.send(b"1", payload=data)
    before.send(b"2", payload=data)
    await rig.flush()
    assert before.told() == [(0, False), (1, False)]
    assert (stored(rig), notes(rig)) == (1, [2])

"""STOMP clients in distributed transactions: the headers `xid`, `phase` and `join`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.engine.users import make_user
from vespiary_codec.journal.branch import parse_xid
from vespiary_codec.wire.stomp import Frame
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import Peer, ServerRig

X = "7:0a0b:01"
XID = parse_xid(X)
Scenario = Callable[[ServerRig], Coroutine[Any, Any, None]]


def on_loop(**named: Any) -> Callable[[Scenario], Callable[[], None]]:
    """Run a scenario on a loop of its own."""

    def decorate(scenario: Scenario) -> Callable[[], None]:
        def test() -> None:
            async def run() -> None:
                rig = ServerRig(**named)
                await scenario(rig)
                await rig.close()

            product_loop.run(run())

        test.__doc__ = scenario.__doc__
        return test

    return decorate


def frame(command: str, body: str = "", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    # A colon in a value is escaped in STOMP 1.2.
    lines = "\n".join(
        line.partition(":")[0] + ":" + line.partition(":")[2].replace(":", "\\c")
        for line in lines.splitlines()
    )
    return f"{command}\n{lines}\n\n{body}\0".encode()


def begin(name: str = "t", **headers: str) -> bytes:
    return frame("BEGIN", transaction=name, xid=X, **headers)


def send(body: str, name: str = "t") -> bytes:
    return frame("SEND", body, destination="/queue/a", transaction=name, persistent="true")


def commit(phase: str = "", receipt: str = "r", name: str = "t") -> bytes:
    headers = {"phase": phase} if phase else {}
    return frame("COMMIT", transaction=name, xid=X, receipt=receipt, **headers)


async def answers(rig: ServerRig, peer: Peer) -> list[Frame]:
    await rig.flush()
    return peer.frames()


async def prepared(rig: ServerRig, peer: Peer, body: str = "one") -> None:
    peer.send(begin() + send(body) + commit("prepare"))
    (receipt,) = await answers(rig, peer)
    assert (receipt.get("receipt-id"), receipt.get("xa")) == ("r", "XA_OK")


def refusal(frames: list[Frame]) -> str:
    assert frames[-1].command == "ERROR", frames
    return frames[-1].get("message", "")


@on_loop()
async def test_the_receipt_of_a_prepare_waits_for_its_flush(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(begin() + send("one") + commit("prepare"))
    await rig.settle()
    assert peer.frames() == []
    assert len(rig.core.branches()) == 1
    (receipt,) = await answers(rig, peer)
    assert receipt.get("xa") == "XA_OK"


@on_loop()
async def test_another_connection_commits(rig: ServerRig) -> None:
    first, second = rig.peer(), rig.peer()
    await first.login()
    await second.login()
    await prepared(rig, first)
    first.lose()
    second.send(frame("SUBSCRIBE", id="1", destination="/queue/a"))
    await rig.flush()
    assert second.frames() == []
    second.send(commit(name="anything"))
    await rig.settle()
    assert second.frames() == [], "the commit is not durable"
    receipt, message = await answers(rig, second)
    assert receipt.get("xa") == "XA_OK"
    assert message.body == b"one"


@on_loop()
async def test_abort_of_a_prepared_branch(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    await prepared(rig, peer)
    peer.send(frame("ABORT", transaction="t", xid=X, receipt="a"))
    (receipt,) = await answers(rig, peer)
    assert receipt.get("receipt-id") == "a"
    assert rig.core.branches() == []
    peer.send(commit())
    assert "XAER_NOTA" in refusal(await answers(rig, peer))


@on_loop()
async def test_a_commit_right_behind_its_prepare_waits_for_it(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(begin() + send("one") + commit("prepare", "p") + commit("", "c"))
    receipts = await answers(rig, peer) + await answers(rig, peer)
    assert [receipt.get("receipt-id") for receipt in receipts] == ["p", "c"]
    assert rig.core.branches() == []


@on_loop()
async def test_one_phase_and_read_only(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(begin() + send("one") + commit("one"))
    (receipt,) = await answers(rig, peer)
    assert receipt.get("xa") == "XA_OK"
    peer.send(begin() + commit("prepare"))
    (receipt,) = await answers(rig, peer)
    assert receipt.get("xa") == "XA_RDONLY"
    assert rig.core.branches() == []


@on_loop()
async def test_work_goes_on_in_another_connection(rig: ServerRig) -> None:
    first, second = rig.peer(), rig.peer()
    await first.login()
    await second.login()
    first.send(begin() + send("one") + commit("end", "e"))
    assert [f.get("receipt-id") for f in await answers(rig, first)] == ["e"]
    second.send(begin("u", join="true") + send("two", "u") + commit("prepare", "p", "u"))
    assert [f.get("receipt-id") for f in await answers(rig, second)] == ["p"]
    second.send(commit())
    await answers(rig, second)
    queue = rig.engine.registry.queues["a"].id
    assert rig.core.queue_statistics(queue).ready == 2


@on_loop()
async def test_an_acknowledgement_in_a_branch(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(frame("SEND", "job", destination="/queue/jobs", persistent="true"))
    peer.send(frame("SUBSCRIBE", id="1", destination="/queue/jobs", ack="client-individual"))
    (message,) = await answers(rig, peer)
    ack = frame("ACK", id=message.get("ack", ""), transaction="t")
    peer.send(begin() + ack + send("done") + commit("prepare"))
    await answers(rig, peer)
    queue = rig.engine.registry.queues["jobs"].id
    assert rig.core.queue_statistics(queue).prepared == 1
    peer.send(frame("ABORT", transaction="t", xid=X))
    (again,) = await answers(rig, peer)
    assert (again.command, again.get("redelivered")) == ("MESSAGE", "true")
    peer.send(begin() + frame("NACK", id=again.get("ack", ""), transaction="t"))
    assert "XAER_INVAL" in refusal(await answers(rig, peer))


@on_loop()
async def test_a_branch_takes_no_duplicate_ids(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    peer.send(
        begin()
        + frame("SEND", "x", destination="/queue/a", transaction="t", persistent="true").replace(
            b"persistent", b"_AMQ_DUPL_ID:1\npersistent"
        )
    )
    assert "duplicate id" in refusal(await answers(rig, peer))


@on_loop()
async def test_a_lost_connection_takes_what_is_not_prepared_along(rig: ServerRig) -> None:
    first, second = rig.peer(), rig.peer()
    await first.login()
    await second.login()
    first.send(begin() + send("one"))
    await rig.flush()
    first.lose()
    second.send(commit("prepare"))
    assert "XAER_NOTA" in refusal(await answers(rig, second))


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame("BEGIN", transaction="t", xid="nonsense"), "XAER_INVAL"),
        (begin() + commit("sideways"), "wrong phase"),
        (begin() + begin("u"), "XAER_DUPID"),
        (begin() + begin(), "has begun already"),
        (begin() + frame("COMMIT", transaction="t"), "XAER_PROTO"),
        (begin() + frame("ABORT", transaction="t"), "XAER_PROTO"),
        (begin() + commit(), "XAER_PROTO"),
        (
            begin() + frame("COMMIT", transaction="t", xid="7:0a0b:02", phase="prepare"),
            "another XID",
        ),
        (begin(join="true"), "XAER_NOTA"),
        (commit("one"), "XAER_NOTA"),
    ],
)
def test_what_is_out_of_order_is_refused_with_its_code(frames: bytes, code: str) -> None:
    @on_loop()
    async def scenario(rig: ServerRig) -> None:
        peer = rig.peer()
        await peer.login()
        peer.send(frames)
        assert code in refusal(await answers(rig, peer))

    scenario()


@on_loop(users={name: make_user(name, "secret", iterations=4096) for name in ("amy", "bob")})
async def test_another_user_cannot_commit(rig: ServerRig) -> None:
    amy, bob = rig.peer(), rig.peer()
    for peer, login in ((amy, "amy"), (bob, "bob")):
        peer.send(frame("CONNECT", accept_version="1.2", host="x", login=login, passcode="secret"))
        while not (answer := peer.frames()):  # noqa: ASYNC110  (a thread checks the password)
            await asyncio.sleep(0.001)
        assert answer[0].command == "CONNECTED"
        peer.decoder.set_version("1.2")
    await prepared(rig, amy)
    bob.send(commit())
    assert "XAER_NOTA" in refusal(await answers(rig, bob))
    assert rig.engine.branches.get(XID).user == "amy"


@on_loop()
async def test_transactions_that_take_too_long_are_rolled_back(rig: ServerRig) -> None:
    peer, other = rig.peer(), rig.peer()
    await peer.login()
    await other.login()
    other.send(frame("BEGIN", transaction="local"))
    peer.send(begin() + send("one"))
    await rig.flush()
    now_s = rig.cycle.loop.time()
    rig.cycle.expire_transactions(now_s + 299)
    assert rig.engine.branches.timed_out == 0
    rig.cycle.expire_transactions(now_s + 301)
    assert rig.engine.branches.timed_out == 2
    peer.send(commit("prepare"))
    assert "XA_RBTIMEOUT" in refusal(await answers(rig, peer))
    other.send(frame("COMMIT", transaction="local"))
    assert "transaction-timeout" in refusal(await answers(rig, other))


@on_loop()
async def test_a_prepared_branch_never_takes_too_long(rig: ServerRig) -> None:
    peer = rig.peer()
    await peer.login()
    await prepared(rig, peer)
    rig.cycle.expire_transactions(rig.cycle.loop.time() + 1e9)
    peer.send(commit())
    (receipt,) = await answers(rig, peer)
    assert receipt.get("xa") == "XA_OK"

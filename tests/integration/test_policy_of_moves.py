"""The rows of the policy table in docs/howto/paging.md about what the broker moves by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest

from vespiary_testkit.full_addresses import (
    BODY,
    COLUMNS,
    DURABLE,
    FILLED,
    Consumer,
    Served,
    cells,
    check_gone,
    fill,
    served_with,
)
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

TEXTS: Final = {
    (cell.row, cell.column): cell.text for cell in cells("paging.md", "What a full address does")
}
SETTINGS: Final = (
    "message-expiry-scan-period=100",
    "address-settings.from.#.dead-letter-address=full.letters",
    "address-settings.from.#.expiry-address=full.expired",
    "address-settings.from.#.max-delivery-attempts=1",
)


@pytest.fixture(scope="module", params=list(COLUMNS))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A broker with the policy of one column for all addresses but those that begin with `free`."""
    with served_with(
        request.param, tmp_path_factory.mktemp("policy") / "data", *SETTINGS
    ) as served:
        yield served


class Move(NamedTuple):
    """A message that the broker moves to an address that is full.

    Attributes:
        source: The queue that it is in.
        target: The queue, and address, that it goes to.
    """

    source: str
    target: str


MOVES: Final[dict[str, Move]] = {
    "dead letter, from another address": Move("from.dead", "full.letters"),
    "expired message, from another address": Move("from.expired", "full.expired"),
    "message that queue retry puts back": Move("kept", "full.back"),
}
BACK: Final = MOVES["message that queue retry puts back"]


def send_one(served: Served, stack: ExitStack, queue: str, **headers: str) -> None:
    peer = served.peer(stack)
    headers |= {"destination": f"/queue/{queue}", **DURABLE, "receipt": "one"}
    peer.send("SEND", headers, BODY)
    peer.receive_receipt("one")


def begin_move(served: Served, stack: ExitStack, move: Move) -> StompPeer:
    """Have a message be about to go to an address that is full; return who had it."""
    peer = served.peer(stack)
    if move is BACK:
        send_one(served, stack, move.target)
        served.call("POST", "", {"name": move.source})
        assert served.call("POST", f"/{move.target}/move", {"to": move.source})["messages"] == 1
    fill(served, stack, move.target)
    if move is BACK:
        served.call("POST", f"/{move.source}/retry?wait=0", {})
    elif move.target == "full.expired":
        send_one(served, stack, move.source, expires="1")
    else:
        send_one(served, stack, move.source)
        wanted = {"id": "1", "destination": f"/queue/{move.source}", "ack": "client-individual"}
        peer.send("SUBSCRIBE", wanted)
        (frame,) = peer.receive_messages(1)
        peer.send("NACK", {"id": frame.get("ack") or ""})
    return peer


Moved = Callable[[Served, ExitStack, Move, StompPeer], None]


def state(served: Served, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = served.call("GET", f"/{queue}")
    return found


def check_moved(served: Served, stack: ExitStack, move: Move, _: StompPeer) -> None:
    wait_for(lambda: state(served, move.source)["messages"] == 0)
    consumer = Consumer(served, stack, move.target)
    assert consumer.take(FILLED + 1) == [b"0", b"1", b"2", BODY]


def check_set_aside(served: Served, stack: ExitStack, move: Move, _: StompPeer) -> None:
    wait_for(lambda: state(served, move.source)["aside"] == 1)
    assert state(served, move.target)["messages"] == FILLED
    consumer = Consumer(served, stack, move.target)
    assert consumer.take(FILLED) == [b"0", b"1", b"2"]
    assert consumer.take(1) == [BODY], "there is room now"
    wait_for(lambda: state(served, move.source)["messages"] == 0)


def check_given_again(served: Served, stack: ExitStack, move: Move, peer: StompPeer) -> None:
    (again,) = peer.receive_messages(1)
    assert (again.body, again.get("delivery-count")) == (BODY, "1")
    peer.send("ACK", {"id": again.get("ack") or ""})
    check_gone(served, stack, move.target)


def check_stays(served: Served, stack: ExitStack, move: Move, _: StompPeer) -> None:
    task = served.call("POST", f"/{move.source}/retry?wait=25", {})
    assert (task["state"], task["messages"], task["kept"]) == ("done", 0, 1)
    assert state(served, move.source)["ready"] == 1
    check_gone(served, stack, move.target)


def check_shed(served: Served, stack: ExitStack, move: Move, _: StompPeer) -> None:
    wait_for(lambda: state(served, move.source)["messages"] == 0)
    dropped = f'vespiary_address_full_dropped_total{{address="{move.target}"}}'
    wait_for(lambda: served.metric(dropped) >= 1)
    assert served.metric(dropped) == 1
    check_gone(served, stack, move.target)


MOVED: Final[dict[str, Moved]] = {
    "taken": check_moved,
    "set aside": check_set_aside,
    "given again": check_given_again,
    "stays": check_stays,
    "dropped": check_shed,
}


@pytest.mark.ci
@pytest.mark.parametrize("row", MOVES)
def test_what_the_broker_moves_to_a_full_address(served: Served, row: str) -> None:
    with ExitStack() as stack:
        peer = begin_move(served, stack, MOVES[row])
        MOVED[TEXTS[row, served.column]](served, stack, MOVES[row], peer)

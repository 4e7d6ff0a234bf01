"""Messages into a queue and out of it again, over a connection of their own, without a program.

For tests whose subject is something else: a start of `vespiary send` costs a second.
"""

from __future__ import annotations

from vespiary_testkit.stomp_peer import StompPeer


def send_messages(port: int, queue: str, *bodies: str) -> None:
    """Send persistent messages and wait until each is confirmed, before the next is sent."""
    with StompPeer(port) as peer:
        peer.connect()
        for number, body in enumerate(bodies):
            headers = {"destination": f"/queue/{queue}", "persistent": "true"}
            peer.send("SEND", {**headers, "receipt": str(number)}, body.encode())
            peer.receive_receipt(str(number))


def take_messages(port: int, queue: str, count: int) -> list[str]:
    """Return so many messages of a queue, acknowledged, and check that it holds no more."""
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": f"/queue/{queue}", "ack": "auto"})
        found = [frame.body.decode() for frame in peer.receive_messages(count)]
        # Its receipt comes behind all that is there, when what was acknowledged is durable.
        peer.send("DISCONNECT", {"receipt": "bye"})
        assert peer.receive_receipt("bye") == []
    return found

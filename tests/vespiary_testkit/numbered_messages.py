"""Numbered messages sent to a real broker and taken from it in order.

Owns nothing: each call has a connection of its own. A body is its number, a space and filling.
"""

from __future__ import annotations

from vespiary_testkit.stomp_peer import StompPeer

BODY = "x" * 1000


def send_numbered(port: int, destination: str, numbers: range) -> None:
    """Send messages with their numbers, and wait until all are confirmed."""
    with StompPeer(port) as peer:
        peer.connect()
        for number in numbers:
            headers = {"destination": destination, "persistent": "true"}
            if number == numbers[-1]:
                headers["receipt"] = "last"
            peer.send("SEND", headers, f"{number} {BODY}".encode())
        peer.receive_receipt("last")


def take_numbered(
    port: int, destination: str, count: int, *, credit: int = 100, client_id: str = "", **more: str
) -> list[int]:
    """Receive and acknowledge messages; return their numbers once that is durable.

    Args:
        port: Port on loopback.
        destination: What to subscribe to.
        count: How many messages to take.
        credit: Messages that may be under way.
        client_id: Identity of the connection; empty for none.
        more: Further headers of SUBSCRIBE; `_` stands for `-`.
    """
    numbers = []
    headers = {"id": "1", "destination": destination, "ack": "client-individual"}
    headers["prefetch-count"] = str(credit)
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    with StompPeer(port) as peer:
        peer.connect(**({"client_id": client_id} if client_id else {}))
        peer.send("SUBSCRIBE", headers)
        for at in range(count):
            frame = peer.receive()
            numbers.append(int(frame.body.split(b" ", 1)[0]))
            asked = {"receipt": "last"} if at == count - 1 else {}
            peer.send("ACK", {"id": frame.get("ack") or "", **asked})
        peer.receive_receipt("last")
        peer.send("DISCONNECT")
    return numbers

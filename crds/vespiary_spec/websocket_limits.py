"""What clients may do that come through a WebSocket.

Owns: the limits of handshakes and messages, and the origins that are let in.
Never: looks at a connection.
Called by: `acceptors` and `settings`, which users import from.
"""

from typing import Annotated

import msgspec

from vespiary_spec.model import Change, Unit, setting

_KIB = 1024
_MIB = 1024 * _KIB


class WebSocketLimits(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What a client may send through a WebSocket, and which pages may open one."""

    max_message_size: Annotated[
        int,
        setting(
            "One message of a WebSocket, in one frame or in fragments. It is taken as it arrives, "
            "whatever its size; the limits of the protocol inside hold besides.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=2**50,
        ),
    ] = 512 * _MIB
    max_header_size: Annotated[
        int,
        setting(
            "The whole head of the request that opens a WebSocket.",
            unit=Unit.BYTES,
            change=Change.RESTART,
            minimum=1024,
            maximum=16 * _KIB,
        ),
    ] = 8 * _KIB
    allowed_origins: Annotated[
        tuple[str, ...],
        setting(
            "Origins whose pages may open a WebSocket, such as `https://shop.example`. `*` is any, "
            "but only local ones where clients need no password, and only its own at the HTTP "
            "port. Clients that are not browsers may connect.",
            change=Change.RESTART,
            max_length=100,
        ),
    ] = ("*",)

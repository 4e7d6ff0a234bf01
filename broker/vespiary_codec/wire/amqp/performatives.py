"""The frames of an AMQP 1.0 connection: open to close.

Owns their fields. Must never parse or print bytes. Used by `frames` and by its callers.

Source: AMQP 1.0 (OASIS, 2012) §2.7 and §2.8; `begin`'s roles and the defaults are those of the tables there.
"""  # noqa: E501

from __future__ import annotations

from typing import Any

from vespiary_codec.wire.amqp.composites import ANY, SYMBOLS, composite, of

RECEIVER = True
SENDER = False


@composite(0x1D, "error")
class Error:
    """Why something was ended or refused: `condition` (symbol), `description`, `info` (map)."""

    condition: str = of("symbol", mandatory=True)
    description: str | None = of("string")
    info: dict[Any, Any] | None = of("map")


@composite(0x10, "open")
class Open:
    """The first frame of a connection; frames of the peer are at most `max_frame_size` long."""

    container_id: str = of("string", mandatory=True)
    hostname: str | None = of("string")
    max_frame_size: int = of("uint", 2**32 - 1)
    channel_max: int = of("ushort", 65_535)
    idle_time_out: int | None = of("uint")
    outgoing_locales: tuple[str, ...] = of(SYMBOLS)
    incoming_locales: tuple[str, ...] = of(SYMBOLS)
    offered_capabilities: tuple[str, ...] = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] = of(SYMBOLS)
    properties: dict[Any, Any] | None = of("map")


@composite(0x11, "begin")
class Begin:
    """Begins a session; `remote_channel` says which of the peer's it answers."""

    remote_channel: int | None = of("ushort")
    next_outgoing_id: int = of("uint", mandatory=True)
    incoming_window: int = of("uint", mandatory=True)
    outgoing_window: int = of("uint", mandatory=True)
    handle_max: int = of("uint", 2**32 - 1)
    offered_capabilities: tuple[str, ...] = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] = of(SYMBOLS)
    properties: dict[Any, Any] | None = of("map")


@composite(0x12, "attach")
class Attach:
    """Begins a link or goes on with one; `role` is `RECEIVER` or `SENDER`."""

    name: str = of("string", mandatory=True)
    handle: int = of("uint", mandatory=True)
    role: bool = of("boolean", mandatory=True)
    snd_settle_mode: int = of("ubyte", 2)
    rcv_settle_mode: int = of("ubyte", 0)
    source: Any = of("source")
    target: Any = of("target|coordinator")
    unsettled: dict[Any, Any] | None = of("map")
    incomplete_unsettled: bool = of("boolean", False)
    initial_delivery_count: int | None = of("uint")
    max_message_size: int | None = of("ulong")
    offered_capabilities: tuple[str, ...] = of(SYMBOLS)
    desired_capabilities: tuple[str, ...] = of(SYMBOLS)
    properties: dict[Any, Any] | None = of("map")


@composite(0x13, "flow")
class Flow:
    """Windows of a session and, with a `handle`, credit of a link."""

    next_incoming_id: int | None = of("uint")
    incoming_window: int = of("uint", mandatory=True)
    next_outgoing_id: int = of("uint", mandatory=True)
    outgoing_window: int = of("uint", mandatory=True)
    handle: int | None = of("uint")
    delivery_count: int | None = of("uint")
    link_credit: int | None = of("uint")
    available: int | None = of("uint")
    drain: bool = of("boolean", False)
    echo: bool = of("boolean", False)
    properties: dict[Any, Any] | None = of("map")


@composite(0x14, "transfer")
class Transfer:
    """A message, or a piece of one; its bytes stand behind it in the frame."""

    handle: int = of("uint", mandatory=True)
    delivery_id: int | None = of("uint")
    delivery_tag: bytes | None = of("binary")
    message_format: int | None = of("uint")
    settled: bool | None = of("boolean")
    more: bool = of("boolean", False)
    rcv_settle_mode: int | None = of("ubyte")
    state: Any = of(ANY)
    resume: bool = of("boolean", False)
    aborted: bool = of("boolean", False)
    batchable: bool = of("boolean", False)


@composite(0x15, "disposition")
class Disposition:
    """What became of deliveries, `first` to `last`; no `last`: of `first` alone."""

    role: bool = of("boolean", mandatory=True)
    first: int = of("uint", mandatory=True)
    last: int | None = of("uint")
    settled: bool = of("boolean", False)
    state: Any = of(ANY)
    batchable: bool = of("boolean", False)


@composite(0x16, "detach")
class Detach:
    """Ends an attachment, with `closed` the link."""

    handle: int = of("uint", mandatory=True)
    closed: bool = of("boolean", False)
    error: Error | None = of("error")


@composite(0x17, "end")
class End:
    """Ends a session."""

    error: Error | None = of("error")


@composite(0x18, "close")
class Close:
    """Ends a connection."""

    error: Error | None = of("error")


PERFORMATIVES = (Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)

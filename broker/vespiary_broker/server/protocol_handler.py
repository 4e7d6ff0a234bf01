"""What a connection needs of the protocol that its client speaks.

Owns the interface alone: `stomp`, `mqtt` and `amqp` each have a handler that keeps it. A handler
takes the bytes that its connection reads, does what they ask for, and says in its own words why a
connection ends; the connection has the transport, the reasons not to read, and the clocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from vespiary_spec.errors import LimitExceeded, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import LargeDelivery
    from vespiary_broker.engine.queues import Consumer

Work = Awaitable[None] | None
"""What is left to do for a frame; None when it is done."""
INTERNAL_FAILURE: Final = "the broker failed to handle this frame; its log says why"
"""The last words to a client whose frame we could not handle."""


class Refusal(NamedTuple):
    """What a client is told at the end, and what is written down about it.

    Attributes:
        kind: Kind of the error, for the metric.
        sentence: What the log says.
        data: What the client is sent; empty: its protocol has no words for it.
    """

    kind: str
    sentence: str
    data: bytes


class LargeStart(NamedTuple):
    """How a large message is sent.

    Attributes:
        head: What goes out before its body.
        end: What goes out behind it.
        is_done: Whether the message is acknowledged when its body has left.
        prepare: What has to be done before anything of it leaves; None: nothing.
    """

    head: bytes
    end: bytes
    is_done: bool
    prepare: Callable[[], Coroutine[Any, Any, None]] | None = None


class ProtocolHandler(Protocol):
    """One client's protocol.

    Owner: its connection.
    """

    @property
    def protocol(self) -> str:
        """Name and version as people write them, such as `STOMP 1.2`; empty before the login."""

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before the login."""

    @property
    def client_id(self) -> str:
        """Name of the client; empty if it has none."""

    @property
    def subscriptions_count(self) -> int:
        """Consumers that the client has."""

    @property
    def is_logged_in(self) -> bool:
        """Whether what the client sends may be staged: last words wait for it then."""

    @property
    def min_read_rate(self) -> int:
        """Bytes a second that an incomplete frame has to grow by; 0: any number."""

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""

    def begin(self, data: bytes) -> None:
        """Take the first bytes of the connection, which told its protocol."""

    def read_view(self) -> memoryview:
        """Return where the next bytes are to be read to; `take` has to follow at once."""

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`.

        Args:
            nbytes: How many bytes were read.
        """

    def resume(self) -> None:
        """Go on with what was received before the connection stopped taking frames."""

    def drop(self) -> None:
        """Forget everything that was received and not taken."""

    def close(self) -> None:
        """Give back everything that the client holds; may come twice."""

    def dismantle(self) -> None:
        """Break the links between its parts: the connection is gone, and has closed it.

        They refer to one another, so only a garbage collection would free them, and those of very
        many clients hold up everybody. No frame is handled any more. Tasks that go on may use the
        connection still, and what they have themselves.
        """

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was begun before a time; return how many."""

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Close a consumer whose client has come again by another connection.

        Args:
            consumer: The consumer.
            sentence: What the client is told.

        Returns:
            False if the protocol has no such thing: the consumer stays.
        """

    def refusal(self, error: VespiaryError, cause: object) -> Refusal:
        """Return the last words to a client that did something wrong.

        Args:
            error: What it did.
            cause: The frame that it is about; None: no frame.
        """

    def farewell(self, sentence: str) -> bytes:
        """Return the last words to a client that did nothing wrong.

        Args:
            sentence: Why its connection ends.
        """

    def large_start(self, consumer: Consumer, given: LargeDelivery) -> LargeStart | None:
        """Return how a large message is sent; None: it is not, and was seen to.

        Args:
            consumer: Who is given it.
            given: The message.
        """


class Framing(Protocol):
    """What wraps all that a connection sends, where a protocol goes through another one.

    Owner: the handler that has set it.
    """

    def wrap(self, data: bytes, *, total_bytes: int = 0) -> bytes:
        """Return bytes as they go out; empty for nothing.

        Args:
            data: What was written.
            total_bytes: Of a message whose first part this is, its size; 0: this is all of it, or
                the next part of one that has begun.
        """

    def end(self) -> bytes:
        """Return what says that nothing more comes; empty if that was said."""

    @property
    def is_over(self) -> bool:
        """Whether both sides have said so."""

    def discard(self, data: bytes) -> None:
        """Look at what comes behind the end for nothing but the other side's word.

        Args:
            data: What was read.
        """


def sentence_of(error: VespiaryError) -> str:
    """Return an error as one sentence for a header: without its code."""
    return str(error).removesuffix(f" [{error.code}]")


def kind_of(cause: object) -> str:
    """Return what kind of frame it is: all that may be logged, since it may hold a password."""
    return str(getattr(cause, "command", type(cause).__name__))


def too_slow(handler: ProtocolHandler, elapsed_s: float, grace_s: float) -> LimitExceeded | None:
    """Return what a client is told whose incomplete frame grows too slowly; None if it does not.

    Args:
        handler: Has the frame.
        elapsed_s: Seconds since it began.
        grace_s: Seconds that it has before its rate is looked at.
    """
    rate, received = handler.min_read_rate, handler.partial_bytes
    if not rate or elapsed_s < grace_s or received >= rate * elapsed_s:
        return None
    return LimitExceeded(
        f"a frame that began {elapsed_s:.0f} seconds ago is not complete",
        measured=f"{received / elapsed_s:.0f} bytes a second",
        allowed=f"at least {rate}",
    )

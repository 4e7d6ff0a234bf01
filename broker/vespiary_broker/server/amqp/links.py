"""What all links of a session have in common: their names, and how they are refused and detached.

Owns the frames attach and detach of this side. Must never know a message. `receiving`, `sending`
and `coordinating` have the links; owner: their connection.

Source: AMQP 1.0 (OASIS, 2012) §2.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.server.amqp.conditions import error_of
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import Attach, Detach, Error, Flow
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.session import AmqpSession


class Link:
    """One link.

    Attributes:
        name: Its name.
        handle: Its handle, the same both ways.
        client_role: The client's: whether it receives.
        is_refused: Whether this side has detached it for good; the client's detach is awaited.
        is_open: Whether it has something to give back.

    Args:
        session: Its session.
        asked: The client's `attach`.
    """

    def __init__(self, session: AmqpSession, asked: Attach) -> None:
        self.session = session
        self.asked = asked
        self.name = asked.name
        self.handle = int(asked.handle)
        self.client_role = asked.role
        self.is_refused = False
        self.is_open = False

    def attached(self) -> None:
        """Begin: the client was told that it is attached."""

    def flow(self, flow: Flow) -> None:
        """Take a flow of the client."""

    def detach(self, asked: Detach) -> Work:
        """End it because the client wants that; what is returned is left to do."""
        self.close(is_counted=False)
        self.confirm_detached(is_closed=asked.closed)
        return None

    def close(self, *, is_counted: bool) -> None:
        """Give back what it holds; may come twice.

        Args:
            is_counted: Whether that counts as delivered.
        """

    def confirm_detached(self, *, is_closed: bool, error: Error | None = None) -> None:
        """Answer the client's detach, behind all that was told before."""
        session = self.session
        session.handler.confirm(
            session.channel, Detach(handle=UInt(self.handle), closed=is_closed, error=error)
        )

    def refuse(self, error: VespiaryError) -> None:
        """Detach it for what the client did wrong."""
        self.detach_for(error_of(error))

    def detach_for(self, error: Error) -> None:
        """Detach it, and say why."""
        if self.is_refused:
            return
        self.is_refused = True
        self.close(is_counted=True)
        session = self.session
        session.flush()
        session.forget(self)
        session.handler.confirm(
            session.channel, Detach(handle=UInt(self.handle), closed=True, error=error)
        )
        session.cycle.touch()


class RefusedLink(Link):
    """A link that was refused when it was attached: null where its terminuses would be."""

    def __init__(self, session: AmqpSession, asked: Attach, error: VespiaryError) -> None:
        super().__init__(session, asked)
        self._error = error

    def attached(self) -> None:
        """Detach it at once."""
        asked = self.asked
        # Both are null: that is what some clients (go-amqp) know a refusal by.
        self.session.send(
            Attach(
                name=asked.name,
                handle=UInt(asked.handle),
                role=not asked.role,
                initial_delivery_count=UInt(0) if asked.role else None,
            )
        )
        self.refuse(self._error)

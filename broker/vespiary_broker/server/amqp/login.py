"""The SASL layer of a connection: who its client is.

Owns the order of the layer's frames; the mechanisms are `engine.mechanisms`'. Must never keep a
password. Called by `handler`; owner: its connection.

Source: AMQP 1.0 (OASIS, 2012) part 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.logins import Principal
from vespiary_broker.engine.mechanisms import Challenge, Exchange, Mechanisms
from vespiary_broker.server.protocol_handler import Work
from vespiary_broker.server.sasl import respond
from vespiary_codec.wire.amqp import (
    Condition,
    Frame,
    RemoteProtocolError,
    SaslChallenge,
    SaslCode,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Violation,
    encode_frame,
    name_of,
)
from vespiary_codec.wire.amqp.values import Symbol, UByte
from vespiary_spec.errors import LoginBusy, LoginRefused, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener

_ROUNDS_MAX: Final = 16


class SaslLayer:
    """The SASL layer of one connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
        on_done: Called when the client is let in; it begins anew with AMQP then.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        listener: Listener,
        on_done: Callable[[Principal], None],
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._on_done = on_done
        self._mechanisms = Mechanisms(cycle.engine.logins, listener.acceptor.sasl_mechanisms)
        self._exchange: Exchange | None = None
        self._rounds = 0

    def begin(self) -> None:
        """Say which mechanisms there are."""
        has_certificate = self._connection.certificate_login is not None
        offered = self._mechanisms.offered(has_certificate=has_certificate)
        names = tuple(Symbol(name) for name in offered)
        self._send(SaslMechanisms(sasl_server_mechanisms=names))

    def take(self, body: object) -> Work:
        """Take a frame; what is returned is left to do.

        Raises:
            RemoteProtocolError: It does not belong here.
        """
        if isinstance(body, SaslInit) and self._exchange is None:
            try:
                self._exchange = self._mechanisms.begin(
                    body.mechanism, self._connection.peer, self._connection.certificate_login
                )
            except LoginRefused as error:
                self._refuse(error)
                return None
            return self._answer(body.initial_response)
        if isinstance(body, SaslResponse) and self._exchange is not None:
            return self._answer(body.response)
        raise RemoteProtocolError(
            Violation.FRAME_BODY,
            f"{name_of(body)} is not what comes next in a login",
            Condition.NOT_ALLOWED,
        )

    async def _answer(self, response: bytes | None) -> None:
        assert self._exchange is not None
        self._rounds += 1
        try:
            if self._rounds > _ROUNDS_MAX:
                raise LoginRefused("the login has too many rounds")
            outcome = await respond(
                self._cycle, self._exchange, response, lambda: self._connection.is_open
            )
        except LoginRefused as error:
            self._refuse(error)
            return
        if not self._connection.is_open:
            return
        if isinstance(outcome, Challenge):
            self._send(SaslChallenge(challenge=outcome.data))
            self._connection.renew_login_time()
            return
        data = outcome.data or None
        self._send(SaslOutcome(code=UByte(SaslCode.OK), additional_data=data))
        self._on_done(outcome.principal)

    def _refuse(self, error: VespiaryError) -> None:
        """End the connection: a second attempt comes by another one."""
        self._connection.refuse_error(error)

    def _send(self, body: object) -> None:
        self._connection.write(encode_frame(Frame(body=body)))


def refusal_frame(error: LoginRefused) -> bytes:
    """Return the outcome of a login that has failed."""
    code = SaslCode.SYS_TEMP if isinstance(error, LoginBusy) else SaslCode.AUTH
    return encode_frame(Frame(body=SaslOutcome(code=UByte(code))))

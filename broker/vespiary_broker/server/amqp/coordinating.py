"""Links to a coordinator: declare and discharge.

Owns the reading of what comes on them. Must never say that a transaction was committed before it is
durable. Called by `session`; owner: its connection.

Source: AMQP 1.0 (OASIS, 2012) §4.1 to §4.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_broker.server.amqp.conditions import Condition, Refused, error_of
from vespiary_broker.server.amqp.links import Link
from vespiary_broker.server.amqp.transacting import rollback_of
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Declare,
    Declared,
    Discharge,
    Flow,
    Rejected,
    Section,
    Transfer,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.composites import made_of
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.session import AmqpSession

_CREDIT: Final = 64
_BYTES_MAX: Final = 1024


class CoordinatorLink(Link):
    """A link by which a client declares and discharges transactions.

    Args:
        session: Its session.
        asked: The client's `attach`.
        answer: What is answered.
    """

    def __init__(self, session: AmqpSession, asked: Attach, answer: Attach) -> None:
        super().__init__(session, asked)
        self._answer = answer
        self._credit = 0
        self._count = int(asked.initial_delivery_count or 0)
        self._data = b""
        self._id: int | None = None

    def attached(self) -> None:
        """Answer, and give credit."""
        self.session.send(self._answer)
        self._fill_up()

    def _fill_up(self) -> None:
        self._credit = _CREDIT
        self._send_credit()

    def _send_credit(self) -> None:
        self.session.send_flow(
            handle=UInt(self.handle),
            delivery_count=UInt(self._count),
            link_credit=UInt(self._credit),
        )

    def flow(self, flow: Flow) -> None:
        """Tell of the credit, if the client asks."""
        if flow.echo:
            self._send_credit()

    def transfer(self, transfer: Transfer, payload: bytes) -> Work:
        """Take a transfer; what is returned is left to do."""
        try:
            return self._take(transfer, payload)
        except VespiaryError as error:
            self.refuse(error)
            return None

    def _take(self, transfer: Transfer, payload: bytes) -> Work:
        if self._id is None:
            if transfer.delivery_id is None or self._credit <= 0 or transfer.settled:
                raise Refused(
                    Condition.NOT_ALLOWED,
                    "what comes to a coordinator has an id, credit, and is not settled",
                )
            self._id = int(transfer.delivery_id)
            self._credit -= 1
            self._count = (self._count + 1) % 2**32
        self._data += payload
        if len(self._data) > _BYTES_MAX:
            raise Refused(
                Condition.MESSAGE_SIZE_EXCEEDED,
                f"what comes to a coordinator has at most {_BYTES_MAX} bytes",
            )
        if transfer.more:
            return None
        data, delivery_id = self._data, self._id
        self._data, self._id = b"", None
        if transfer.aborted:
            return None
        work = self._act(delivery_id, _body_of(data, self.session.handler.limits))
        if self._credit <= _CREDIT // 2:
            self._fill_up()
        return work

    def _act(self, delivery_id: int, body: object) -> Work:
        book = self.session.handler.transactions
        if isinstance(body, Declare):
            if body.global_id is not None:
                raise Refused(
                    Condition.NOT_IMPLEMENTED, "transactions with a global id are not AMQP's here"
                )
            try:
                self.session.tell(delivery_id, Declared(txn_id=book.declare()))
            except VespiaryError as error:
                self.session.tell(delivery_id, Rejected(error=error_of(error)))
            return None
        if not isinstance(body, Discharge):
            raise Refused(
                Condition.NOT_IMPLEMENTED, "a coordinator takes declare and discharge alone"
            )
        return self._discharge(delivery_id, body)

    async def _discharge(self, delivery_id: int, body: Discharge) -> None:
        """Roll back, or commit and say so when that is durable."""
        session = self.session
        book = session.handler.transactions
        session.flush()
        try:
            if body.fail:
                book.roll_back(body.txn_id)
            elif not await book.commit(body.txn_id):
                return
        except VespiaryError as error:
            session.tell(delivery_id, Rejected(error=error_of(rollback_of(error))))
            return
        session.tell(delivery_id, Accepted(), is_durable=True)


def _body_of(data: bytes, limits: object) -> object:
    found = sections(data, limits)  # type: ignore[arg-type]
    body = next((one for one in found if one.section is Section.AMQP_VALUE), None)
    if body is None:
        raise Refused(Condition.DECODE_ERROR, "what comes to a coordinator is an amqp-value")
    return made_of(read_section(data, body))

"""BEGIN, COMMIT and ABORT with an `xid` header: STOMP clients in distributed transactions.

Owns the names under which one connection works on branches. The rules are the engine's
(`engine.branches`). Called by `session`; owner: the connection.

Our extension of STOMP, in headers that other brokers do not look at (docs/howto/transactions.md):

    BEGIN   transaction:T xid:X               starts the branch X; T names it in this connection
    BEGIN   transaction:T xid:X join:true     goes on with one that was ended
    COMMIT  transaction:T xid:X phase:end     ends the work on it, and no more
    COMMIT  transaction:T xid:X phase:prepare ends the work and prepares it
    COMMIT  transaction:T xid:X phase:one     ends the work and commits it in one phase
    COMMIT  transaction:T xid:X               commits a prepared branch, from any connection of the user
    ABORT   transaction:T xid:X               rolls it back, prepared or not

Receipts have a header `xa` with the code of the standard.
"""  # noqa: E501

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.transactions import Acknowledgement, Outgoing, Transaction, prepare
from vespiary_broker.engine.xa_states import XaCall, XaCode
from vespiary_codec.journal.branch import Xid, parse_xid
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.errors import AddressFull, JournalFull, RemoteProtocolError, XaError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.stomp.session import StompSession

_PHASES: Final = ("commit", "prepare", "one", "end")


class BranchFrames:
    """The branches that a connection works on, by the names of its transactions.

    Args:
        session: The session.
        connection: Its connection.
        cycle: What all connections share.
    """

    def __init__(self, session: StompSession, connection: Connection, cycle: Cycle) -> None:
        self._session = session
        self._connection = connection
        self._cycle = cycle
        self._branches = cycle.engine.branches
        self._names: dict[str, Xid] = {}

    # --- frames ---------------------------------------------------------------------------------

    def begin(self, frame: Frame) -> None:
        """Start a branch, or go on with one.

        Raises:
            XaError: It cannot be started.
            RemoteProtocolError: The name is taken.
        """
        name, xid = frame.get("transaction", ""), _xid(frame)
        call = XaCall.JOIN if frame.get("join") == "true" else XaCall.START
        now_s = self._cycle.loop.time()
        self._session.transactions.begin(name, now_s)
        try:
            self._branches.start(xid, self._user, self._connection, now_s, call)
        except RemoteProtocolError:
            self._session.transactions.take(name)
            raise
        self._names[name] = xid
        self._session.confirm(frame, XaCode.OK)

    def commit(self, frame: Frame) -> Coroutine[Any, Any, None]:
        """Do what the phase of a COMMIT says; see the module's docstring.

        Raises:
            RemoteProtocolError: There is no such phase, or the transaction has another XID.
        """
        phase = frame.get("phase", "commit")
        if phase not in _PHASES:
            raise RemoteProtocolError(
                "COMMIT has a wrong phase",
                measured=ascii(phase[:40]),
                allowed=", ".join(_PHASES),
            )
        return self._commit(frame, _xid(frame), phase)

    async def _commit(self, frame: Frame, xid: Xid, phase: str) -> None:
        if phase != "commit":
            self._end(frame, xid)
        if phase == "end":
            self._session.confirm(frame, XaCode.OK)
        elif phase == "prepare":
            await self._stage(frame, xid, lambda: self._branches.prepare(xid, self._user))
        elif phase == "one":
            await self._stage(frame, xid, lambda: self._branches.commit_one_phase(xid, self._user))
        else:
            await self._finish(frame, xid, lambda: self._branches.commit(xid, self._user))

    def abort(self, frame: Frame) -> Coroutine[Any, Any, None]:
        """Roll a branch back."""
        xid = _xid(frame)
        self._end(frame, xid)
        return self._finish(frame, xid, lambda: self._branches.rollback(xid, self._user))

    def is_branch(self, name: str) -> bool:
        """Whether a name is that of a branch."""
        return name in self._names

    def check_local(self, frame: Frame) -> None:
        """Refuse to end a branch as if it were a local transaction.

        Raises:
            XaError: It is a branch.
        """
        xid = self._names.get(frame.get("transaction", ""))
        if xid is not None:
            raise XaError(
                f"{XaCode.PROTO}: {frame.command} of a branch needs its xid",
                where=str(xid),
                cure=f"add the header xid:{xid}",
                xa_code=XaCode.PROTO,
            )

    def check_member(self, name: str, member: Acknowledgement | Outgoing) -> None:
        """Refuse what cannot be prepared.

        Raises:
            XaError: It gives a message back within a branch, or sends one with a duplicate id.
        """
        xid = self._names.get(name)
        if xid is None:
            return
        if isinstance(member, Outgoing):
            what = "a message with a duplicate id" if member.duplicate_id else ""
            cure = "leave the id out: a branch is committed once anyway"
        else:
            what = "NACK" if member.is_negative else ""
            cure = "send it without the transaction header"
        if what:
            raise XaError(
                f"{XaCode.INVAL}: {what} cannot be part of a branch",
                where=str(xid),
                cure=cure,
                xa_code=XaCode.INVAL,
            )

    # --- acts -----------------------------------------------------------------------------------

    @property
    def _user(self) -> str:
        return self._session.user

    def _end(self, frame: Frame, xid: Xid) -> None:
        """End this connection's work on a branch, if it works on it."""
        name = frame.get("transaction", "")
        known = self._names.get(name)
        if known is None:
            return
        if known != xid:
            raise XaError(
                f"{XaCode.NOTA}: the transaction {name[:100]!a} has another XID",
                where=str(xid),
                measured=str(known),
                xa_code=XaCode.NOTA,
            )
        del self._names[name]
        transactions = self._session.transactions
        if frame.command == "ABORT":
            transactions.abort(name)
            work = Transaction()
        else:
            work = transactions.take(name)
        if self._branches.is_active(xid, self._user):
            self._branches.end(xid, self._user, work)
        else:
            work.claims.release()
            self._cycle.drop_bodies(work.large_ids)

    async def _stage(self, frame: Frame, xid: Xid, act: Callable[[], XaCode | None]) -> None:
        """Prepare or commit in one phase, as soon as there is room."""
        registry = self._cycle.engine.registry
        while self._connection.is_open:
            work = self._branches.work(xid, self._user)
            await prepare(registry, work)
            try:
                self._cycle.drop_bodies(await self._session.full_addresses.admit_all(work))
                if not self._connection.is_open:
                    return
                try:
                    code = act()
                except NoRoom:
                    if not self._session.drop_without_room(work):
                        await self._cycle.space(self._connection)
                    continue
            except (AddressFull, JournalFull) as error:
                self._branches.rollback(xid, self._user)
                raise XaError(
                    f"{XaCode.RBROLLBACK}: {error.what}",
                    where=str(xid),
                    measured=error.measured,
                    allowed=error.allowed,
                    cure=error.cure,
                    xa_code=XaCode.RBROLLBACK,
                ) from error
            for member in work.acknowledgements:
                self._cycle.engine.dispatcher.poke(member.consumer.queue.id)
            self._session.confirm(frame, code or XaCode.OK)
            return

    async def _finish(self, frame: Frame, xid: Xid, act: Callable[[], None]) -> None:
        """Commit or roll back, once the PREPARE is durable and there is room."""
        while self._connection.is_open:
            if not self._branches.is_durable(xid):
                await self._cycle.durable()
                continue
            try:
                act()
            except NoRoom:
                await self._cycle.space(self._connection)
                continue
            self._session.confirm(frame, XaCode.OK)
            return


def _xid(frame: Frame) -> Xid:
    text = frame.get("xid", "")
    try:
        return parse_xid(text)
    except ValueError as error:
        raise XaError(f"{XaCode.INVAL}: {error}", xa_code=XaCode.INVAL) from error

"""Branches of distributed transactions: from their start to what a coordinator decides.

Owns the branches by XID. What they hold before they are prepared stands here; from then on it is
the core's and the journal's. An administrator's decision stands in the bindings until it is
forgotten: it is written there first and carried out then, so that a crash in between only repeats
it. Must never drop a prepared branch by itself. Called by the server's sessions, by its scan for
timeouts and by the admin API; owner: the event loop.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from vespiary_broker.engine.core import Core, NoRoom
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.ports import Bindings, JsonObject
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.transactions import Transaction, stage, stage_branch
from vespiary_broker.engine.xa_states import (
    HEURISTICS,
    IN_DOUBT,
    UNPREPARED,
    XaCall,
    XaCode,
    XaState,
    step,
)
from vespiary_codec.journal.branch import (
    FORMAT_ID_MAX,
    BranchName,
    Xid,
    decode_branch,
    parse_xid,
)
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError, XaError

UNPREPARED_MAX: Final = 10_000
SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
HEURISTIC_PREFIX: Final = "heuristic/"
log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Branch:
    """A branch.

    Attributes:
        xid: Its name.
        user: Whose it is: only connections of the same user may go on with it.
        state: Its state.
        begun_s: When it was started, by the loop's clock.
        work: What it holds before it is prepared.
        owner: The connection that works on it; None if none does.
        number: Its id in the journal, 0 before it is prepared.
        block: Block that has to be durable before its outcome may follow.
        prepared_ms: When it was prepared, in milliseconds since 1970.
        reason: Why it is in quarantine.
        code: Why it can only be rolled back.
        is_resolved: What an administrator decided is in the journal.
        is_being_decided: An administrator's decision is being written down.
    """

    xid: Xid
    user: str
    state: XaState
    begun_s: float = 0.0
    work: Transaction = field(default_factory=Transaction)
    owner: object = None
    number: int = 0
    block: int = 0
    prepared_ms: int = 0
    reason: str = ""
    code: XaCode = XaCode.RBROLLBACK
    is_resolved: bool = True
    is_being_decided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStatistics:
    """Counters of all branches.

    Attributes:
        prepared: Prepared ones, those in quarantine included.
        quarantined: Those of which something is missing.
        heuristic: Outcomes that an administrator decided and nobody has forgotten.
        oldest_prepared_s: Age of the oldest prepared one, 0 without any.
        timed_out: Transactions and branches rolled back because they took too long.
    """

    prepared: int
    quarantined: int
    heuristic: int
    oldest_prepared_s: float
    timed_out: int


class TransactionTimes(NamedTuple):
    """How long transactions may take, in seconds.

    Attributes:
        timeout_s: What one may take until it is prepared or ended.
        scan_period_s: Time between two looks for those that take longer.
    """

    timeout_s: float = 300.0
    scan_period_s: float = 1.0


class Branches:
    """The branches of a broker.

    Attributes:
        on_ending: Called with the number of a prepared branch that ends, and whether with a commit.

    Args:
        core: The core.
        registry: What exists.
        bindings: Where decisions of administrators are kept.
        duplicates: Ids that were seen; messages of branches have none.
        clock_ms: Milliseconds since 1970.
        timeout_s: Seconds after which a branch that is not prepared is rolled back.
        size_bytes_max: Bytes that all branches together may hold before they are prepared.
        branch_bytes_max: Bytes that one may hold, however often it is joined: what is larger never
            fits into the files that are ready, and its PREPARE would wait for ever.
    """

    def __init__(
        self,
        core: Core,
        registry: Registry,
        bindings: Bindings,
        duplicates: DuplicateIds,
        *,
        clock_ms: Callable[[], int],
        timeout_s: float,
        size_bytes_max: int = SIZE_BYTES_MAX,
        branch_bytes_max: int = SIZE_BYTES_MAX,
    ) -> None:
        self.timeout_s = timeout_s
        self.timed_out = 0
        self.on_ending: Callable[[int, bool], None] = lambda _number, _is_commit: None
        self._core = core
        self._registry = registry
        self._bindings = bindings
        self._duplicates = duplicates
        self._clock_ms = clock_ms
        self._size_bytes_max = size_bytes_max
        self._branch_bytes_max = branch_bytes_max
        self._branches: dict[Xid, Branch] = {}

    # --- at the start ---------------------------------------------------------------------------

    def restore(self) -> None:
        """Take prepared branches from the core, and decisions from the bindings.

        A branch that cannot be understood, or of which something is missing, is kept in quarantine
        and said in the log; none is dropped.

        Raises:
            ValueError: A binding is not what this version writes; names its key.
        """
        for facts in self._core.branches():
            branch = self._restored(facts.transaction)
            if not facts.is_whole:
                branch.reason = branch.reason or (
                    f"its members do not fit its PREPARE record ({facts.records} named); it can "
                    "only be rolled back"
                )
            elif facts.missing:
                branch.reason = branch.reason or (
                    f"{facts.missing} of its {facts.places} places are not there: "
                    f"{self._missing(facts.transaction)}"
                )
            if branch.reason:
                branch.state = XaState.QUARANTINED
                log.error("prepared branch in quarantine xid=%s reason=%s", branch.xid,
                          branch.reason)  # fmt: skip
            self._branches[branch.xid] = branch
        for key, value in sorted(self._bindings.snapshot().items()):
            if key.startswith(HEURISTIC_PREFIX):
                try:
                    self._restore_heuristic(parse_xid(key.removeprefix(HEURISTIC_PREFIX)), value)
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"binding {key} cannot be understood: {error}") from error
        if in_doubt := [b for b in self._branches.values() if b.state in IN_DOUBT]:
            log.warning("branches in doubt prepared=%d oldest_s=%.0f", len(in_doubt),
                        self.statistics().oldest_prepared_s)  # fmt: skip

    def _restored(self, number: int) -> Branch:
        """Return a branch that the core holds; one without a readable name gets one of ours."""
        stand_in = Xid(FORMAT_ID_MAX, number.to_bytes(8, "big"), b"")
        try:
            name = decode_branch(self._core.branch_data(number))
        except JournalFormatError as error:
            reason = f"the name in its PREPARE record cannot be read: {error}"
            return Branch(stand_in, "", XaState.PREPARED, number=number, reason=reason)
        branch = Branch(name.xid, name.user, XaState.PREPARED, number=number)
        branch.prepared_ms = name.prepared_ms
        if name.xid in self._branches:
            branch.xid = stand_in
            branch.reason = f"another prepared branch has its XID {name.xid}"
        return branch

    def _missing(self, number: int) -> str:
        members = [member for member in self._core.branch_members(number) if member.is_missing]
        queues = sorted({m.queue_id for m in members if m.queue_id not in self._known})
        parts = []
        if queues:
            parts.append(f"the bindings do not know queue {', '.join(map(str, queues[:10]))}")
        if any(member.queue_id in self._known for member in members):
            parts.append("messages that it acknowledges are gone")
        return " and ".join(parts)

    @property
    def _known(self) -> Any:
        return self._registry.queues_by_id

    def _restore_heuristic(self, xid: Xid, value: JsonObject) -> None:
        state = XaState(value["state"])
        if state not in HEURISTICS:
            raise ValueError(f"{state} is no outcome")
        branch = self._branches.get(xid)
        # The number is no key: compaction may have copied the branch under another one.
        if branch is None or branch.prepared_ms != int(value["prepared-ms"]):
            branch = Branch(xid, str(value["user"]), state, number=int(value["transaction"]))
            branch.prepared_ms = int(value["prepared-ms"])
            self._branches[xid] = branch
        else:
            branch.is_resolved = False  # it was decided, and a crash came before it was done
        branch.state = state

    # --- what a coordinator calls ---------------------------------------------------------------

    def start(
        self, xid: Xid, user: str, owner: object, now_s: float, call: XaCall = XaCall.START
    ) -> Branch:
        """Begin to work on a branch.

        Args:
            xid: Its name.
            user: Whose connection asks.
            owner: The connection.
            now_s: The loop's clock.
            call: START for a new one, JOIN for one that was ended, RESUME for a suspended one.

        Raises:
            XaError: Not in this state.
            LimitExceeded: There are too many branches that are not prepared.
        """
        branch = self._find(xid, user)
        if branch is None and call is XaCall.START:
            if xid in self._branches:
                raise _error(XaCode.DUPID, xid, "another user has a branch of that XID")
            if sum(b.state in UNPREPARED for b in self._branches.values()) >= UNPREPARED_MAX:
                raise LimitExceeded(
                    "too many branches are not prepared", allowed=f"at most {UNPREPARED_MAX}"
                )
        state = self._step(branch, xid, call)
        assert state is not None
        if branch is None:
            branch = self._branches[xid] = Branch(xid, user, state, now_s)
        branch.state = state
        branch.owner = owner
        return branch

    def end(self, xid: Xid, user: str, work: Transaction, call: XaCall = XaCall.END) -> None:
        """Stop working on a branch.

        Args:
            xid: Its name.
            user: Whose connection asks.
            work: What was done in it.
            call: END, SUSPEND, or FAIL: it can only be rolled back.

        Raises:
            XaError: Not in this state.
            LimitExceeded: It holds too many bytes, or all that are not prepared do; it is rolled
                back.
        """
        branch = self._find(xid, user)
        state = self._step(branch, xid, call)
        assert branch is not None
        assert state is not None
        own_bytes = work.size_bytes + branch.work.size_bytes
        all_bytes = work.size_bytes + sum(b.work.size_bytes for b in self._branches.values())
        for what, size_bytes, allowed_bytes in (
            ("the branch holds", own_bytes, self._branch_bytes_max),
            ("branches that are not prepared hold", all_bytes, self._size_bytes_max),
        ):
            if size_bytes > allowed_bytes:
                del self._branches[xid]
                self._void(work)
                self._void(branch.work)
                raise LimitExceeded(
                    f"{what} too much",
                    measured=f"{size_bytes} bytes",
                    allowed=f"at most {allowed_bytes} bytes",
                )
        branch.state = state
        branch.owner = branch.owner if state is XaState.SUSPENDED else None
        if state is XaState.ROLLBACK_ONLY:
            self._void(work)
            self._void(branch.work)
            branch.work = Transaction()
        else:
            branch.work.join(work)

    def prepare(self, xid: Xid, user: str) -> XaCode:
        """Stage a branch; its destinations exist (`transactions.prepare`).

        Returns:
            OK, or RDONLY when there is nothing in it: then it is over.

        Raises:
            XaError: Not in this state, or it was rolled back.
            NoRoom: It does not fit into the journal now; nothing was changed.

        Durability: none by itself; a receipt that is staged after it is released when the branch
            is prepared durably.
        """
        branch = self._find(xid, user)
        state = self._step(branch, xid, XaCall.PREPARE)
        assert branch is not None
        if branch.work.is_empty:
            del self._branches[xid]
            return XaCode.RDONLY
        branch.prepared_ms = self._clock_ms()
        name = BranchName(xid, branch.prepared_ms, user)
        number = secrets.randbits(63) + 1
        try:
            block = stage_branch(self._core, self._registry, branch.work, number, name)
        except RemoteProtocolError as error:
            del self._branches[xid]
            self._void(branch.work)
            raise _error(XaCode.RBROLLBACK, xid, error.what) from error
        assert state is not None
        branch.state, branch.number, branch.block = state, number, block
        branch.work.claims.release()  # from here on the core counts them as prepared
        branch.work = Transaction()
        return XaCode.OK

    def commit(self, xid: Xid, user: str) -> None:
        """Stage the commit of a prepared branch.

        Raises:
            XaError: Not in this state, or an administrator decided.
            NoRoom: There is no room in the journal now; nothing was changed.

        Durability: none by itself; a receipt that is staged after it is released when the commit
            is durable.
        """
        self._finish(xid, user, XaCall.COMMIT)

    def commit_one_phase(self, xid: Xid, user: str) -> None:
        """Stage a branch that is not prepared, and its commit, as one.

        Raises:
            XaError: Not in this state, or it was rolled back.
            NoRoom: It does not fit into the journal now; nothing was changed.

        Durability: as for `commit`.
        """
        branch = self._find(xid, user)
        self._step(branch, xid, XaCall.COMMIT_ONE_PHASE)
        assert branch is not None
        try:
            stage(self._core, self._registry, self._duplicates, branch.work)
        except RemoteProtocolError as error:
            del self._branches[xid]
            self._void(branch.work)
            raise _error(XaCode.RBROLLBACK, xid, error.what) from error
        branch.work.claims.release()
        del self._branches[xid]

    def rollback(self, xid: Xid, user: str) -> None:
        """Forget what a branch holds, or stage the rollback of a prepared one.

        Raises:
            XaError: Not in this state, or an administrator decided.
            NoRoom: There is no room in the journal now; nothing was changed.

        Durability: as for `commit`.
        """
        self._finish(xid, user, XaCall.ROLLBACK)

    def _finish(self, xid: Xid, user: str, call: XaCall) -> None:
        branch = self._find(xid, user)
        self._step(branch, xid, call)
        assert branch is not None
        if branch.number:
            self._resolve(branch, is_commit=call is XaCall.COMMIT)
        else:
            self._void(branch.work)
        del self._branches[xid]

    def _resolve(self, branch: Branch, *, is_commit: bool) -> int:
        """Stage the end of a prepared branch; return the block of its record."""
        block = self._core.resolve(branch.number, commit=is_commit)
        self.on_ending(branch.number, is_commit)
        return block

    def work(self, xid: Xid, user: str) -> Transaction:
        """Return what a branch that is not prepared holds; nothing for others."""
        branch = self._find(xid, user)
        return branch.work if branch is not None else Transaction()

    def is_active(self, xid: Xid, user: str) -> bool:
        """Whether a connection works on a branch, and may end that."""
        branch = self._find(xid, user)
        return branch is not None and branch.state in (XaState.ACTIVE, XaState.SUSPENDED)

    def is_durable(self, xid: Xid) -> bool:
        """Whether the outcome of a branch may follow: its PREPARE is durable, or it has none."""
        branch = self._branches.get(xid)
        durable = self._core.image_statistics().sequence_durable
        return branch is None or branch.block <= durable

    def recover(self, user: str) -> list[Xid]:
        """Return the branches of a user that wait for a coordinator: prepared or decided."""
        return sorted(
            branch.xid
            for branch in self._branches.values()
            if branch.user == user and branch.state not in UNPREPARED
        )

    def closed(self, owner: object) -> None:
        """Roll back what a connection that is gone was working on."""
        for branch in [b for b in self._branches.values() if b.owner is owner]:
            del self._branches[branch.xid]
            self._void(branch.work)

    # --- what an administrator does -------------------------------------------------------------

    async def decide(self, xid: Xid, *, is_commit: bool) -> XaState:
        """Commit or roll back a prepared branch without its coordinator.

        Raises:
            XaError: There is no such branch, or it is not prepared.

        Durability: on return the decision survives a power loss. It is carried out at once, or when
            there is room in the journal, or at the next start.
        """
        branch = self._branches.get(xid)
        call = XaCall.HEURISTIC_COMMIT if is_commit else XaCall.HEURISTIC_ROLLBACK
        state = self._step(branch, xid, call)
        assert branch is not None
        assert state is not None
        if is_commit and not self._is_whole(branch):
            raise _error(XaCode.RMERR, xid, branch.reason)
        value: JsonObject = {
            "state": str(state),
            "transaction": str(branch.number),
            "user": branch.user,
            "prepared-ms": branch.prepared_ms,
            "decided-ms": self._clock_ms(),
        }
        branch.is_being_decided = True
        try:
            await self._bindings.put(f"{HEURISTIC_PREFIX}{xid}", value)
        finally:
            branch.is_being_decided = False
        branch.state, branch.is_resolved = state, False
        log.warning("branch decided by an administrator xid=%s outcome=%s", xid, state)
        self._carry_out()
        return state

    def _is_whole(self, branch: Branch) -> bool:
        whole = {f.transaction for f in self._core.branches() if f.is_whole}
        return branch.number in whole

    def _carry_out(self) -> bool:
        """Stage what administrators decided; return whether anything was."""
        is_staged = False
        for branch in self._branches.values():
            if branch.state not in HEURISTICS or branch.is_resolved:
                continue
            if not self.is_durable(branch.xid):
                continue
            is_commit = branch.state is not XaState.HEURISTIC_ROLLBACK
            try:
                branch.block = self._resolve(branch, is_commit=is_commit)
            except NoRoom:
                return is_staged
            branch.is_resolved = is_staged = True
        return is_staged

    async def forget(self, xid: Xid) -> None:
        """Forget what an administrator decided: the coordinator knows of it.

        Raises:
            XaError: There is no such branch, or nothing was decided.

        Durability: on return it does not come back after a power loss.
        """
        branch = self._branches.get(xid)
        self._step(branch, xid, XaCall.FORGET)
        assert branch is not None
        if not branch.is_resolved or not self.is_durable(xid):
            raise _error(XaCode.PROTO, xid, "what was decided is not carried out yet: try again")
        await self._bindings.remove(f"{HEURISTIC_PREFIX}{xid}")
        self._branches.pop(xid, None)

    # --- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Roll back what takes too long, and carry out what was decided.

        A prepared branch never takes too long. One that was rolled back is remembered for as long
        again, so that its coordinator learns why.

        Args:
            now_s: The loop's clock.

        Returns:
            Whether something was staged.
        """
        for branch in [b for b in self._branches.values() if b.state in UNPREPARED]:
            if now_s - branch.begun_s <= self.timeout_s:
                continue
            if branch.state is XaState.ROLLBACK_ONLY:
                if now_s - branch.begun_s > 2 * self.timeout_s:
                    del self._branches[branch.xid]
                continue
            log.warning("branch timed out xid=%s after_s=%g", branch.xid, self.timeout_s)
            branch.state, branch.code = XaState.ROLLBACK_ONLY, XaCode.RBTIMEOUT
            self._void(branch.work)
            branch.work = Transaction()
            self.timed_out += 1
        return self._carry_out()

    # --- looking --------------------------------------------------------------------------------

    def all(self) -> list[Branch]:
        """Return all branches, by XID."""
        return [branch for _, branch in sorted(self._branches.items())]

    def get(self, xid: Xid) -> Branch | None:
        """Return a branch, or None if there is none of that XID."""
        return self._branches.get(xid)

    def age_s(self, branch: Branch) -> float:
        """Return how long ago a branch was prepared; 0 before."""
        if not branch.prepared_ms:
            return 0.0
        return max(0.0, (self._clock_ms() - branch.prepared_ms) / 1000)

    def statistics(self) -> BranchStatistics:
        """Return the counters."""
        in_doubt = [b for b in self._branches.values() if b.state in IN_DOUBT]
        return BranchStatistics(
            prepared=len(in_doubt),
            quarantined=sum(b.state is XaState.QUARANTINED for b in in_doubt),
            heuristic=sum(b.state in HEURISTICS for b in self._branches.values()),
            oldest_prepared_s=max(map(self.age_s, in_doubt), default=0.0),
            timed_out=self.timed_out,
        )

    def _void(self, work: Transaction) -> None:
        """Release what was acknowledged; remove the bodies of messages that were never staged."""
        work.claims.release()
        bodies = self._registry.large_bodies
        if bodies is not None and work.large_ids:
            bodies.remove(work.large_ids)

    def _find(self, xid: Xid, user: str) -> Branch | None:
        branch = self._branches.get(xid)
        return branch if branch is not None and branch.user == user else None

    def _step(self, branch: Branch | None, xid: Xid, call: XaCall) -> XaState | None:
        """Return the state that a call leads to; raise what forbids it."""
        code, state = step(branch.state if branch is not None else None, call)
        if branch is not None and branch.is_being_decided:
            raise _error(XaCode.PROTO, xid, "an administrator is deciding on it just now")
        if code is XaCode.OK:
            return state
        if branch is None:
            raise _error(code, xid, "there is no such branch")
        if code is XaCode.RBROLLBACK:
            if state is None:
                del self._branches[xid]
            raise _error(branch.code, xid, "the branch was rolled back")
        if code is XaCode.RMERR:
            raise _error(code, xid, f"the branch is in quarantine: {branch.reason}")
        if code in HEURISTICS.values():
            raise _error(code, xid, f"an administrator decided: {branch.state}")
        raise _error(code, xid, f"cannot {call} a branch that is {branch.state}")


def _error(code: XaCode, xid: Xid, sentence: str) -> XaError:
    return XaError(f"{code}: {sentence}", where=str(xid), xa_code=str(code))

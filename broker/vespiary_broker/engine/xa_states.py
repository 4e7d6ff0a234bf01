"""States of a branch of a distributed transaction, and what each call does in each of them.

Owns the table, which is pure, and the codes of the standard. Must never act. Called by `branches`.

Source: X/Open CAE Specification C193, "Distributed Transaction Processing: The XA Specification",
sections 2.3, 3 and 6 (state tables 6-2 to 6-4); the calls of an administrator are ours. A branch
that ended is not known any more, which the table writes as None.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class XaCode(StrEnum):
    """Codes that a resource manager answers with."""

    OK = "XA_OK"
    RDONLY = "XA_RDONLY"
    RBROLLBACK = "XA_RBROLLBACK"
    RBTIMEOUT = "XA_RBTIMEOUT"
    HEURCOM = "XA_HEURCOM"
    HEURRB = "XA_HEURRB"
    HEURMIX = "XA_HEURMIX"
    NOTA = "XAER_NOTA"
    DUPID = "XAER_DUPID"
    PROTO = "XAER_PROTO"
    INVAL = "XAER_INVAL"
    RMERR = "XAER_RMERR"


class XaState(StrEnum):
    """States of a branch; `quarantined` is prepared, but something of it is missing."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    IDLE = "idle"
    ROLLBACK_ONLY = "rollback-only"
    PREPARED = "prepared"
    QUARANTINED = "quarantined"
    HEURISTIC_COMMIT = "heuristic-commit"
    HEURISTIC_ROLLBACK = "heuristic-rollback"
    HEURISTIC_MIXED = "heuristic-mixed"


class XaCall(StrEnum):
    """What is asked for; the last two are an administrator's."""

    START = "start"
    JOIN = "join"
    RESUME = "resume"
    END = "end"
    SUSPEND = "suspend"
    FAIL = "fail"
    PREPARE = "prepare"
    COMMIT = "commit"
    COMMIT_ONE_PHASE = "commit in one phase"
    ROLLBACK = "roll back"
    FORGET = "forget"
    HEURISTIC_COMMIT = "commit by an administrator"
    HEURISTIC_ROLLBACK = "roll back by an administrator"


class Step(NamedTuple):
    """What a call does: the code that it answers with, and the state after it (None: gone)."""

    code: XaCode
    state: XaState | None


HEURISTICS: Final = {
    XaState.HEURISTIC_COMMIT: XaCode.HEURCOM,
    XaState.HEURISTIC_ROLLBACK: XaCode.HEURRB,
    XaState.HEURISTIC_MIXED: XaCode.HEURMIX,
}
"""Codes of what an administrator decided."""

IN_DOUBT: Final = frozenset({XaState.PREPARED, XaState.QUARANTINED})
UNPREPARED: Final = frozenset(
    {XaState.ACTIVE, XaState.SUSPENDED, XaState.IDLE, XaState.ROLLBACK_ONLY}
)
_S, _C = XaState, XaCall
_DONE: Final = Step(XaCode.OK, None)
_VOID: Final = Step(XaCode.RBROLLBACK, None)

_TABLE: Final[dict[tuple[XaState | None, XaCall], Step]] = {
    (None, _C.START): Step(XaCode.OK, _S.ACTIVE),
    (_S.ACTIVE, _C.END): Step(XaCode.OK, _S.IDLE),
    (_S.ACTIVE, _C.SUSPEND): Step(XaCode.OK, _S.SUSPENDED),
    (_S.ACTIVE, _C.FAIL): Step(XaCode.OK, _S.ROLLBACK_ONLY),
    (_S.SUSPENDED, _C.RESUME): Step(XaCode.OK, _S.ACTIVE),
    (_S.SUSPENDED, _C.END): Step(XaCode.OK, _S.IDLE),
    (_S.SUSPENDED, _C.FAIL): Step(XaCode.OK, _S.ROLLBACK_ONLY),
    (_S.IDLE, _C.JOIN): Step(XaCode.OK, _S.ACTIVE),
    (_S.IDLE, _C.PREPARE): Step(XaCode.OK, _S.PREPARED),
    (_S.IDLE, _C.COMMIT_ONE_PHASE): _DONE,
    (_S.IDLE, _C.ROLLBACK): _DONE,
    (_S.ROLLBACK_ONLY, _C.JOIN): Step(XaCode.RBROLLBACK, _S.ROLLBACK_ONLY),
    (_S.ROLLBACK_ONLY, _C.PREPARE): _VOID,
    (_S.ROLLBACK_ONLY, _C.COMMIT_ONE_PHASE): _VOID,
    (_S.ROLLBACK_ONLY, _C.ROLLBACK): _DONE,
    (_S.PREPARED, _C.COMMIT): _DONE,
    (_S.PREPARED, _C.ROLLBACK): _DONE,
    (_S.PREPARED, _C.HEURISTIC_COMMIT): Step(XaCode.OK, _S.HEURISTIC_COMMIT),
    (_S.PREPARED, _C.HEURISTIC_ROLLBACK): Step(XaCode.OK, _S.HEURISTIC_ROLLBACK),
    (_S.QUARANTINED, _C.COMMIT): Step(XaCode.RMERR, _S.QUARANTINED),
    (_S.QUARANTINED, _C.ROLLBACK): Step(XaCode.RMERR, _S.QUARANTINED),
    (_S.QUARANTINED, _C.HEURISTIC_COMMIT): Step(XaCode.OK, _S.HEURISTIC_MIXED),
    (_S.QUARANTINED, _C.HEURISTIC_ROLLBACK): Step(XaCode.OK, _S.HEURISTIC_ROLLBACK),
}


def step(state: XaState | None, call: XaCall) -> Step:
    """Return what a call does.

    Args:
        state: State of the branch; None if there is none of that XID.
        call: The call.
    """
    listed = _TABLE.get((state, call))
    if listed is not None:
        return listed
    if state is None:
        return Step(XaCode.NOTA, None)
    if call is XaCall.START:
        return Step(XaCode.DUPID, state)
    if state in HEURISTICS:
        if call in (XaCall.COMMIT, XaCall.ROLLBACK):
            return Step(HEURISTICS[state], state)
        if call is XaCall.FORGET:
            return _DONE
    return Step(XaCode.PROTO, state)

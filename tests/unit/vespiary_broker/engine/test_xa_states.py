"""The table of states and calls, compared cell by cell with one written down from the standard."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.xa_states import XaCall, XaCode, XaState, step

# Rows are states, columns calls. A cell is the state after the call (`-` none, with XA_OK), or a
# code that leaves the state as it is; `-CODE` is a code after which the branch is not known.
COLUMNS = [call.name for call in XaCall]
EXPECTED = """
                   START  JOIN       RESUME END  SUSPEND   FAIL          PREPARE     COMMIT  COMMIT_ONE_PHASE ROLLBACK FORGET HEURISTIC_COMMIT HEURISTIC_ROLLBACK
NONE               ACTIVE NOTA       NOTA   NOTA NOTA      NOTA          NOTA        NOTA    NOTA             NOTA     NOTA   NOTA             NOTA
ACTIVE             DUPID  PROTO      PROTO  IDLE SUSPENDED ROLLBACK_ONLY PROTO       PROTO   PROTO            PROTO    PROTO  PROTO            PROTO
SUSPENDED          DUPID  PROTO      ACTIVE IDLE PROTO     ROLLBACK_ONLY PROTO       PROTO   PROTO            PROTO    PROTO  PROTO            PROTO
IDLE               DUPID  ACTIVE     PROTO  PROTO PROTO    PROTO         PREPARED    PROTO   -                -        PROTO  PROTO            PROTO
ROLLBACK_ONLY      DUPID  RBROLLBACK PROTO  PROTO PROTO    PROTO         -RBROLLBACK PROTO   -RBROLLBACK      -        PROTO  PROTO            PROTO
PREPARED           DUPID  PROTO      PROTO  PROTO PROTO    PROTO         PROTO       -       PROTO            -        PROTO  HEURISTIC_COMMIT HEURISTIC_ROLLBACK
QUARANTINED        DUPID  PROTO      PROTO  PROTO PROTO    PROTO         PROTO       RMERR   PROTO            RMERR    PROTO  HEURISTIC_MIXED  HEURISTIC_ROLLBACK
HEURISTIC_COMMIT   DUPID  PROTO      PROTO  PROTO PROTO    PROTO         PROTO       HEURCOM PROTO            HEURCOM  -      PROTO            PROTO
HEURISTIC_ROLLBACK DUPID  PROTO      PROTO  PROTO PROTO    PROTO         PROTO       HEURRB  PROTO            HEURRB   -      PROTO            PROTO
HEURISTIC_MIXED    DUPID  PROTO      PROTO  PROTO PROTO    PROTO         PROTO       HEURMIX PROTO            HEURMIX  -      PROTO            PROTO
""".strip("\n")  # noqa: E501
ROWS = {line.split()[0]: line.split()[1:] for line in EXPECTED.splitlines()[1:]}


def test_the_table_names_every_state_and_call() -> None:
    assert EXPECTED.split("\n", 1)[0].split() == COLUMNS
    assert set(ROWS) == {"NONE", *(state.name for state in XaState)}


@pytest.mark.parametrize("row", ROWS)
def test_each_call_does_what_the_standard_says(row: str) -> None:
    state = None if row == "NONE" else XaState[row]
    for column, cell in zip(COLUMNS, ROWS[row], strict=True):
        code, after = step(state, XaCall[column])
        if cell in XaState.__members__:
            assert (code, after) == (XaCode.OK, XaState[cell]), column
        elif cell.startswith("-"):
            assert (code, after) == (XaCode[cell[1:] or "OK"], None), column
        else:
            assert (code, after) == (XaCode[cell], state), column

"""Seeded faults of transactions that are given up.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_ABORT: Final = "tests/unit/vespiary_native/test_core_abort.py::"
_OPEN: Final = "tests/unit/vespiary_broker/engine/test_open_transaction.py::"
_REPEATED: Final = _OPEN + "test_it_leaves_nothing_and_can_be_repeated"
_NOTHING: Final = _ABORT + "test_nothing_of_it_counts"
_RECOVERED: Final = _ABORT + "test_a_recovery_finds_no_part_of_it"
_NEXT: Final = _ABORT + "test_another_one_begins_and_the_queue_goes_on"
_BODY: Final = _ABORT + "test_a_body_is_staged_again_and_named_once"

PYTHON_TRANSACTIONS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "failed transaction stays open",
        "What was staged of a transaction that failed waits for the next COMMIT.",
        "broker/vespiary_broker/engine/open_transaction.py",
        "            core.abort(number)\n",
        "            pass\n",
        _REPEATED,
    ),
    Mutant(
        "body of a failed transaction adopted",
        "A body is the core's before its transaction is committed, and its sender removes it.",
        "broker/vespiary_broker/engine/transactions.py",
        "    if not transaction:\n        settle_body(bodies, message, places)\n",
        "    settle_body(bodies, message, places)\n",
        _REPEATED,
    ),
    Mutant(
        "given up transaction is committed in the journal (twin)",
        "An abort writes a COMMIT: after a restart all of the transaction counts.",
        "native/vespiary_native/twin/staging.py",
        "encode_record(RollbackRecord(transaction, self._members, self._digest))",
        "encode_record(CommitRecord(transaction, self._members, self._digest))",
        _RECOVERED,
    ),
    Mutant(
        "body of a given up transaction removed (twin)",
        "The core names the body of a void message: it goes while the sender stages it again.",
        "native/vespiary_native/twin/staging.py",
        "            self.large.void(one.queue, one.sequence)\n",
        "",
        _BODY,
    ),
    Mutant(
        "acknowledgements of a given up transaction wait (twin)",
        "The next COMMIT ends what a transaction had acknowledged that was given up.",
        "native/vespiary_native/twin/staging.py",
        "            self.queue_ready(one.queue)\n        self._forget_staged()\n",
        "            self.queue_ready(one.queue)\n",
        _NEXT,
    ),
)

NATIVE_TRANSACTIONS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "given up transaction is committed in the journal",
        "An abort writes a COMMIT: after a restart all of the transaction counts.",
        "native/src/publish.c",
        "(void)stage_transaction_end(core, RECORD_ROLLBACK);",
        "(void)stage_transaction_end(core, RECORD_COMMIT);",
        _RECOVERED,
    ),
    Mutant(
        "acknowledgement of a given up transaction stays",
        "A message that was acknowledged in a transaction that was given up stays withheld.",
        "native/src/publish.c",
        "        if (m->is_ack)\n            acknowledgement_undo(core, q, m);\n",
        "        if (m->is_ack)\n            continue;\n",
        _NOTHING,
    ),
    Mutant(
        "acknowledgements of a given up transaction wait",
        "The next COMMIT ends what a transaction had acknowledged that was given up.",
        "native/src/publish.c",
        "    core->staged.count = 0;\n    for (uint32_t i = 0; i < core->transaction_queues_count",
        "    for (uint32_t i = 0; i < core->transaction_queues_count",
        _NEXT,
    ),
    Mutant(
        "message of a given up transaction stays",
        "A message of a transaction that was given up is delivered with the next flush.",
        "native/src/publish.c",
        "        else\n            add_undo(core, q, m, is_branch);\n",
        "",
        _NOTHING,
    ),
    Mutant(
        "body of a given up transaction removed",
        "The core names the body of a void message: it goes while the sender stages it again.",
        "native/src/publish.c",
        "        large_void(core, q, m->sequence);\n",
        "        large_done(core, q, m->sequence);\n",
        _BODY,
    ),
)

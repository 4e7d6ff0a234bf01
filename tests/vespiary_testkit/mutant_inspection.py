"""Seeded faults of the inspection calls: messages end without a record, or are seen too early.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_UNIT: Final = "tests/unit/vespiary_native/"
_ENDING: Final = _UNIT + "test_core_ending.py::"
_LOOKING: Final = _UNIT + "test_core_inspection.py::"

PYTHON_INSPECTION: Final[tuple[Mutant, ...]] = (
    Mutant(
        "message ends without a record (twin)",
        "What Python ends is not journalled, and is back after a restart.",
        "native/vespiary_native/twin/inspection.py",
        "        self._staging.finish(queue, sequence, queue.entries[sequence])\n",
        "        self._staging.forget_message(queue, sequence)\n",
        _ENDING + "test_messages_that_nobody_holds_are_ended",
    ),
    Mutant(
        "special flag lost in a recovery (twin)",
        "After a restart a message is given that Python has to look at first.",
        "native/vespiary_native/twin/recovery.py",
        "            | add.is_special * RecordFlag.SPECIAL.value\n",
        "",
        _LOOKING + "test_a_restored_message_looks_as_before",
    ),
)

NATIVE_INSPECTION: Final[tuple[Mutant, ...]] = (
    Mutant(
        "message ends without a record",
        "What Python ends is not journalled, and is back after a restart.",
        "native/src/inspection.c",
        "        bad = message_finish(core, q, sequences[i], item, &block);\n",
        "        entry_done(core, q, sequences[i], item), (void)block;\n",
        _ENDING + "test_messages_that_nobody_holds_are_ended",
    ),
    Mutant(
        "message ends outside of its transaction",
        "A message ends though the transaction that was named is not the one being staged.",
        "native/src/inspection.c",
        "    if (!q || transaction != core->transaction || count > INT32_MAX)\n",
        "    if (!q || count > INT32_MAX)\n",
        _ENDING + "test_ends_in_a_transaction_count_with_its_commit",
    ),
    Mutant(
        "given for good without a record",
        "What a consumer without acknowledgements is given by choice is not journalled as done.",
        "native/src/delivery.c",
        "        } else if (message_finish(core, q, sequence, item, &block)) {\n",
        "        } else if (entry_done(core, q, sequence, item), block) {\n",
        _LOOKING + "test_auto_acknowledges_what_it_is_given",
    ),
    Mutant(
        "given without its count",
        "A message leaves though its delivery could not be counted.",
        "native/src/delivery.c",
        "    if (!plan->is_settled && count_ahead(core, q, sequence, item))\n        return false;",
        "    if (!plan->is_settled)\n        (void)count_ahead(core, q, sequence, item);",
        _UNIT + "test_core_counts.py::test_without_room_for_its_count_a_message_is_not_given",
    ),
    Mutant(
        "seen before it is durable",
        "Python sees a message whose record may still be lost.",
        "native/src/inspection.c",
        "    entry *item = sequence < q->available ? queue_entry(q, sequence) : NULL;\n"
        "    bool is_known",
        "    entry *item = queue_entry(q, sequence);\n    bool is_known",
        _LOOKING + "test_only_durable_messages_that_nobody_has_are_seen",
    ),
    Mutant(
        "set aside and left behind by compaction",
        "A file goes, or never does, though a message that is set aside stands in it.",
        "native/src/compaction.c",
        "item->state == ENTRY_RETURNED || item->state == ENTRY_ASIDE",
        "item->state == ENTRY_RETURNED",
        _ENDING + "test_what_is_set_aside_moves_with_compaction",
    ),
    Mutant(
        "special flag lost in a recovery",
        "After a restart a message is given that Python has to look at first.",
        "native/src/recovery.c",
        "(FLAG_ESCAPED | FLAG_LARGE | FLAG_SPECIAL)",
        "(FLAG_ESCAPED | FLAG_LARGE)",
        _LOOKING + "test_a_restored_message_looks_as_before",
    ),
)

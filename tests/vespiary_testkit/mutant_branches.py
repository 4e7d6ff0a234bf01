"""Seeded faults of prepared branches: the files that they need go too early.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_BRANCHES: Final = "tests/unit/vespiary_native/test_core_branches.py::"
_EACH: Final = _BRANCHES + "test_each_file_that_a_branch_needs_stays_also_after_a_restart"
_LONE_END: Final = _BRANCHES + "test_a_prepare_alone_goes_before_the_file_with_its_end"
_ALONE: Final = _BRANCHES + "test_a_prepare_alone_keeps_its_file_also_after_a_restart"

PYTHON_BRANCHES: Final[tuple[Mutant, ...]] = (
    Mutant(
        "branch does not keep its members' files (twin)",
        "Files with members of a prepared branch may go before its end.",
        "native/vespiary_native/twin/branches.py",
        "        branch.pin(staging.end_staging())\n",
        "        staging.end_staging()\n",
        _EACH,
    ),
    Mutant(
        "restored branch does not keep its PREPARE's file (twin)",
        "After a restart the file with the PREPARE of a branch may go.",
        "native/vespiary_native/twin/recovery.py",
        "        branch.pin([pending.prepare_file])\n",
        "",
        _ALONE,
    ),
    Mutant(
        "end of a branch goes before its PREPARE (twin)",
        "After a restart the file of a COMMIT or ROLLBACK may go first: the branch is in doubt.",
        "native/vespiary_native/twin/recovery.py",
        "            file.cancels.add(pending.prepare_file)\n",
        "            pass\n",
        _LONE_END,
    ),
)

NATIVE_BRANCHES: Final[tuple[Mutant, ...]] = (
    Mutant(
        "branch does not keep its members' files",
        "Files with members of a prepared branch may go before its end.",
        "native/src/branches.c",
        "        bad |= branch_pin(core, made, core->transaction_slots[i]);\n",
        "        bad |= 0;\n",
        _EACH,
    ),
    Mutant(
        "branch does not keep its PREPARE's file",
        "The file with the PREPARE of a branch may go before its end.",
        "native/src/branches.c",
        "    bad = branch_pin(core, made, at.slot);\n",
        "    bad = 0;\n",
        _ALONE,
    ),
    Mutant(
        "restored branch does not keep what it acknowledges",
        "After a restart the file of a message that a branch acknowledges may go.",
        "native/src/recovery.c",
        "            bad = branch_pin(core, to, item->slot);\n",
        "            bad = 0;\n",
        _EACH,
    ),
    Mutant(
        "restored branch does not keep its members' files",
        "After a restart files with members of a prepared branch may go.",
        "native/src/recovery.c",
        "        bad = branch_pin(core, made, m->entry.slot);\n",
        "        bad = 0;\n",
        _EACH,
    ),
    Mutant(
        "end of a branch goes before its PREPARE",
        "After a restart the file of a COMMIT or ROLLBACK may go first: the branch is in doubt.",
        "native/src/recovery.c",
        "    int bad = t->is_prepared ? add_cancel(r->in, t->prepare_slot) : 0;\n",
        "    int bad = 0;\n",
        _LONE_END,
    ),
)

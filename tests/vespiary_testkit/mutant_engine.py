"""Seeded faults of the engine that its machine notices: of moves, last values and auto-delete.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_MACHINE: Final = (
    "tests/crash/test_engine_machine.py::test_any_order_of_acts_and_power_cuts[native]"
)
_ENGINE: Final = "broker/vespiary_broker/engine/"

PYTHON_ENGINE: Final[tuple[Mutant, ...]] = (
    Mutant(
        "moved message published by itself",
        "A dead letter gets its new place outside of the transaction that ends the old one.",
        _ENGINE + "moves.py",
        "            self._publish(each, number)\n",
        "            self._publish(each, 0)\n",
        _MACHINE,
    ),
    Mutant(
        "older value comes back",
        "What a consumer gave back stays, though a newer message of its value has come.",
        _ENGINE + "upkeep.py",
        "            self._doomed.append(sequence)\n        elif",
        "            pass\n        elif",
        _MACHINE,
    ),
    Mutant(
        "queue goes with too much",
        "A queue goes by itself with more messages than it may take along.",
        _ENGINE + "automatic_deletion.py",
        "    return 0 < messages <= allowed",
        "    return 0 < messages",
        _MACHINE,
    ),
    Mutant(
        "owner not written",
        "Who adopts the queue of a subscription is its owner until the next restart.",
        _ENGINE + "registry.py",
        "        await self.change_traits(queue, traits)\n",
        "        queue.traits = traits\n",
        "tests/unit/vespiary_broker/engine/test_queue_owners.py"
        "::test_one_without_an_owner_belongs_to_the_first_user_who_attaches[anonymous]",
    ),
)

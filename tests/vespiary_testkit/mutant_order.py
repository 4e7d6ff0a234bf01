"""Seeded faults of order, groups and filters: the wrong message, the wrong consumer, or twice.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_ENGINE: Final = "broker/vespiary_broker/engine/"
_TWIN: Final = "native/vespiary_native/twin/"
_UNIT: Final = "tests/unit/vespiary_broker/engine/"
_CORE: Final = "tests/unit/vespiary_native/"
_GIVING: Final = _CORE + "test_core_inspection.py::"
_PLACE: Final = _GIVING + "test_what_was_given_out_of_order_comes_back_to_its_place"
_TURN: Final = _CORE + "test_core_switching.py::test_what_comes_between_is_taken_in_its_turn"
_KEPT: Final = _CORE + "test_core_stomp.py::test_order_and_groups_are_kept_as_sent"
_CHOSEN: Final = _GIVING + "test_chosen_messages_are_given_in_the_order_asked_for"

PYTHON_ORDER: Final[tuple[Mutant, ...]] = (
    Mutant(
        "priorities do not count",
        "Messages of an examined queue leave in the order in which they came.",
        _ENGINE + "lanes.py",
        "    return _PRIORITY_KEYS[priority] | sequence\n",
        "    return sequence\n",
        _UNIT + "test_examined.py::test_priorities_are_in_order_within_and_across_what_came_back",
    ),
    Mutant(
        "what came back is not waited for",
        "A message is given before one of higher priority that came back was looked at.",
        _ENGINE + "examined.py",
        "return self._returned_at < 0 and not self._is_rebalancing and not self._is_raising",
        "return not self._is_rebalancing and not self._is_raising",
        _UNIT + "test_examined.py::test_nothing_is_given_before_all_that_came_back_was_looked_at",
    ),
    Mutant(
        "a group with two consumers",
        "Whoever is next in turn gets a message of a group that is another's.",
        _ENGINE + "examined.py",
        "        if owner is consumer:\n",
        "        if owner:\n",
        _UNIT + "test_examined_groups.py::"
        "test_a_group_stays_with_one_consumer_and_groups_are_shared_out",
    ),
    Mutant(
        "a group moves while messages are out",
        "Groups find others before what their consumers hold is acknowledged.",
        _ENGINE + "examined.py",
        "        if self._is_rebalancing and not statistics.delivering:\n",
        "        if self._is_rebalancing:\n",
        _UNIT + "test_examined_groups.py::"
        "test_groups_that_are_to_move_wait_for_all_acknowledgements",
    ),
    Mutant(
        "an exclusive queue with two consumers",
        "All consumers of an exclusive queue are served.",
        _ENGINE + "rota.py",
        "            return [[chosen]]\n",
        "            return [consumers]\n",
        _UNIT + "test_rota.py::test_an_exclusive_queue_serves_the_first_until_it_goes",
    ),
    Mutant(
        "given while another holds it (twin)",
        "A message that a consumer has not acknowledged is given to the next one too.",
        _TWIN + "inspection.py",
        "    return queue.next <= sequence < queue.available and queue.is_free(sequence)\n",
        "    return sequence < queue.available and sequence in queue.entries\n",
        _CHOSEN,
    ),
    Mutant(
        "what came back goes before all (twin)",
        "A message that came back is given before those in front of it.",
        _TWIN + "delivery.py",
        "        sequence = min(sequence, returned.first())\n",
        "        sequence = returned.first()\n",
        _PLACE,
    ),
    Mutant(
        "a priority is only a header (twin)",
        "A queue gives messages with priorities as they come.",
        _TWIN + "stomp.py",
        "        flags=RecordFlag.SPECIAL if is_special else 0,\n",
        "        flags=0,\n",
        _KEPT,
    ),
    Mutant(
        "frames overtake those of a switch (twin)",
        "What follows a message to an address with filters is taken before it.",
        _TWIN + "stomp.py",
        "    if switched.sends:  # nothing is taken before them\n",
        "    if False:\n",
        _TURN,
    ),
    Mutant(
        "a switch outlives no-local",
        "A session goes on sending by what it was taught, and gets its own messages.",
        _ENGINE + "routing.py",
        "taught what leads there\n            self._close_switch()\n",
        "taught what leads there\n",
        _UNIT + "test_no_local.py::test_a_switch_that_was_taught_before_is_not_used_any_more",
    ),
)

NATIVE_ORDER: Final[tuple[Mutant, ...]] = (
    Mutant(
        "given while another holds it",
        "A message that a consumer has not acknowledged is given to the next one too.",
        "native/src/delivery.c",
        "        if (!is_free(item))\n            continue;\n        out->status = LIMIT;\n",
        "        if (!item)\n            continue;\n        out->status = LIMIT;\n",
        _CHOSEN,
    ),
    Mutant(
        "what came back goes before all",
        "A message that came back is given before those in front of it.",
        "native/src/delivery.c",
        "    if (q->returned_from >= end || (item && q->next < q->returned_from))\n",
        "    if (q->returned_from >= end)\n",
        _PLACE,
    ),
    Mutant(
        "a priority is only a header",
        "A queue gives messages with priorities as they come.",
        "native/src/stomp_scan.c",
        "f->is_grouped ? FLAG_SPECIAL : 0,\n",
        "f->is_grouped ? 0 : 0,\n",
        _KEPT,
    ),
    Mutant(
        "frames overtake those of a switch",
        "What follows a message to an address with filters is taken before it.",
        "native/src/stomp_scan.c",
        "    if (!to || (core->switched_count && !to->is_switch))\n",
        "    if (!to)\n",
        _TURN,
    ),
    Mutant(
        "receipt of a switch too early",
        "What Python chose a route for is confirmed before it is durable.",
        "native/src/stomp_scan.c",
        "    if (block)\n        core->connections[handle].last_block = block;\n"
        "    if (!receipt.data)",
        "    if (!receipt.data)",
        _CORE + "test_core_switching.py::test_they_go_where_python_says",
    ),
)

"""Seeded faults of the memory of addresses: what is counted, who waits, who goes on.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_ACCOUNTS: Final = "tests/unit/vespiary_native/test_core_accounts.py::"
_FULL: Final = "tests/unit/vespiary_broker/server/test_full_addresses.py::"
_MEMORY: Final = "broker/vespiary_broker/engine/address_memory.py"
_SERVER: Final = "broker/vespiary_broker/server/"

PYTHON_MEMORY: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a shared message counts for each queue (twin)",
        "A message in several queues of an address counts as many times.",
        "native/vespiary_native/twin/accounts.py",
        "            is_message = places == 1\n",
        "            is_message = True\n",
        _ACCOUNTS + "test_a_message_costs_until_its_last_place_ends",
    ),
    Mutant(
        "no low mark (twin)",
        "A full account is free again with the first message that goes.",
        "native/vespiary_native/twin/accounts.py",
        "            (size is None or self.size_bytes <= size)\n",
        "            True\n",
        _ACCOUNTS + "test_it_is_full_at_the_limit_and_free_at_the_low_mark",
    ),
    Mutant(
        "the scanner takes for a full address (twin)",
        "The fast path goes on while an address is full.",
        "native/vespiary_native/twin/switching.py",
        "    if staging.accounts.is_held(route):\n",
        "    if False:\n",
        _ACCOUNTS + "test_the_scanner_leaves_sends_to_a_full_address_to_python",
    ),
    Mutant(
        "blocked producers are forgotten",
        "Nobody lets those go on who wait for an address.",
        _SERVER + "cycle.py",
        "            self.producers.let_go()\n",
        "            pass\n",
        _FULL + "test_block_stops_reading_and_lets_go_by_itself",
    ),
    Mutant(
        "a commit does not ask",
        "The messages of a transaction go to full addresses too.",
        _SERVER + "full_addresses.py",
        "            full = self._full_among(transaction)\n",
        "            full: dict[str, tuple[Verdict, AddressState]] = {}\n",
        _FULL + "test_a_commit_fails_whole",
    ),
    Mutant(
        "a transaction waits for the room that it makes",
        "A client that consumes and answers in one transaction waits for itself.",
        _SERVER + "full_addresses.py",
        " and state.name not in freed",
        "",
        _FULL + "test_a_transaction_that_makes_room_itself_does_not_wait_for_it",
    ),
    Mutant(
        "the commit of a client that has gone is staged",
        "A transaction that waited is committed after its connection has ended.",
        _SERVER + "stomp/session.py",
        "            if not self._connection.is_open:\n                break\n",
        "",
        _FULL + "test_a_commit_whose_client_goes_while_it_waits_is_void",
    ),
    Mutant(
        "drops are logged once for ever",
        "An address that was free in between drops without a word.",
        _MEMORY,
        "            state.is_logged = state.is_logged and state.is_full\n",
        "",
        _FULL + "test_drop_confirms_counts_and_logs_once_an_episode",
    ),
    Mutant(
        "no threshold",
        "With BLOCK nobody is refused, however large the address.",
        _MEMORY,
        "            if state.reject_bytes is None or own.bytes < state.reject_bytes:\n",
        "            if True:\n",
        _FULL + "test_above_the_reject_threshold_senders_are_refused_instead",
    ),
)

NATIVE_MEMORY: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a shared message counts for each queue",
        "A message in several queues of an address counts as many times.",
        "native/src/accounts.c",
        "    return ++at->places == 1;\n",
        "    return ++at->places >= 1;\n",
        _ACCOUNTS + "test_a_message_costs_until_its_last_place_ends",
    ),
    Mutant(
        "a gap in the table of shared messages",
        "What stood behind a shared message that ended is not found any more.",
        "native/src/accounts.c",
        "        *shared_find(table, moved.offset, moved.account) = moved;\n    }\n    return",
        "        table->items[k] = moved;\n    }\n    return",
        _ACCOUNTS + "test_many_shared_messages_end_in_any_order",
    ),
    Mutant(
        "the scanner takes for a full address",
        "The fast path goes on while an address is full.",
        "native/src/stomp_scan.c",
        "    if (core->accounts_full && is_route_held(core, to))\n",
        "    if (false)\n",
        _ACCOUNTS + "test_the_scanner_leaves_sends_to_a_full_address_to_python",
    ),
)

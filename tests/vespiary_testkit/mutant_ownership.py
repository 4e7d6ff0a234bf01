"""Seeded faults of the ownership: two brokers on one journal, or two operators on one cluster.

Data only, part of `mutant_catalogue`.
"""

from __future__ import annotations

from typing import Final

from vespiary_testkit.mutant import Mutant

_STORE: Final = "broker/vespiary_broker/store/"
_LEASE: Final = "tests/unit/vespiary_broker/store/test_lease.py::"
_LEADERSHIP: Final = "tests/unit/vespiary_operator/test_leadership.py::"
_CLAIM: Final = "tests/unit/vespiary_broker/store/test_ownership.py::"

PYTHON_OWNERSHIP: Final[tuple[Mutant, ...]] = (
    Mutant(
        "confirm without fresh lease",
        "A completion is handed on however long ago the ownership block was read.",
        _STORE + "lease.py",
        "        return self._clock_s() < self._confirm_until_s\n",
        "        return True\n",
        _LEASE + "test_no_confirm_leaves_once_the_lease_has_run_out",
    ),
    Mutant(
        "any look confirms",
        "A look that began before the flush lets its confirm go.",
        _STORE + "lease.py",
        "        return flushed_s <= self.checked_s\n",
        "        return True\n",
        _LEASE + "test_a_look_that_began_before_the_flush_confirms_nothing",
    ),
    Mutant(
        "a look lets writes begin for ever",
        "A process that was stopped behind a look writes when it goes on.",
        _STORE + "lease.py",
        "        while self._waiting and self._lease.may_write():\n",
        "        while self._waiting:\n",
        _LEASE + "test_a_stop_behind_a_look_begins_no_write",
    ),
    Mutant(
        "a look counts from its end",
        "The lease begins when the block was read, not when the look at it began.",
        _STORE + "lease.py",
        "            self._note(begun_s)\n",
        "            self._note(self._clock_s())\n",
        _LEASE + "test_a_look_counts_from_its_beginning",
    ),
    Mutant(
        "the ousted go on",
        "What was on its way when the journal was lost is confirmed.",
        _STORE + "lease.py",
        "        if found != self._claim.data:\n",
        "        if not found:\n",
        _LEASE + "test_whoever_is_ousted_confirms_nothing_and_writes_nothing",
    ),
    Mutant(
        "files change under a lost lease",
        "Threads that make, rename and free files do not ask whose the journal is.",
        _STORE + "lease.py",
        "                raise self._error\n",
        "                return\n",
        _LEASE + "test_a_disk_under_a_lost_lease_changes_nothing",
    ),
    Mutant(
        "nobody waits for another kernel",
        "A journal that another machine's broker holds is taken at once.",
        _STORE + "ownership.py",
        "    if found.state is OwnerState.HELD and found.boot_id == options.boot_id:\n",
        "    if found.state is OwnerState.HELD:\n",
        _CLAIM + "test_another_kernel_is_waited_for_by_the_longer_lease",
    ),
    Mutant(
        "a claim counts as taken",
        "A start that died while it waited spares the next one the wait.",
        _STORE + "ownership.py",
        "        state=OwnerState.CLAIMING,\n",
        "        state=OwnerState.HELD,\n",
        _CLAIM + "test_a_claim_that_was_not_waited_out_makes_the_next_one_wait_as_long",
    ),
    Mutant(
        "a lost journal is released",
        "A stop writes its word over the block of the new owner.",
        _STORE + "ownership.py",
        "    claim.verify()\n    released",
        "    released",
        _CLAIM + "test_a_lost_journal_is_not_released",
    ),
    Mutant(
        "a renewal counts from its answer",
        "An operator that was stopped in its request leads when it wakes, although another does.",
        "operator/vespiary_operator/leadership.py",
        "            self._renewed_at = began\n",
        "            self._renewed_at = self._clock()\n",
        _LEADERSHIP + "test_a_renewal_counts_from_its_request_not_from_its_answer",
    ),
    Mutant(
        "drained into what is not ready",
        "A broker that leaves is cordoned and drained into one that cannot take its messages.",
        "operator/vespiary_operator/draining.py",
        "    if to is None or not pods.is_ready(to):\n",
        "    if to is None:\n",
        "tests/unit/vespiary_operator/test_draining.py::"
        "test_a_drain_starts_only_when_its_receiver_is_ready",
    ),
    Mutant(
        "told before its sequence is kept",
        "A broker hands a message over while a crash could have its sequence used again: the other "
        "one takes a later message for it.",
        "broker/vespiary_broker/app/drained_queue.py",
        "            await self._cycle.durable()\n            self._kept_tail = tail\n",
        "            self._kept_tail = tail\n",
        "tests/unit/vespiary_broker/app/test_drained_queue.py::"
        "test_no_sequence_is_told_before_the_next_one_of_the_queue_is_durable",
    ),
    Mutant(
        "known by its journal before",
        "A broker whose journal is a new one hands messages over under the id that it had before.",
        "broker/vespiary_broker/app/draining.py",
        'if is_of_journal else ""',
        'if kept else ""',
        "tests/unit/vespiary_broker/app/test_drain_identity.py::"
        "test_a_broker_keeps_its_id_as_long_as_it_keeps_its_journal",
    ),
)

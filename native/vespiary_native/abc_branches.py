"""The part of the core's contract that is about prepared branches of distributed transactions.

Owns the Protocol; `abc.Core` has it, and its terms. Both implementations keep it.

A branch is begun with `begin(…, branch=True)`, then `publish` and `acknowledge` with its id, then
`prepare`. It is held, over restarts too, until `resolve`.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.values import BranchFacts, BranchMember


class CoreBranches(Protocol):
    """See the module's docstring."""

    def prepare(self, transaction: int, data: bytes) -> int:
        """End the staging of a branch: its members are held until `resolve`.

        Added messages have their places and are not deliverable; messages behind them are.
        Acknowledged ones are locked: no consumer holds or gets them. The files with members, with
        the messages that they acknowledge, and with the PREPARE record count one live place more
        each.

        Args:
            transaction: Id that it was begun with.
            data: What the PREPARE record ends in, at most 4096 bytes.

        Returns:
            The sequence of the block with the PREPARE record.

        Raises:
            NoRoom: No slab or no file for the record; the transaction stays open: try again.

        Durability: the branch is prepared once that block is durable.
        """

    def resolve(self, transaction: int, *, commit: bool) -> int:
        """Stage the COMMIT or ROLLBACK of a prepared branch.

        Once it is durable, added messages are deliverable or gone, and acknowledged ones are gone
        or back in their queue, counted as delivered. A message that consumers have passed by comes
        where they stand, as one that was given back does.

        Returns:
            The sequence of the block with the record; the branch is there until that is durable.

        Raises:
            NoRoom: No slab or no file for the record; nothing was changed.
            ValueError: There is no such branch, its PREPARE is not durable yet, or it is ending.

        Durability: the outcome holds once that block is durable.
        """

    def branches(self) -> list[BranchFacts]:
        """Return the prepared branches by transaction."""

    def branch_members(self, transaction: int) -> list[BranchMember]:
        """Return the members of a prepared branch in the order of the journal."""

    def branch_data(self, transaction: int) -> bytes:
        """Return what the PREPARE record of a prepared branch ends in."""

    def branches_in(self, file_id: int) -> list[int]:
        """Return the prepared branches that need a file, by transaction."""

    def branch_copy(self, transaction: int, journal_id: int) -> tuple[int, int] | None:
        """Stage copies of a prepared branch's records, and of the messages that it acknowledges.

        The branch then no longer needs the files with its earlier records. In this process it
        keeps the id `transaction`; after a restart its id is `journal_id`.

        Args:
            transaction: A branch whose PREPARE is durable, that is not ending, and of which all
                places are there.
            journal_id: Id for the copies, 1 to 2**63, that no other transaction has had.

        Returns:
            None if it was copied; else the (file id, slab index) to load before trying again.

        Raises:
            NoRoom: The journal or the memory has no room for the copies now; nothing was changed.
            ValueError: There is no such branch, it is not in that state, or a message of it is
                larger than `record_bytes_max`; nothing was changed.

        Durability: a file may be freed once a checkpoint behind the copies is durable. The copies
            count, and the records before them are void, from one block on.
        """

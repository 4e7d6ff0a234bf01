"""`Model`: what a journal must and may hold after a power cut, by the marks of its clients.

Clients mark in the log of their disk what they ask for and what was confirmed. `Marks` writes these
marks, `Model` reads them, and both know one set of words (Q a queue id, S a sequence, T a
transaction):

    sent Q S        about to be staged             confirmed Q S   its wait is over
    acking Q S      about to be acknowledged       acked Q S       that is confirmed
    adds T Q S      member of transaction T        acks T Q S      likewise, an acknowledgement
    settled T       the transaction is confirmed, or certainly void
    found Q S       right after `restart`: what a recovery brought back
    restart         a broker opened the journal again
    preparing T     branch T is about to be prepared; its members are in adds T and acks T
    prepared T      that is confirmed
    committing T    its commit is staged
    ending T        its rollback is staged              ended T         it is over, confirmed
    doubt T         right after `restart`: a branch that a recovery brought back
    compacted N     at the end of a life: files that its compaction emptied; nothing follows

The model knows nothing of the journal's format. What a journal holds by the format's rules is the
business of `journal_workload.LiveSet`, which is kept apart on purpose: one says what was promised,
the other what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from vespiary_testkit.faulty_disk import MemoryDisk

Key = tuple[int, int]


@dataclass
class Group:
    """The members of a transaction that is neither confirmed nor void."""

    adds: set[Any] = field(default_factory=set)
    acks: set[Any] = field(default_factory=set)

    def is_done(self, live: set[Any]) -> bool:
        """Whether any member counts."""
        return bool(self.adds & live or self.acks - live)


_MESSAGE_MARKS = frozenset({"sent", "found", "confirmed", "acking", "acked"})
_BRANCH_MARKS = frozenset({"preparing", "prepared", "committing", "ending", "ended", "doubt"})


class Model:
    """What a recovery must and may find, given the marks so far.

    A key names a place of a message: queue and sequence, or whatever its user compares.

    Attributes:
        must: Confirmed, and not about to be acknowledged.
        may: Sent, and not certainly gone.
        groups: Open transactions and branches, of which all members count, or none.
        must_doubt: Branches that are prepared for certain.
        may_doubt: Branches that may be prepared.
        committing: Branches whose commit is staged.
    """

    def __init__(self) -> None:
        self.restart()

    @classmethod
    def of_marks(cls, marks: Iterable[str]) -> Self:
        """Return the model that marks lead to."""
        made = cls()
        for mark in marks:
            made.apply(mark)
        return made

    @classmethod
    def of_found(cls, live: Iterable[Any], branches: Mapping[int, Group]) -> Model:
        """Return the model that holds on to what a recovery found."""
        made = cls()
        for key in live:
            made.found(key)
        for number, group in branches.items():
            made._apply_branch("doubt", number)
            made.groups[number].adds |= group.adds
            made.groups[number].acks |= group.acks
        return made

    def apply(self, mark: str) -> None:
        """Take one mark."""
        kind, *texts = mark.split()
        numbers = [int(text) for text in texts]
        if kind in ("adds", "acks"):
            group = self.groups[numbers[0]]
            (group.adds if kind == "adds" else group.acks).add((numbers[1], numbers[2]))
        elif kind == "restart":
            self.restart()
        elif kind == "settled":
            self.groups.pop(numbers[0], None)
        elif kind in _BRANCH_MARKS:
            self._apply_branch(kind, numbers[0])
        elif kind != "compacted":
            assert kind in _MESSAGE_MARKS, mark
            getattr(self, kind)((numbers[0], numbers[1]))

    def restart(self) -> None:
        """Forget everything: what is there is `found` next."""
        self.must: set[Any] = set()
        self.may: set[Any] = set()
        self.groups: defaultdict[int, Group] = defaultdict(Group)
        self.must_doubt: set[int] = set()
        self.may_doubt: set[int] = set()
        self.committing: set[int] = set()

    def found(self, key: Any) -> None:
        """Know that a message is there."""
        self.must.add(key)
        self.may.add(key)

    def sent(self, key: Any) -> None:
        """Know that a message may be there from now on."""
        self.may.add(key)

    def confirmed(self, key: Any) -> None:
        """Know that a message is there for certain."""
        self.must.add(key)

    def acking(self, key: Any) -> None:
        """Know that a message may be gone from now on."""
        self.must.discard(key)

    def acked(self, key: Any) -> None:
        """Know that a message is gone for certain."""
        self.must.discard(key)
        self.may.discard(key)

    def _apply_branch(self, kind: str, number: int) -> None:
        if kind in ("preparing", "doubt"):
            self.may_doubt.add(number)
        if kind in ("prepared", "doubt"):
            self.must_doubt.add(number)
        if kind in ("committing", "ending"):
            self.must_doubt.discard(number)
        if kind == "committing":
            self.committing.add(number)
        if kind == "ended":
            self.may_doubt.discard(number)
            self.committing.discard(number)
            self.groups.pop(number, None)  # if it was committed, its messages are marked next

    # --- the judgement ----------------------------------------------------------------------------

    def judge(self, live: set[Any]) -> list[str]:
        """Return what is wrong with the messages that came back; nothing if all is well."""
        wrong = []
        if not self.must <= live:
            wrong.append(f"confirmed and lost: {sorted(self.must - live)}")
        if not live <= self.may:
            wrong.append(f"gone or never sent, and back: {sorted(live - self.may)}")
        for number, group in self.groups.items():
            done = {key in live for key in group.adds} | {key not in live for key in group.acks}
            if len(done) > 1:
                wrong.append(
                    f"half of transaction {number}: of {sorted(group.adds)} there are"
                    f" {sorted(group.adds & live)}, of {sorted(group.acks)} there are still"
                    f" {sorted(group.acks & live)}"
                )
        return wrong

    def judge_doubt(self, live: set[Any], in_doubt: Collection[int]) -> list[str]:
        """Return what is wrong with the prepared branches that came back."""
        wrong = []
        found = set(in_doubt)
        if not self.must_doubt <= found:
            wrong.append(f"prepared and lost: {sorted(self.must_doubt - found)}")
        if not found <= self.may_doubt:
            wrong.append(f"ended or never prepared, and back: {sorted(found - self.may_doubt)}")
        for number in self.committing & self.groups.keys():
            is_done = self.groups[number].is_done(live)
            if is_done == (number in found):
                wrong.append(f"branch {number}: done {is_done}, in doubt {number in found}")
        return wrong

    def judge_members(self, branches: Mapping[int, Group]) -> list[str]:
        """Return what is wrong with the members of the prepared branches that came back."""
        return [
            f"branch {number} holds {group}, not {self.groups[number]}"
            for number, group in branches.items()
            if number in self.groups and group != self.groups[number]
        ]


class Marks:
    """Writes marks into the log of a disk.

    Args:
        disk: The disk.
    """

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def _keys(self, kind: str, keys: Iterable[Key], number: int = 0) -> None:
        prefix = f"{kind} {number}" if number else kind
        for queue_id, sequence in keys:
            self._disk.mark(f"{prefix} {queue_id} {sequence}")

    def sent(self, keys: Iterable[Key], transaction: int = 0) -> None:
        """Mark messages that are about to be staged."""
        for key in keys:
            self._keys("sent", [key])
            if transaction:
                self._keys("adds", [key], transaction)

    def confirmed(self, keys: Iterable[Key]) -> None:
        """Mark messages whose wait is over."""
        self._keys("confirmed", keys)

    def acking(self, keys: Iterable[Key], transaction: int = 0) -> None:
        """Mark messages that are about to be acknowledged."""
        for key in keys:
            self._keys("acking", [key])
            if transaction:
                self._keys("acks", [key], transaction)

    def acked(self, keys: Iterable[Key]) -> None:
        """Mark messages whose acknowledgement is confirmed."""
        self._keys("acked", keys)

    def settled(self, transaction: int) -> None:
        """Mark a transaction that is confirmed, or certainly void."""
        self._disk.mark(f"settled {transaction}")

    def restart(self, live: Iterable[Key], branches: Mapping[int, Group]) -> None:
        """Mark that a broker opened the journal again, and what a recovery found."""
        self._disk.mark("restart")
        self._keys("found", sorted(live))
        for number in sorted(branches):
            self._disk.mark(f"doubt {number}")
            self._members(number, branches[number])

    def preparing(self, number: int, group: Group) -> None:
        """Mark a branch that is about to be prepared."""
        self._members(number, group)
        self._disk.mark(f"preparing {number}")

    def prepared(self, number: int) -> None:
        """Mark a branch that is prepared for certain."""
        self._disk.mark(f"prepared {number}")

    def ending(self, number: int, group: Group, *, commit: bool) -> None:
        """Mark a branch whose commit or rollback is staged."""
        if commit:
            self.sent(sorted(group.adds), number)
            self.acking(sorted(group.acks), number)
        self._disk.mark(f"{'committing' if commit else 'ending'} {number}")

    def ended(self, number: int, group: Group, *, commit: bool) -> None:
        """Mark a branch whose end is confirmed."""
        self._disk.mark(f"ended {number}")
        if commit:
            self.settled(number)
            self.confirmed(sorted(group.adds))
            self.acked(sorted(group.acks))

    def _members(self, number: int, group: Group) -> None:
        self._keys("adds", sorted(group.adds), number)
        self._keys("acks", sorted(group.acks), number)

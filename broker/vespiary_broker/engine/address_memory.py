"""What the messages of each address take in memory, and what becomes of more when that is too much.

Owns the accounts of the core by address, their limits, and the decision about a message to an
address that is full. Must never be asked about a message that the core's scanner may take: it asks
nobody until an address is full. Called by `registry` (queues come and go), by the server's sessions
(a message to a full address) and once a turn by the server's cycle; owner: the event loop.

Full is an address whose messages take `max-size-bytes` or number `max-size-messages`, until they
are down to 80 % of both; and every address that has messages, while all together take
`global-max-size` or number `global-max-messages`, until these are down to 80 %. A message that goes
to the queues of a wildcard address too meets the policy of whichever is full.

With PAGE, a full address takes messages as long as its pages may grow (`page_limits`); from then on
its `page-full-policy` takes the place of PAGE.

What the engine itself sends (dead letters, expired and diverted messages) is taken whatever is
full: it was confirmed before.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.engine.core import AccountLimits, Core
from vespiary_broker.engine.page_limits import LOW_PERCENT, PageLimits, page_limits_of
from vespiary_broker.engine.shares import Share
from vespiary_spec.errors import AddressFull
from vespiary_spec.settings import AddressFullPolicy

if TYPE_CHECKING:
    from vespiary_broker.engine.address_settings import AddressSettingsTable
    from vespiary_broker.engine.addresses import Address
    from vespiary_broker.engine.queues import Queue

_NAMED_MAX: Final = 1000
"""Addresses whose drops are counted apart; those beyond share one count."""
_OTHERS: Final = "(others)"
_TOTAL: Final = 0  # the core's account of everything

log = logging.getLogger(__name__)


class Verdict(enum.Enum):
    """What becomes of a message."""

    TAKE = enum.auto()
    WAIT = enum.auto()
    DROP = enum.auto()


class MemoryLimits(NamedTuple):
    """What all addresses may take.

    Attributes:
        max_bytes: In bytes; None for no limit.
        max_messages: In messages; None for no limit.
    """

    max_bytes: int | None = None
    max_messages: int | None = None


NO_LIMITS: Final = MemoryLimits()


@dataclass(eq=False, slots=True)
class AddressState:
    """An address that has queues.

    Attributes:
        name: Its name.
        account: The core's account of its messages.
        policy: What becomes of messages while it is full.
        max_bytes: Its limit; None for none.
        max_messages: Its limit; None for none.
        reject_bytes: With BLOCK, size from which messages are refused; None for never.
        is_full: Whether it is above its own limits.
        is_paging: Whether its messages are to leave the memory.
        is_logged: Whether a drop was logged since it became full.
        queues: Number of its queues.
        is_gone: It has no queues any more; its account may be another's.
        pages: Limits on its pages; None without PAGE, or where there are none.
    """

    name: str
    account: int
    policy: AddressFullPolicy
    max_bytes: int | None
    max_messages: int | None
    reject_bytes: int | None
    is_full: bool = False
    is_paging: bool = False
    is_logged: bool = False
    queues: int = 0
    is_gone: bool = False
    pages: PageLimits | None = None

    @property
    def policy_now(self) -> AddressFullPolicy:
        """What becomes of messages while it is full, as its pages are now."""
        if self.pages is not None and self.pages.is_full:
            return AddressFullPolicy(self.pages.policy)
        return self.policy


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What an address holds, or all of them.

    Attributes:
        name: The address; empty for all.
        size_bytes: What its messages take.
        messages: Their number.
        max_bytes: Its limit; None for none.
        max_messages: Its limit; None for none.
        is_full: Whether its policy holds now.
        is_paging: Whether its messages are to leave the memory.
        policy: What becomes of messages while it is full; None for all.
        pages: Limits on its pages, and what it has; None for none.
    """

    name: str
    size_bytes: int
    messages: int
    max_bytes: int | None
    max_messages: int | None
    is_full: bool
    is_paging: bool = False
    policy: AddressFullPolicy | None = None
    pages: PageLimits | None = None


class FullAddress(NamedTuple):
    """Why an address does not take messages as they come.

    Attributes:
        policy: What becomes of them: BLOCK, FAIL or DROP.
        is_by_itself: Whether it is above limits of its own; else all addresses together are.
        measured: What it holds.
        allowed: The limits.
    """

    policy: AddressFullPolicy
    is_by_itself: bool
    measured: str
    allowed: str


@dataclass(slots=True)
class Counts:
    """What happened since the start.

    Attributes:
        dropped: Messages dropped, by address.
        refused: Messages, or transactions, refused.
        page_modes: How often an address began to page.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    page_modes: int = 0


def _limit(value: int | None) -> int | None:
    return None if value is None or value < 0 else value


def _low(limit: int | None) -> int | None:
    return None if limit is None else limit * LOW_PERCENT // 100


class AddressMemory:
    """The memory of all addresses.

    Invariant: every queue in the registry's tables is in the account of its address.

    Attributes:
        counts: What happened since the start.
        on_paging: Called with an address that begins to page, or is free again.

    Args:
        core: The core.
        settings: Settings by address.
        limits: What all addresses may take.
    """

    def __init__(
        self, core: Core, settings: AddressSettingsTable, limits: MemoryLimits = NO_LIMITS
    ) -> None:
        self.counts = Counts()
        self.on_paging: Callable[[AddressState], None] = lambda _: None
        self._core = core
        self._settings = settings
        self._max_bytes, self._max_messages = limits
        self._by_name: dict[str, AddressState] = {}
        self._by_account: dict[int, AddressState] = {}
        self._is_all_full = False
        self._share = Share(core.account_share)
        core.limit_account(
            _TOTAL,
            AccountLimits(
                limits.max_bytes,
                _low(limits.max_bytes),
                limits.max_messages,
                _low(limits.max_messages),
            ),
        )

    # --- queues come and go ---------------------------------------------------------------------

    def enter(self, queue: Queue) -> None:
        """Count a queue's messages for its address from now on."""
        name = queue.address.name
        state = self._by_name.get(name) or self._open(name)
        state.queues += 1
        self._core.join_account(queue.id, state.account)

    def leave(self, queue: Queue) -> None:
        """Forget a queue that the core has dropped."""
        state = self._by_name[queue.address.name]
        state.queues -= 1
        if not state.queues:
            self._core.close_account(state.account)
            del self._by_name[state.name], self._by_account[state.account]
            state.is_gone = True
            if state.is_paging:
                state.is_paging = False
                self.on_paging(state)

    def _open(self, name: str) -> AddressState:
        state = AddressState(
            name, self._core.open_account(), AddressFullPolicy.BLOCK, None, None, None
        )
        self._by_name[name] = self._by_account[state.account] = state
        self._take_settings(state)
        self._note_paging(state)
        return state

    def _take_settings(self, state: AddressState) -> None:
        """Give an address the limits and the policy that its settings say now."""
        settings = self._settings.settings_for(state.name)
        assert settings.address_full_policy is not None
        state.policy = settings.address_full_policy
        state.max_bytes = _limit(settings.max_size_bytes)
        state.max_messages = _limit(settings.max_size_messages)
        state.reject_bytes = state.pages = None
        if state.policy is AddressFullPolicy.BLOCK:
            state.reject_bytes = _limit(settings.max_size_bytes_reject_threshold)
        elif state.policy is AddressFullPolicy.PAGE:
            state.pages = page_limits_of(settings)
        self._limit(state)

    def settings_changed(self) -> None:
        """Take other settings for all addresses that have queues.

        Senders that wait are let go on with the next turn, as when room is made.
        """
        for state in list(self._by_name.values()):
            self._take_settings(state)
            self._note(state)

    def _limit(self, state: AddressState) -> None:
        """Tell the core the limits of an address, and whether it leaves messages to us then."""
        limits = (limit for limit in (state.max_bytes, state.reject_bytes) if limit is not None)
        full_bytes = min(limits, default=None)
        self._core.limit_account(
            state.account,
            AccountLimits(
                full_bytes,
                _low(full_bytes),
                state.max_messages,
                _low(state.max_messages),
                is_holding=state.policy_now is not AddressFullPolicy.PAGE,
            ),
        )

    # --- pages --------------------------------------------------------------------------------

    def note_pages(self, state: AddressState, size_bytes: int, messages: int) -> bool:
        """Take note of what an address has in pages; return whether another may be written.

        Args:
            state: The address.
            size_bytes: What its page files take.
            messages: The most that one of its queues has in pages that are not open.
        """
        pages = state.pages
        if pages is None or state.is_gone:
            return True
        if pages.note(size_bytes, messages):
            state.is_logged = False
            self._limit(state)
            log.warning(
                "the pages of an address %s address=%s page_full_policy=%s bytes=%d messages=%d "
                "allowed=%r",
                "are full" if pages.is_full else "have room again",
                state.name,
                pages.policy,
                size_bytes,
                messages,
                pages.limits_text(),
            )
        return not pages.is_full

    # --- a message to a full address --------------------------------------------------------------

    def is_open(self, route: int, address: Address | None) -> bool:
        """Whether a message may go as it comes: nothing that it would go to is full.

        Args:
            route: The core's route; -1 where it depends on the message.
            address: The address that it is for; only looked at without a route.
        """
        if route >= 0:
            return not self._core.is_held(route)
        return address is None or not any(self._full_states((address, *address.wildcards)))

    def decide(self, address: Address) -> tuple[Verdict, AddressState | None]:
        """Decide about a message to an address; for DROP, `drop` follows.

        Returns:
            What becomes of it, and the address that is full: `address`, or a wildcard that covers
            it; None if neither is. A sender that waits tries again when that has room.

        Raises:
            AddressFull: It is refused.
        """
        waiting: AddressState | None = None
        for state in self._full_states((address, *address.wildcards)):
            self._refuse(state)
            if state.policy_now is AddressFullPolicy.DROP:
                return Verdict.DROP, state
            waiting = waiting or state
        return (Verdict.TAKE if waiting is None else Verdict.WAIT), waiting

    def decide_without_room(self, address: str) -> AddressState | None:
        """Decide about a message that need not survive, and for which the image has no memory.

        What such messages take is rounded up to slabs, so the image may be full of them a little
        before all addresses together are.

        Returns:
            The address if the message is to be dropped; None if its sender waits.

        Raises:
            AddressFull: It is refused.
        """
        state = self._by_name.get(address)
        low = _low(self._max_bytes)
        if state is None or low is None or self._core.account_statistics(_TOTAL).bytes < low:
            return None
        self._refuse(state)
        return state if state.policy_now is AddressFullPolicy.DROP else None

    def drop(self, state: AddressState, count: int = 1) -> None:
        """Count messages that are dropped because an address is full.

        Durability: they are confirmed and lost, as `DROP` asks for.
        """
        dropped = self.counts.dropped
        is_named = state.name in dropped or len(dropped) < _NAMED_MAX
        dropped[state.name if is_named else _OTHERS] += count
        if not state.is_logged:
            state.is_logged = True
            own = self._core.account_statistics(state.account)
            log.warning(
                "messages are dropped, since the address is full and its %s is DROP address=%s "
                "bytes=%d messages=%d allowed=%r",
                _policy_name(state),
                state.name,
                own.bytes,
                own.messages,
                self._allowed(state, is_full=own.is_full),
            )

    def _full_states(self, addresses: Iterable[Address]) -> Iterator[AddressState]:
        for address in addresses:
            state = self._by_name.get(address.name)
            if state is not None and self.is_full(state):
                yield state

    def is_full(self, state: AddressState) -> bool:
        """Whether an address' policy holds now, by its own limits or those of all."""
        if state.policy_now is AddressFullPolicy.PAGE or state.is_gone:
            return False
        own = self._core.account_statistics(state.account)
        return own.is_full or (own.messages > 0 and self._core.account_statistics(_TOTAL).is_full)

    def _refuse(self, state: AddressState) -> None:
        """Raise the error of FAIL, and of BLOCK above its reject threshold."""
        own = self._core.account_statistics(state.account)
        facts, allowed = own, self._allowed(state, is_full=own.is_full)
        policy = state.policy_now
        if policy is AddressFullPolicy.BLOCK:
            if state.reject_bytes is None or own.bytes < state.reject_bytes:
                return
            allowed = f"max-size-bytes-reject-threshold {state.reject_bytes} bytes"
        elif policy is not AddressFullPolicy.FAIL:
            return
        elif not own.is_full:
            facts = self._core.account_statistics(_TOTAL)
        measured = f"{facts.bytes} bytes in {facts.messages} messages"
        if state.pages is not None:
            measured += f", {state.pages.facts_text()}"
        self.counts.refused += 1
        raise AddressFull(
            f"the address {state.name} is full, and its {_policy_name(state)} is {policy}",
            measured=measured,
            allowed=allowed,
            cure="send again when messages were consumed, or raise the limit",
        )

    def _allowed(self, state: AddressState, *, is_full: bool) -> str:
        """Return the limits that a full address has reached, its own or those of all."""
        text = _limits_text("max-size-bytes", state.max_bytes, "", state.max_messages)
        if not is_full:
            text = self._global_limits()
        return text if state.pages is None else f"{text}, {state.pages.limits_text()}"

    def _global_limits(self) -> str:
        return _limits_text("global-max-size", self._max_bytes, "global-", self._max_messages)

    # --- once a turn ------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take note of what became full, or is free again; return whether anything did."""
        changed = self._core.take_changed_accounts()
        if not changed:
            return False
        for account in changed:
            if account == _TOTAL:
                self._note_all()
            elif (state := self._by_account.get(account)) is not None:
                self._note(state)
        return True

    def _note(self, state: AddressState) -> None:
        facts = self._core.account_statistics(state.account)
        if facts.is_full != state.is_full:
            state.is_full = facts.is_full
            state.is_logged = state.is_logged and state.is_full
            log.info(
                "address %s address=%s policy=%s bytes=%d messages=%d",
                "is full" if state.is_full else "has room again",
                state.name,
                state.policy,
                facts.bytes,
                facts.messages,
            )
        self._note_paging(state)

    def _note_all(self) -> None:
        facts = self._core.account_statistics(_TOTAL)
        if facts.is_full == self._is_all_full:
            return
        self._is_all_full = facts.is_full
        log.warning(
            "all addresses together %s bytes=%d messages=%d allowed=%r",
            "are full" if facts.is_full else "have room again",
            facts.bytes,
            facts.messages,
            self._global_limits(),
        )
        for state in self._by_name.values():
            state.is_logged = state.is_logged and (state.is_full or facts.is_full)
            self._note_paging(state)

    def _note_paging(self, state: AddressState) -> None:
        is_paging = state.policy is AddressFullPolicy.PAGE and (state.is_full or self._is_all_full)
        if is_paging != state.is_paging:
            state.is_paging = is_paging
            self.counts.page_modes += is_paging
            self.on_paging(state)

    # --- looking ----------------------------------------------------------------------------------

    def total(self) -> MemoryFacts:
        """Return what all addresses together hold."""
        found = self._core.account_statistics(_TOTAL)
        return MemoryFacts(
            "", found.bytes, found.messages, self._max_bytes, self._max_messages, found.is_full
        )

    def facts(self, address: str) -> MemoryFacts | None:
        """Return what an address holds; None for one without queues."""
        state = self._by_name.get(address)
        if state is None:
            return None
        found = self._core.account_statistics(state.account)
        is_all_full = self._core.account_statistics(_TOTAL).is_full and found.messages > 0
        return MemoryFacts(
            address,
            found.bytes,
            found.messages,
            state.max_bytes,
            state.max_messages,
            found.is_full or is_all_full,
            state.is_paging,
            state.policy,
            state.pages,
        )

    def full_address(self, address: str) -> FullAddress | None:
        """Return why an address does not take messages; None: it does, or has no queues."""
        state = self._by_name.get(address)
        if state is None or not self.is_full(state):
            return None
        own = self._core.account_statistics(state.account)
        measured = f"{own.bytes} bytes in {own.messages} messages"
        if state.pages is not None:
            measured += f", {state.pages.facts_text()}"
        allowed = self._allowed(state, is_full=own.is_full)
        return FullAddress(state.policy_now, own.is_full, measured, allowed)

    def excess_bytes(self, state: AddressState) -> int:
        """Return how much of an address has to leave the memory until it no longer pages.

        Down to its own low marks, and while all together are full, down to theirs.
        """
        own = self._core.account_statistics(state.account)
        excess = 0
        low_bytes, low_messages = _low(state.max_bytes), _low(state.max_messages)
        if low_bytes is not None:
            excess = own.bytes - low_bytes
        if low_messages is not None and own.messages > low_messages:
            each = own.bytes // own.messages
            excess = max(excess, each * (own.messages - low_messages))
        if self._is_all_full:
            excess = max(excess, min(own.bytes, self._excess_of_all()))
        return excess

    def held_bytes(self, state: AddressState) -> int:
        """Return what an address holds in memory."""
        return self._core.account_statistics(state.account).bytes

    def _excess_of_all(self) -> int:
        total = self._core.account_statistics(_TOTAL)
        low_bytes, low_messages = _low(self._max_bytes), _low(self._max_messages)
        excess = 0 if low_bytes is None else total.bytes - low_bytes
        if low_messages is not None and total.messages > low_messages:
            each = total.bytes // total.messages
            excess = max(excess, each * (total.messages - low_messages))
        return excess

    def front_bytes(self, state: AddressState) -> int:
        """Return how much of an address that pages may stay in memory in front of its consumers.

        Half of what may stay in memory at all; while all together are full, its share in half of
        what these may hold.
        """
        limits = (
            limit for limit in (_low(state.max_bytes), _low(self._max_bytes)) if limit is not None
        )
        front = min(limits, default=self._core.account_statistics(state.account).bytes) // 2
        low_bytes = _low(self._max_bytes)
        if self._is_all_full and low_bytes is not None:
            front = min(front, self._share.of(low_bytes // 2))
        return front

    @property
    def is_all_full(self) -> bool:
        """Whether all addresses together hold what they may."""
        return self._is_all_full

    def states(self, names: Iterable[str]) -> list[AddressState]:
        """Return those of these addresses that have queues."""
        return [self._by_name[name] for name in names if name in self._by_name]

    def paging_states(self) -> list[AddressState]:
        """Return the addresses whose messages are to leave the memory."""
        return [state for state in self._by_name.values() if state.is_paging]

    @property
    def paging_count(self) -> int:
        """Number of addresses whose messages are to leave the memory."""
        return sum(state.is_paging for state in self._by_name.values())

    @property
    def page_full_count(self) -> int:
        """Number of addresses whose pages may not grow."""
        states = self._by_name.values()
        return sum(state.pages is not None and state.pages.is_full for state in states)


def _policy_name(state: AddressState) -> str:
    """Return the setting whose policy holds for a full address."""
    is_by_pages = state.pages is not None and state.pages.is_full
    return "page-full-policy" if is_by_pages else "address-full-policy"


def _limits_text(name: str, size: int | None, prefix: str, count: int | None) -> str:
    """Return limits as an error names them."""
    parts = [] if size is None else [f"{name} {size} bytes"]
    if count is not None:
        parts.append(f"{prefix}max-{'' if prefix else 'size-'}messages {count}")
    return ", ".join(parts)

"""Why a queue or an address is not moving: the one place that decides it.

Owns the rules and their sentences. Must never change anything, and never looks at a message: it
reads counters, credit and what the parts of the broker wait for. `vespiary status`, lists, the HTTP
API, metrics and the log (`stall_watch`) all ask `Stalls.why`. Owner: the event loop.

An address is stalled when messages do not get in: it is full, or producers wait for it. A queue is
stalled when it has messages that no consumer is given. What depends on consumers is a stall only
if nothing has left the queue since its last sample (`queue_rates`): a consumer that is busy has no
credit most of the time. Messages that consumers hold are not stalled, however long that takes,
unless their acknowledgements wait for room on a full disk.

What only an operator can repair, a full disk and messages that cannot be moved, is the reason
whatever else holds up a place as well; the milder reason goes on in its sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.address_memory import FullAddress
from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.consumer_credit import remaining_credit
from vespiary_broker.engine.core import QueueStatistics
from vespiary_broker.engine.names import OWN_PREFIX
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_spec.errors import VespiaryError
from vespiary_spec.settings import AddressFullPolicy, DiskFullPolicy

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.examined import ExaminedQueue

_LIMITS: Final = ("max_size_bytes", "max_size_messages")


class StallReason(StrEnum):
    """Why something is not moving; the values are those of the metrics' label `reason`."""

    FULL = "full"
    PAUSED = "paused"
    SCHEDULED = "scheduled"
    PAGED = "paged"
    NO_CONSUMERS = "no-consumers"
    NO_CREDIT = "no-credit"
    NO_SELECTOR_MATCH = "no-selector-match"
    GROUP_OWNER = "group-owner"
    EXCLUSIVE_CONSUMER = "exclusive-consumer"
    DISK = "disk"
    MEMORY = "memory"
    RATE_LIMIT = "rate-limit"
    UNMOVABLE = "unmovable"


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a queue or an address is not moving.

    Attributes:
        reason: The reason.
        text: The same as a sentence without a full stop.
        next_step: What to do next, as a sentence without a full stop, or what finds it out: a scan
            of all addresses does not need it.
        blocked_producers: Producers that wait for the address.
    """

    reason: StallReason
    text: str
    next_step: str | Callable[[], str]
    blocked_producers: int = 0

    @property
    def cure(self) -> str:
        """What to do next, as a sentence without a full stop."""
        return self.next_step if isinstance(self.next_step, str) else self.next_step()


class Stalls:
    """Finds out why queues and addresses are not moving.

    Args:
        engine: The engine.
        blocked_producers: Returns how many producers wait for an address that is full.
        disk_full: Returns why no journal file can be made; None while there is room.
        waits_for_room: Whether the connection with a handle waits for room in the journal.
    """

    def __init__(
        self,
        engine: Engine,
        blocked_producers: Callable[[str], int],
        disk_full: Callable[[], VespiaryError | None],
        waits_for_room: Callable[[int], bool],
    ) -> None:
        self._core = engine.core
        self._dispatcher = engine.dispatcher
        self._memory = engine.memory
        self._rates = engine.rates
        self._registry = engine.registry
        self._fates = engine.fates
        self._blocked_producers = blocked_producers
        self._disk_full = disk_full
        self._waits_for_room = waits_for_room

    def why(self, place: Queue | Address) -> Stall | None:
        """Return why a queue or an address is not moving; None: it is, or it has nothing to move.

        Args:
            place: One that was not deleted.
        """
        return self._why_queue(place) if isinstance(place, Queue) else self._why_address(place)

    # --- addresses: messages that do not get in ---------------------------------------------------

    def _why_address(self, address: Address) -> Stall | None:
        if address.name.startswith(OWN_PREFIX):
            return None
        milder = self._why_address_alone(address)
        disk = self._disk_full()
        settings = self._registry.settings_for(address.name)
        if disk is None or settings.disk_full_policy is not DiskFullPolicy.BLOCK:
            return milder
        stall = Stall(
            StallReason.DISK,
            f"its producers wait for room on the disk: {disk}",
            "consume messages, so that journal files can be reused, or enlarge the volume",
        )
        return _graver(stall, milder)

    def _why_address_alone(self, address: Address) -> Stall | None:
        """Return what stalls an address whatever room the disk has."""
        for one in (address, *address.wildcards):
            full = self._memory.full_address(one.name)
            if full is not None:
                return self._full(address, one, full)
        settings = self._registry.settings_for(address.name)
        if address.is_paused:
            return _paused("address", address.name)
        held = self._registry.limits.sends.held(address.name)
        if held:
            return Stall(
                StallReason.RATE_LIMIT,
                f"{_counted(held, 'producer waits', 'producers wait')} for a rate: "
                f"producer-message-rate {settings.producer_message_rate}, producer-byte-rate "
                f"{settings.producer_byte_rate} of the address, or the rate of their user",
                "raise the rate, or let fewer clients send",
                held,
            )
        return None

    def _full(self, address: Address, owner: Address, full: FullAddress) -> Stall:
        waiting = self._blocked_producers(owner.name)
        consequence = _counted(waiting, "producer waits", "producers wait")
        if full.policy is AddressFullPolicy.FAIL:
            consequence = "messages to it are rejected"
        elif full.policy is AddressFullPolicy.DROP:
            consequence = "messages to it are dropped"
        where = "it" if owner is address else f"the wildcard address {owner.name}, which covers it,"
        text = f"{where} is full ({full.measured}, allowed {full.allowed}); {consequence}"
        if not full.is_by_itself:
            cure = "consume messages of any address, or raise global-max-size"
            return Stall(StallReason.MEMORY, text, cure, waiting)
        return Stall(StallReason.FULL, text, partial(self._cure_of_full, owner), waiting)

    def _cure_of_full(self, address: Address) -> str:
        """Return what to do about a full address: what stalls its queues, or its limits."""
        matches = {self._registry.match_of(limit, address.name) for limit in _LIMITS} - {None}
        where = "".join(f" (address-settings {match})" for match in sorted(map(str, matches)))
        raising = f"raise its limit{where}"
        held: tuple[int, str] = (0, "")
        for queue in address.queues.values():
            stall = self._why_queue(queue)
            if stall is not None:
                why = f"its queue {queue.name} is stalled, {stall.text}"
                return f"{why}: {stall.cure}; or {raising}"
            statistics = self._core.queue_statistics(queue.id)
            if not _in_queue(statistics):
                held = max(held, (statistics.delivering, queue.name))
        count, name = held
        if count:
            messages = _counted(count, "message", "messages")
            why = f"its queue {name} has {messages} delivered and not acknowledged"
            return f"{why}; `vespiary consumer list --queue {name}` shows by whom; or {raising}"
        return f"consume its messages faster, purge its queues, or {raising}"

    # --- queues: messages that no consumer is given -----------------------------------------------

    def _why_queue(self, queue: Queue) -> Stall | None:
        if queue.traits.is_internal:
            return None
        statistics = self._core.queue_statistics(queue.id)
        milder = self._why_queue_alone(queue, statistics)
        unmovable = None
        if milder is not None or (statistics.aside and not _in_queue(statistics)):
            unmovable = self._unmovable(queue)
        if unmovable is not None:
            milder = _graver(unmovable, milder)
        disk = self._why_unacknowledged(queue, statistics)
        return milder if disk is None else _graver(disk, milder)

    def _why_unacknowledged(self, queue: Queue, statistics: QueueStatistics) -> Stall | None:
        """Return the stall of a queue whose acknowledgements wait for room on a full disk."""
        disk = self._disk_full()
        if disk is None or not (statistics.delivering or _in_queue(statistics)):
            return None
        waiting = sum(self._waits_for_room(one.output.handle) for one in queue.consumers)
        if not waiting and not self._dispatcher.is_without_room(queue.id):
            return None
        if self._rates.has_moved(queue):
            return None
        whose = f" of {_counted(waiting, 'consumer', 'consumers')}" if waiting else ""
        return Stall(
            StallReason.DISK,
            f"acknowledgements{whose} find no room in the journal: {disk}",
            "enlarge the volume, or remove other files from it",
        )

    def _why_queue_alone(self, queue: Queue, statistics: QueueStatistics) -> Stall | None:
        """Return what stalls a queue apart from a full disk and messages that cannot be moved."""
        if queue.is_held:
            if queue.is_paused:
                return _paused("queue", queue.name)
            return _paused("address", queue.address.name)
        if not _in_queue(statistics):
            return self._set_aside(queue, statistics)
        if queue.stream is not None:
            return None
        if queue.views is not None:
            return self._why_unseen(queue, statistics)
        if not queue.rota.tiers:
            return self._no_consumers(queue)
        if self._rates.has_moved(queue):
            return None
        return self._why_undelivered(queue, statistics)

    def _set_aside(self, queue: Queue, statistics: QueueStatistics) -> Stall | None:
        """Return why a queue does not move that has nothing to give, if all of it waits."""
        if not statistics.aside or statistics.delivering:
            return None
        scheduled = self._fates.schedule.waiting.count(queue.id)
        others = statistics.aside - scheduled
        parts = [f"{_counted(scheduled, 'message is', 'messages are')} scheduled for later"]
        if others > 0:
            waits = _counted(others, "message waits", "messages wait")
            parts.append(f"{waits} for a redelivery delay or on the way to another address")
        return Stall(
            StallReason.SCHEDULED,
            " and ".join(parts if scheduled else parts[1:]),
            f"wait, or `vespiary queue deliver-scheduled {queue.name}`; `vespiary browse "
            f"{queue.name} --scheduled` shows them",
        )

    def _unmovable(self, queue: Queue) -> Stall | None:
        """Return the stall of a queue that has messages which cannot be moved elsewhere."""
        mover, kept = self._fates.mover, self._fates.redelivery.kept.count(queue.id)
        waiting, obstacle = mover.hindered(queue.id)
        obstacle = obstacle or mover.obstacle(queue.id)
        if not kept + waiting or obstacle is None:
            return None
        count = _counted(kept + waiting, "message", "messages")
        after = "" if waiting else ", and waits to be delivered again"
        if kept + waiting > 1:
            after = after.replace("waits", "wait")
        return Stall(
            StallReason.UNMOVABLE, f"{count} cannot be moved{obstacle.text}{after}", obstacle.cure
        )

    def _why_unseen(self, queue: Queue, statistics: QueueStatistics) -> Stall | None:
        """Return why a non-destructive queue does not move: its messages stay, seen or not."""
        unseen = [
            consumer
            for consumer in queue.consumers
            if consumer.view is not None
            and (consumer.view.behind or consumer.view.cursor < statistics.available)
        ]
        if not unseen or self._rates.has_moved(queue) or any(map(self._takes, unseen)):
            return None
        return self._no_credit(queue, unseen)

    def _why_undelivered(self, queue: Queue, statistics: QueueStatistics) -> Stall | None:
        served = [consumer for tier in queue.rota.tiers for consumer in tier]
        takers = [consumer for consumer in served if self._takes(consumer)]
        alone = self._why_alone(queue, served, takers)
        if alone is not None:
            return alone
        if not takers:
            return self._no_credit(queue, served)
        examined = queue.examined
        if examined is not None and examined.has_unlooked:
            return None
        if self._dispatcher.is_loading(queue.id):
            return _unread(queue, statistics)
        if examined is not None:
            return self._why_unwanted(queue, examined, takers)
        return _unread(queue, statistics) if statistics.paged else None

    def _why_alone(
        self, queue: Queue, served: Sequence[Consumer], takers: Sequence[Consumer]
    ) -> Stall | None:
        """Return why an exclusive consumer stalls a queue that others would take from."""
        if len(served) == len(queue.consumers):
            return None
        if takers and not self._is_unwanted(queue, takers):
            return None
        if not any(self._takes(one) for one in queue.consumers if one not in served):
            return None
        return Stall(
            StallReason.EXCLUSIVE_CONSUMER,
            f"connection {served[0].output.handle} consumes exclusively and takes no message; "
            f"{_counted(len(queue.consumers) - 1, 'other consumer gets', 'other consumers get')} "
            "nothing",
            f"close it (`vespiary connection close {served[0].output.handle}`), and another one "
            "takes over",
        )

    def _why_unwanted(
        self, queue: Queue, examined: ExaminedQueue, takers: Sequence[Consumer]
    ) -> Stall | None:
        """Return why consumers that would take messages get none of an examined queue."""
        owners = examined.blocking_owners(takers)
        if not owners and examined.may_give and any(map(examined.waiting, takers)):
            return None
        if owners or examined.has_left or examined.is_rebalancing:
            names = ", ".join(str(one.output.handle) for one in owners[:3])
            whose = f" of connection {names}" if names else ""
            return Stall(
                StallReason.GROUP_OWNER,
                f"the messages belong to message groups{whose} whose consumer takes none now",
                f"`vespiary queue groups {queue.name}` shows the owners, and with --release "
                "the groups find other consumers",
            )
        served = [consumer for tier in queue.rota.tiers for consumer in tier]
        wanting = [one for one in served if one not in takers and examined.waiting(one)]
        if wanting:
            return self._no_credit(queue, wanting)
        if not self._is_unwanted(queue, takers):
            return None
        return Stall(
            StallReason.NO_SELECTOR_MATCH,
            "no message matches the selector of a consumer that takes messages"
            + (", or its user may not consume it" if any(one.guard for one in takers) else ""),
            "start a consumer whose selector matches, or one without a selector; "
            f"`vespiary browse {queue.name}` shows the messages, "
            f"`vespiary consumer list --queue {queue.name}` the selectors",
        )

    def _is_unwanted(self, queue: Queue, takers: Sequence[Consumer]) -> bool:
        """Whether no message of a queue matches what these consumers want."""
        examined = queue.examined
        return examined is not None and all(
            consumer.wanted is not None and not examined.waiting(consumer) for consumer in takers
        )

    def _no_credit(self, queue: Queue, consumers: Sequence[Consumer]) -> Stall:
        count = len(consumers)
        whose = "its consumer takes no" if count == 1 else f"none of its {count} consumers takes a"
        unread = sum(self._dispatcher.is_output_full(one.output, queue.id) for one in consumers)
        listing = f"`vespiary consumer list --queue {queue.name}` shows credit"
        if not unread and not any(map(self._held, consumers)):
            clients = "the client has" if count == 1 else "the clients have"
            return Stall(
                StallReason.NO_CREDIT,
                f"{whose} message: {clients} granted no credit",
                f"see whether {'it receives' if count == 1 else 'they receive'}; {listing}",
            )
        text = f"{whose} message: no credit, or as many messages unacknowledged as it may hold"
        if unread:
            text += f"; {_counted(unread, 'client does', 'clients do')} not read the connection, "
            text += "or not acknowledge"
        return Stall(
            StallReason.NO_CREDIT,
            text,
            f"{listing} and messages held; "
            f"`vespiary connection close --queue {queue.name}` gives what they hold to others",
        )

    def _held(self, consumer: Consumer) -> int:
        """Return how many messages a consumer has that it has not acknowledged."""
        view = consumer.view
        return self._core.held_count(consumer.handle) if view is None else view.held

    def _no_consumers(self, queue: Queue) -> Stall:
        browse = f"`vespiary browse {queue.name}` shows the messages"
        wanted, count = queue.kind.consumers_before_dispatch, len(queue.consumers)
        text, cure = "it has no consumers", f"start a consumer; {browse}"
        if count:
            text = f"it has {_counted(count, 'consumer', 'consumers')} and waits for {wanted} "
            text += "(consumers-before-dispatch)"
        elif queue.client_id:
            text = f"its client (client id {queue.client_id}) is not connected"
            cure = f"start this client, or `vespiary queue delete {queue.name}` if it is gone for "
            cure += f"good; {browse}"
        elif self._registry.is_last_resort(queue.address.name):
            cure = f"{browse}, and `vespiary queue retry {queue.name}` moves them back"
        return Stall(StallReason.NO_CONSUMERS, text, cure)

    def _takes(self, consumer: Consumer) -> bool:
        """Whether a consumer takes a message now, as far as its client is concerned."""
        if remaining_credit(self._core, consumer) == 0:
            return False
        return not self._dispatcher.is_output_full(consumer.output, consumer.queue.id)


def _graver(stall: Stall, milder: Stall | None) -> Stall:
    """Return a stall that only an operator can end, with what else holds up the same place."""
    if milder is None:
        return stall
    # What is scheduled comes later in any case, and a delay before a move says nothing of its own.
    if milder.reason is StallReason.SCHEDULED:
        return stall

    def cures() -> str:
        return f"{stall.cure}; then {milder.cure}"

    text = f"{stall.text}; besides, {milder.text}"
    return Stall(stall.reason, text, cures, milder.blocked_producers)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _paused(kind: str, name: str) -> Stall:
    return Stall(
        StallReason.PAUSED,
        f"the {kind} {name} is paused" if kind == "address" else "it is paused",
        f"`vespiary {kind} resume {name}`",
    )


def _in_queue(statistics: QueueStatistics) -> bool:
    """Whether a queue has messages to give."""
    return statistics.ready + statistics.paged - statistics.paged_prepared > 0


def _unread(queue: Queue, statistics: QueueStatistics) -> Stall:
    if not statistics.paged:
        return Stall(
            StallReason.MEMORY,
            "its next message is in the journal, and was not read into memory yet",
            "raise global-max-size if memory is full; the log says whether the file can be read",
        )
    count = _counted(statistics.paged, "message is", "messages are")
    return Stall(
        StallReason.PAGED,
        f"{count} in pages, and the next one was not read into memory yet",
        f"`vespiary address show {queue.address.name}` shows memory and pages; the log says "
        "whether a page can be read",
    )

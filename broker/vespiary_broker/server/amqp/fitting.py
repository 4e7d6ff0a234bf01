"""Messages that are larger than a link takes: its client's `max-message-size`.

Owns what such a link is given, and what is said of the rest, which stays for others (decision
0048). Must never lose a message: one that is passed over is where it was. Called by `sending` and
`browsing`; owner: a connection.

A link that has met the first one has its queue examined from then on (`engine.examined`), so that
what is too large is passed over without being given, wherever it stands. What cannot be judged
before it is given (a reference that is not in memory, a count that takes more bytes by then) is
excluded by its sequence; a link with too many of these is detached.

Source: AMQP 1.0 (OASIS, 2012) §2.7.3.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.lanes import Match
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.exclusion import EXCLUDED_MAX, Excluding, take_match
from vespiary_broker.server.amqp.restoring import head_of, tail_of
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.stored_message import StoredMessage

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.sending import OutgoingLink

_WIDER: Final = 4
_ADDED_BYTES: Final = 1024
"""Sections take at most so much more than the lines that they are made of: nothing is reckoned."""


def size_of(
    message: StoredMessage,
    queue_id: int,
    now_ms: int,
    body_bytes: int,
    prefixes: tuple[str, str],
) -> int:
    """Return how many bytes a message has as it goes out.

    Args:
        message: The message; its body is not looked at.
        queue_id: Its queue.
        now_ms: Milliseconds since 1970.
        body_bytes: Bytes of its body.
        prefixes: Of queues and of topics, as the client knows them.
    """
    head = head_of(message, queue_id, now_ms, body_bytes, prefixes=prefixes)
    return len(head) + body_bytes + len(tail_of(message))


class Fitting(Excluding):
    """What a consumer wants, but for what is too large for it; keeps `lanes.Match`.

    Args:
        before: Its selector; None: all.
        core: The core.
        queue_id: Its queue.
        size_bytes_max: Largest message that it takes.
        prefixes: Of queues and of topics, as its client knows them.
    """

    def __init__(
        self,
        before: Match | None,
        core: Core,
        queue_id: int,
        size_bytes_max: int,
        prefixes: tuple[str, str],
    ) -> None:
        super().__init__(before)
        self._prefixes = prefixes
        self._core = core
        self._queue_id = queue_id
        self._size_bytes_max = size_bytes_max

    @property
    def is_full(self) -> bool:
        """Whether no more messages can be excluded without forgetting some."""
        return len(self.excluded) >= EXCLUDED_MAX

    def wants(self, message: MessageView) -> bool:
        """Return whether a message may be given."""
        return super().wants(message) and not self._is_too_large(message)

    def _is_too_large(self, message: MessageView) -> bool:
        """Whether a message is seen to be too large; what is not seen, `OutgoingLink` measures."""
        body_bytes, most = message.body_length, self._size_bytes_max
        if message.is_large:
            stored = self._core.body(self._queue_id, message.sequence)
            if stored is None:
                return False
            body_bytes = decode_large_reference(stored).size_bytes
        if body_bytes > most:
            return True
        if body_bytes + _WIDER * len(message.properties) + _ADDED_BYTES <= most:
            return False
        stored_message = StoredMessage(
            message.sequence, message.time_ms, message.deliveries, message.priority,
            message.protocol, message.is_escaped, message.properties, b"",
        )  # fmt: skip
        size_bytes = size_of(
            stored_message, self._queue_id, message.time_ms, body_bytes, self._prefixes
        )
        return size_bytes > most


class TooLarge:
    """The messages that one link was given and cannot be sent.

    It does not refer to the link, which has it: the two would be a cycle.

    Attributes:
        size_bytes_max: Largest message that the link takes; 0: of any size.

    Args:
        size_bytes_max: Largest message that the link takes; 0: of any size.
    """

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        self._waiting: list[int] = []
        self._is_said = False

    @property
    def is_busy(self) -> bool:
        """Whether some are about to be passed over: nothing more is given until then."""
        return bool(self._waiting)

    def is_one(self, size_bytes: int) -> bool:
        """Return whether a message is larger than the link takes."""
        return 0 < self.size_bytes_max < size_bytes

    def say(self, link: OutgoingLink, sequence: int, size_bytes: int) -> None:
        """Log the first one."""
        if self._is_said:
            return
        self._is_said = True
        link.session.connection.note_line(
            "a message is larger than max-message-size of a link, and stays for others"
            " peer=%s link=%a queue_id=%d sequence=%d measured=%d bytes, allowed=%d bytes;"
            " no more is said of this link",
            *(link.name[:100], link.queue_id, sequence, size_bytes, self.size_bytes_max),
            level=logging.WARNING,
        )

    def pass_over(self, link: OutgoingLink, sequence: int, size_bytes: int) -> None:
        """Have a message that the link was given be passed over, behind the dispatch under way.

        Until then the link holds it: it goes back with it if that ends before.

        Durability: none by itself; the message is not acknowledged, and stays where it is.
        """
        self.say(link, sequence, size_bytes)
        if not self._waiting:
            link.session.cycle.loop.call_soon(self._put_back, link)
        self._waiting.append(sequence)

    def _put_back(self, link: OutgoingLink) -> None:
        waiting, self._waiting = self._waiting, []
        consumer = link.consumer
        if consumer is None or not consumer.is_open:
            return  # they went back with it, or it only browses
        is_full = False
        for sequence in waiting:
            if consumer.view is not None:
                consumer.view.acknowledge(sequence)  # it takes nothing: it goes on behind it
                continue
            match = consumer.match
            if not isinstance(match, Fitting):
                match = self._judge_by_size(link)
            is_full = is_full or match.is_full
            if not is_full:
                match.add(sequence)
            link.session.cycle.engine.registry.returns.release(consumer, sequence)
        if is_full:
            link.refuse(
                Refused(
                    Condition.MESSAGE_SIZE_EXCEEDED,
                    "the link has passed over too many messages larger than its max-message-size",
                    measured=f"more than {EXCLUDED_MAX} messages",
                    allowed=f"messages of at most {self.size_bytes_max} bytes",
                    cure="attach again with a larger max-message-size, or with a selector",
                )
            )
            return
        link.go_on()

    def _judge_by_size(self, link: OutgoingLink) -> Fitting:
        """Have the consumer's queue be examined, and what is too large for it be passed over."""
        session, consumer = link.session, link.consumer
        assert consumer is not None
        core, registry = session.cycle.core, session.cycle.engine.registry
        prefixes = session.handler.prefixes
        match = Fitting(consumer.match, core, consumer.queue.id, self.size_bytes_max, prefixes)
        take_match(core, registry.judge, consumer, match)
        return match
